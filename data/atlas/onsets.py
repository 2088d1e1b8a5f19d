"""When each curve of a dying run leaves the band of the runs that lived, and in which order.

Pure functions of plain series, one value per rollout batch; None stands for a batch where nothing
was measured. A band of other runs, not of the run's own past: all runs drift while they learn, and
the smoothest curve would seem to move first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from lldlib.runs.phases import Series, trailing_mean

Side = Literal["above", "below"]

# the curves of the death spiral, and the side on which a dying run leaves the band (LLDS, arXiv
# 2512.04220v2, Fig. 2 and 4); in the order in which the paper tells it
SPIRAL: dict[str, Side] = {
    "probe/content": "below",
    "policy/entropy": "above",
    "grad/norm": "above",
    "reward/mean": "below",
}


@dataclass(frozen=True)
class BandRule:
    """What counts as leaving the band."""

    start: int = 5  # batches at the start that are not watched: there all runs are alike
    window: int = 5  # batches of a trailing mean
    hold: int = 5  # batches in a row outside


@dataclass(frozen=True)
class Band:
    """The lowest and the highest trailing mean at each batch; nan where no run has one."""

    low: tuple[float, ...]
    high: tuple[float, ...]


def band_of(runs: Sequence[Series], rule: BandRule) -> Band:
    """The range that the trailing means of `runs` cover at each batch, as far as the longest goes.

    Raises ValueError for fewer than two runs: one alone has no range.
    """
    if len(runs) < 2:
        raise ValueError(f"a band of {len(runs)} runs has no width: give at least 2")
    means = pd.concat(
        [pd.Series(trailing_mean(run, rule.window), dtype=float) for run in runs], axis=1
    )
    return Band(tuple(means.min(axis=1).tolist()), tuple(means.max(axis=1).tolist()))


def leaves(series: Series, band: Band, side: Side, rule: BandRule) -> int | None:
    """The first of the first `hold` batches in a row with the trailing mean outside on `side`.

    None if it never stays out so long from batch `start` on. Where either is unknown it is inside.
    """
    means = pd.Series(trailing_mean(series, rule.window), dtype=float)
    edges = pd.Series(band.low if side == "below" else band.high, dtype=float).reindex(means.index)
    out = (means < edges if side == "below" else means > edges) & (means.index >= rule.start)
    stayed = out.astype(float).rolling(rule.hold).min() == 1
    return int(stayed.idxmax()) - rule.hold + 1 if stayed.any() else None


def order_of(onsets: Mapping[str, int | None]) -> tuple[str, ...]:
    """The names by their batch, the earliest first; of equal ones the first given; without None."""
    known = {name: batch for name, batch in onsets.items() if batch is not None}
    return tuple(sorted(known, key=known.__getitem__))
