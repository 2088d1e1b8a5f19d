"""What a run needs besides its config: the policy, questions, passages, and the fixed probe set."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lldlib.config import RolloutConfig, TrainConfig
from lldlib.policy.load import Policy, load_as
from lldlib.retrieval import BM25Retriever, Retriever
from lldlib.retrieval.choose import open_retriever
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.types import Batch, Question
from lldlib.world.atlas import World
from lldlib.world.benchmarks import load_source
from lldlib.world.maths import MATHS, need_math_verify

PROBE_ROWS = 48  # correct trajectories in the fixed probe set
HELDOUT_QUESTIONS = 120
TRAIN_QUESTIONS = 1500


@dataclass
class Setting:
    """What a run needs besides its config."""

    policy: Policy
    train_questions: list[Question]
    heldout_questions: list[Question]  # may be empty
    train_retriever: Retriever
    heldout_rollout: Rollout


def make_setting(config: TrainConfig) -> Setting:
    """The questions and passages that the config names, else the built-in world."""
    return data_setting(config) if config.data.train else builtin_setting(config)


def data_setting(config: TrainConfig) -> Setting:
    """Questions of files, and one retriever for training and held-out questions alike.

    The policy is asked by the protocol of the questions' kind, which also says what earns a reward.
    Raises ValueError for a held-out evaluation without files, for maths with searches, and what
    loading raises.
    """
    data = config.data
    if config.eval_every and not data.heldout:
        raise ValueError("no held-out questions: name files in data.heldout, or eval_every 0")
    if data.kind == "maths":
        _check_maths(config.rollout)
    corpus, index = (None if path is None else Path(path) for path in (data.corpus, data.index))
    retriever = open_retriever("none" if data.kind == "maths" else data.retriever, corpus, index)
    policy = load_as(config.policy, config.load)
    if data.kind == "maths":
        policy = replace(policy, protocol=MATHS.in_chat(policy.tokenizer))
    heldout = [load_source(source, data.kind)[: data.heldout_limit] for source in data.heldout]
    return Setting(
        policy=policy,
        train_questions=[q for source in data.train for q in load_source(source, data.kind)],
        heldout_questions=[question for questions in heldout for question in questions],
        train_retriever=retriever,
        heldout_rollout=Rollout(policy.tokenizer, policy.protocol, retriever, config.rollout),
    )


def _check_maths(rollout: RolloutConfig) -> None:
    """ValueError where maths could not be asked or checked."""
    need_math_verify()
    if rollout.max_searches:
        raise ValueError("maths is answered without search: set rollout.max_searches to 0")


def builtin_setting(config: TrainConfig) -> Setting:
    """The built-in world with the policy that the config names."""
    world, policy = World.load(), load_as(config.policy, config.load)
    everything = BM25Retriever(world.passages("all"))
    return Setting(
        policy=policy,
        train_questions=fixed_questions(world, TRAIN_QUESTIONS, "train"),
        heldout_questions=fixed_questions(world, HELDOUT_QUESTIONS, "heldout"),
        # over train passages only: training never meets a held-out fact
        train_retriever=BM25Retriever(world.passages("train")),
        heldout_rollout=Rollout(policy.tokenizer, policy.protocol, everything, config.rollout),
    )


def fixed_questions(world: World, total: int, split: str) -> list[Question]:
    """At most `total` different questions, the same draw in every run."""
    drawn = world.sample_questions(random.Random(0), total, split)
    return list({question.id: question for question in drawn}.values())


def probe_set(
    policy: Policy, retriever: Retriever, questions: list[Question], rollout: RolloutConfig
) -> Batch:
    """Correct trajectories of the starting policy: the same for every run from that start."""
    runner = Rollout(policy.tokenizer, policy.protocol, retriever, rollout)
    draw = random.Random(99).sample(questions, min(len(questions), 4 * PROBE_ROWS))
    episodes = runner.run(
        policy.model,
        draw,
        temperature=rollout.temperature,
        generator=torch.Generator(next(policy.model.parameters()).device).manual_seed(99),
    )
    reward = policy.protocol.reward
    right = [e for e in episodes if reward(e.answer, e.question.answers) == 1.0][:PROBE_ROWS]
    if not right:
        raise ValueError(
            "the starting policy answers nothing: warm-start it first, or check its protocol"
        )
    return collate(right, [1.0] * len(right), list(range(len(right))), runner.text)
