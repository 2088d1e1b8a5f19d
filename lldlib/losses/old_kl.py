"""A plain KL to the old policy: a causal control of LLDS."""

from lldlib.config import LossConfig
from lldlib.losses.kl import kl_to_reference
from lldlib.losses.llds import preserved_mask
from lldlib.losses.term import (
    NATS,
    Counts,
    LossInputs,
    Metric,
    Term,
    Value,
    action_mean,
    aggregate,
    logged_mean,
)


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    """Over the preserved rows, if the config says so, as a token mean like LLDS's."""
    term = kl_to_reference(x.logp, x.old_logp, x.action_mask, config.kl_estimator)
    if config.old_kl_rows == "preserved":
        mask = preserved_mask(x.advantages, x.action_mask, config.llds_preserve)
        value = aggregate(term, mask, "token-mean", None if counts is None else counts.preserved)
        return value, {"kl/old": value}
    return action_mean(term, config, x, counts), {"kl/old": logged_mean(term, x, counts)}


OLD_KL = Term(
    "old_kl",
    "old_kl_coef",
    _value,
    metrics={
        "kl/old": Metric(
            "KL to the old policy",
            "mean over updates of the estimated KL(policy || old policy)",
            NATS,
            "well under 0.1",
        )
    },
)
