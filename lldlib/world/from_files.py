"""Environments of the user's own questions and passages, from files."""

from pathlib import Path

from lldlib.config import DataConfig, Kind, TrainConfig
from lldlib.retrieval.choose import open_retriever
from lldlib.world.answers import need_math_verify
from lldlib.world.benchmarks import load_source
from lldlib.world.environment import RULES, Environment, Split


def qa(config: TrainConfig) -> Environment:
    """Question answering from files; raises what loading raises."""
    return _files(config.data, "qa", config.data.retriever)


def maths(config: TrainConfig) -> Environment:
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
