"""What stands beside the training reward: held-out scores, and the parts of the reward."""

import math

import numpy as np

from lldlib.doctor.judging.levels import FALLEN, HALF, RISEN, SURE, Level, level, slope
from lldlib.doctor.judging.statistics import break_at, means
from lldlib.doctor.reading.series import ENOUGH, LoggedRun

HELDOUT_POINTS = 5  # evaluations under which the held-out score decides nothing
HELDOUT_GAIN = 0.03  # share of its late value that a held-out score must have won to count
PART_LOST = 0.4  # share of its best that a part of the reward must have lost


def heldout_level(run: LoggedRun) -> tuple[float, float, float, int] | None:
    """(best, last, share lost, row of the fall) of the held-out score; None with too few points.

    Best and last are means of three evaluations; the first counts as a candidate for the best.
    """
    rows = np.flatnonzero(np.isfinite(run.heldout))
    if len(rows) < HELDOUT_POINTS:
        return None
    values = run.heldout[rows]
    mean = means(values, 3)
    top = int(np.argmax(mean))
    floor = min(0.0, float(values.min()))
    share = (mean[top] - mean[-1]) / max(mean[top] - floor, 1e-12)
    fall = top + break_at(values[top:]) if len(values) - top >= 6 else len(values) - 3
    return float(mean[top]), float(mean[-1]), float(share), int(rows[min(fall, len(rows) - 1)])


def heldout_fall(run: LoggedRun) -> tuple[float, float, float, int] | None:
    """`heldout_level` where a large share is lost, by far more than one evaluation's noise."""
    found = heldout_level(run)
    if found is None or found[2] < FALLEN:
        return None
    values = run.heldout[np.isfinite(run.heldout)]
    apart = np.abs(np.diff(values)) / math.sqrt(2)
    spread = np.median(apart) / 0.6745  # as of a normal distribution
    if found[2] < HALF:  # a lesser fall must also stand out from the larger moves
        spread = max(spread, apart.mean() / 0.7979)
    return None if found[0] - found[1] < SURE * spread * math.sqrt(2 / 3) else found


def heldout_rise(run: LoggedRun) -> str | None:
    """The rise of the held-out score in words, where it is over its noise."""
    values = run.heldout[np.isfinite(run.heldout)]
    if len(values) < HELDOUT_POINTS:
        return None
    first, last = float(values[:3].mean()), float(values[-3:].mean())
    line = slope(values)
    if line < RISEN or last - first < HELDOUT_GAIN * abs(last):
        return None
    return (
        f"held-out score ({run.heldout_name}): {first:.3g} at the start, {last:.3g} lately, "
        f"{line:.1f} standard errors over {len(values)} evaluations"
    )


def moved_parts(run: LoggedRun) -> tuple[dict[str, Level], dict[str, Level]]:
    """The parts of the reward that fell and those that rose, both far beyond their noise."""
    falls, rises = {}, {}
    for name, values in run.parts.items():
        known = values[np.isfinite(values)]
        if len(known) < 2 * ENOUGH or known.max() - known.min() < 1e-9:
            continue
        now = level(known, min(0.0, float(known.min())))
        if now.fall >= SURE + 1 and now.lost >= PART_LOST:
            falls[name] = now
        elif now.rise >= SURE + 1:
            rises[name] = now
    return falls, rises
