"""SAPO for search agents: a pull on tokens of good rows whose ratio has fallen far, 2603.10069.

Not the Soft Adaptive Policy Optimization of 2511.20347, which has the same letters.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import LossConfig, Preserve
from lldlib.losses.llds import preserved_mask
from lldlib.losses.term import (
    NATS,
    SMALL,
    Counts,
    LossInputs,
    Metric,
    Number,
    Term,
    Value,
    aggregate,
    keep,
    log_ratio,
)


def sapo_penalty(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
    *,
    ratio: Number,
    preserve: Preserve = "nonnegative",
) -> Float[Tensor, "B T"]:
    """Per-token old_logp - logp, in nats, of preserved tokens with exp(logp - old_logp) <= `ratio`.

    Only tokens that fell count, so at `ratio` 1 it is LLDS with the gate "token"; under 1 it leaves
    small falls alone. Preserved: see `preserved_mask`; to be divided by their number. Source: SAPO
    2603.10069, its conditional KL to the old policy, with A >= 0, as a reader's notes give its
    code; the paper's threshold and weight could not be had.
    """
    change = log_ratio(logp, old_logp, action_mask)
    preserved = preserved_mask(advantages, action_mask, preserve)
    return keep(-change, preserved & (change < 0) & (change.exp() <= ratio))


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    term = sapo_penalty(
        x.logp,
        x.old_logp,
        x.advantages,
        x.action_mask,
        ratio=config.sapo_ratio,
        preserve=config.llds_preserve,
    )
    mask = preserved_mask(x.advantages, x.action_mask, config.llds_preserve)
    count = None if counts is None else counts.preserved
    value = aggregate(term, mask, "token-mean", count)
    return value, {"sapo/value": value}


SAPO = Term(
    "sapo",
    "sapo_coef",
    _value,
    metrics={
        "sapo/value": Metric("SAPO", "mean over updates of the SAPO term, before w", NATS, SMALL)
    },
)
