"""Held-out evaluation: greedy episodes, exact match and F1 (SQuAD normalisation)."""

from dataclasses import dataclass

from lldlib.policies import Policy
from lldlib.rewards import exact_match, f1
from lldlib.rollout import Rollout
from lldlib.types import Episode, Question


@dataclass(frozen=True)
class Evaluation:
    """Scores of one policy on one set of questions."""

    em: float  # mean exact match, 0 to 1
    f1: float  # mean token F1, 0 to 1
    episodes: list[Episode]

    @property
    def exact(self) -> list[float]:
        """Exact match per question, in order."""
        return [exact_match(e.answer, e.question.answers) for e in self.episodes]


def evaluate(
    policy: Policy, rollout: Rollout, questions: list[Question], *, rows: int = 128
) -> Evaluation:
    """Answer every question once, greedily, `rows` at a time; ValueError for no questions."""
    if not questions:
        raise ValueError("no questions to evaluate: check the file or the slice")
    episodes = []
    for start in range(0, len(questions), rows):
        episodes += rollout.run(policy.model, questions[start : start + rows], temperature=0.0)
    pairs = [(e.answer, e.question.answers) for e in episodes]
    return Evaluation(
        em=sum(exact_match(a, g) for a, g in pairs) / len(pairs),
        f1=sum(f1(a, g) for a, g in pairs) / len(pairs),
        episodes=episodes,
    )
