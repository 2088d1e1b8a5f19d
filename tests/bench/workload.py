"""What every arm of the bench runs on: one policy, one search tool, the same questions."""

import random
from dataclasses import dataclass

from lldlib.config import TrainConfig
from lldlib.policy.load import Policy, load_as
from lldlib.recipes import WORLD, train_config
from lldlib.types import Episode, Question
from lldlib.world.environment import Environment
from lldlib.world.registry import open_environment

SEED = 0


@dataclass(frozen=True)
class Workload:
    """GRPO on the built-in world at the collapse setting, from the given policy."""

    config: TrainConfig
    overrides: dict[str, object]  # that `config` was made with
    policy: Policy
    environment: Environment

    @classmethod
    def make(cls, policy: str, **overrides: object) -> "Workload":
        """`overrides` are those of `train_config`; the learning rate is constant throughout."""
        config = train_config(
            "grpo", SEED, policy, recipe=WORLD, **overrides | {"warmup_batches": 0}
        )
        policy = load_as(config.policy, config.load)
        return cls(config, overrides, policy, open_environment(config))

    def wider(self, times: int) -> "Workload":
        """The same work with `times` as many questions in a batch."""
        overrides = self.overrides | {"problems": times * self.config.rollout.problems}
        return Workload.make(self.config.policy, **overrides)

    @property
    def parts(self) -> tuple:
        """What makes a `Rollout`, or a `SearchR1Loop`."""
        tool = self.environment.training(0).tool
        return self.policy.tokenizer, self.environment.rules, tool, self.config.rollout

    @property
    def rows(self) -> int:
        """Episodes in a rollout batch."""
        return self.config.rollout.problems * self.config.rollout.group_size

    def batches(self, count: int) -> list[list[Question]]:
        """The questions of `count` rollout batches, P different ones each; always the same draw."""
        rng, questions = random.Random(SEED), self.environment.training(0).questions
        return [rng.sample(questions, self.config.rollout.problems) for _ in range(count)]

    def repeated(self, questions: list[Question]) -> list[Question]:
        """Every question once per rollout of its group."""
        return [q for q in questions for _ in range(self.config.rollout.group_size)]


def policy_tokens(episodes: list[Episode]) -> int:
    """Tokens that the policy chose."""
    return sum(len(t.tokens) for e in episodes for t in e.turns if t.role == "action")


def all_tokens(episodes: list[Episode]) -> int:
    """All tokens: prompts and retrieved text too."""
    return sum(len(t.tokens) for e in episodes for t in e.turns)
