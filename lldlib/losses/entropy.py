"""Terms that hold entropy up or the policy near: entropy bonus, KLs, KL-Cov, 80/20, Clip-Cov."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses.llds import preserved_mask
from lldlib.losses.term import (
    KL_LIMIT,
    NATS,
    Counts,
    LossInputs,
    Metric,
    Number,
    RowOrToken,
    Stats,
    Term,
    action_mean,
    aggregate,
    keep,
    log_ratio,
    logged_mean,
    per_token,
    rounded_up,
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


def entropy_bonus(
    entropy: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Per-token minus entropy, in nats: in a loss, with a positive weight, it raises entropy."""
    return keep(-entropy, action_mask)


def top_entropy_mask(
    entropy: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], share: Number
) -> Bool[Tensor, "B T"]:
    """(B, T) the `share` of the batch's action tokens with the highest entropy, rounded up.

    Ties at the edge are all kept, so that the result does not hang on the order of rows: where a
    policy is sure, many tokens have the same entropy. Not so 80/20 in the Lp-Reg repository: it
    rounds down, to at least one token, breaks ties, and divides the policy term by the kept tokens
    alone (`compute_loss` divides by all). Raises ValueError on a share outside (0, 1]. Source:
    80/20, 2506.01939 (share 0.2).
    """
    _check_share(share)
    entropy = entropy.detach()
    values = entropy[action_mask].sort(descending=True).values
    if len(values) == 0:
        return action_mask
    return action_mask & (entropy >= values[rounded_up(share, len(values)) - 1])


def kl_cov_penalty(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    share: Number,
) -> Float[Tensor, "B T"]:
    """Per-token |logp - old_logp| on the `share` of tokens with the largest covariance, in nats.

    Covariance: `token_covariance`. Of n action tokens the max(1, int(share n)) largest are taken,
    as in the official code; of equal ones, which all are where no advantages differ, the first.
    Raises ValueError on a share outside (0, 1]. Source: KL-Cov, 2505.22617 (share 0.002, weight 1;
    its official policy term has no clip).
    """
    _check_share(share)
    covariance = token_covariance(logp, advantages, action_mask)
    values = covariance[action_mask]
    count = max(1, int(share * len(values)))
    largest = torch.zeros_like(values, dtype=torch.bool)
    largest[values.argsort(descending=True, stable=True)[:count]] = True
    selected = action_mask.masked_scatter(action_mask, largest)
    return log_ratio(logp, old_logp, selected).abs()


def clip_cov_mask(
    logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    share: Number,
    low: Number = 1.0,
    high: Number = 5.0,
    generator: torch.Generator,
) -> Bool[Tensor, "B T"]:
    """(B, T) tokens whose policy gradient Clip-Cov drops: random ones with low < covariance < high.

    At most `share` of the batch's action tokens, rounded down, and at least one if any qualifies,
    as in the official code: of a small batch that one is far more than the share (of 100 tokens
    1 %). (The official code does not draw tokens that the ratio clip has silenced already.)
    Source: Clip-Cov, 2505.22617 (share 2e-4, bounds 1 and 5).
    """
    covariance = token_covariance(logp, advantages, action_mask)
    candidates = (action_mask & (covariance > low) & (covariance < high)).flatten().nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=generator, device=generator.device)
    count = max(int(share * int(action_mask.sum())), 1)
    dropped = torch.zeros(action_mask.numel(), dtype=torch.bool, device=action_mask.device)
    dropped[candidates[order[:count].to(candidates.device)]] = True
    return dropped.view(action_mask.shape)


def token_covariance(
    logp: Float[Tensor, "B T"], advantages: RowOrToken, action_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """(B, T) (logp - its mean) (A - its mean), means over the batch's action tokens; no gradient.

    The token's share in the covariance that drives entropy down (2505.22617).
    """
    count = action_mask.sum().clamp(min=1)
    logp = keep(logp.detach(), action_mask)
    advantage = keep(per_token(advantages, action_mask), action_mask)
    product = (logp - logp.sum() / count) * (advantage - advantage.sum() / count)
    return keep(product, action_mask)


def _check_share(share: Number) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}: give a share of tokens in (0, 1]")


# -- the terms -----------------------------------------------------------------------------------


def _entropy_value(
    config: LossConfig, x: LossInputs, counts: Counts | None
) -> tuple[Float[Tensor, ""], Stats]:
    return action_mean(entropy_bonus(x.entropy, x.action_mask), config, x, counts), {}


def _kl_value(
    config: LossConfig, x: LossInputs, counts: Counts | None
) -> tuple[Float[Tensor, ""], Stats]:
    term = kl_to_reference(x.logp, x.ref_logp, x.action_mask, config.kl_estimator)
    value = action_mean(term, config, x, counts)
    return value, {"kl/reference": logged_mean(term, x, counts)}


def _old_kl_value(
    config: LossConfig, x: LossInputs, counts: Counts | None
) -> tuple[Float[Tensor, ""], Stats]:
    """Over the preserved rows, if the config says so, as a token mean like LLDS's."""
    term = kl_to_reference(x.logp, x.old_logp, x.action_mask, config.kl_estimator)
    if config.old_kl_rows == "preserved":
        mask = preserved_mask(x.advantages, x.action_mask, config.llds_preserve)
        value = aggregate(term, mask, "token-mean", None if counts is None else counts.preserved)
        return value, {"kl/old": value}
    return action_mean(term, config, x, counts), {"kl/old": logged_mean(term, x, counts)}


def _kl_cov_value(
    config: LossConfig, x: LossInputs, counts: Counts | None
) -> tuple[Float[Tensor, ""], Stats]:
    term = kl_cov_penalty(
        x.logp, x.old_logp, x.advantages, x.action_mask, share=config.kl_cov_share
    )
    return action_mean(term, config, x, counts), {}


ENTROPY = Term("entropy", "entropy_coef", _entropy_value, needs=lambda config: {"entropy"})
KL = Term(
    "kl",
    "kl_coef",
    _kl_value,
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
OLD_KL = Term(
    "old_kl",
    "old_kl_coef",
    _old_kl_value,
    metrics={
        "kl/old": Metric(
            "KL to the old policy",
            "mean over updates of the estimated KL(policy || old policy)",
            NATS,
            "well under 0.1",
        )
    },
)
KL_COV = Term("kl_cov", "kl_cov_coef", _kl_cov_value)
