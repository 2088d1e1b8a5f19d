"""A noisy series as the few straight lines that an eye sees in it."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

POINTS = 300  # of a longer series, means of blocks are read: so the work is bounded
LEAST = 4  # values without which nothing is seen
KEPT, UNTRIMMED = 0.9, 1.267  # share of the steps that tell the noise; its root mean square, undone


@dataclass(frozen=True)
class Line:
    """One of a series' lines, which hang together; the first begins at its first value."""

    start: int  # batch at which the line before it ends
    end: int
    first: float  # height at `start`
    last: float
    error: float  # standard error of `change`

    @property
    def change(self) -> float:
        """How much it rises."""
        return self.last - self.first

    def at(self, batch: int) -> float:
        """Its height at a batch; after its end, that of its end."""
        share = (min(batch, self.end) - self.start) / (self.end - self.start)
        return self.first + share * self.change


def lines_of(series: pd.Series, bend: float, floor: float) -> list[Line]:
    """The lines through a series with the least sum of squares plus the price of their number.

    Lines meet at values of the series, each taken as the mean of it and its two neighbours (the
    last value as the mean of the last three). The sum is over the squared distances of all values;
    a line costs `bend` ln(n) s^2, n values, s their noise: the root mean square of the steps from
    value to value over sqrt(2), the tenth of the largest steps left out; at least `floor`. So a
    line is drawn where noise would hardly draw one. None and nan are left out; fewer than four
    values give no line. Exact, by dynamic programming over where the last line begins.
    """
    known = series.dropna()
    size = -(-len(known) // POINTS)
    if len(known) < LEAST:
        return []
    if size > 1:  # a block stands at its last batch
        blocks = np.arange(len(known)) // size
        batches = known.index.to_series().groupby(blocks).max().to_numpy(copy=True)
        values = known.groupby(blocks).mean().to_numpy()
        batches[0] = known.index[0]
    else:
        batches, values = known.index.to_numpy(), known.to_numpy()
    noise = max(_noise(values), floor)
    heights = np.array([values[max(0, i - 1) : i + 2].mean() for i in range(len(values))])
    heights[-1] = values[-3:].mean()
    price = bend * math.log(len(values)) * noise**2
    knots = _knots(_squares(batches - batches[0], values, heights), price)
    error = noise * math.sqrt(2 / 3)  # of the difference of two means of three
    return [
        Line(int(batches[a]), int(batches[b]), float(heights[a]), float(heights[b]), error)
        for a, b in pairwise(knots)
    ]


def _noise(values: np.ndarray) -> float:
    steps = np.sort(np.diff(values) ** 2)
    return UNTRIMMED * math.sqrt(steps[: max(1, int(KEPT * len(steps)))].mean() / 2)


def _squares(x: np.ndarray, y: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """[a, b]: the squared distances of the values after a, up to b, from the line a to b."""
    gap = np.where(x[None] > x[:, None], x[None] - x[:, None], np.nan).astype(float)
    slope = (heights[None] - heights[:, None]) / gap
    base = heights[:, None] - slope * x[:, None]

    def between(terms: np.ndarray) -> np.ndarray:
        sums = np.cumsum(terms)
        return sums[None] - sums[:, None]

    ones = np.ones(len(x))
    return (
        between(y * y)
        - 2 * base * between(y)
        - 2 * slope * between(x * y)
        + base**2 * between(ones)
        + 2 * base * slope * between(x)
        + slope**2 * between(x * x)
    )


def _knots(squares: np.ndarray, price: float) -> list[int]:
    """Where the cheapest lines from the first value to the last begin and end."""
    size = len(squares)
    cost, before = np.zeros(size), np.zeros(size, dtype=int)
    for end in range(1, size):
        each = cost[:end] + squares[:end, end] + price
        before[end] = each.argmin()
        cost[end] = each[before[end]]
    knots = [size - 1]
    while knots[-1]:
        knots.append(int(before[knots[-1]]))
    return knots[::-1]
