"""A clock, ratios of interleaved repeats, and the table they are printed in."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

# CPU seconds of this process. Everything here runs on one thread and never waits, so on an idle
# machine this is wall time; on a busy one it leaves out the time that other processes took.
clock = time.process_time
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds that `work` took, and its result."""
    start = clock()
    result = work()
    return clock() - start, result


@dataclass(frozen=True)
class Measurement:
    """One ratio, once per repeat; `aim` is a floor for a speed-up and a ceiling for an overhead."""

    what: str
    ratios: list[float]
    aim: float | None = None
    overhead: bool = False  # a share of extra time (printed in percent), not a speed-up

    @property
    def median(self) -> float:
        """The median over the repeats."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the aim; None without one."""
        if self.aim is None:
            return None
        return self.median <= self.aim if self.overhead else self.median >= self.aim

    def row(self) -> str:
        """A row of the markdown table: median, quartiles, aim, verdict, repeats."""
        low, _, high = quartiles(self.ratios)
        aim = "" if self.aim is None else ("≤ " if self.overhead else "≥ ") + self._text(self.aim)
        verdict = {None: "", True: "yes", False: "NO"}[self.met]
        spread = f"{self._text(low)} to {self._text(high)}"
        cells = [self.what, self._text(self.median), spread, aim, verdict, str(len(self.ratios))]
        return f"| {' | '.join(cells)} |"

    def _text(self, value: float) -> str:
        return f"{100 * value:.2f} %" if self.overhead else f"{value:.2f}x"


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of one value, that value."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def table(measurements: Iterable[Measurement]) -> str:
    """The markdown table of the ratios."""
    head = "| measured | median | quartiles | aim | met | repeats |\n|---|---|---|---|---|---|"
    return "\n".join([head, *(m.row() for m in measurements)])
