"""The entropy bonus, which holds entropy up."""

from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses.term import Counts, LossInputs, Term, Value, action_mean, keep


def entropy_bonus(
    entropy: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Per-token minus entropy, in nats: in a loss, with a positive weight, it raises entropy."""
    return keep(-entropy, action_mask)


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    return action_mean(entropy_bonus(x.entropy, x.action_mask), config, x, counts), {}


ENTROPY = Term("entropy", "entropy_coef", _value, needs=lambda config: {"entropy"})
