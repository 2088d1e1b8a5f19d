"""How a run ends: against its own start, and by the rule of a collapse."""

from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from lldlib.runs.folder import Run
from lldlib.runs.phases import DEFAULT, PHASE_KEYS, live_phase

FIRST, LAST = 2, 3  # batches whose mean reward is a run's start, and its end

Verdict = Literal["lives", "below its start", "collapsed", "too early to say"]


@dataclass(frozen=True)
class Fate:
    """Where a run stands: mean rewards, None where nothing was measured, and what they say."""

    batches: int
    start: float | None  # of the first two batches
    best: float | None  # highest mean of three batches
    end: float | None  # of the last three
    verdict: Verdict


def fate_of(run: Run) -> Fate:
    """Whether a run lives: its end is at least its start, and it is in no collapse.

    The collapse is that of `phases`, told live: the trailing mean of ten batches fell under 0.3 of
    its best, and is not back. Before ten batches it is too early to say.
    """
    rewards = run.column(PHASE_KEYS[0])
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return Fate(len(rewards), None, None, None, "too early to say")
    start, end = fmean(known[:FIRST]), fmean(known[-LAST:])
    width = min(LAST, len(known))
    best = max(fmean(known[at : at + width]) for at in range(len(known) - width + 1))
    verdict: Verdict = "lives" if end >= start else "below its start"
    if live_phase(*(run.column(key) for key in PHASE_KEYS), DEFAULT) == "collapse":
        verdict = "collapsed"
    elif len(rewards) < DEFAULT.window:
        verdict = "too early to say"
    return Fate(len(rewards), start, best, end, verdict)
