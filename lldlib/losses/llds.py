"""LLDS: keep the likelihood of good responses from falling (arXiv 2512.04220)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import Gate, Preserve
from lldlib.losses.aggregate import Number, RowOrToken, action_ids, keep, per_token


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
    if answer_mask is None and answer_weight != 1.0:
        raise ValueError(
            "answer_weight needs answer_mask: pass the mask of the final answer tokens"
        )
    fall = likelihood_fall(logp, old_logp, preserved_mask(advantages, action_mask, preserve))
    term = keep(fall.relu(), llds_gate(logp, old_logp, advantages, action_mask, gate, preserve))
    return term if answer_mask is None else torch.where(answer_mask, answer_weight * term, term)


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
    preserved = preserved_mask(advantages, action_mask, preserve)
    fall = likelihood_fall(logp, old_logp, preserved).detach()
    if gate == "action":
        ids = action_ids(action_mask)
        sums = fall.new_zeros(fall.shape[0], fall.shape[1] + 1).scatter_add(1, ids, fall)
        fall = sums.gather(1, ids)
    elif gate == "response":
        fall = fall.sum(1, keepdim=True)
    elif gate != "token":
        raise ValueError(f"unknown LLDS gate {gate!r}: use 'action', 'response' or 'token'")
    return preserved & (fall > 0)


def preserved_mask(
    advantages: RowOrToken, action_mask: Bool[Tensor, "B T"], preserve: Preserve = "nonnegative"
) -> Bool[Tensor, "B T"]:
    """(B, T) action tokens of the rows whose likelihood LLDS keeps.

    "nonnegative": advantage >= 0, so groups without any contrast too, be they all right or all
    wrong (2512.04220v2, the preserving set). "positive": advantage > 0, correct rows of mixed
    groups alone; a variant of this project. Raises ValueError on another name.
    """
    advantages = per_token(advantages, action_mask)
    if preserve == "nonnegative":
        return action_mask & (advantages >= 0)
    if preserve == "positive":
        return action_mask & (advantages > 0)
    raise ValueError(f"unknown set {preserve!r} for LLDS: use 'nonnegative' or 'positive'")


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
