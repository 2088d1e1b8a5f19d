"""One batch taken apart: what its updates did to each token of each of its trajectories."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses import group_advantages, llds_gate, lp_reg_mask
from lldlib.policy.score import score_sorted
from lldlib.rollout.batch import collate
from lldlib.train.trainer import Trainer
from lldlib.types import Batch, TokenInfo


@dataclass(frozen=True)
class Dissected:
    """One trajectory of the batch."""

    question: str
    reward: float
    advantage: float
    tokens: list[TokenInfo]


def dissect(trainer: Trainer, loss: LossConfig) -> list[Dissected]:
    """Train one batch and say what its updates did to each token of each of its trajectories.

    The batch is trained by the trainer's own settings; gates and protection are those of `loss`.
    Nothing is logged: use a run that may be thrown away.
    """
    config, policy = trainer.config, trainer.policy
    before, temperature = copy.deepcopy(policy.model), config.rollout.temperature
    _, episodes = trainer.step()
    batch = collate(episodes)
    advantages = group_advantages(batch.rewards, batch.group, scale=config.loss.scale_advantage)
    with torch.no_grad():
        old = score_sorted(before, batch, temperature, proxy=loss)
        new = score_sorted(policy.model, batch, temperature)
    decode = policy.tokenizer.decode
    texts = [[decode([t]) for turn in e.turns for t in turn.tokens] for e in episodes]
    roles = [[turn.role for turn in e.turns for _ in turn.tokens] for e in episodes]
    rows = batch_tokens(texts, roles, batch, old.logp, new.logp, old.proxy_logp, advantages, loss)
    return [
        Dissected(e.question.text, e.reward, float(a), tokens)
        for e, a, tokens in zip(episodes, advantages, rows, strict=True)
    ]


def batch_tokens(
    texts: Sequence[Sequence[str]],
    roles: Sequence[Sequence[str]],
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
