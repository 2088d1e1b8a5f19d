"""What is measured of a batch: displacement, likelihood, the probe set, rare tokens, engine gaps.

Every function is pure and returns plain floats under the keys of `glossary`. A mean over nothing is
`nan`, which the logger leaves out; one over numbers that are not finite is `inf`, for which the
logger writes null. Sign: here a displacement is new - old, so likelihood that
is lost is negative.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.losses import action_ids, low_log_prob, lp_reg_mask
from lldlib.losses.lp_reg import Selection
from lldlib.types import Episode, Span, StopReason

ACTIONS = 4  # actions of a response that are reported one by one
RIGHT = 0.5  # a response of a larger reward counts as correct
RARE = 0.05  # a token less probable than this counts as low-probability mass
NAN = float("nan")


def known(value: float) -> float:
    """The value of something that was measured; inf, never nan, where it is not finite."""
    return value if math.isfinite(value) else math.inf


def masked_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> float:
    """The mean over the tokens of `mask`; nan for an empty mask."""
    return _mean(values[mask])


def displacement(
    old_logp: Float[Tensor, "B T"],
    new_logp: Float[Tensor, "B T"],
    rewards: Float[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
) -> dict[str, float]:
    """Lazy likelihood displacement: how far a batch's updates moved its own responses, in nats.

    Delta_i = sum_t (new_logp - old_logp) over the action tokens of response i, which is correct
    where reward > RIGHT. Keys: `displacement/correct` and `/incorrect`, the mean of Delta_i;
    `/correct_token` and `/incorrect_token`, the mean per action token; `/action_k`, over correct
    responses that have a k-th action, the mean of its sum divided by its tokens; `/share_fallen`,
    the share of correct responses with Delta_i < 0. Rows without an action token are no responses.
    Source: LLDS (arXiv 2512.04220v2) Def. 4.1 and Eq. 2; NTHR (arXiv 2505.18830) Delta(x), here
    over the batch.
    """
    change = torch.where(action_mask, new_logp - old_logp, 0.0)
    total = change.sum(1)
    present = action_mask.any(1)
    correct = (rewards > RIGHT) & present
    incorrect = (rewards <= RIGHT) & present  # one that lost its tool has no reward (nan)
    report = {
        "displacement/correct": _mean(total[correct]),
        "displacement/incorrect": _mean(total[incorrect]),
        "displacement/correct_token": masked_mean(change, action_mask & correct[:, None]),
        "displacement/incorrect_token": masked_mean(change, action_mask & incorrect[:, None]),
        "displacement/share_fallen": _mean((total[correct] < 0).float()),
    }
    ids = action_ids(action_mask)
    for k in range(1, ACTIONS + 1):
        tokens = (ids == k) & correct[:, None]
        length = tokens.sum(1)
        per_row = torch.where(tokens, change, 0.0).sum(1) / length.clamp(min=1)
        report[f"displacement/action_{k}"] = _mean(per_row[length > 0])
    return report


def token_displacement(
    old_logp: Float[Tensor, "B T"],
    new_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
) -> dict[str, float]:
    """Mean new - old log-prob of an action token, in nats, of the rows that were trained on.

    Keys: `displacement/all_token`, over all rows: about -KL(old || new) a token; and
    `displacement/mixed_token`, over rows with A > 0, which are in groups of unequal rewards.
    """
    change = new_logp - old_logp
    return {
        "displacement/all_token": masked_mean(change, action_mask),
        "displacement/mixed_token": masked_mean(change, action_mask & (advantages > 0)[:, None]),
    }


def fresh_displacement(
    old_logp: Float[Tensor, "B T"],
    new_logp: Float[Tensor, "B T"],
    rewards: Float[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
    *,
    trained_on: float,
) -> dict[str, float]:
    """What training costs where nothing was trained: rollouts of the old policy, only measured.

    They are of the trained questions. The expected new - old log-prob of their responses is
    -KL(old || new) <= 0 whatever the updates did, so a displacement means something above this
    baseline only. Keys, the mean over action tokens in nats: `displacement/fresh_token`, all rows;
    `/fresh_correct_token`, reward > RIGHT; `/fresh_mixed_token`, A > 0 among themselves; and
    `displacement/trained`, `trained_on` (the batch's `mixed_token`) - `fresh_mixed_token`.
    """
    change = new_logp - old_logp
    fresh = masked_mean(change, action_mask & (advantages > 0)[:, None])
    return {
        "displacement/fresh_token": masked_mean(change, action_mask),
        "displacement/fresh_correct_token": masked_mean(
            change, action_mask & (rewards > RIGHT)[:, None]
        ),
        "displacement/fresh_mixed_token": fresh,
        "displacement/trained": trained_on - fresh,
    }


def likelihood(
    logp: Float[Tensor, "B T"],
    rewards: Float[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
) -> dict[str, float]:
    """Mean log-prob of an action token, in nats, of a batch's correct and incorrect responses.

    Keys: `likelihood/correct` (reward > RIGHT), `likelihood/incorrect`, and
    `likelihood/action_k`, over the tokens of the k-th action of correct responses. The responses
    change from batch to batch, so this rises when the policy sharpens; `probe_report` holds the
    responses fixed. Source: LLDS (arXiv 2512.04220v2) Fig. 5, 9a.
    """
    correct = action_mask & (rewards > RIGHT)[:, None]
    return {
        "likelihood/correct": masked_mean(logp, correct),
        "likelihood/incorrect": masked_mean(logp, action_mask & (rewards <= RIGHT)[:, None]),
        **_by_action("likelihood", logp, action_ids(action_mask), correct),
    }


def official_likelihood(
    logp: Float[Tensor, "B T"], advantages: Float[Tensor, " B"], action_mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    """The likelihood that the official code of LLDS logs, in nats, here over the whole batch.

    `likelihood/official` = sum of logp over the action tokens of rows with A >= 0 / number of the
    action tokens of ALL rows. Retrieved tokens are in neither; `logp` is that of the policy that
    sampled. So it moves with the share of tokens in rows with A >= 0, too, and groups of one
    reward count, also where every response is wrong. Source: `actor/pos_avg_old_log_prob` of LLDS
    (c19a094, verl/workers/actor/dp_actor.py), which logs it of a batch's last micro-batch.
    """
    kept = action_mask & (advantages >= 0)[:, None]
    return {"likelihood/official": masked_mean(torch.where(kept, logp, 0.0), action_mask)}


def probe_report(
    logp: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], span: Int[Tensor, "B T"]
) -> dict[str, float]:
    """Mean log-prob of an action token, in nats, of a FIXED set of correct trajectories.

    Keys: `probe/logp` (all action tokens); `probe/action_k`; `probe/free`, the wording (Span.FREE),
    whose fall is mostly sharpening towards other wordings; `probe/content`, queries and answers
    (Span.QUERY, Span.ANSWER), which a correct trajectory has to say, so their fall is displacement.
    Source: the phases of LLDS (arXiv 2512.04220v2) Fig. 2, read on fixed trajectories.
    """
    content = (span == Span.QUERY) | (span == Span.ANSWER)
    return {
        "probe/logp": masked_mean(logp, action_mask),
        "probe/free": masked_mean(logp, action_mask & (span == Span.FREE)),
        "probe/content": masked_mean(logp, action_mask & content),
        **_by_action("probe", logp, action_ids(action_mask), action_mask),
    }


def low_probability(
    logp: Float[Tensor, "B T"],
    proxy_logp: Float[Tensor, "B T"] | None,
    advantages: Float[Tensor, " B"],
    action_mask: Bool[Tensor, "B T"],
    quantile: float,
    selection: Selection,
) -> dict[str, float]:
    """How much the policy relies on rare tokens, and which of them Lp-Reg would protect.

    Keys: `low_prob/mass`, the share of action tokens with probability < 0.05; `low_prob/threshold`,
    Lp-Reg's delta over the batch (`losses.low_log_prob`); `low_prob/negative_share`, among tokens
    under delta, the share in responses of negative advantage; and, given a proxy,
    `low_prob/protected_share`, among the same tokens, the share that `losses.lp_reg_mask` selects.
    Raises ValueError for a quantile outside (0, 1]. Source: Lp-Reg (arXiv 2510.03222v2) Eq. 6 and
    Fig. 16.
    """
    delta = low_log_prob(logp, action_mask, quantile)
    rare = action_mask & (logp < delta)
    negative = (advantages < 0)[:, None].expand_as(rare)
    report = {
        "low_prob/mass": _mean((logp[action_mask].exp() < RARE).float()),
        "low_prob/threshold": known(float(delta.exp())) if action_mask.any() else NAN,
        "low_prob/negative_share": _mean(negative[rare].float()),
    }
    if proxy_logp is not None:
        rows = (logp, proxy_logp, advantages, action_mask)
        protected = lp_reg_mask(*rows, quantile=quantile, selection=selection, low_logp=delta)
        report["low_prob/protected_share"] = _mean(protected[rare].float())
    return report


def sampler_gap(
    sampler_logp: Float[Tensor, "B T"],
    scorer_logp: Float[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
) -> dict[str, float]:
    """How far the scorer's log-probs are from the sampler's for the same weights, in nats.

    Keys: `policy/sampler_gap` = max |sampler - scorer| over action tokens; `policy/sampler_kl` =
    the mean of sampler - scorer, the k1 estimate of KL(sampler || scorer) on the sampler's own
    tokens.
    """
    gap = (sampler_logp - scorer_logp)[action_mask]
    return {
        "policy/sampler_gap": known(float(gap.abs().max())) if gap.numel() else NAN,
        "policy/sampler_kl": _mean(gap),
    }


def grad_share(negative_norm: float, positive_norm: float) -> float:
    """Share of the negative-advantage tokens in the policy gradient.

    n / (n + p), the norms of the two parts; nan if both are 0.
    """
    total = negative_norm + positive_norm
    return known(negative_norm / total) if total else NAN


def episode_stats(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over episodes of what the policy did.

    Keys: `length/tokens`, tokens the policy chose; `search/valid` and `search/invalid`, valid
    searches and invalid actions; `stop/<reason>`, the share of episodes that ended so, for every
    StopReason.
    """
    lengths = [sum(len(t.tokens) for t in e.turns if t.role == "action") for e in episodes]
    report = {
        "length/tokens": _average(lengths),
        "search/valid": _average([e.valid_searches for e in episodes]),
        "search/invalid": _average([e.invalid_actions for e in episodes]),
    }
    for reason in StopReason:
        report[f"stop/{reason.value}"] = _average([e.stop is reason for e in episodes])
    return report


def _by_action(
    name: str, logp: Float[Tensor, "B T"], ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    return {
        f"{name}/action_{k}": masked_mean(logp, mask & (ids == k)) for k in range(1, ACTIONS + 1)
    }


def _mean(values: Float[Tensor, " n"]) -> float:
    return known(float(values.mean())) if values.numel() else NAN


def _average(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else NAN
