"""The policy term: advantages, the clipped ratio, and which tokens are scaled or silenced."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses.masks import clip_cov_mask, top_entropy_mask
from lldlib.losses.term import (
    SHARE,
    Counts,
    LossInputs,
    Metric,
    Number,
    RowOrToken,
    Term,
    Value,
    action_mean,
    aggregate,
    keep,
    log_ratio,
    per_token,
    token_share,
)

Level = Literal["token", "sequence"]
Surrogate = Literal["ppo", "cispo", "reinforce"]
Correction = Literal["truncated", "masked"]

# -- group-relative advantages -------------------------------------------------------------------


def group_advantages(
    rewards: Float[Tensor, " B"],
    group: Int[Tensor, " B"],
    *,
    scale: bool,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """(B,) reward minus its group's mean, divided by the group's deviation + eps if `scale`.

    The deviation is the unbiased one (n - 1), as in the LLDS and Search-R1 code. A group of equal
    rewards gets exactly 0, and one with a reward that is not finite nan. Rows may be in any order.
    Raises ValueError on a group of one. Source: GRPO 2402.03300 section 4.1.2 (`scale=True`); Dr.
    GRPO 2503.20783 (`scale=False`).
    """
    rewards = rewards.float()
    numbers, index, size = group.unique(return_inverse=True, return_counts=True)
    if len(size) and int(size.min()) < 2:
        lonely = int(numbers[size.argmin()])
        raise ValueError(f"group {lonely} has one rollout: a group needs at least 2 to compare")
    total = _group_sum(rewards, index, len(numbers))
    centred = rewards - (total / size)[index]
    if scale:
        variance = _group_sum(centred.square(), index, len(numbers)) / (size - 1)
        centred = centred / (variance.sqrt()[index] + eps)
    # rounding of the mean must not turn a tie into a tiny negative advantage
    advantages = torch.where(_mixed(rewards, index, len(numbers))[index], centred, 0.0)
    return torch.where(total.isfinite()[index], advantages, math.nan)


def mixed_group_share(rewards: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> float:
    """The share of groups, 0 to 1, whose rewards are not all equal: only these give a gradient."""
    numbers, index = group.unique(return_inverse=True)
    return float(_mixed(rewards, index, len(numbers)).float().mean())


def most_mixed(
    rewards: Float[Tensor, " B"], group: Int[Tensor, " B"], share: Number
) -> Bool[Tensor, " B"]:
    """(B,) True in the groups whose rewards deviate most, until they hold `share` of all deviation.

    The deviation is the unbiased one of a group's rewards; groups of equal rewards are out, and
    with no other group all rows are. Source: RAGEN-2 2604.06268, top-p by its official code
    (20daedc), where p is 0.9 and the sum may be .01 short.
    """
    numbers, index, size = group.unique(return_inverse=True, return_counts=True)
    centred = rewards - (_group_sum(rewards, index, len(numbers)) / size)[index]
    spread = _group_sum(centred.square(), index, len(numbers)).div(size - 1).sqrt()
    spread = torch.where(_mixed(rewards, index, len(numbers)), spread, 0.0)
    ordered, order = spread.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = torch.zeros_like(spread, dtype=torch.bool)
    kept[order] = (ordered > 0) & (before < share * spread.sum() - 0.01)
    return kept[index]


def _group_sum(
    values: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int
) -> Float[Tensor, " P"]:
    return values.new_zeros(groups).index_add(0, index, values)


def _mixed(rewards: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int) -> Tensor:
    """(P,) True where a group holds two different rewards."""
    empty = rewards.new_zeros(groups)
    least = empty.scatter_reduce(0, index, rewards, "amin", include_self=False)
    most = empty.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return least < most


# -- the clipped surrogate of GRPO, Clip-Higher, GSPO and Lp-Reg ---------------------------------


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
    ratio_limit: Number | None = None,
    surrogate: Surrogate = "ppo",
) -> Float[Tensor, "B T"]:
    """Per-token surrogate to minimise: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    r is `importance_ratio`; `old_logp` and `advantages` are constants. `ratio_cap` = U is the hard
    clip of Lp-Reg's printed objective, -clip(r, 0, U) A (2510.03222 Eq. 6): there is then no min
    and no lower clip, `clip_low` and `clip_high` are not used, and above U a token of either sign
    has no gradient. (Lp-Reg's code clips to [0, 10] inside the max: its cap binds for A > 0 only.)
    `ratio_limit` cuts r off before the clip, as the code of Search-R1 and LLDS does at 100: above
    it a token of A < 0 too, which the clip lets through, has no gradient. No paper prints it.
    Two other surrogates take the gradient of the log-prob and silence no token: "cispo",
    -stop(min(r, 1 + clip_high)) A logp, without a lower clip, and "reinforce", -A logp.
    Source: GRPO 2402.03300 Eq. 3; Clip-Higher (clip_high > clip_low), DAPO 2503.14476; GSPO
    2507.18071 (`level="sequence"`, with "seq-mean-token-mean"); CISPO 2506.13585 Eq. 4 and 5.
    """
    ratio = importance_ratio(logp, old_logp, action_mask, level)
    if ratio_limit is not None:
        ratio = ratio.clamp(max=ratio_limit)
    advantage = per_token(advantages, action_mask)
    if surrogate != "ppo":
        weight = 1.0 if surrogate == "reinforce" else ratio.detach().clamp(max=1 + clip_high)
        return -weight * advantage * keep(logp, action_mask)
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
    ratio_limit: Number | None = None,
    surrogate: Surrogate = "ppo",
) -> Bool[Tensor, "B T"]:
    """(B, T) True where the clip leaves no gradient: r is out of range on the side of A.

    Above `ratio_cap` or `ratio_limit` there is none on either side. Only "ppo" silences a token.
    """
    if surrogate != "ppo":
        return torch.zeros_like(action_mask)
    limits = [limit for limit in (ratio_cap, ratio_limit) if limit is not None]
    over = action_mask & (ratio > min(limits, default=math.inf))
    if ratio_cap is not None:
        return over
    advantage = per_token(advantages, action_mask)
    above = (advantage > 0) & (ratio > 1 + clip_high)
    below = (advantage < 0) & (ratio < 1 - clip_low)
    return over | action_mask & (above | below)


def sampler_weight(
    old_logp: Float[Tensor, "B T"],
    sampler_logp: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    *,
    correction: Correction,
    limit: Number,
) -> Float[Tensor, "B T"]:
    """(B, T) w = exp(old_logp - sampler_logp), 1 outside the mask: what a token's term counts.

    It puts right that tokens were drawn by a sampler which is not quite the old policy. "truncated"
    cuts w off at `limit`; "masked" drops tokens of a larger w, and of one under 1 / limit.
    """
    weight = log_ratio(old_logp.detach(), sampler_logp, action_mask).exp()
    if correction == "truncated":
        return weight.clamp(max=limit)
    return torch.where((weight > limit) | (weight < 1 / limit), 0.0, weight)


# -- the term ------------------------------------------------------------------------------------


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    """Only here are negative advantages scaled and tokens silenced; the divisor stays the same."""
    clip = {
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
        "ratio_cap": config.ratio_cap,
        "ratio_limit": config.ratio_limit,
        "surrogate": config.surrogate,
    }
    advantages = scaled_advantages(config, x)
    term = policy_gradient(
        x.logp, x.old_logp, advantages, x.action_mask, level=config.ratio_level, **clip
    )
    if config.top_entropy < 1:
        loud = top_entropy_mask(x.entropy, x.action_mask, config.top_entropy)
        term = torch.where(loud, term, 0.0)
    if config.clip_cov_share:
        dropped = clip_cov_mask(
            x.logp,
            x.advantages,
            x.action_mask,
            share=config.clip_cov_share,
            generator=x.generator,
        )
        term = torch.where(dropped, 0.0, term)
    count, stats = None if counts is None else counts.actions, {}
    if config.sampler_correction != "none":
        weight = sampler_weight(
            x.old_logp,
            x.sampler_logp,
            x.action_mask,
            correction=config.sampler_correction,
            limit=config.sampler_limit,
        )
        term = weight * term
        stats = {"policy/sampler_weight": aggregate(weight, x.action_mask, "token-mean", count)}
    with torch.no_grad():
        ratio = importance_ratio(x.logp, x.old_logp, x.action_mask, config.ratio_level)
        clipped = clipped_tokens(ratio, advantages, x.action_mask, **clip)
        stats |= {
            "policy/clip_share": token_share(clipped, x.action_mask, count),
            "policy/ratio_max": torch.where(x.action_mask, ratio, 0.0).amax(),
        }
    return action_mean(term, config, x, counts), stats


def scaled_advantages(config: LossConfig, x: LossInputs) -> Float[Tensor, "B T"]:
    """(B, T) float32 advantages as the policy term reads them: negative ones by weight and NTHR."""
    advantages = x.advantages.float()[:, None].expand(x.logp.shape)
    weight = x.negative_token_weights.float() if config.nthr else 1.0
    return torch.where(advantages < 0, config.negative_weight * weight * advantages, advantages)


def _needs(config: LossConfig) -> set[str]:
    wanted = {
        "entropy": config.top_entropy < 1,
        "generator": config.clip_cov_share != 0,
        "negative_token_weights": config.nthr,
        "sampler_logp": config.sampler_correction != "none",
    }
    return {name for name, is_wanted in wanted.items() if is_wanted}


POLICY = Term(
    "policy",
    None,
    _value,
    needs=_needs,
    metrics={
        "policy/clip_share": Metric(
            "clipped tokens",
            "action tokens silenced by the clip / action tokens",
            SHARE,
            "a few percent",
        ),
        "policy/ratio_max": Metric(
            "largest ratio",
            "mean over updates of max over action tokens of exp(logp - old_logp)",
            "ratio",
            "1 at a batch's first update, then single digits; it inflates in a spiral",
        ),
        "policy/sampler_weight": Metric(
            "weight of the sampler's correction",
            "mean over action tokens of the importance weight, policy over sampler",
            "ratio",
            "1 where sampler and policy agree; near 0 hardly a token counts",
        ),
    },
)
