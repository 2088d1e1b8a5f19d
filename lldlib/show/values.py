"""What the explorers show: one small case, put through the loss terms and their gradients.

Widgets and figures do no maths; they show what these functions return.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import Gate, LossConfig
from lldlib.losses import (
    aggregate,
    forward_kl,
    llds_gate,
    llds_penalty,
    lp_reg_mask,
    preserved_mask,
    proxy_logits,
)
from lldlib.types import Batch

Role = Literal["prompt", "action", "environment"]


@dataclass(frozen=True)
class GateCase:
    """A handful of tokens: log-probs before and after an update, in nats, and who wrote them."""

    words: tuple[tuple[str, ...], ...]  # (B, T)
    old_logp: Float[Tensor, "B T"]
    new_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, " B"]
    action_mask: Bool[Tensor, "B T"]
    answer_mask: Bool[Tensor, "B T"]


@dataclass(frozen=True)
class GateValues:
    """What LLDS makes of a GateCase."""

    preserved: Bool[Tensor, "B T"]  # action tokens of rows with A >= 0
    gate_open: Bool[Tensor, "B T"]
    penalty: Float[Tensor, "B T"]  # nats, before the weight lambda
    gradient: Float[Tensor, "B T"]  # of the loss in new_logp; negative: descent lifts the token
    loss: float  # lambda times the mean penalty of a preserved token, nats


@dataclass(frozen=True)
class ProxyValues:
    """One next-token distribution and Lp-Reg's proxy of it."""

    probs: Float[Tensor, " V"]
    kept: Bool[Tensor, " V"]
    proxy: Float[Tensor, " V"]  # renormalised over the kept tokens
    gradient: Float[Tensor, " V"]  # of the KL in the logits: probs - proxy
    kl: float  # KL(proxy || policy), nats
    entropy: float  # of the policy, nats


@dataclass(frozen=True)
class TokenInfo:
    """One token of a trajectory; None where a value is unknown or means nothing."""

    text: str
    role: Role
    logp: float | None = None  # nats, of the policy that sampled
    change: float | None = None  # new - old log-prob over one batch's updates, nats
    gate_open: bool | None = None  # LLDS's gate after those updates
    protected: bool | None = None  # by Lp-Reg


def gate_values(
    case: GateCase, *, gate: Gate, answer_weight: float | int, coef: float | int
) -> GateValues:
    """LLDS on a small case: open gates, penalties, loss and gradient (2512.04220v2 Eq. 4, 5)."""
    logp = case.new_logp.detach().clone().requires_grad_()
    rows = (case.old_logp, case.advantages, case.action_mask)
    term = llds_penalty(
        logp, *rows, gate=gate, answer_mask=case.answer_mask, answer_weight=answer_weight
    )
    preserved = preserved_mask(case.advantages, case.action_mask)
    loss = coef * aggregate(term, preserved, "token-mean")
    (gradient,) = torch.autograd.grad(loss, logp)
    return GateValues(
        preserved=preserved,
        gate_open=llds_gate(logp.detach(), *rows, gate),
        penalty=term.detach(),
        gradient=gradient,
        loss=float(loss.detach()),
    )


def proxy_values(
    logits: Float[Tensor, " V"], *, filtering: Literal["min-p", "fixed"], threshold: float | int
) -> ProxyValues:
    """Lp-Reg's proxy of one distribution, its KL and the KL's gradient (2510.03222v2 Eq. 5, 6)."""
    given = {"kappa" if filtering == "min-p" else "tau": threshold}
    leaf = logits.detach().float().view(1, 1, -1).requires_grad_()
    filtered = proxy_logits(leaf, **given)
    kl = forward_kl(leaf, filtered)
    (gradient,) = torch.autograd.grad(kl.sum(), leaf)
    logp = leaf.detach().log_softmax(-1)[0, 0]
    kept = filtered[0, 0] > -torch.inf
    proxy = torch.where(kept, filtered[0, 0].softmax(-1), 0.0)  # 0 where all were dropped
    return ProxyValues(
        probs=logp.exp(),
        kept=kept,
        proxy=proxy,
        gradient=gradient[0, 0],
        kl=float(kl.detach()),
        entropy=float(-(logp.exp() * logp).sum()),
    )


def record_tokens(record: Mapping[str, Any]) -> list[TokenInfo]:
    """The tokens of one line of rollouts.jsonl, whose tokens are words.

    Raises ValueError for a record whose words do not match its log-probs: tokens of another
    tokenizer cannot be told apart in its text.
    """
    tokens = []
    for turn in record["turns"]:
        words = turn["text"].split()
        if turn["role"] != "action":
            tokens += [TokenInfo(word, turn["role"]) for word in words]
            continue
        if len(words) != len(turn["logp"]):
            raise ValueError(
                f"a turn has {len(words)} words but {len(turn['logp'])} log-probs: only runs of "
                "the tiny searcher, whose tokens are words, can be shown token by token"
            )
        tokens += [TokenInfo(w, "action", v) for w, v in zip(words, turn["logp"], strict=True)]
    return tokens


def batch_tokens(
    texts: Sequence[Sequence[str]],
    roles: Sequence[Sequence[Role]],
    batch: Batch,
    old_logp: Float[Tensor, "B T"],
    new_logp: Float[Tensor, "B T"],
    proxy_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    config: LossConfig,
) -> list[list[TokenInfo]]:
    """Every row token by token: its change over the updates, LLDS's gate, Lp-Reg's protection.

    `texts` and `roles` are row by row and as long as the row. Gate and protection follow `config`,
    whatever its weights; a gate is known on rows with advantage >= 0 and a protection on the rest,
    since each term acts there alone. `old_logp` is of the sampling policy, as is `proxy_logp`.
    """
    mask = batch.action_mask
    gate_open = llds_gate(
        new_logp, old_logp, advantages, mask, config.llds_gate, config.llds_preserve
    )
    protected = lp_reg_mask(
        old_logp,
        proxy_logp,
        advantages,
        mask,
        quantile=config.lp_reg_quantile,
        selection=config.lp_reg_selection,
    )
    rows = []
    for b, (words, authors) in enumerate(zip(texts, roles, strict=True)):
        good = bool(advantages[b] >= 0)
        rows.append([TokenInfo(word, role) for word, role in zip(words, authors, strict=True)])
        for t in mask[b].nonzero()[:, 0].tolist():
            rows[b][t] = TokenInfo(
                text=words[t],
                role="action",
                logp=float(old_logp[b, t]),
                change=float(new_logp[b, t] - old_logp[b, t]),
                gate_open=bool(gate_open[b, t]) if good else None,
                protected=None if good else bool(protected[b, t]),
            )
    return rows
