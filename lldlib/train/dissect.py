"""One rollout batch taken apart: what its updates did to each token."""

import copy
from dataclasses import dataclass

import torch

from lldlib.config import LossConfig
from lldlib.losses.advantages import group_advantages
from lldlib.policy.score import score_sorted
from lldlib.rollout.batch import collate
from lldlib.show.values import TokenInfo, batch_tokens
from lldlib.train.trainer import Trainer


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
