"""Where a run's scores stand against their best, their start and their own noise."""

import math
from dataclasses import dataclass, replace

import numpy as np

from lldlib.doctor.judging.statistics import (
    Window,
    break_at,
    mean_error,
    means,
    noise,
    window_size,
)
from lldlib.doctor.reading.series import Array, LoggedRun

SURE = 3.5  # standard errors that a fall must have: the best window is chosen, so 2 say nothing
RISEN = 2.5  # standard errors that a rise must have: its windows are not chosen
FALLEN = 0.25  # share of the best score that is lost: degrading
HALF = 0.5  # ... collapsed, if with it nine tenths of what was learned are lost again
SIDES = 0.8  # share of the rows before a collapse that lie over the middle, and after it under it
LAST = 10  # rows at the end that count by themselves: a long run dies in as few rows as a short one
DEEPER = 2.5  # standard errors that they must lie under the last tenth
SURER = 4.5  # standard errors of a fall, or a rise, of which both ends were chosen
HIGH = 0.9  # share of the top score at which a run has nothing left to learn


@dataclass(frozen=True)
class Level:
    """How a series of scores stands now against its best and its start."""

    first: float
    best: float
    best_from: int  # rows with a score: where the best window begins
    best_rows: int  # of which `best` is the mean
    last: float
    last_rows: int  # of which `last` is the mean
    late: float  # mean of the last three tenths
    lost: float  # share of the best score, over the floor, that is lost now
    fall: float  # standard errors between best and last
    rise: float  # standard errors between first and late
    gain: float  # share of the late score, over the floor, that was won since the start
    won: float  # share of the best score, over the floor, that was learned since the start
    learned: float  # standard errors between first and best


def floor_of(run: LoggedRun, scores: Array) -> float:
    """The score under which a run cannot fall: 0, or, where scores are negative, a lower one.

    Where the best is over 0 it is 0 or the lowest mean of 5 rows, and over 0 where no single answer
    ever scored less; where all scores are negative the lowest single answer that was logged, or
    else that mean.
    """
    low = float(min(means(scores, 5).min(), 0.0))
    least = run.signals.get("reward_min")
    known = least[np.isfinite(least)] if least is not None else np.empty(0)
    if not len(known):
        return low
    if scores.max() > 0:
        over, often = float(known.min()), len(known) >= len(scores) / 2
        return over if often and 0 < over <= means(scores, 5).min() else low
    return min(low, float(known.min()))


def level(scores: Array, floor: float) -> Level:
    """Where the scores stand; windows of a tenth of the rows and of a fifth are compared.

    The fall is the larger of the two windows', so that a slow slide shows as well as a sudden one.
    """
    size = window_size(len(scores))
    spread, rows = noise(scores)
    deepest: tuple[float, Window, float] | None = None
    for width in (size, 2 * size):
        mean = means(scores, width)
        end = int(np.argmax(mean))
        error = max(spread * math.sqrt(2 * rows / width), 1e-12)
        if deepest is None or (mean[end] - mean[-1]) / error > deepest[0]:
            fall = (mean[end] - mean[-1]) / error
            deepest = fall, Window(float(mean[end]), error, end + width - 1), width
    fall, best, width = deepest
    last, late_rows = float(scores[-size:].mean()), max(size, int(0.3 * len(scores)))
    first, late = float(scores[:size].mean()), float(scores[-late_rows:].mean())
    error = max(spread * math.sqrt(rows / size + rows / late_rows), 1e-12)
    room = max(best.mean - floor, 1e-12)
    return Level(
        first=first,
        best=best.mean,
        best_from=best.end - int(width) + 1,
        best_rows=int(width),
        last=last,
        last_rows=size,
        late=late,
        lost=(best.mean - last) / room,
        fall=fall,
        rise=(late - first) / error,
        gain=(late - first) / max(late - floor, 1e-12),
        won=(best.mean - first) / room,
        learned=(best.mean - first) / max(spread * math.sqrt(rows / size + rows / width), 1e-12),
    )


def lately(scores: Array, floor: float, now: Level) -> Level | None:
    """The same with the last rows alone, where they lie clearly under the last tenth."""
    if now.last_rows <= LAST:
        return None
    last, error = float(scores[-LAST:].mean()), max(mean_error(scores, LAST), 1e-12)
    if now.last - last < DEEPER * error:
        return None
    spread, rows = noise(scores)
    of_best = spread * math.sqrt(rows / now.last_rows)
    fall = (now.best - last) / math.hypot(error, of_best)
    lost = (now.best - last) / max(now.best - floor, 1e-12)
    return replace(now, last=last, last_rows=LAST, fall=fall, lost=lost)


def until(scores: Array, floor: float, now: Level, begin: int) -> Level:
    """The same with the rows that end at the break as the best, where they lie higher.

    A curve that rises until it breaks is at its best there, and a window of a fifth of the rows
    says less. The fall must be sure beyond doubt, since both ends of it were chosen.
    """
    size = now.last_rows
    best = float(scores[max(begin - size, 0) : begin].mean()) if begin >= size else -math.inf
    if best <= now.best:
        return now
    spread, rows = noise(scores)
    error = max(spread * math.sqrt(2 * rows / size), 1e-12)
    fall, room = (best - now.last) / error, max(best - floor, 1e-12)
    if fall < SURER:
        return now
    return replace(
        now,
        best=best,
        best_from=begin - size,
        best_rows=size,
        fall=fall,
        lost=(best - now.last) / room,
        won=(best - now.first) / room,
        learned=(best - now.first) / error,
    )


def by_chance(before: Array, after: Array, middle: float, cuts: float | int) -> float:
    """Log10 of the chance that scores in random order part as well as these two stretches do.

    Counted are the scores over `middle` in each (hypergeometric), times the `cuts` that could have
    been chosen. 0 or more says nothing, and is given where the stretches overlap much.
    """
    if not len(before) or not len(after):
        return 0.0
    over, left = int((before > middle).sum()), int((after > middle).sum())
    if over < SIDES * len(before) or left > (1 - SIDES) * len(after):
        return 0.0
    n, m, high = len(before), len(after), over + left
    way = ways = math.comb(n, over) * math.comb(m, left)
    for k in range(over, min(n, high)):  # one more of the high scores lies before
        way = way * (n - k) * (high - k) // ((k + 1) * (m - high + k + 1))
        ways += way
    chance = math.log(ways) - math.log(math.comb(n + m, high))
    return (chance + math.log(cuts)) / math.log(10)


def split(scores: Array, now: Level) -> tuple[int, float]:
    """(first row after the fall, log10 of the chance of it) for the clearer of two stories.

    Either the scores changed from one level to another at once, or they slid, and then the fall is
    where a mean of 5 was last over the middle.
    """
    middle, n = (now.best + now.last) / 2, len(scores)
    sudden = now.best_from + break_at(scores[now.best_from :])
    over = np.flatnonzero(means(scores, 5) > middle)
    slid = min(int(over[-1]) + 5, n - 1) if len(over) else sudden
    best = scores[now.best_from : now.best_from + 2 * window_size(n)]
    stories = [
        (by_chance(scores[:sudden], scores[sudden:], middle, n), sudden),
        (by_chance(scores[now.best_from : sudden], scores[sudden:], middle, n * n / 2), sudden),
        (by_chance(best[: slid - now.best_from], scores[slid:], middle, n * n / 2), slid),
    ]
    chance, begin = min(stories, key=lambda story: story[0])
    return begin, chance


def top_of(run: LoggedRun, scores: Array) -> float | None:
    """The highest score that can be had, where the log tells it: of single answers, or 1."""
    most = run.signals.get("reward_max")
    known = most[np.isfinite(most)] if most is not None else np.empty(0)
    if len(known):
        return float(known.max())
    return 1.0 if 0.5 < scores.max() <= 1.0 and scores.min() >= 0 else None


def slope(values: Array) -> float:
    """Standard errors of the straight line through all values, for the noise of single rows.

    Neighbours that resemble each other count for fewer rows, as in `noise`.
    """
    n = len(values)
    if n < 3:
        return 0.0
    at = np.arange(n) - (n - 1) / 2
    rise = float(at @ values / (at @ at))
    left = values - values.mean() - rise * at
    spread = float(np.sqrt((left @ left) / (n - 2)))
    if spread == 0:
        return math.copysign(math.inf, rise) if rise else 0.0
    rho = float(np.clip((left[1:] @ left[:-1]) / max(left @ left, 1e-300), 0.0, 0.67))
    return rise / (spread / math.sqrt(at @ at) * math.sqrt((1 + rho) / (1 - rho)))
