"""Scores of recorded answers: bootstrap intervals, and the paired comparison of two policies."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lldlib.config import check
from lldlib.files import one_line, read_jsonl

RESAMPLES, LEVEL = 10_000, 0.95


@dataclass(frozen=True)
class Prediction:
    """One answer of a policy to one question; a line of a predictions file."""

    id: str
    sample: int  # from 0, where a question is asked several times
    question: str
    golden_answers: list[str]
    prediction: str | None
    score: float  # exact match, or for maths equality by math-verify: 0 or 1
    f1: float | None  # token F1, 0 to 1; None for maths
    searches: int  # valid ones
    invalid: int  # actions that were neither a search nor an answer
    tokens: int  # that the policy wrote
    stop: str  # a StopReason


def read_predictions(path: Path | str) -> list[Prediction]:
    """The lines of a predictions file.

    Raises FileNotFoundError for a missing file; ValueError, naming file and line, for a line that
    is no prediction or repeats a question's sample.
    """
    found: dict[tuple[str, int], Prediction] = {}
    for where, row in read_jsonl(path):
        try:
            one = Prediction(**row)
            check(one)
        except (TypeError, ValueError) as error:
            reason = one_line(str(error))
            raise ValueError(f"{where}: not a prediction ({reason}); remove the line") from error
        if (one.id, one.sample) in found:
            raise ValueError(f"{where}: '{one.id}', sample {one.sample}, stands here twice")
        found[one.id, one.sample] = one
    return list(found.values())


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % bootstrap interval over questions."""

    mean: float
    low: float
    high: float


def bootstrap(values: Sequence[float], stream: str) -> np.ndarray:
    """RESAMPLES means of `values` drawn with replacement; each `stream` has its own luck."""
    data = np.asarray(values, dtype=float)
    random = np.random.default_rng(zlib.crc32(stream.encode()))
    means = [  # in parts: one array of all draws would take half a gigabyte for HotpotQA
        data[random.integers(len(data), size=(100, len(data)))].mean(axis=1)
        for _ in range(RESAMPLES // 100)
    ]
    return np.concatenate(means)


def estimate(mean: float, means: np.ndarray) -> Estimate:
    """The percentile interval of the resampled means around a mean."""
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(mean), float(low), float(high))


@dataclass(frozen=True)
class TaskScores:
    """What a policy reached on one task."""

    title: str
    kind: Literal["qa", "maths"]
    scores: list[float]  # per question: mean over its samples
    f1: list[float] | None  # the same of F1; None for maths
    samples: int  # answers to each question
    searches: float  # valid searches, mean per answer
    tokens: float  # that the policy wrote, mean per answer
    answered: float  # share with a prediction
    tool_errors: int  # answers that ended because the search tool was down

    def summary(self) -> dict[str, Any]:
        """All of it as JSON can hold it, with means and intervals for the single questions."""
        parts = {"score": self.scores, "f1": self.f1}
        return {
            "title": self.title,
            "questions": len(self.scores),
            "samples": self.samples,
            **{
                name: None if values is None else asdict(mean_of(values, self.title))
                for name, values in parts.items()
            },
            "searches": self.searches,
            "tokens": self.tokens,
            "answered": self.answered,
            "tool_errors": self.tool_errors,
        }


def mean_of(values: Sequence[float], stream: str) -> Estimate:
    """The mean of one value per question, with its interval."""
    return estimate(float(np.mean(values)), bootstrap(values, stream))


def macro_average(tasks: Sequence[TaskScores]) -> Estimate:
    """The mean of the tasks' mean scores; the questions of each task are resampled on their own."""
    means = [bootstrap(task.scores, task.title) for task in tasks]
    return estimate(float(np.mean([np.mean(task.scores) for task in tasks])), np.mean(means, 0))


def score_task(
    title: str, kind: Literal["qa", "maths"], predictions: Iterable[Prediction]
) -> TaskScores:
    """Collect the predictions of one task; ValueError where a question lacks a sample."""
    frame = pd.DataFrame(map(vars, predictions))
    questions = frame.groupby("id", sort=False)
    sizes = sorted(set(questions.size()))
    if len(sizes) != 1:
        raise ValueError(f"{title}: the questions have {sizes} samples; want one number")
    return TaskScores(
        title=title,
        kind=kind,
        scores=questions["score"].mean().tolist(),
        f1=questions["f1"].mean().tolist() if kind == "qa" else None,
        samples=sizes[0],
        searches=float(frame["searches"].mean()),
        tokens=float(frame["tokens"].mean()),
        answered=float(frame["prediction"].notna().mean()),
        tool_errors=int((frame["stop"] == "tool_error").sum()),
    )


@dataclass(frozen=True)
class Paired:
    """Two policies on the same questions: the first one's score minus the second one's."""

    title: str
    questions: int
    difference: Estimate
    wins: int  # questions on which the first scores higher
    losses: int


def compare(title: str, first: Sequence[Prediction], second: Sequence[Prediction]) -> Paired:
    """Compare question by question; ValueError where the second lacks a question of the first."""
    one, other = (
        pd.DataFrame(map(vars, side)).groupby("id", sort=False)["score"].mean()
        for side in (first, second)
    )
    gaps = one - other.reindex(one.index)
    if gaps.hasnans:
        name = min(gaps.index[gaps.isna()])
        raise ValueError(f"{title}: '{name}' was not asked of both policies; evaluate both alike")
    wins, losses = int((gaps > 0).sum()), int((gaps < 0).sum())
    return Paired(title, len(gaps), mean_of(gaps.tolist(), title), wins, losses)
