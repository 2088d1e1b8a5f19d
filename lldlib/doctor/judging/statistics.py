"""Statistics that the rules share: noise, trailing means, levels and breaks of a series."""

import math
from dataclasses import dataclass, replace

import numpy as np

from lldlib.doctor.reading.series import Array, LoggedRun


@dataclass(frozen=True)
class Window:
    """A mean over some rows with a score, and its standard error."""

    mean: float
    error: float
    end: int  # index, among the rows with a score, of the last row


def window_size(rows: int) -> int:
    """Rows of a block: a tenth of the log, at least 5."""
    return max(5, rows // 10)


def noise(values: Array) -> tuple[float, float]:
    """(standard deviation of a row about its block, how many rows count as one independent row).

    Blocks are tenths, each with its own straight line taken out; the second number comes from the
    correlation of neighbours and lies between 1 and 5.
    """
    size = window_size(len(values))
    left = [_detrended(values[i : i + size]) for i in range(0, len(values) - size + 1, size)]
    flat = np.concatenate(left)
    spread = float(flat.std() * math.sqrt(size / max(size - 2, 1)))
    if spread == 0:
        return 0.0, 1.0
    rho = float(np.mean([np.mean(b[1:] * b[:-1]) for b in left]) / max(flat.var(), 1e-300))
    rho = min(max(rho + 2 / size, 0.0), 0.67)  # a line taken out makes neighbours look opposite
    return spread, (1 + rho) / (1 - rho)


def mean_error(values: Array, width: int) -> float:
    """Standard error of a mean over `width` rows, few against a block.

    The larger of two: from `noise`, and from how far such means lie from the line of their own
    block, in the median block, since neighbours may resemble each other for longer than `noise`
    looks.
    """
    spread, rows = noise(values)
    size = window_size(len(values))
    blocks = [_detrended(values[i : i + size]) for i in range(0, len(values) - size + 1, size)]
    apart = [float(np.mean(means(block, width) ** 2)) for block in blocks if size >= width]
    return max(spread * math.sqrt(rows / width), math.sqrt(np.median(apart)) if apart else 0.0)


def _detrended(values: Array) -> Array:
    at = np.arange(len(values)) - (len(values) - 1) / 2
    return values - values.mean() - at * (at @ values) / (at @ at)


def means(values: Array, size: int) -> Array:
    """Trailing means over full windows of `size`; empty if there is none."""
    if len(values) < size:
        return np.empty(0)
    total = np.concatenate([[0.0], np.cumsum(values)])
    return (total[size:] - total[:-size]) / size


def trailing(values: Array, size: int = 5) -> Array:
    """Mean of what was measured in each row and the `size` - 1 before it; NaN where nothing was."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    low = np.maximum(np.arange(1, len(values) + 1) - size, 0)
    high = np.arange(1, len(values) + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (total[high] - total[low]) / (count[high] - count[low])


def break_at(values: Array) -> int:
    """Where one level becomes another: the split with the least squared error (at least 3 rows)."""
    n = len(values)
    if n < 6:
        return n // 2
    total, square = np.cumsum(values), np.cumsum(values**2)
    k = np.arange(3, n - 2)
    left = square[k - 1] - total[k - 1] ** 2 / k
    rest = total[-1] - total[k - 1]
    right = square[-1] - square[k - 1] - rest**2 / (n - k)
    return int(k[np.argmin(left + right)])


GLITCH = 3.0  # times the range of the other values


def lone(values: Array) -> Array:
    """Indices of lone values far over, or under, both neighbours, a fiftieth of them at most.

    Far is three times the range of the values without the few at either end: what one row can do
    to a mean of ten is then no fall and no noise.
    """
    few = max(2, len(values) // 50)
    if len(values) < 4 * few + 3:
        return np.empty(0, dtype=int)
    ends = np.sort(values)
    far = GLITCH * float(ends[-1 - few] - ends[few])
    before, here, after = values[:-2], values[1:-1], values[2:]
    high = here - np.maximum(before, after) > far
    low = np.minimum(before, after) - here > far
    found = np.flatnonzero(high | low) + 1
    return found if far > 0 and len(found) <= few else np.empty(0, dtype=int)


def without_glitches(run: LoggedRun) -> LoggedRun:
    """The run without the rewards of lone rows that no policy can have earned; a note says so."""
    rows = run.scored
    found = rows[lone(run.signals["reward"][rows])] if len(rows) else rows
    if not len(found):
        return run
    reward = run.signals["reward"].copy()
    shown = ", ".join(f"{reward[i]:.3g} at {run.unit} {run.steps[i]:g}" for i in found[:3])
    reward[found] = np.nan
    note = (
        f"left out as a glitch: the reward of {len(found)} row{'s' if len(found) > 1 else ''} far "
        f"from both neighbours ({shown})"
    )
    signals = {**run.signals, "reward": reward}
    return replace(run, signals=signals, notes=[*run.notes, note])


def values_of(run: LoggedRun, name: str) -> Array:
    """A signal, a value per row; nan where nothing finite was logged or there is no such signal."""
    values = run.signals.get(name)
    if values is None:
        return np.full(len(run.steps), np.nan)
    return np.where(np.isfinite(values), values, np.nan)
