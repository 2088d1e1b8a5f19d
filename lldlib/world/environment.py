"""What an environment is: which questions are asked, what may be searched, what an answer earns.

It knows no model. Each world is a file with a function that opens one from a config; `registry`
lists them all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lldlib.config import Kind
from lldlib.retrieval import Retriever
from lldlib.types import Question, WatchedWords
from lldlib.world.answers import exact_match, f1, is_right
from lldlib.world.protocol import MATHS, Protocol, atlas_protocol, search_protocol

EXAM_SAMPLES = 4  # answers to each held-out question of a built-in world

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
    watches: Mapping[str, WatchedWords] = field(default_factory=dict)  # measured every batch

    @classmethod
    def fixed(cls, rules: Rules, training: Split, heldout: Split | None = None) -> "Environment":
        """One whose questions and tool are the same in every batch."""
        return cls(rules, lambda batch: training, heldout)


RULES: dict[Kind, Rules] = {
    "qa": Rules(search_protocol, exact_match, {"f1": f1}),
    "maths": Rules(MATHS.in_chat, is_right),
}
ATLAS = Rules(atlas_protocol, exact_match, {"f1": f1})
