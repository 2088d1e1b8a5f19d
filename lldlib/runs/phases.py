"""Reading a run: when it collapsed, the phase of each batch, and when the likelihood gave warning.

Every function takes plain series, one value per rollout batch; None or a value that is not finite
stands for a batch where nothing was measured. What is said of batch t uses batches <= t alone, so a
live view may show it; only `Collapse.for_good` looks at how the run ends.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Literal

Series = Sequence[float | None]
Phase = Literal["stagnation", "decay", "collapse"]
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


def trailing_mean(series: Series, window: int = 10) -> list[float]:
    """Mean over each batch and the `window` - 1 before it, of what was measured there.

    nan before batch `window` - 1, and where the whole window was not measured. Raises ValueError
    for a window under 1.
    """
    if window < 1:
        raise ValueError(f"window is {window}: give at least 1 batch")
    return [
        _mean(series[t - window + 1 : t + 1]) if t >= window - 1 else NAN
        for t in range(len(series))
    ]


def collapse_batch(rewards: Series, window: int = 10, ratio: float = 0.3) -> int | None:
    """The first batch whose trailing mean reward is under `ratio` of the best one before it.

    None if there is none; a run whose reward was never above 0 had nothing to lose and gives None.
    """
    return next(
        (t for t, share in enumerate(_share_of_best(rewards, window)) if share < ratio), None
    )


def collapsed_for_good(rewards: Series, window: int = 10, ratio: float = 0.3) -> bool:
    """Whether a run collapsed and EVERY trailing mean of its last 20 batches is under the line.

    The line is `ratio` of the best trailing mean before the collapse. This is stricter than asking
    it of the mean of those batches: one climb above the line denies it, and so do a window without
    a reward and a collapse within the last 20 batches, of which nobody knows whether it lasts.
    """
    batch = collapse_batch(rewards, window, ratio)
    if batch is None:
        return False
    means = trailing_mean(rewards, window)
    line = ratio * max(m for m in means[:batch] if not math.isnan(m))
    return len(rewards) - batch >= LAST and all(m < line for m in means[-LAST:])


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
    share = _share_of_best(rewards, rule.window)
    fall = _fall(probe, rule.span)
    spiral = [
        any(signs)
        for signs in zip(
            _steeper(fall, rule.steeper),
            _surged(grad_norm, rule.window, rule.surge),
            _risen(entropy, rule.window, rule.entropy_rise),
            strict=True,
        )
    ]
    labels: list[Phase] = []
    collapsed, decaying, calm = False, False, 0
    for kept, lost, spins in zip(share, fall, spiral, strict=True):
        begins = kept < rule.dead or (kept < rule.fallen and spins)
        collapsed = begins or (collapsed and not kept > rule.recovered)
        calm = 0 if lost > rule.decay_drop / 2 else calm + 1  # nan, not measured, is calm
        decaying = lost > rule.decay_drop or (decaying and calm < rule.hold)
        labels.append("collapse" if collapsed else "decay" if decaying else "stagnation")
    return labels


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
        rings += [t for t, s in enumerate(_cusum(lost, rule)) if s > rule.height][:1]
    if probe is not None:
        fall = _fall(_from(probe, rule.start), rule.probe_span)
        rings += [t for t, f in enumerate(fall) if f > rule.probe_drop][:1]
    return min(rings, default=None)


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


def _measured(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _mean(values: Series) -> float:
    known = [v for v in values if _measured(v)]
    return sum(known) / len(known) if known else NAN


def _last_known(series: Series) -> list[float]:
    """Each value, or the last one measured before it; nan before the first."""
    return list(accumulate(series, lambda old, v: v if _measured(v) else old, initial=NAN))[1:]


def _from(series: Series, start: int) -> list[float | None]:
    """The series with its first `start` values taken out."""
    return [v if t >= start else None for t, v in enumerate(series)]


def _share_of_best(rewards: Series, window: int) -> list[float]:
    """Trailing mean over the best trailing mean before it; nan while no best is above 0."""
    shares, best = [], 0.0
    for mean in trailing_mean(rewards, window):
        shares.append(mean / best if best > 0 else NAN)
        best = max(best, mean) if mean == mean else best
    return shares


def _fall(series: Series, span: int) -> list[float]:
    """What each batch's last known value lost against `span` batches before; nan where unknown."""
    known = _last_known(series)
    return [known[t - span] - v if t >= span else NAN for t, v in enumerate(known)]


def _steeper(fall: Sequence[float], factor: float) -> list[bool]:
    """Where the fall is `factor` times its mean so far, that mean being a fall."""
    out, total, count = [], 0.0, 0
    for value in fall:
        out.append(count > 0 and total > 0 and value > factor * total / count)
        if value == value:
            total, count = total + value, count + 1
    return out


def _surged(series: Series, window: int, factor: float) -> list[bool]:
    """Where the peak of the last `window` is `factor` times the mean of all before them."""
    known = [v if _measured(v) else None for v in series]
    out, total, count = [], 0.0, 0
    for t in range(len(known)):
        left = known[t - window] if t >= window else None
        if left is not None:
            total, count = total + left, count + 1
        peak = max((v for v in known[max(0, t - window + 1) : t + 1] if v is not None), default=NAN)
        out.append(count > 0 and peak > factor * total / count)
    return out


def _risen(series: Series, window: int, factor: float) -> list[bool]:
    """Where the trailing mean is `factor` times its lowest so far."""
    lowest, out = math.inf, []
    for mean in trailing_mean(series, window):
        out.append(mean > factor * lowest)
        lowest = min(lowest, mean) if mean == mean else lowest
    return out


def _cusum(change: Series, rule: AlarmRule) -> list[float]:
    """S_t = max(0, S_{t-1} - change_t - slack) from `rule.start` on; a missing value keeps S."""
    out, total = [], 0.0
    for value in _from(change, rule.start):
        total = max(0.0, total - value - rule.slack) if _measured(value) else total
        out.append(total)
    return out
