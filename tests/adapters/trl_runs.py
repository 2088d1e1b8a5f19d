"""Small runs of TRL's trainer with the adapter: a random searcher on questions of the world."""

import random
from collections import Counter
from pathlib import Path

import torch
from datasets import Dataset
from helpers import retriever, tiny_policy, world_questions

from lldlib.adapters.search import rollout_reward, search_rollout
from lldlib.adapters.trl import LLDGRPOConfig, LLDGRPOTrainer
from lldlib.config import RolloutConfig
from lldlib.policy.load import Policy
from lldlib.rollout.loop import Rollout
from lldlib.types import Episode, Question
from lldlib.world.environment import RULES

ROLLOUT = RolloutConfig(max_tokens=40, max_searches=3)
GROUP = 4


class Remembering:
    """Runs episodes and keeps them; a reward that is not of the world, so that groups are mixed."""

    def __init__(self, policy: Policy):
        self.rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), ROLLOUT)
        self.episodes: list[Episode] = []

    def run(self, model, questions: list[Question], *, temperature: float) -> list[Episode]:
        """Sampled by a generator of its own, so that a run is the same whatever else draws."""
        generator = torch.Generator().manual_seed(7)
        self.episodes = self.rollout.run(
            model, questions, temperature=temperature, generator=generator
        )
        return self.episodes


class Replaying:
    """Gives the k-th stored episode of a question to the k-th row that asks it."""

    def __init__(self, episodes: list[Episode]):
        self.episodes = episodes

    def run(self, model, questions: list[Question], *, temperature: float) -> list[Episode]:
        """The stored episodes, whatever the model would say."""
        seen, out = Counter(), []
        for question in questions:
            own = [e for e in self.episodes if e.question.id == question.id]
            out.append(own[seen[question.id] % len(own)])
            seen[question.id] += 1
        return out


def odd_reward(completion_ids, **_) -> list[float]:
    """1 where the token numbers add up to an odd one: some of each kind in most groups."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def settings(folder: Path, **changes) -> LLDGRPOConfig:
    """A config for the CPU: two questions of four rollouts, one minibatch, three passes over it."""
    given = {
        "per_device_train_batch_size": 8,
        "steps_per_generation": 1,
        "num_iterations": 3,
        "max_steps": 3,
        "num_generations": GROUP,
        "max_completion_length": ROLLOUT.max_tokens,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "loss_type": "dapo",
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
        "logging_steps": 1.0,  # a float, as HF annotates it: the shape checker is strict
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "output_dir": str(folder / "trl"),
    }
    return LLDGRPOConfig(**(given | changes))


def trainer(config: LLDGRPOConfig, policy: Policy, runner=None, **extra) -> LLDGRPOTrainer:
    """The adapter on the world's questions; `extra` goes to GRPOTrainer."""
    questions = world_questions(8)
    random.Random(0).shuffle(questions)
    rollout = extra.pop("rollout_func", search_rollout(runner or Remembering(policy), questions))
    return LLDGRPOTrainer(
        model=extra.pop("model", policy.model),
        processing_class=policy.tokenizer,
        reward_funcs=extra.pop("reward_funcs", odd_reward),
        rollout_func=rollout,
        train_dataset=Dataset.from_list([{"prompt": q.text} for q in questions]),
        args=config,
        **extra,
    )


def some_policy() -> Policy:
    """A random searcher that writes tags."""
    return tiny_policy(3)


__all__ = ["Remembering", "Replaying", "rollout_reward", "settings", "some_policy", "trainer"]
