"""KL-Cov: hold the tokens that drive entropy down (arXiv 2505.22617)."""

from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses.term import (
    Counts,
    LossInputs,
    Number,
    RowOrToken,
    Term,
    Value,
    action_mean,
    check_share,
    keep,
    log_ratio,
    per_token,
    smallest,
)


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
    check_share(share)
    covariance = token_covariance(logp, advantages, action_mask)
    count = max(1, int(share * int(action_mask.sum())))
    selected = smallest(-covariance, action_mask, count)
    return log_ratio(logp, old_logp, selected).abs()


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


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    term = kl_cov_penalty(
        x.logp, x.old_logp, x.advantages, x.action_mask, share=config.kl_cov_share
    )
    return action_mean(term, config, x, counts), {}


KL_COV = Term("kl_cov", "kl_cov_coef", _value)
