"""The post-mortem of a run folder: when each phase began, what went first, who started it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from lldlib.runs.folder import Run
from lldlib.runs.phases import (
    Collapse,
    Phase,
    Told,
    alarm_of,
    find_collapse,
    phases_of,
    trailing_mean,
)

DROP = 0.1  # nats per token: a part of the probe, or a word, that lost more has fallen
WINDOW = 20  # batches at the start, and before the end of the story, that are compared
SEEN = 5  # times a word must have been logged in both windows
SUSPECTS, WORDS = 5, 12  # trajectories and words that are named
PARTS = {
    "probe/free": "wording",
    "probe/content": "queries and answers",
    "probe/action_1": "action 1",
    "probe/action_2": "action 2",
    "probe/action_3": "action 3",
    "probe/action_4": "action 4",
}


@dataclass(frozen=True)
class WordFall:
    """How a word's mean log-prob, where the policy sampled it, changed between the two windows."""

    word: str
    before: float  # nats
    after: float  # nats
    count: int  # times it was logged in the later window


@dataclass(frozen=True)
class PostMortem:
    """What a run folder tells of its collapse; batches count from 0, None: it did not happen."""

    begins: dict[Phase, int]  # first batch of each phase that occurs
    told: Told  # how the phases were read
    alarm: int | None
    collapse: Collapse
    end: int  # where the story leads: to a collapse known, else the alarm, else the last batch
    fallen: list[tuple[str, int]]  # parts of the probe in the order in which they fell
    words: list[WordFall]  # the deepest fall first
    suspects: list[Mapping[str, Any]]  # records of wrong trajectories, the least likely first


def post_mortem(run: Run) -> PostMortem:
    """Read a run folder's story from its logs alone.

    A part of the probe has fallen at the first batch where the trailing mean over 5 batches is 0.1
    nats per token under its best so far. Words that fell lost 0.1 nats from the first 20 batches to
    the 20 up to `end` (fewer in a story of under 40). Suspects are the logged wrong trajectories of
    those last batches with the lowest mean log-prob: an unlikely wrong token has the longest
    gradient (LLDS, arXiv 2512.04220v2 Theorem 4.2). Only logged trajectories can be named, and
    being named proves no guilt.
    """
    phases, rung = phases_of(run), alarm_of(run)
    labels = phases.labels
    begins = {phase: labels.index(phase) for phase in dict.fromkeys(labels)}
    collapse, rollouts = find_collapse(run.column("reward/mean")), run.rollouts
    end = next(batch for batch in (collapse.known, rung, len(labels) - 1) if batch is not None)
    width = min(WINDOW, (end + 1) // 2)
    late = [r for r in rollouts if end - width < r["step"] <= end]
    wrong = [r for r in late if r["reward"] == 0 and _logps(r)]
    return PostMortem(
        begins=begins,
        told=phases.told,
        alarm=rung,
        collapse=collapse,
        end=end,
        fallen=_fallen(run),
        words=_words([r for r in rollouts if r["step"] < width], late),
        suspects=sorted(wrong, key=mean_logp)[:SUSPECTS],
    )


def mean_logp(record: Mapping[str, Any]) -> float:
    """Mean log-prob, in nats, of the tokens that the policy chose in a logged trajectory."""
    return fmean(_logps(record))


def _logps(record: Mapping[str, Any]) -> list[float]:
    return [value for turn in record["turns"] for value in turn["logp"]]


def _fallen(run: Run) -> list[tuple[str, int]]:
    found = []
    for key, name in PARTS.items():
        means = pd.Series(trailing_mean(run.column(key), 5), dtype=float)
        fell = means < means.cummax().ffill().shift() - DROP
        if fell.any():
            found.append((name, int(fell.idxmax())))
    return sorted(found, key=lambda pair: pair[1])


def _words(early: Sequence[Mapping[str, Any]], late: Sequence[Mapping[str, Any]]) -> list[WordFall]:
    first, last = _by_word(early), _by_word(late)
    shared = [w for w in last if min(len(first.get(w, ())), len(last[w])) >= SEEN]
    means = [WordFall(w, fmean(first[w]), fmean(last[w]), len(last[w])) for w in shared]
    fell = [word for word in means if word.before - word.after > DROP]
    return sorted(fell, key=lambda word: word.after - word.before)[:WORDS]


def _by_word(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Every log-prob of every word that the policy chose; turns of other tokens are left out."""
    found = defaultdict(list)
    for turn in (turn for record in records for turn in record["turns"]):
        words = turn["text"].split()
        if turn["role"] == "action" and len(words) == len(turn["logp"]):
            for word, value in zip(words, turn["logp"], strict=True):
                found[word].append(value)
    return found
