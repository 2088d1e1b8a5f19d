"""Reading a run: when it collapsed, the phase of each batch, and when the likelihood gave warning.

Every function takes plain series, one value per rollout batch; None or a value that is not finite
stands for a batch where nothing was measured. What is said of batch t uses batches <= t alone, so a
live view may show it; only `Collapse.for_good` looks at how the run ends.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import pandas as pd

from lldlib.runs.folder import Run

logger = logging.getLogger(__name__)

Series = Sequence[float | None]
Phase = Literal["stagnation", "decay", "collapse"]
PHASE_KEYS = ("reward/mean", "probe/content")  # what `phase_labels` reads
ALARM_KEYS = ("displacement/correct_token", "low_prob/mass")  # what the alarm watches
SATURATION = "lp_reg/saturation"  # nats a protected token; its one-sample estimate ends at 10
SATURATED, SATURATED_BATCHES = 5.0, 5  # over it for so many batches in a row: a warning
LAST = 20  # batches at the end of a run that decide whether a collapse lasted
NAN = float("nan")


@dataclass(frozen=True)
class Collapse:
    """Whether a run collapsed: `batch` is None if it never did."""

    batch: int | None  # the first batch under the collapse line
    for_good: bool  # the run ended under that line


@dataclass(frozen=True)
class PhaseRule:
    """The operational rule behind the three phases; the paper reads them off curves."""

    window: int = 10  # batches of a trailing mean
    span: int = 10  # batches over which a fall is measured, of the probe and of the reward
    decay_drop: float = 0.4  # nats a token lost over `span`: decay begins over it
    flat: float = 0.9  # the reward holds or rises: over this share of what it was `span` before
    hold: int = 10  # batches in a row under half of `decay_drop` that end a decay
    dead: float = 0.3  # under this share of its best trailing mean the reward has collapsed
    recovered: float = 0.8  # back over this share, which ends a collapse


@dataclass(frozen=True)
class AlarmRule:
    """When the alarm rings; chosen among many on recorded runs (data/atlas/alarm.md)."""

    start: int = 2  # batches at the start that are not watched
    lost: float = 0.45  # nats a token that one batch's updates may cost its correct responses
    rare: float = 1.5  # times its median of the first three batches: the share of unlikely tokens


@dataclass(frozen=True)
class AlarmReport:
    """How an alarm did on recorded runs; a lead is collapse batch - alarm batch."""

    rung: tuple[int | None, ...]  # per run, the batch at which the alarm rang
    leads: tuple[int, ...]  # per warned collapse, in batches, the shortest first
    misses: int  # runs that collapsed with no alarm before it
    false_alarms: int  # runs with an alarm that never collapsed
    collapses: int  # runs that collapsed
    survivors: int  # runs that did not

    @property
    def median_lead(self) -> float:
        """The median lead in batches; nan if no collapse was warned of."""
        return float(median(self.leads)) if self.leads else NAN

    @property
    def worst_lead(self) -> float:
        """The shortest lead in batches; nan if no collapse was warned of."""
        return float(self.leads[0]) if self.leads else NAN


class Monitor:
    """The phase and the alarm, by the default rules, of a run that grows batch by batch.

    It warns in the log, once a run, where Lp-Reg's term sits on its limit.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self.columns: dict[str, list[float | None]] = {k: [] for k in (*PHASE_KEYS, *ALARM_KEYS)}
        self.phase: Phase = "stagnation"  # of the last batch that was added
        self.rung: int | None = None  # the batch at which the alarm rang
        self.saturated = 0  # batches in a row that Lp-Reg's term sat on its limit
        for row in rows:
            self._append(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in the logged metrics of the next batch; sets `phase` and `rung`."""
        self._append(row)
        if self.saturated == SATURATED_BATCHES:
            logger.warning(
                "Lp-Reg sits on its limit: a protected token's KL was over %g nats for %d batches "
                "(%s); raise lp_reg_quantile or set lp_reg_kl=exact",
                SATURATED,
                SATURATED_BATCHES,
                SATURATION,
            )
        self.phase = phase_labels(*(self.columns[key] for key in PHASE_KEYS), PhaseRule())[-1]
        self.rung = alarm({key: self.columns[key] for key in ALARM_KEYS}, AlarmRule())

    def _append(self, row: Mapping[str, Any]) -> None:
        over = (row.get(SATURATION) or 0.0) > SATURATED
        if over or self.saturated >= SATURATED_BATCHES:  # past that it has warned: count on
            self.saturated += 1
        else:
            self.saturated = 0
        for key, values in self.columns.items():
            values.append(row.get(key))


def phases_of(run: Run) -> list[Phase]:
    """The phase of each batch of a run, by the default rule."""
    return phase_labels(*(run.column(key) for key in PHASE_KEYS), PhaseRule())


def alarm_of(run: Run) -> int | None:
    """The batch at which the default alarm rang; None if it did not, or had nothing to watch."""
    return alarm({key: run.column(key) for key in ALARM_KEYS}, AlarmRule())


def trailing_mean(series: Series, window: int = 10) -> list[float]:
    """Mean over each batch and the `window` - 1 before it, of what was measured there.

    nan before batch `window` - 1, and where the whole window was not measured. Raises ValueError
    for a window under 1.
    """
    if window < 1:
        raise ValueError(f"window is {window}: give at least 1 batch")
    return _trailing(_known(series), window).tolist()


def collapse_batch(rewards: Series, window: int = 10, ratio: float = 0.3) -> int | None:
    """The first batch whose trailing mean reward is under `ratio` of the best one before it.

    None if there is none; a run whose reward was never above 0 had nothing to lose and gives None.
    """
    return _first(_share_of_best(_known(rewards), window) < ratio)


def collapsed_for_good(rewards: Series, window: int = 10, ratio: float = 0.3) -> bool:
    """Whether a run collapsed and EVERY trailing mean of its last 20 batches is under the line.

    The line is `ratio` of the best trailing mean before the collapse. This is stricter than asking
    it of the mean of those batches: one climb above the line denies it, and so do a window without
    a reward and a collapse within the last 20 batches, of which nobody knows whether it lasts.
    """
    batch = collapse_batch(rewards, window, ratio)
    if batch is None:
        return False
    means = _trailing(_known(rewards), window)
    line = ratio * means[:batch].max()
    return len(means) - batch >= LAST and bool((means[-LAST:] < line).all())


def find_collapse(rewards: Series, window: int = 10, ratio: float = 0.3) -> Collapse:
    """`collapse_batch` and `collapsed_for_good` of one run."""
    return Collapse(
        collapse_batch(rewards, window, ratio), collapsed_for_good(rewards, window, ratio)
    )


def phase_labels(rewards: Series, probe: Series, rule: PhaseRule) -> list[Phase]:
    """The phase of every batch by a causal rule, from two series of one length.

    - `collapse` is where the reward has collapsed, by the rule of `collapse_batch`: from where its
      trailing mean is under `dead` of its best so far to where it is back over `recovered` of it.
    - `decay`, elsewhere, is where the likelihood sinks. It begins where the probe lost more than
      `decay_drop` nats a token over the last `span` batches while the reward held or rose: its
      trailing mean is over `flat` of what it was `span` batches before (or of the first there is).
      It ends where the probe has lost less than half of that for `hold` batches in a row.
    - `stagnation` is the rest.

    So a reward that drops without collapsing begins no phase and ends none: as it happens, nobody
    knows whether it will come back. Raises ValueError for lengths that differ. Source: the phases
    are LLDS (arXiv 2512.04220v2) Fig. 2, where the reward still rises while the likelihood decays;
    it gives no threshold, the numbers are this project's.
    """
    if len(rewards) != len(probe):
        raise ValueError(
            f"{len(rewards)} rewards and {len(probe)} probe values: give one per batch in each"
        )
    known, fall = _known(rewards), _fall(_known(probe), rule.span)
    share = _share_of_best(known, rule.window)
    collapsed = _latched(share < rule.dead, share > rule.recovered)
    sinks = (fall > rule.decay_drop) & ~_falling(known, rule)
    calm = ~(fall > rule.decay_drop / 2)  # so is what was not measured
    rested = calm.astype(float).rolling(rule.hold).min() == 1
    labels = pd.Series("stagnation", index=share.index, dtype=object)
    return labels.mask(_latched(sinks, rested), "decay").mask(collapsed, "collapse").tolist()


def alarm(series: Mapping[str, Series], rule: AlarmRule) -> int | None:
    """The first batch at which likelihood warns of a collapse, or None; the reward is not used.

    It rings at a batch t >= `rule.start` where either holds:
    - `displacement/correct_token` < -`lost`: its updates made its correct responses less likely;
    - `low_prob/mass` > `rare` times its median over the first three batches measured: the policy
      says more words that it finds unlikely.
    `series` is keyed by the logged names; one of the two may be absent. Raises ValueError if both
    are. Source: LLDS (arXiv 2512.04220v2) App. D asks for such monitors; the rule is of this
    project.
    """
    moved, mass = (series.get(key) for key in ALARM_KEYS)
    if moved is None and mass is None:
        raise ValueError(f"no series to watch: give {' or '.join(ALARM_KEYS)}")
    rings = []
    if moved is not None:
        rings.append(_known(moved) < -rule.lost)
    if mass is not None:
        known = _known(mass)
        start = known.dropna().iloc[:3].median()
        begun = (known.notna().cumsum() >= 3) & (start > 0)  # before, nothing to compare with
        rings.append(begun & (known > rule.rare * start))
    found = (_first(ring & (ring.index >= rule.start)) for ring in rings)
    return min((batch for batch in found if batch is not None), default=None)


def alarm_report(
    runs: Sequence[tuple[Series, Mapping[str, Series]]], rule: AlarmRule
) -> AlarmReport:
    """How `rule` would have done on recorded runs, each its rewards and the series of `alarm`.

    An alarm at or after the collapse is a miss; one in a run that never collapses is false.
    """
    rung = tuple(alarm(series, rule) for _, series in runs)
    ends = [collapse_batch(rewards) for rewards, _ in runs]
    pairs = list(zip(rung, ends, strict=True))
    leads = sorted(e - r for r, e in pairs if r is not None and e is not None and r < e)
    collapses = sum(e is not None for e in ends)
    return AlarmReport(
        rung=rung,
        leads=tuple(leads),
        misses=collapses - len(leads),
        false_alarms=sum(r is not None and e is None for r, e in pairs),
        collapses=collapses,
        survivors=len(ends) - collapses,
    )


def _known(series: Series) -> pd.Series:
    """The series as numbers; nan where nothing finite was measured."""
    values = pd.Series(series, dtype=float)
    return values.where(values.abs() < math.inf)


def _trailing(known: pd.Series, window: int) -> pd.Series:
    """`trailing_mean`; pandas' own rolling mean carries rounding from one window to the next."""
    means = known.rolling(window, min_periods=1).apply(_mean_of_known, raw=True)
    return means.where(means.index >= window - 1)


def _mean_of_known(values: np.ndarray) -> float:
    return fmean(values[~np.isnan(values)])


def _share_of_best(rewards: pd.Series, window: int) -> pd.Series:
    """Trailing mean over the best trailing mean before it; nan while no best is above 0."""
    means = _trailing(rewards, window)
    best = means.cummax().ffill().shift()
    return means / best.where(best > 0)


def _fall(known: pd.Series, span: int) -> pd.Series:
    """What each batch's last known value lost against `span` batches before; nan where unknown."""
    last = known.ffill()
    return last.shift(span) - last


def _falling(rewards: pd.Series, rule: PhaseRule) -> pd.Series:
    """Where the trailing mean is under `flat` of the one `span` batches before, or of the first."""
    means = _trailing(rewards, rule.window)
    first = means.where(means.notna().cumsum() == 1).ffill()
    return means < rule.flat * means.shift(rule.span).fillna(first)


def _latched(on: pd.Series, off: pd.Series) -> pd.Series:
    """True from a batch that is `on` to before the next that is `off` and not `on`."""
    state = pd.Series(math.nan, index=on.index).mask(off, 0.0).mask(on, 1.0)
    return state.ffill() == 1


def _first(true: pd.Series) -> int | None:
    """The first batch where it holds."""
    return int(true.idxmax()) if true.any() else None
