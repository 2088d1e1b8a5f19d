"""The clipped policy-gradient term of GRPO, Clip-Higher, GSPO and Lp-Reg."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.losses.aggregate import Number, RowOrToken, keep, log_ratio, per_token

Level = Literal["token", "sequence"]


def policy_gradient(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    level: Level = "token",
    ratio_cap: Number | None = None,
) -> Float[Tensor, "B T"]:
    """Per-token surrogate to minimise: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    r is `importance_ratio`; `old_logp` and `advantages` are constants. `ratio_cap` = U is the hard
    clip of Lp-Reg's printed objective, -clip(r, 0, U) A (2510.03222 Eq. 6): there is then no min
    and no lower clip, `clip_low` and `clip_high` are not used, and above U a token of either sign
    has no gradient. (Lp-Reg's code clips to [0, 10] inside the max: its cap binds for A > 0 only.)
    Source: GRPO 2402.03300 Eq. 3; Clip-Higher (clip_high > clip_low), DAPO 2503.14476; GSPO
    2507.18071 (`level="sequence"`, with "seq-mean-token-mean").
    """
    ratio = importance_ratio(logp, old_logp, action_mask, level)
    advantage = per_token(advantages, action_mask)
    if ratio_cap is not None:
        return keep(-ratio.clamp(max=ratio_cap) * advantage, action_mask)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return keep(-torch.minimum(ratio * advantage, clipped * advantage), action_mask)


def importance_ratio(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    level: Level,
) -> Float[Tensor, "B T"]:
    """(B, T) likelihood ratio of the new to the old policy, 1 outside the mask.

    "token": r_t = exp(logp - old_logp). "sequence" (GSPO): every token of a row carries the value
    s = exp(mean_t (logp - old_logp)) and its own gradient, s_t = stop(s) pi_t / stop(pi_t).
    Log-ratios are clamped to +-20 nats. Raises ValueError on an unknown `level`.
    """
    step = log_ratio(logp, old_logp, action_mask)
    if level == "token":
        return step.exp()
    if level == "sequence":
        mean = step.detach().sum(1, keepdim=True) / action_mask.sum(1, keepdim=True).clamp(min=1)
        return torch.where(action_mask, mean + step - step.detach(), 0.0).exp()
    raise ValueError(f"unknown ratio level {level!r}: use 'token' or 'sequence'")


def clipped_tokens(
    ratio: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    clip_low: Number,
    clip_high: Number,
    ratio_cap: Number | None = None,
) -> Bool[Tensor, "B T"]:
    """(B, T) True where the clip leaves no gradient: r is out of range on the side of A."""
    if ratio_cap is not None:
        return action_mask & (ratio > ratio_cap)
    advantage = per_token(advantages, action_mask)
    above = (advantage > 0) & (ratio > 1 + clip_high)
    below = (advantage < 0) & (ratio < 1 - clip_low)
    return action_mask & (above | below)
