"""Held-out evaluation: one episode a question, scored by the protocol's rule, and F1 (SQuAD)."""

from dataclasses import dataclass

import torch

from lldlib.policy.load import Policy
from lldlib.rollout.loop import Rollout
from lldlib.types import Episode, Question
from lldlib.world.answers import f1


@dataclass(frozen=True)
class Evaluation:
    """Scores of one policy on one set of questions."""

    em: float  # mean exact match, or for maths share of right answers, 0 to 1
    f1: float  # mean token F1, 0 to 1
    episodes: list[Episode]


def evaluate(
    policy: Policy,
    rollout: Rollout,
    questions: list[Question],
    *,
    temperature: float,
    rows: int = 128,
) -> Evaluation:
    """Answer every question once, `rows` at a time; `temperature` 0 is greedy.

    Sampling draws from a fixed seed, so that two policies meet the same luck. ValueError for no
    questions.
    """
    if not questions:
        raise ValueError("no questions to evaluate: check the file or the slice")
    device = next(policy.model.parameters()).device
    episodes, generator = [], torch.Generator(device=device).manual_seed(0)
    for start in range(0, len(questions), rows):
        part = questions[start : start + rows]
        episodes += rollout.run(policy.model, part, temperature=temperature, generator=generator)
    pairs = [(e.answer, e.question.answers) for e in episodes]
    return Evaluation(
        em=sum(rollout.protocol.reward(a, g) for a, g in pairs) / len(pairs),
        f1=sum(f1(a, g) for a, g in pairs) / len(pairs),
        episodes=episodes,
    )
