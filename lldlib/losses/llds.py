"""LLDS: keep the likelihood of good responses from falling (arXiv 2512.04220)."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import Gate, LossConfig, Preserve
from lldlib.losses.term import (
    NATS,
    SHARE,
    SMALL,
    Choice,
    Counts,
    LossInputs,
    Metric,
    Number,
    RowOrToken,
    Term,
    Value,
    keep,
    per_token,
)


class LLDSParts(NamedTuple):
    """LLDS of one minibatch, token by token."""

    penalty: Float[Tensor, "B T"]  # see `llds_penalty`
    gate: Bool[Tensor, "B T"]  # see `llds_gate`
    preserved: Bool[Tensor, "B T"]  # see `preserved_mask`


def llds_penalty(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    gate: Gate = "action",
    preserve: Preserve = "nonnegative",
    answer_mask: Bool[Tensor, "B T"] | None = None,
    answer_weight: Number = 1.0,
) -> Float[Tensor, "B T"]:
    """Per-token penalty w max(0, old_logp - logp), in nats, on preserved tokens whose gate is open.

    Preserved: see `preserved_mask`. Gate: see `llds_gate`. w = `answer_weight` on `answer_mask`
    (LLDS-MA; see `answer_weight_schedule`), else 1. `old_logp` and the gate carry no gradient.
    The divisor is the caller's: the paper's is the number of preserved tokens,
    `aggregate(term, preserved_mask(...), "token-mean")`; the official code's is all action tokens,
    `aggregate(term, action_mask, "token-mean")`, so its lambda is smaller by the preserved share.
    Raises ValueError on an unknown gate or set, or a weight without `answer_mask`.
    Source: 2512.04220v2 Eq. 4 (action), Eq. 9 (token), Eq. 10 (response), Eq. 5 (answer weight).
    """
    rows = (logp, old_logp, advantages, action_mask)
    return llds_parts(
        *rows, gate=gate, preserve=preserve, answer_mask=answer_mask, answer_weight=answer_weight
    ).penalty


def llds_gate(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    gate: Gate,
    preserve: Preserve = "nonnegative",
) -> Bool[Tensor, "B T"]:
    """(B, T) preserved tokens where LLDS may act: the fall old_logp - logp sums to more than 0.

    The sum runs over the token's own action ("action"), its row ("response") or itself ("token").
    """
    rows = (logp, old_logp, advantages, action_mask)
    return llds_parts(*rows, gate=gate, preserve=preserve).gate


def llds_parts(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: RowOrToken,
    action_mask: Bool[Tensor, "B T"],
    *,
    gate: Gate,
    preserve: Preserve,
    answer_mask: Bool[Tensor, "B T"] | None = None,
    answer_weight: Number = 1.0,
) -> LLDSParts:
    """`llds_penalty`, `llds_gate` and `preserved_mask` at once; raises what they raise."""
    if answer_mask is None and answer_weight != 1.0:
        raise ValueError(
            "answer_weight needs answer_mask: pass the mask of the final answer tokens"
        )
    preserved = preserved_mask(advantages, action_mask, preserve)
    fall = likelihood_fall(logp.detach(), old_logp, preserved)
    is_open = preserved & (_gated_sum(fall, action_mask, gate) > 0)
    penalty = likelihood_fall(logp, old_logp, is_open & (fall > 0))
    if answer_weight != 1.0:
        penalty = torch.where(answer_mask, answer_weight * penalty, penalty)
    return LLDSParts(penalty, is_open, preserved)


def _gated_sum(
    fall: Float[Tensor, "B T"], action_mask: Bool[Tensor, "B T"], gate: Gate
) -> Float[Tensor, "B #T"]:
    """The fall summed over what the gate looks at; (B, 1) where that is the row."""
    if gate == "action":
        # A token off the mask, whose fall is 0, may count as one of the action before it.
        ids = torch.zeros(action_mask.shape, dtype=torch.long, device=fall.device)
        torch.cumsum(action_mask[:, 1:] > action_mask[:, :-1], 1, out=ids[:, 1:])
        return torch.zeros_like(fall).scatter_add_(1, ids, fall).gather(1, ids)
    if gate == "response":
        return fall.sum(1, keepdim=True)
    if gate == "token":
        return fall
    raise ValueError(f"unknown LLDS gate {gate!r}: use 'action', 'response' or 'token'")


def preserved_mask(
    advantages: RowOrToken, action_mask: Bool[Tensor, "B T"], preserve: Preserve = "nonnegative"
) -> Bool[Tensor, "B T"]:
    """(B, T) action tokens of the rows whose likelihood LLDS keeps.

    "nonnegative": advantage >= 0, so groups without any contrast too, be they all right or all
    wrong (2512.04220v2, the preserving set). "positive": advantage > 0, correct rows of mixed
    groups alone; a variant of this project. "negative": advantage < 0, a causal control. Raises
    ValueError on another name.
    """
    advantages = per_token(advantages, action_mask)
    if preserve == "nonnegative":
        return action_mask & (advantages >= 0)
    if preserve == "positive":
        return action_mask & (advantages > 0)
    if preserve == "negative":
        return action_mask & (advantages < 0)
    raise ValueError(
        f"unknown set {preserve!r} for LLDS: use 'nonnegative', 'positive' or 'negative'"
    )


def likelihood_fall(
    logp: Float[Tensor, "B T"], old_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """(B, T) old_logp - logp in nats where `mask`, else 0; positive = the token got less likely."""
    return keep(old_logp.detach().float() - logp.float(), mask)


def answer_weight_schedule(
    mean_valid_searches: Number, schedule: Literal["paper", "code"]
) -> float:
    """LLDS-MA's weight of answer tokens from the batch's mean number V of valid searches a rollout.

    "paper": min(V / 2, 1) (2512.04220v2, text of Eq. 5). "code": min(max(V - 1, 0), 1), what the
    official code amounts to at lambda 0.2. Raises ValueError on another name.
    """
    if schedule == "paper":
        return min(mean_valid_searches / 2, 1.0)
    if schedule == "code":
        return min(max(mean_valid_searches - 1.0, 0.0), 1.0)
    raise ValueError(f"unknown answer schedule {schedule!r}: use 'paper' or 'code'")


DUAL_UP, DUAL_DOWN = 5.0, 0.5  # lambda gained for each nat per token over the target, lost under it
DUAL_LIMIT = 1.0  # there LLDS does harm of its own: two of four runs sagged (data/atlas)


def dual_weight(weight: float, moved: float, target: float) -> float:
    """Lambda of the next batch: one step of a dual variable towards a loss of at most `target`.

    lambda' = clip(lambda + s (-moved - target), 0, 1), s = 5 over the target and 0.5 under it, with
    `moved` the mean new - old log-prob, in nats per token, of a batch's correct responses by its
    own updates; one that is not finite leaves lambda as it is. Source: of this project
    (data/atlas/self_tuning.md); both papers leave the weight to hand tuning.
    """
    if not math.isfinite(moved):
        return weight
    over = -moved - target
    return min(DUAL_LIMIT, max(0.0, weight + (DUAL_UP if over > 0 else DUAL_DOWN) * over))


# -- the term ------------------------------------------------------------------------------------


def _value(config: LossConfig, x: LossInputs, counts: Counts | None) -> Value:
    """Always a token mean, over the tokens that `config.llds_normalizer` names."""
    weight = 1.0
    if config.llds_answer != "none":
        weight = answer_weight_schedule(x.mean_valid_searches, config.llds_answer)
    parts = llds_parts(
        x.logp,
        x.old_logp,
        x.advantages,
        x.action_mask,
        gate=config.llds_gate,
        preserve=config.llds_preserve,
        answer_mask=x.answer_mask,
        answer_weight=weight,
    )
    kept = parts.preserved.sum() if counts is None else counts.preserved
    divisor = kept
    if config.llds_normalizer == "all":
        divisor = x.action_mask.sum() if counts is None else counts.actions
    value = parts.penalty.sum() / (divisor if divisor else 1)  # off the mask it is 0
    share = parts.gate.sum() / (kept if kept else 1)
    return value, {"llds/value": value, "llds/open_gate_share": share}


LLDS = Term(
    "llds",
    "llds_coef",
    _value,
    needs=lambda config: {"mean_valid_searches"} if config.llds_answer != "none" else set(),
    metrics={
        "llds/value": Metric(
            "LLDS", "mean over updates of the LLDS term before its weight", NATS, SMALL
        ),
        "llds/open_gate_share": Metric(
            "LLDS open gates",
            "tokens behind an open gate / tokens of the rows that LLDS keeps, mean over updates",
            SHARE,
            "well under 1; near 1 the policy term fights the regularizer all over",
        ),
        "llds/weight": Metric(
            "LLDS lambda", "lambda of the batch, where it follows a target", "-", "between 0 and 1"
        ),
    },
    symbol="LLDS λ",
    choices={
        "llds_gate": Choice("gate", "where LLDS may act"),
        "llds_answer": Choice("MA", "LLDS's weight on answer tokens"),
    },
)
