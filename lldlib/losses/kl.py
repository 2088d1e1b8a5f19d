"""The KL to the reference policy, by four estimators."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses.term import (
    KL_LIMIT,
    NATS,
    Counts,
    LossInputs,
    Metric,
    Term,
    Value,
    action_mean,
    log_ratio,
    logged_mean,
)

Estimator = Literal["k1", "k2", "k3", "low_var_kl"]


def kl_to_reference(
    logp: Float[Tensor, "B T"],
    ref_logp: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"] | None = None,
    estimator: Estimator = "k3",
) -> Float[Tensor, "B T"]:
    """Per-token one-sample estimate of KL(policy || reference), in nats.

    With d = ref_logp - logp, clamped to +-20, and tokens sampled by the policy: k1 = -d and
    k3 = e^d - d - 1 are unbiased; k2 = d^2 / 2 is biased (close only near 0), yet its gradient is
    unbiased. k3 is GRPO's (2402.03300 Eq. 4). "low_var_kl" is k3 cut off at 10, as the code of
    Search-R1 and verl computes it: past d = 2.6 a token has no gradient, where k3's grows as e^d
    and one forgotten token can end a run. `ref_logp` is a constant; with the old policy's
    log-probs in its place this is a plain KL to the old policy. No mask: every token. Raises
    ValueError on an unknown estimator.
    """
    mask = torch.ones_like(logp, dtype=torch.bool) if action_mask is None else action_mask
    d = -log_ratio(logp, ref_logp, mask)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d.square() / 2
    if estimator == "k3":
        return d.exp() - d - 1
    if estimator == "low_var_kl":
        return (d.exp() - d - 1).clamp(max=KL_LIMIT)
    raise ValueError(f"unknown KL estimator {estimator!r}: use 'k1', 'k2', 'k3' or 'low_var_kl'")


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    term = kl_to_reference(x.logp, x.ref_logp, x.action_mask, config.kl_estimator)
    value = action_mean(term, config, x, counts)
    return value, {"kl/reference": logged_mean(term, x, counts)}


KL = Term(
    "kl",
    "kl_coef",
    _value,
    needs=lambda config: {"ref_logp"},
    metrics={
        "kl/reference": Metric(
            "KL to the reference",
            "mean over updates of the estimated KL(policy || reference)",
            NATS,
            "grows slowly; a jump comes with the collapse",
        )
    },
)
