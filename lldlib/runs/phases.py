"""Reading a run: its collapse, the phase of each batch, and when the likelihood gave warning.

Every function takes plain series, one value per rollout batch; None or a value that is not finite
stands for a batch where nothing was measured. A label of batch t is given either live, by batches
<= t alone, or with hindsight, by the whole series; `Phases` says which.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from lldlib.runs.folder import Run
from lldlib.runs.lines import Line, lines_of

logger = logging.getLogger(__name__)

Series = Sequence[float | None]
Phase = Literal["steady", "learning", "stagnation", "decay", "collapse"]
Told = Literal["live", "with hindsight"]
PHASES: tuple[Phase, ...] = get_args(Phase)  # a phase's number in an engine's logs is its place
PHASE_KEYS = ("reward/mean", "probe/content")  # what the phases are read off
ALARM_KEYS = ("displacement/correct_token", "low_prob/mass")  # what the alarm watches
SATURATION = "lp_reg/saturation"  # nats per protected token; its one-sample estimate ends at 10
SATURATED, SATURATED_BATCHES = 5.0, 5  # over it for so many batches in a row: a warning
LAST = 20  # batches at the end of a run that decide whether a collapse lasted
FLOORS = (0.02, 0.02)  # least noise: of a reward, a share of its largest; of a likelihood, in nats


@dataclass(frozen=True)
class Collapse:
    """Whether a run collapsed, read with hindsight: `began` and `known` are None if it never did.

    Tables recorded before 2026-11-25 say "collapse" of the batch `known`.
    """

    began: int | None  # the first batch of the fall
    known: int | None  # the first batch under the collapse line, at which it could be known
    for_good: bool  # the run ended under that line


@dataclass(frozen=True)
class Phases:
    """The phase of every batch of a run, and how it was told."""

    labels: tuple[Phase, ...]
    told: Told


@dataclass(frozen=True)
class PhaseRule:
    """The operational rule behind the phases; the paper reads them off curves."""

    window: int = 10  # batches of a trailing mean, and to which a loss is compared
    dead: float = 0.3  # under this share of its best trailing mean the reward has collapsed
    recovered: float = 0.8  # back over this share, which ends a collapse
    bend: float = 2.0  # price of a line: see `lines_of`
    sure: float = 2.0  # standard errors; a line that moves by less does not move
    moves: float = 0.15  # share of its best so far by which a line of the reward rises or falls
    holds: float = 0.5  # share of its best over which a reward still holds
    alike: float = 0.3  # share of the slope of a collapse; lines before it so steep are its start
    lost: float = 0.1  # nats per token under its best: the likelihood has lost
    fast: float = 0.4  # nats per token, and as many for every `window`: a line of it falls fast


@dataclass(frozen=True)
class AlarmRule:
    """When the alarm rings; chosen among many on recorded runs (data/atlas/alarm.md)."""

    start: int = 2  # batches at the start that are not watched
    lost: float = 0.45  # nats per token that one batch's updates may cost its correct responses
    rare: float = 1.5  # times its median of the first three batches: the share of unlikely tokens


DEFAULT = PhaseRule()


class Monitor:
    """The phase and the alarm, by the default rules, of a run that grows batch by batch.

    It warns in the log, once a run, where Lp-Reg's term sits on its limit.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
        self.columns: dict[str, list[float | None]] = {k: [] for k in (*PHASE_KEYS, *ALARM_KEYS)}
        self.phase: Phase = "steady"  # live, of the last batch that was added
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
        self.phase = live_phase(*(self.columns[key] for key in PHASE_KEYS), DEFAULT)
        self.rung = alarm({key: self.columns[key] for key in ALARM_KEYS}, AlarmRule())

    def _append(self, row: Mapping[str, Any]) -> None:
        over = (row.get(SATURATION) or 0.0) > SATURATED
        if over or self.saturated >= SATURATED_BATCHES:  # past that it has warned: count on
            self.saturated += 1
        else:
            self.saturated = 0
        for key, values in self.columns.items():
            values.append(row.get(key))


def phases_of(run: Run) -> Phases:
    """The phase of each batch by the default rule: with hindsight, or live while the run goes on.

    A run goes on while it has fewer batches than the `steps` of its settings.
    """
    columns = [run.column(key) for key in PHASE_KEYS]
    steps = run.settings().get("steps")
    if isinstance(steps, int) and len(run.metrics) < steps:
        return Phases(tuple(live_labels(*columns, DEFAULT)), "live")
    return Phases(tuple(phase_labels(*columns, DEFAULT)), "with hindsight")


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

    At this batch a collapse could be known; `find_collapse` says where it began. None if there is
    none; a run whose reward was never above 0 had nothing to lose and gives None.
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


def find_collapse(rewards: Series, rule: PhaseRule = DEFAULT) -> Collapse:
    """When the first collapse of a run began, when it could be known, and whether it lasted.

    It could be known at `collapse_batch`, and lasted by `collapsed_for_good`. It began with the
    last line of the reward (`lines_of`) that starts over `holds` of the best trailing mean, or with
    the first of the lines straight before it that fall at least `alike` times as steeply.
    """
    known = collapse_batch(rewards, rule.window, rule.dead)
    if known is None:
        return Collapse(None, None, False)
    values = _known(rewards)
    began = _began(_reward_lines(values, rule), _trailing(values, rule.window), known, rule)
    return Collapse(began, known, collapsed_for_good(rewards, rule.window, rule.dead))


def phase_labels(rewards: Series, probe: Series, rule: PhaseRule) -> list[Phase]:
    """The phase of every batch with hindsight, from two series of one length.

    Both are read as straight lines (`lines_of`); of these the first that holds names a batch:

    - `collapse`: from where the reward's fall began (`find_collapse`), once its trailing mean is
      under `dead` of its best so far, to where it last was so low before the mean is back over
      `recovered` of that best.
    - `decay`: the line of the likelihood falls fast (by over `fast`), or that of the reward falls
      by over `moves` of its best, or the reward does not rise and is under `holds` of its best.
    - `learning`: the line of the reward rises by over `moves` of its best so far.
    - `stagnation`: the reward holds, and the likelihood is more than `lost` under its best so far:
      it falls slowly, or has fallen and stays.
    - `steady`: nothing of this. So is a run of fewer than four batches, or without a probe while
      its reward holds.

    The likelihood is that of a fixed probe of right answers: the one of the answers that a policy
    samples rises also in runs that die. Raises ValueError for lengths that differ. Source: the
    phases are LLDS (arXiv 2512.04220v2) Fig. 2; it gives no threshold, the rule is this project's
    (data/atlas/phases.md).
    """
    known, seen = _checked(rewards, probe)
    lines, likely = _reward_lines(known, rule), lines_of(seen, rule.bend, FLOORS[1])
    labels = [_name(batch, lines, likely, rule) for batch in range(len(known))]
    collapsed, means = _collapsed(known, rule), _trailing(known, rule.window)
    for start, stop in _stretches(collapsed):
        began = _began(lines, means, start, rule)
        if stop < len(labels):  # it came back: the collapse ends where the climb begins
            line = rule.dead * means[:start].max()
            low = [it.start for it in lines if began <= it.start < stop and it.first < line]
            stop = max(low, default=stop - 1) + 1
        labels[began:stop] = ["collapse"] * (stop - began)
    return labels


def live_labels(rewards: Series, probe: Series, rule: PhaseRule) -> list[Phase]:
    """The phase of every batch as it was told then: `live_phase` of the batches up to it."""
    known, seen = _checked(rewards, probe)
    collapsed = _collapsed(known, rule)
    return [
        "collapse" if dead else _last_name(known[: batch + 1], seen[: batch + 1], rule)
        for batch, dead in enumerate(collapsed)
    ]


def live_phase(rewards: Series, probe: Series, rule: PhaseRule) -> Phase:
    """The phase of the last batch: the last of `phase_labels` of what is known by then.

    Raises ValueError where there is no batch.
    """
    known, seen = _checked(rewards, probe)
    if known.empty:
        raise ValueError("no batch yet: give a reward and a probe value per batch")
    return "collapse" if _collapsed(known, rule)[-1] else _last_name(known, seen, rule)


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


def _checked(rewards: Series, probe: Series) -> tuple[pd.Series, pd.Series]:
    if len(rewards) != len(probe):
        raise ValueError(
            f"{len(rewards)} rewards and {len(probe)} probe values: give one per batch in each"
        )
    return _known(rewards), _known(probe)


def _reward_lines(known: pd.Series, rule: PhaseRule) -> list[Line]:
    return lines_of(known, rule.bend, FLOORS[0] * float(known.abs().max()))


def _last_name(known: pd.Series, seen: pd.Series, rule: PhaseRule) -> Phase:
    lines, likely = _reward_lines(known, rule), lines_of(seen, rule.bend, FLOORS[1])
    return _name(len(known) - 1, lines, likely, rule)


def _name(batch: int, rewards: Sequence[Line], likely: Sequence[Line], rule: PhaseRule) -> Phase:
    """What the lines up to that of `batch` say of it, but for the collapse."""
    move, height, best = 0.0, 0.0, 0.0
    if past := _until(rewards, batch):
        line, height = past[-1], past[-1].at(batch)
        best = max(height, *(it.first for it in past))
        scale = max(abs(line.last), *(abs(it.first) for it in past))
        move = line.change / scale if abs(line.change) > rule.sure * line.error else 0.0
    lost, fast = False, False
    if past := _until(likely, batch):
        line = past[-1]
        lost = max(it.first for it in past) - line.at(batch) > rule.lost
        span = max(1.0, (line.end - line.start) / rule.window)
        fast = -line.change > max(rule.fast * span, rule.sure * line.error)
    if fast or move < -rule.moves:
        return "decay"
    if move > rule.moves:
        return "learning"
    if height < rule.holds * best:
        return "decay"
    return "stagnation" if lost else "steady"


def _until(lines: Sequence[Line], batch: int) -> list[Line]:
    """The lines up to the one of this batch; its first batch is the first line's too."""
    return [it for place, it in enumerate(lines) if it.start < batch + (place == 0)]


def _began(lines: Sequence[Line], means: pd.Series, known: int, rule: PhaseRule) -> int:
    """The first batch of the fall that a collapse, known at `known`, is the end of."""
    best = float(means[:known].max())
    held = [i for i, it in enumerate(lines) if it.start < known and it.first >= rule.holds * best]
    if not held:
        return known
    place = held[-1]
    steep = min(0.0, rule.alike * _slope(lines[place]))
    while place and _slope(lines[place - 1]) < steep:
        place -= 1
    return min(lines[place].start + 1, known)


def _slope(line: Line) -> float:
    return line.change / (line.end - line.start)


def _collapsed(rewards: pd.Series, rule: PhaseRule) -> list[bool]:
    """Where the reward was known to have collapsed, and not to be back."""
    share = _share_of_best(rewards, rule.window)
    return _latched(share < rule.dead, share > rule.recovered).tolist()


def _stretches(true: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, one after the last) of every stretch of True."""
    edges = np.flatnonzero(np.diff([0, *map(int, true), 0]))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _latched(on: pd.Series, off: pd.Series) -> pd.Series:
    """True from a batch that is `on` to before the next that is `off` and not `on`."""
    state = pd.Series(math.nan, index=on.index).mask(off, 0.0).mask(on, 1.0)
    return state.ffill() == 1


def _first(true: pd.Series) -> int | None:
    """The first batch where it holds."""
    return int(true.idxmax()) if true.any() else None
