"""Environments: which questions are asked, what may be searched, how it is worded, what it earns.

An environment knows no model. `ENVIRONMENTS` lists them all: a new one is a file with a function
that opens it from a config, and a line there.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lldlib.config import HELDOUT_QUESTIONS, TRAIN_QUESTIONS, DataConfig, Kind, TrainConfig
from lldlib.retrieval import BM25Retriever, NoRetriever, Retriever
from lldlib.retrieval.choose import open_retriever
from lldlib.seeds import seed_for
from lldlib.types import Question, Watch
from lldlib.world import sparks as spark_world
from lldlib.world.answers import exact_match, f1, is_right, need_math_verify
from lldlib.world.atlas import World
from lldlib.world.benchmarks import load_source
from lldlib.world.protocol import MATHS, Protocol, search_protocol
from lldlib.world.shuffled import MissingRetriever, exam_questions, planet

PLANET_QUESTIONS = 256  # drawn for a rollout batch, which asks some of them
EXAM_SAMPLES = 4  # answers to each held-out question of the shuffled atlas

Score = Callable[[str | None, tuple[str, ...]], float]  # (answer, accepted ones) -> 0 to 1


@dataclass(frozen=True)
class Rules:
    """How any policy is asked, and what its answer earns."""

    protocol: Callable[..., Protocol]  # in the texts that suit a tokenizer, its one argument
    reward: Score
    scores: Mapping[str, Score] = field(default_factory=dict)  # reported beside it, by name


@dataclass(frozen=True)
class Split:
    """Questions, and the tool that may be used for them."""

    questions: Sequence[Question]
    tool: Retriever
    samples: int = 1  # answers to each question where an evaluation samples
    passes: bool = False  # whether pass@k is reported, for k = 1, 2, 4, ... up to `samples`


@dataclass(frozen=True)
class Environment:
    """Questions, tool, protocol and reward of a run."""

    rules: Rules
    training: Callable[[int], Split]  # of a rollout batch, by its number
    heldout: Split | None  # None: nothing is held out
    # further held-out splits by name, made anew for each evaluation: a tool may have a state
    exams: Callable[[], dict[str, Split]] = dict
    watches: Mapping[str, Watch] = field(default_factory=dict)  # measured every batch

    @classmethod
    def fixed(cls, rules: Rules, training: Split, heldout: Split | None = None) -> "Environment":
        """One whose questions and tool are the same in every batch."""
        return cls(rules, lambda batch: training, heldout)


RULES: dict[Kind, Rules] = {
    "qa": Rules(search_protocol, exact_match, {"f1": f1}),
    "maths": Rules(MATHS.in_chat, is_right),
}
SPARKS = Rules(lambda tokenizer: spark_world.PROTOCOL, exact_match)


def atlas(config: TrainConfig) -> Environment:
    """The built-in world; training searches its train facts only and never meets a held-out one."""
    world = World.load()
    return Environment.fixed(
        RULES["qa"],
        Split(
            fixed_questions(world, TRAIN_QUESTIONS, "train"),
            BM25Retriever(world.passages("train")),
        ),
        Split(
            fixed_questions(world, HELDOUT_QUESTIONS, "heldout"),
            BM25Retriever(world.passages("all")),
        ),
    )


def shuffled_atlas(config: TrainConfig) -> Environment:
    """A planet without a true pair for every batch; held out are the true facts.

    Training and the exam "missing" search a library that misses; the exam "further" asks one hop
    more than training does. Raises ValueError where no question is one hop longer.
    """
    data, truth = config.data, BM25Retriever(World.load().passages("all"))
    if not any(data.hop_weights):
        raise ValueError("data.hop_weights are all 0: give at least one number of hops a share")
    hops = [number for number, weight in enumerate(data.hop_weights, start=1) if weight]
    near, far = (exam_questions(part, data.exam_half) for part in (hops, [max(hops) + 1]))

    def training(batch: int) -> Split:
        seed = seed_for("training planet", config.seed, batch)
        world, rng = planet(seed), random.Random(seed)
        questions = world.sample_questions(rng, PLANET_QUESTIONS, "train", data.hop_weights)
        tool = MissingRetriever(BM25Retriever(world.passages("train")), data.misses, seed)
        return Split(questions, tool)

    def exams() -> dict[str, Split]:
        missing = MissingRetriever(truth, data.misses, seed=0)
        return {
            "missing": Split(near, missing, EXAM_SAMPLES),
            "further": Split(far, truth, EXAM_SAMPLES),
        }

    return Environment(RULES["qa"], training, Split(near, truth, EXAM_SAMPLES), exams)


def sparks(config: TrainConfig) -> Environment:
    """Sums in which a rare word pays late; held out are hard ones, and easy and checked ones.

    Raises ValueError for a config with searches.
    """
    if config.rollout.max_searches:
        raise ValueError("sums are answered without search: set rollout.max_searches to 0")

    def training(batch: int) -> Split:
        seed = seed_for("sums", config.seed, batch)
        drawn = spark_world.questions(seed, spark_world.KINDS, spark_world.POOL)
        return Split(drawn, NoRetriever())

    def split(kind: str, samples: int, passes: bool = False) -> Split:
        return Split(spark_world.exam(kind), NoRetriever(), samples, passes)

    return Environment(
        SPARKS,
        training,
        split("hard", spark_world.PASS_SAMPLES, passes=True),
        lambda: {kind: split(kind, EXAM_SAMPLES) for kind in ("easy", "checked")},
        spark_world.watches(),
    )


def fixed_questions(world: World, total: int, split: str) -> list[Question]:
    """At most `total` different questions, the same draw in every run."""
    drawn = world.sample_questions(random.Random(0), total, split)
    return list({question.id: question for question in drawn}.values())


def qa_files(config: TrainConfig) -> Environment:
    """Question answering from files; raises what loading raises."""
    return _files(config.data, "qa", config.data.retriever)


def maths_files(config: TrainConfig) -> Environment:
    """Maths from files, answered without search.

    Raises ValueError for a config with searches or a corpus and without math-verify, and what
    loading raises.
    """
    need_math_verify()
    if config.rollout.max_searches:
        raise ValueError("maths is answered without search: set rollout.max_searches to 0")
    return _files(config.data, "maths", "none")


def _files(data: DataConfig, kind: Kind, retriever: str) -> Environment:
    """One tool for training and held-out questions alike."""
    corpus, index = (None if path is None else Path(path) for path in (data.corpus, data.index))
    tool = open_retriever(retriever, corpus, index)
    train = [q for source in data.train for q in load_source(source, kind, train=True)]
    heldout = [
        question
        for source in data.heldout
        for question in load_source(source, kind)[: data.heldout_limit]
    ]
    return Environment.fixed(
        RULES[kind], Split(train, tool), Split(heldout, tool) if heldout else None
    )


ENVIRONMENTS: dict[str, Callable[[TrainConfig], Environment]] = {
    "atlas": atlas,
    "shuffled": shuffled_atlas,
    "sparks": sparks,
    "qa": qa_files,
    "maths": maths_files,
}


def open_environment(config: TrainConfig) -> Environment:
    """The one that the config names: `data.kind` where there are files to train on, else `world`.

    Raises ValueError for an unknown world, and what opening raises.
    """
    name = config.data.kind if config.data.train else config.data.world
    if name not in ENVIRONMENTS:
        raise ValueError(f"unknown world {name!r}: use one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name](config)
