"""Which tokens the policy term leaves out: 80/20 and Clip-Cov."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.losses.kl_cov import token_covariance
from lldlib.losses.term import Number, RowOrToken, check_share, rounded_up


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
    check_share(share)
    entropy = entropy.detach()
    values = entropy[action_mask].sort(descending=True).values
    if len(values) == 0:
        return action_mask
    return action_mask & (entropy >= values[rounded_up(share, len(values)) - 1])


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
