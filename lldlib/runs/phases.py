"""Reading a run: when it collapsed, the phase of each batch, and when the likelihood gave warning.

Every function takes plain series, one value per rollout batch; None or a value that is not finite
stands for a batch where nothing was measured. What is said of batch t uses batches <= t alone, so a
live view may show it; only `Collapse.for_good` looks at how the run ends.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import pandas as pd

from lldlib.runs.folder import Run

Series = Sequence[float | None]
Phase = Literal["stagnation", "decay", "collapse"]
PHASE_KEYS = ("reward/mean", "probe/content", "grad/norm", "policy/entropy")  # of `phase_labels`
ALARM_KEYS = ("displacement/correct_token", "probe/content")  # what the default alarm watches
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
    span: int = 10  # batches over which the probe's fall is measured
    decay_drop: float = 0.4  # nats a token lost over `span`: decay begins over it
    hold: int = 10  # batches in a row under half of `decay_drop` that end a decay
    fallen: float = 0.7  # the reward has fallen under this share of its best trailing mean
    recovered: float = 0.8  # the reward is back over this share, which ends a collapse
    dead: float = 0.3  # under this share of the best it has collapsed whatever else is seen
    steeper: float = 1.5  # the probe falls this many times faster than on average before
    surge: float = 2.0  # the gradient norm's peak over its mean before the window
    entropy_rise: float = 1.2  # trailing mean of the entropy over its lowest so far


@dataclass(frozen=True)
class AlarmRule:
    """When the alarm rings: the correct responses lost `height`, or the probe falls too fast."""

    start: int = 5  # batches at the start that are not watched
    height: float = 0.2  # nats a token: the CUSUM of lost likelihood that rings
    slack: float = 0.01  # nats a token and batch that may be lost without counting
    probe: Literal["probe/content", "probe/logp"] = "probe/content"  # the probe series watched
    probe_span: int = 20  # batches over which the probe's fall is measured
    probe_drop: float = 1.5  # nats a token the probe may lose over `probe_span`


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
    """The phase and the alarm, by the default rules, of a run that grows batch by batch."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self.columns: dict[str, list[float | None]] = {k: [] for k in (*PHASE_KEYS, *ALARM_KEYS)}
        self.phase: Phase = "stagnation"  # of the last batch that was added
        self.rung: int | None = None  # the batch at which the alarm rang
        for row in rows:
            self._append(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in the logged metrics of the next batch; sets `phase` and `rung`."""
        self._append(row)
        self.phase = phase_labels(*(self.columns[key] for key in PHASE_KEYS), PhaseRule())[-1]
        self.rung = alarm({key: self.columns[key] for key in ALARM_KEYS}, AlarmRule())

    def _append(self, row: Mapping[str, Any]) -> None:
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


def phase_labels(
    rewards: Series, probe: Series, grad_norm: Series, entropy: Series, rule: PhaseRule
) -> list[Phase]:
    """The phase of every batch by a causal rule, from four series of one length.

    `collapse` begins when the reward's trailing mean is under `fallen` of its best while the spiral
    shows (the probe falls `steeper` times faster than before, or the gradient norm peaks over
    `surge` times its mean, or the entropy is over `entropy_rise` times its minimum), or when it is
    under `dead` of its best; it lasts until the reward is back over `recovered`. Otherwise `decay`
    from where the probe lost more than `decay_drop` nats a token over the last `span` batches to
    where it has lost less than half of that for `hold` batches in a row, and `stagnation` where it
    held or was not measured.
    Raises ValueError for lengths that differ. Source: the phases are LLDS (arXiv 2512.04220v2)
    Fig. 2, which gives no threshold; the numbers are this project's.
    """
    lengths = {len(s) for s in (rewards, probe, grad_norm, entropy)}
    if len(lengths) > 1:
        raise ValueError(f"series of lengths {sorted(lengths)}: give one value per batch in each")
    share, fall = _share_of_best(_known(rewards), rule.window), _fall(_known(probe), rule.span)
    spiral = (
        _steeper(fall, rule.steeper)
        | _surged(_known(grad_norm), rule.window, rule.surge)
        | _risen(_trailing(_known(entropy), rule.window), rule.entropy_rise)
    )
    begins = (share < rule.dead) | ((share < rule.fallen) & spiral)
    collapsed = _latched(begins, share > rule.recovered)
    calm = ~(fall > rule.decay_drop / 2)  # so is what was not measured
    rested = calm.astype(float).rolling(rule.hold).min() == 1
    decaying = _latched(fall > rule.decay_drop, rested)
    labels = pd.Series("stagnation", index=share.index, dtype=object)
    return labels.mask(decaying, "decay").mask(collapsed, "collapse").tolist()


def alarm(series: Mapping[str, Series], rule: AlarmRule) -> int | None:
    """The first batch at which the likelihood warns of a collapse, or None; the reward is not used.

    It rings at t when either holds, over the batches from `rule.start` on:
    - S_t = max(0, S_{t-1} - d_t - slack) > height, with d = `displacement/correct_token`: what its
      own updates cost the correct responses and did not give back (a CUSUM; LLDS Def. A.3's
      persistent decay);
    - the probe (`rule.probe`) lost more than `probe_drop` over the last `probe_span` batches.
    `series` is keyed by the logged names; one of the two may be absent. Raises ValueError if both
    are. Source: LLDS (arXiv 2512.04220v2) App. D asks for such monitors; the rule is of this
    project.
    """
    lost = series.get("displacement/correct_token")
    probe = series.get(rule.probe)
    if lost is None and probe is None:
        raise ValueError(f"no series to watch: give displacement/correct_token or {rule.probe}")
    rings = []
    if lost is not None:
        rings.append(_first(_cusum(_from(_known(lost), rule.start), rule.slack) > rule.height))
    if probe is not None:
        fall = _fall(_from(_known(probe), rule.start), rule.probe_span)
        rings.append(_first(fall > rule.probe_drop))
    return min((batch for batch in rings if batch is not None), default=None)


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


def _from(known: pd.Series, start: int) -> pd.Series:
    """The series with its first `start` values taken out."""
    return known.where(known.index >= start)


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


def _steeper(fall: pd.Series, factor: float) -> pd.Series:
    """Where the fall is `factor` times its mean so far, that mean being a fall."""
    total, count = _sums_so_far(fall)
    total, count = total.shift(), count.shift()
    return (total > 0) & (fall > factor * total / count)


def _surged(known: pd.Series, window: int, factor: float) -> pd.Series:
    """Where the peak of the last `window` is `factor` times the mean of all before them."""
    total, count = _sums_so_far(known.shift(window))
    return known.rolling(window, min_periods=1).max() > factor * total / count


def _sums_so_far(known: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Sum and number of what was measured up to each batch; the sum is nan before the first."""
    return known.cumsum().ffill(), known.notna().cumsum()


def _risen(means: pd.Series, factor: float) -> pd.Series:
    """Where the mean is `factor` times its lowest so far."""
    return means > factor * means.cummin().ffill().shift()


def _cusum(change: pd.Series, slack: float) -> pd.Series:
    """S_t = max(0, S_{t-1} - change_t - slack); a missing value keeps S."""
    total, sums = 0.0, []
    for value in change:
        total = total if math.isnan(value) else max(0.0, total - value - slack)
        sums.append(total)
    return pd.Series(sums, dtype=float)


def _latched(on: pd.Series, off: pd.Series) -> pd.Series:
    """True from a batch that is `on` to before the next that is `off` and not `on`."""
    state = pd.Series(math.nan, index=on.index).mask(off, 0.0).mask(on, 1.0)
    return state.ffill() == 1


def _first(true: pd.Series) -> int | None:
    """The first batch where it holds."""
    return int(true.idxmax()) if true.any() else None
