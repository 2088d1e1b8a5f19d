"""The settings that the TRL adapter adds, and the TRL versions it was tried with."""

import dataclasses
import logging
from dataclasses import dataclass, field
from importlib import metadata

from packaging.specifiers import SpecifierSet

from lldlib.config import LossConfig
from lldlib.losses.objective import REGULARIZERS

logger = logging.getLogger(__name__)
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

# the terms that TRL lacks, which are those with a knob in the lab
OFFERED = [term for term in REGULARIZERS if term.symbol]
SETTINGS = {
    setting.name: setting
    for setting in dataclasses.fields(LossConfig)
    if any(setting.name.startswith(f"{term.name}_") for term in OFFERED)
}
# by loss_type: how many times a token mean the policy term is
NO_TOKEN_MEAN = {"dr_grpo": "mean length / max_completion_length", "luspo": "mean length"}
TermSettings = dataclasses.make_dataclass(
    "TermSettings",
    [
        (name, s.type, field(default=s.default, metadata={"help": "see lldlib.config.LossConfig"}))
        for name, s in SETTINGS.items()
    ],
    bases=(GRPOConfig,),
)


@dataclass
class LLDGRPOConfig(TermSettings):
    """GRPOConfig with LLDS and Lp-Reg: `llds_*` and `lp_reg_*` of `lldlib.config.LossConfig`.

    Both are token means over the update. TRL's policy term is one too (or a mean of the rows'
    token means), but times mean length / max_completion_length under `loss_type` "dr_grpo", and
    times the mean length under "luspo": the weights want that factor there, and a warning says so.

    Raises ValueError where LLDS would be zero at every update: it needs several optimiser updates
    per rollout batch; and for `lp_reg_kl` "exact", which takes logits that TRL does not hand on.
    """

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
        if self.lp_reg_kl == "exact":
            raise ValueError("TRL hands no logits to the loss: use lp_reg_kl='sample'")
        if self.llds_coef and self.updates_per_batch == 1:
            raise ValueError(
                f"LLDS would be 0 at every update: with gradient_accumulation_steps={accumulated}, "
                f"steps_per_generation={split}, num_iterations={self.num_iterations} a rollout "
                f"batch gets one update; set steps_per_generation={10 * accumulated} (10 updates, "
                "as Search-R1) or num_iterations=2"
            )

        if self.loss_type in NO_TOKEN_MEAN and any(term.weight(self.terms) for term in OFFERED):
            logger.warning(
                "loss_type=%r is no token mean, and LLDS and Lp-Reg are: to keep their weights as "
                "under 'dapo', multiply them by %s",
                self.loss_type,
                NO_TOKEN_MEAN[self.loss_type],
            )

    @property
    def updates_per_batch(self) -> int:
        """Optimiser updates per rollout batch."""
        return self.steps_per_generation // self.gradient_accumulation_steps * self.num_iterations

    @property
    def terms(self) -> LossConfig:
        """The settings of the added terms; the policy term and the KL are TRL's."""
        return LossConfig(kl_coef=0.0, **{name: getattr(self, name) for name in SETTINGS})
