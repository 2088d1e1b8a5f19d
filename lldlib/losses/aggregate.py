"""From a per-token term to a scalar, and the small masks that every term shares."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.config import Aggregation

Number = float | int
RowOrToken = Float[Tensor, " B"] | Float[Tensor, "B T"]

LOG_LIMIT = 20.0  # largest |log-ratio| (nats) that is exponentiated, so that exp stays finite
KL_LIMIT = 10.0  # largest one-sample KL (nats) of a token in the code of Search-R1, verl, Lp-Reg


def aggregate(
    term: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    how: Aggregation,
    denominator: Number | Tensor | None = None,
) -> Float[Tensor, ""]:
    """Sum a per-token term over `mask` and divide by a count.

    "token-mean": all tokens / number of tokens. "seq-mean-token-mean": mean over rows of each row's
    token mean. "seq-mean-token-sum": mean over rows of each row's token sum (Dr. GRPO). Rows
    without a token do not count. `denominator` replaces the count (of tokens in the first, of rows
    in the other two), so that micro-batches of one batch add up to the whole. An empty mask gives
    0, never nan. Raises ValueError on an unknown `how`.
    """
    kept = keep(term, mask)
    if how == "token-mean":
        total, count = kept.sum(), mask.sum()
    elif how == "seq-mean-token-mean":
        total, count = (kept.sum(1) / mask.sum(1).clamp(min=1)).sum(), mask.any(1).sum()
    elif how == "seq-mean-token-sum":
        total, count = kept.sum(), mask.any(1).sum()
    else:
        raise ValueError(f"unknown aggregation {how!r}: use one of the names in config.Aggregation")
    divisor = count if denominator is None else denominator
    return total / (divisor if divisor else 1)  # nothing counted: the sum is 0 already


def keep(term: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(B, T) float32: `term` where `mask`, else 0, even where the term is infinite or nan."""
    return torch.where(mask, term.float(), 0.0)


def per_token(advantages: RowOrToken, mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(B, T) float32 advantages without gradient, from one value a row or one a token."""
    rows = advantages[:, None] if advantages.dim() == 1 else advantages
    return rows.detach().float().expand(mask.shape)


def log_ratio(
    logp: Float[Tensor, "B T"], other_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """(B, T) logp - other_logp where `mask`, clamped to +-LOG_LIMIT; `other_logp` is a constant."""
    return keep(logp.float() - other_logp.detach().float(), mask).clamp(-LOG_LIMIT, LOG_LIMIT)


def rounded_up(share: Number, count: int) -> int:
    """The smallest whole number of tokens that is at least `share` of `count`."""
    return math.ceil(share * count - 1e-9)  # 0.07 * 100 is 7, not 7.000000000000001


def action_ids(action_mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """(B, T) number of the action a token belongs to: 0 outside, 1..K for a row's maximal runs."""
    before = torch.zeros_like(action_mask)
    before[:, 1:] = action_mask[:, :-1]
    starts = action_mask & ~before
    return torch.where(action_mask, starts.cumsum(1), 0)
