"""What a term of the objective is and reads, and how its tokens become one number.

A new term is declared in a file of its own beside this one, and listed in `objective.TERMS`.

A per-token term is (B, T) float32, zero off its mask; `aggregate` makes the scalar.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lldlib.config import Aggregation, LossConfig

Number = float | int
RowOrToken = Float[Tensor, " B"] | Float[Tensor, "B T"]
Stats = dict[str, Tensor]  # 0-dim, by logged key
Value = tuple[Float[Tensor, ""], Stats]  # of a term

LOG_LIMIT = 20.0  # largest |log-ratio| (nats) that is exponentiated, so that exp stays finite
KL_LIMIT = 10.0  # largest one-sample KL (nats) of a token in the code of Search-R1, verl, Lp-Reg


# -- declarations --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """One logged number."""

    name: str  # what a figure's axis says
    formula: str  # how it is computed
    unit: str  # of the number
    healthy: str  # what a run that lives shows


NATS = "nats per token"
SHARE = "share, 0 to 1"
SMALL = "small beside the policy loss; 0 if the term is off"


class Choice(NamedTuple):
    """A setting that the lab offers as a menu of its type's options."""

    label: str
    tip: str


@dataclass(frozen=True)
class LossInputs:
    """What the terms read of one minibatch; `objective.needs` names the optional fields in use."""

    logp: Float[Tensor, "B T"]  # of the policy in training, with gradient
    old_logp: Float[Tensor, "B T"]  # of the policy that sampled
    advantages: Float[Tensor, " B"]
    action_mask: Bool[Tensor, "B T"]
    answer_mask: Bool[Tensor, "B T"]
    entropy: Float[Tensor, "B T"] | None = None  # nats, with gradient
    ref_logp: Float[Tensor, "B T"] | None = None
    proxy_logp: Float[Tensor, "B T"] | None = None  # losses.proxy_log_prob of the sampling policy
    negative_token_weights: Float[Tensor, "B T"] | None = None  # losses.nthr_weights
    mean_valid_searches: float | None = None  # a rollout, over the rollout batch (LLDS-MA)
    generator: torch.Generator | None = None  # of Clip-Cov's draw
    low_logp: Float[Tensor, ""] | None = None  # losses.low_log_prob of the whole rollout batch
    proxy_kl: Float[Tensor, "B T"] | None = None  # losses.forward_kl to that proxy, with gradient
    sampler_logp: Float[Tensor, "B T"] | None = None  # as the sampler gave them


@dataclass(frozen=True)
class Counts:
    """Tokens of the optimiser update that a micro-batch is part of: the divisors of token means.

    Counted over all micro-batches and processes, and divided by the number of processes; values
    and statistics then add up over micro-batches, and average over processes, to the whole's.
    """

    preserved: Float[Tensor, ""]  # tokens that LLDS keeps
    actions: Float[Tensor, ""]


def _nothing(config: LossConfig) -> set[str]:
    return set()


def _no_more(config: LossConfig, means: Mapping[str, float]) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class Term:
    """One term of the objective, declared in the file of its function, listed in `objective.TERMS`.

    A setting of LossConfig belongs to the term whose name it begins with. `value` gives a 0-dim
    tensor before its weight, and statistics under the keys of `metrics`; without `Counts` the
    minibatch is the whole update. `derived` is what follows from a rollout batch's mean statistics,
    such as a quotient of two.
    """

    name: str
    coef: str | None  # field of LossConfig that is its weight, 0 = off; None: always on, weight 1
    value: Callable[[LossConfig, LossInputs, Counts | None], Value]
    needs: Callable[[LossConfig], set[str]] = _nothing  # optional fields of LossInputs it reads
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # what it logs
    derived: Callable[[LossConfig, Mapping[str, float]], dict[str, float]] = _no_more
    symbol: str | None = None  # label of its weight's knob in the lab; None: no knob
    choices: Mapping[str, Choice] = field(default_factory=dict)  # settings beside that knob

    def weight(self, config: LossConfig) -> Number:
        """Its weight; 0 leaves the term out altogether."""
        return 1 if self.coef is None else getattr(config, self.coef)

    @property
    def knobs(self) -> dict[str, str]:
        """What the lab can turn, by setting: its weight's letter, and labels of its choices."""
        if self.symbol is None:
            return {}
        choices = {name: choice.label for name, choice in self.choices.items()}
        return {self.coef: self.symbol.split()[-1]} | choices


# -- from tokens to a scalar ---------------------------------------------------------------------


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


def action_mean(
    term: Float[Tensor, "B T"], config: LossConfig, x: LossInputs, counts: Counts | None
) -> Float[Tensor, ""]:
    """`aggregate` over all action tokens, as the config says."""
    count = None if counts is None else counts.actions
    return aggregate(term, x.action_mask, config.aggregation, count)


def logged_mean(
    term: Float[Tensor, "B T"], x: LossInputs, counts: Counts | None
) -> Float[Tensor, ""]:
    """The mean over action tokens, which is logged however the loss itself is aggregated."""
    count = None if counts is None else counts.actions
    return aggregate(term.detach(), x.action_mask, "token-mean", count)


def token_share(
    part: Bool[Tensor, "B T"], whole: Bool[Tensor, "B T"], count: Tensor | None = None
) -> Float[Tensor, ""]:
    """Tokens of `part` / tokens of `whole`, or / `count`."""
    return aggregate(part.float(), whole, "token-mean", count)


# -- masks and ratios that terms share -----------------------------------------------------------


def keep(term: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(B, T) float32: `term` where `mask`, else 0, even where the term is infinite or nan."""
    return torch.where(mask, term.float(), 0.0)


def per_token(advantages: RowOrToken, mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(B, T) float32 advantages without gradient, from one value per row or one a token."""
    rows = advantages[:, None] if advantages.dim() == 1 else advantages
    return rows.detach().float().expand(mask.shape)


def log_ratio(
    logp: Float[Tensor, "B T"], other_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """(B, T) logp - other_logp where `mask`, clamped to +-LOG_LIMIT; `other_logp` is a constant."""
    return keep(logp.float() - other_logp.detach().float(), mask).clamp(-LOG_LIMIT, LOG_LIMIT)


def smallest(
    values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], count: int
) -> Bool[Tensor, "B T"]:
    """(B, T) the `count` tokens of `mask` with the smallest values; of equal ones the first."""
    order = values[mask].argsort(stable=True)
    chosen = torch.zeros_like(order, dtype=torch.bool)
    chosen[order[:count]] = True
    return mask.masked_scatter(mask, chosen)


def check_share(share: Number, name: str = "share") -> None:
    """ValueError unless it is a share of tokens in (0, 1]."""
    if not 0 < share <= 1:
        raise ValueError(f"{name} is {share}: give a share of tokens in (0, 1]")


def rounded_up(share: Number, count: int) -> int:
    """The smallest whole number of tokens that is at least `share` of `count`."""
    return math.ceil(share * count - 1e-9)  # 0.07 * 100 is 7, not 7.000000000000001


def action_ids(action_mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """(B, T) number of the action a token belongs to: 0 outside, 1..K for a row's maximal runs."""
    before = torch.zeros_like(action_mask)
    before[:, 1:] = action_mask[:, :-1]
    starts = action_mask & ~before
    return torch.where(action_mask, starts.cumsum(1), 0)
