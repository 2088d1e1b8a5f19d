"""The settings that the TRL adapter adds, and the TRL versions it was tried with."""

import dataclasses
import logging
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet
from torch import nn

from lldlib.config import LossConfig, check
from lldlib.losses import needs
from lldlib.losses.objective import REGULARIZERS

logger = logging.getLogger(__name__)
VERSIONS = SpecifierSet(">=1.16,<1.17")
WANTED = f"lldlib.adapters.trl was tried with TRL {VERSIONS}: pip install 'trl{VERSIONS}'"
METHODS = (  # of GRPOTrainer, most of them private, that the adapter overrides or calls
    *("_calculate_rewards", "_generate_and_score_completions", "_prepare_inputs"),
    *("_get_per_token_logps_and_entropies", "_compute_loss", "_get_grad_norm"),
    *("_get_learning_rate", "get_off_policy_mask"),
)


def check_version() -> None:
    """Raise ImportError where TRL is missing; warn of a version that was not tried."""
    try:
        found = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise ImportError(f"TRL is not installed; {WANTED}") from None
    if found not in VERSIONS:
        logger.warning("TRL %s is installed; %s", found, WANTED)


def check_methods(trainer: type) -> None:
    """Raise ImportError, naming the first, where the trainer lacks a method that is needed."""
    for name in METHODS:
        if not hasattr(trainer, name):
            found = metadata.version("trl")
            raise ImportError(f"TRL {found} has no {trainer.__name__}.{name}; {WANTED}")


check_version()

from trl import GRPOConfig, GRPOTrainer  # noqa: E402

check_methods(GRPOTrainer)

# the terms that TRL lacks, which are those with a knob in the lab
OFFERED = [term for term in REGULARIZERS if term.symbol]
SETTINGS = {
    setting.name: setting
    for setting in dataclasses.fields(LossConfig)
    if any(setting.name.startswith(f"{term.name}_") for term in OFFERED)
}
# what a term may read here; the KL's reference only where TRL has one (beta)
GIVEN = {"entropy", "proxy_logp", "low_logp", "mean_valid_searches"}
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

    A measured rollout batch costs two more passes without gradient: the batch after its updates
    and the probe set. With `measure_every` 0 and all weights 0 a step is TRL's own.

    Raises ValueError for a setting out of its range; where LLDS would be zero at every update: it
    needs several optimiser updates per rollout batch; for a term where an update would mix rollout
    batches; for a term that reads what TRL does not hand on; and for a `run_folder` that nothing
    would be written to.
    """

    run_folder: str | None = field(
        default=None, metadata={"help": "lldlib's run folder to write; None: TRL's logs only"}
    )
    measure_every: int = field(
        default=1,
        metadata={"help": "rollout batches between two that are measured; 0: none is"},
    )

    def __post_init__(self):
        super().__post_init__()
        check(self.terms)
        if self.measure_every < 0:
            raise ValueError(f"measure_every is {self.measure_every}: use 1 or more, or 0 (never)")
        if self.active:
            self._check_terms()
        elif not self.aligned and self.measure_every:
            self.measure_every = 0
            logger.warning("nothing is measured: %s", self._misaligned())
        if self.run_folder is not None and not self.measure_every:
            raise ValueError(
                "run_folder needs measurements: set measure_every to 1 or more, and "
                "steps_per_generation to a multiple of gradient_accumulation_steps"
            )

    def _check_terms(self) -> None:
        accumulated = self.gradient_accumulation_steps
        if not self.aligned:
            raise ValueError(self._misaligned())
        if self.lp_reg_coef and self.lp_reg_kl == "exact":
            raise ValueError("TRL hands no logits to the loss: use lp_reg_kl='sample'")
        given = GIVEN | ({"ref_logp"} if self.beta else set())
        if missing := sorted(needs(self.terms) - given):
            raise ValueError(
                f"{', '.join(self.active)}: TRL hands no {', '.join(missing)} to the loss; "
                "give the term weight 0" + (", or set beta" if "ref_logp" in missing else "")
            )
        if self.llds_coef and self.updates_per_batch == 1:
            raise ValueError(
                f"LLDS would be 0 at every update: with gradient_accumulation_steps={accumulated}, "
                f"steps_per_generation={self.steps_per_generation}, "
                f"num_iterations={self.num_iterations} a rollout "
                f"batch gets one update; set steps_per_generation={10 * accumulated} (10 updates, "
                "as Search-R1) or num_iterations=2"
            )
        if self.loss_type in NO_TOKEN_MEAN:
            logger.warning(
                "loss_type=%r is no token mean, and LLDS and Lp-Reg are: to keep their weights as "
                "under 'dapo', multiply them by %s",
                self.loss_type,
                NO_TOKEN_MEAN[self.loss_type],
            )

    def _misaligned(self) -> str:
        accumulated = self.gradient_accumulation_steps
        return (
            f"steps_per_generation={self.steps_per_generation} is no multiple of "
            f"gradient_accumulation_steps={accumulated}: an update would mix rollout batches; "
            f"set {10 * accumulated}"
        )

    @property
    def aligned(self) -> bool:
        """Whether every update is of one rollout batch; TRL itself allows others."""
        return self.steps_per_generation % self.gradient_accumulation_steps == 0

    @property
    def updates_per_batch(self) -> int:
        """Optimiser updates per rollout batch."""
        return self.steps_per_generation // self.gradient_accumulation_steps * self.num_iterations

    @property
    def terms(self) -> LossConfig:
        """The settings of the added terms; the policy term and the KL are TRL's."""
        return LossConfig(kl_coef=0.0, **{name: getattr(self, name) for name in SETTINGS})

    @property
    def reads_text(self) -> bool:
        """Whether a term may read spans or searches; LLDS without MA, and Lp-Reg, do not."""
        spanless = {"lp_reg"} | ({"llds"} if self.llds_answer == "none" else set())
        return not spanless.issuperset(self.active)

    @property
    def active(self) -> list[str]:
        """Names of the added terms whose weight is not 0."""
        return [term.name for term in OFFERED if term.weight(self.terms)]


def check_trainer(trainer: Any) -> None:
    """ValueError, in one line, for what makes the terms or our rollouts meaningless.

    Only measured, dropout is warned of: a displacement then holds its noise.
    """
    if trainer.mask_truncated_completions and getattr(trainer.rollout_func, "ends_in_tag", False):
        raise ValueError(
            "mask_truncated_completions=True would mask every episode of search_rollout, since "
            "they end in </answer> and not in EOS: set it to False"
        )
    found = dropout(trainer.model)
    if found is None or not (trainer.active or trainer.args.measure_every):
        return
    name, rate = found
    problem = f"dropout ({name} {rate:g}) moves log-probs by chance, and that counts as likelihood"
    remedy = f"set disable_dropout=True, or {name.rsplit('.', 1)[-1]} to 0 in the model's config"
    if trainer.active:
        raise ValueError(f"{problem} lost: {remedy}")
    logger.warning("%s lost or won: %s", problem, remedy)


def dropout(model: nn.Module) -> tuple[str, float] | None:
    """Name and rate of a part of the model that drops out while it trains; None: none does."""
    for name, module in model.named_modules():
        for setting, rate in vars(module).items():
            named = "dropout" in setting or (setting == "p" and "Dropout" in type(module).__name__)
            if named and isinstance(rate, float) and rate > 0:
                return (name if setting == "p" else f"{name}.{setting}"), rate
    return None
