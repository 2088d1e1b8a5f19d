"""What a run needs besides its config: policy, environment, the fixed probe set."""

import random
from dataclasses import dataclass

import torch

from lldlib.config import PROBE_ROWS, RolloutConfig, TrainConfig
from lldlib.policy.load import Policy, load_as
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.types import Batch
from lldlib.world.environment import Environment
from lldlib.world.registry import open_environment

PROBE_SEED = 99


@dataclass
class Setting:
    """What a run needs besides its config."""

    policy: Policy
    environment: Environment
    probe: Batch | None


def make_setting(config: TrainConfig) -> Setting:
    """The environment and the policy that the config names, and their probe set if it is due.

    Raises ValueError for a held-out evaluation without questions, and what opening, loading and
    the probe set raise.
    """
    environment = open_environment(config)
    if environment.heldout is None:
        for name in ("eval_every", "questions_every"):
            if getattr(config, name):
                raise ValueError(f"no held-out questions: name files in data.heldout, or {name} 0")
    policy = load_as(config.policy, config.load)
    probe = probe_set(policy, environment, config.rollout) if config.probe_every else None
    return Setting(policy, environment, probe)


def probe_set(policy: Policy, environment: Environment, rollout: RolloutConfig) -> Batch:
    """Correct trajectories of the starting policy: the same for every run from that start.

    Raises ValueError where the policy answers nothing.
    """
    split = environment.training(0)
    size = min(len(split.questions), 4 * PROBE_ROWS)
    episodes = Rollout(policy.tokenizer, environment.rules, split.tool, rollout).run(
        policy.model,
        random.Random(PROBE_SEED).sample(split.questions, size),
        temperature=rollout.temperature,
        generator=torch.Generator().manual_seed(PROBE_SEED),
    )
    right = [episode for episode in episodes if episode.reward == 1.0][:PROBE_ROWS]
    if not right:
        raise ValueError(
            "the starting policy answers nothing: warm-start it first, or check its protocol"
        )
    return collate(right)
