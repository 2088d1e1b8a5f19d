"""Everything that a page says of one run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lldlib.doctor.judge import Judgement, judge
from lldlib.doctor.judging.advice import Advice, advice
from lldlib.doctor.judging.findings import Pattern, patterns
from lldlib.doctor.judging.statistics import without_glitches
from lldlib.doctor.judging.vital import Sign, signs
from lldlib.doctor.judging.warnings import Ring, rings
from lldlib.doctor.reading.series import LoggedRun

WORTH_NAMING = ("heldout", "entropy", "grad_norm", "kl", "length", "clipped", "no_contrast")


@dataclass(frozen=True)
class Diagnosis:
    """A run, its verdict, and what else its log shows."""

    run: LoggedRun
    judged: Judgement
    warnings: tuple[Ring, ...]
    patterns: tuple[Pattern, ...]
    advice: tuple[Advice, ...]
    signs: tuple[Sign, ...] = ()
    answers: Any = None  # what the texts beside the log show: lines(), pairs() and html()

    @property
    def warned(self) -> float | None:
        """The step of the first warning."""
        return float(self.run.steps[self.warnings[0].row]) if self.warnings else None

    @property
    def missing(self) -> list[str]:
        """Signals worth having that the log does not hold."""
        if self.run.kind.word != "rl":
            return []
        held = np.isfinite(self.run.heldout).any()
        have = self.run.signals.keys() | ({"heldout"} if held else set())
        have |= {"kl"} if "kl_sum" in have else set()
        return [name for name in ("reward", *WORTH_NAMING) if name not in have]

    @property
    def hours(self) -> tuple[float, float] | None:
        """(hours that ran after the fall, hours in all), where something fell and times are known.

        A gap in the clock, such as a night between two starts, counts.
        """
        return None if self.judged.row is None else self.run.hours_after(self.judged.row)


def tool_died(found: Iterable[Pattern]) -> bool:
    """Whether one of these patterns is a tool that died: then no warning is looked for."""
    return any(pattern.key == "tool" for pattern in found)


def diagnose_run(run: LoggedRun) -> Diagnosis:
    """Judge a run, and find its signs, warnings, patterns and advice."""
    run = without_glitches(run)
    judged, shown = judge(run), signs(run)
    found = patterns(run, judged)
    rung = () if tool_died(found) else tuple(rings(run.sure, judged.verdict, judged.row))
    tried = advice(run, judged.verdict, [(p.key, p.title) for p in found], shown)
    return Diagnosis(run, judged, rung, tuple(found), tuple(tried), tuple(shown))
