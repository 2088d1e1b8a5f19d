"""The settings that the TRL adapter adds, and the TRL versions it was tried with."""

import dataclasses
from dataclasses import dataclass, field
from importlib import metadata
from typing import Literal

from packaging.specifiers import SpecifierSet

from lldlib.config import AnswerSchedule, Gate, LossConfig, Preserve

VERSIONS = SpecifierSet(">=1.16,<1.17")  # the adapter overrides private methods of GRPOTrainer


def check_version() -> None:
    """Raise ImportError, naming the range, where TRL is missing or outside it."""
    wanted = f"lldlib.adapters.trl was tried with TRL {VERSIONS}: pip install 'trl{VERSIONS}'"
    try:
        found = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise ImportError(f"TRL is not installed; {wanted}") from None
    if found not in VERSIONS:
        raise ImportError(f"TRL {found} is installed; {wanted}")


check_version()

from trl import GRPOConfig  # noqa: E402

TERMS = [f.name for f in dataclasses.fields(LossConfig) if f.name.startswith(("llds_", "lp_reg_"))]


@dataclass
class LLDGRPOConfig(GRPOConfig):
    """GRPOConfig with LLDS and Lp-Reg, named and defined as in `lldlib.config.LossConfig`.

    Raises ValueError where LLDS would be zero at every update: it needs several optimiser updates
    per rollout batch.
    """

    llds_coef: float = field(default=0.0, metadata={"help": "lambda of LLDS"})
    llds_gate: Gate = field(default="action", metadata={"help": "where LLDS may act"})
    llds_preserve: Preserve = field(
        default="nonnegative", metadata={"help": "rows LLDS keeps: A >= 0 (paper) or A > 0"}
    )
    llds_normalizer: Literal["preserved", "all"] = field(
        default="preserved",
        metadata={"help": "divisor: tokens of the rows it keeps (paper) or all (code)"},
    )
    llds_answer: AnswerSchedule = field(
        default="none", metadata={"help": "LLDS-MA's weight on answer tokens"}
    )
    lp_reg_coef: float = field(default=0.0, metadata={"help": "beta of Lp-Reg"})
    lp_reg_selection: Literal["paper", "code"] = field(
        default="paper", metadata={"help": "tokens that the low quantile is taken over"}
    )
    lp_reg_quantile: float = field(
        default=0.01, metadata={"help": "rho: share of tokens counted as low-probability"}
    )
    lp_reg_filter: Literal["min-p", "fixed"] = field(
        default="min-p", metadata={"help": "how the proxy drops noise tokens"}
    )
    lp_reg_threshold: float = field(default=0.02, metadata={"help": "kappa (min-p) or tau (fixed)"})
    run_folder: str | None = field(
        default=None, metadata={"help": "lldlib's run folder to write; None: TRL's logs only"}
    )

    def __post_init__(self):
        super().__post_init__()
        accumulated, split = self.gradient_accumulation_steps, self.steps_per_generation
        if split % accumulated:
            raise ValueError(
                f"steps_per_generation={split} is no multiple of gradient_accumulation_steps="
                f"{accumulated}: an update would mix rollout batches; set {10 * accumulated}"
            )
        if self.llds_coef and self.updates_per_batch == 1:
            raise ValueError(
                f"LLDS would be 0 at every update: with gradient_accumulation_steps={accumulated}, "
                f"steps_per_generation={split}, num_iterations={self.num_iterations} a rollout "
                f"batch gets one update; set steps_per_generation={10 * accumulated} (10 updates, "
                "as Search-R1) or num_iterations=2"
            )

    @property
    def updates_per_batch(self) -> int:
        """Optimiser updates per rollout batch."""
        return self.steps_per_generation // self.gradient_accumulation_steps * self.num_iterations

    @property
    def terms(self) -> LossConfig:
        """The regularizers' settings; the policy term is TRL's."""
        return LossConfig(kl_coef=self.beta, **{name: getattr(self, name) for name in TERMS})
