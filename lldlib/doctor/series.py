"""A log's columns -> clean series on one axis of steps, and the statistics that rules read.

Cleaned: repeated steps (a resume, two files joined), several runs in one file, values that were
logged several times over, percent for shares, columns that were never measured.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lldlib.doctor.readers import Log
from lldlib.doctor.signals import GUESSED, SIGNALS, read_name

Array = np.ndarray
ENOUGH = 20  # rows with a reward under which nothing is said
UNMEASURED = ("entropy", "kl", "kl_old", "clip_share", "no_contrast", "learning_rate", "reward_std")
PERCENT = 1.5  # a share over this is a percentage


@dataclass
class Run:
    """One training run: every series has one value a row, NaN where nothing was measured."""

    name: str
    format: str
    steps: Array
    signals: dict[str, Array]
    columns: dict[str, str]  # our name -> the log's
    parts: dict[str, Array]  # parts of the reward
    trouble: dict[str, Array]  # counts of a tool's failures
    heldout: Array  # mean of the held-out scores, NaN between evaluations
    heldout_name: str = ""
    notes: list[str] = field(default_factory=list)
    stepped: bool = True  # False: the log names no step, rows are counted
    resumed: tuple[float, ...] = ()  # steps at which it went on after a stop

    @cached_property
    def scored(self) -> Array:
        """Indices of the rows with a finite reward."""
        return np.flatnonzero(np.isfinite(self.signals.get("reward", np.empty(0))))

    def cut(self, rows: int) -> "Run":
        """The run as it was after its first `rows` rows."""
        short = {k: {n: v[:rows] for n, v in getattr(self, k).items()} for k in _MANY}
        return Run(
            self.name,
            self.format,
            self.steps[:rows],
            columns=self.columns,
            heldout=self.heldout[:rows],
            heldout_name=self.heldout_name,
            notes=self.notes,
            stepped=self.stepped,
            resumed=tuple(s for s in self.resumed if rows and s <= self.steps[rows - 1]),
            **short,
        )


_MANY = ("signals", "parts", "trouble")


def run_of(log: Log) -> Run:
    """The run that a log tells of; what was mended is in its notes."""
    table = {name: np.asarray(column, dtype=float) for name, column in log.columns.items()}
    notes = list(log.notes)
    step_name = min(
        (n for n in table if read_name(n).step is not None and np.isfinite(table[n]).any()),
        key=lambda n: (-_rising(table[n]), read_name(n).step),
        default=None,
    )
    signals, columns = _signals(table, notes)
    others = _others(table)
    width = log.rows
    steps = np.arange(1.0, width + 1) if step_name is None else _filled(table[step_name])
    every = {("signal", n): v for n, v in signals.items()} | others
    if _within_epochs(steps, signals.get("epoch")):
        notes.append("steps start anew in each epoch: rows are counted instead")
        steps, step_name = np.arange(1.0, width + 1), None
    back = steps[np.flatnonzero(np.diff(steps) < 0) + 1]
    steps, every = _ordered(steps, every, notes)
    steps, every = _once(steps, every, notes)
    held = {k[1]: v for k, v in every.items() if k[0] == "heldout"}
    run = Run(
        name=log.name,
        format=log.format,
        steps=steps,
        signals={k[1]: v for k, v in every.items() if k[0] == "signal"},
        columns=columns,
        parts={k[1]: v for k, v in every.items() if k[0] == "part"},
        trouble={k[1]: v for k, v in every.items() if k[0] == "trouble"},
        heldout=_heldout(held, len(steps)),
        heldout_name=_set_names(held),
        notes=notes,
        stepped=step_name is not None,
        resumed=tuple(float(s) for s in back if s > steps[0]),
    )
    _tidy(run)
    return run


def _rising(values: Array) -> int:
    """Rows whose step is known and not under the one before."""
    known = values[np.isfinite(values)]
    return int((np.diff(known) >= 0).sum())


def _filled(steps: Array) -> Array:
    """Steps with gaps filled from the row before, so that every row has one."""
    out, last = steps.copy(), np.nan
    for i, value in enumerate(out):
        if np.isfinite(value):
            last = value
        else:
            out[i] = last
    first = np.flatnonzero(np.isfinite(steps))[0]
    out[:first] = steps[first]
    return out


def _within_epochs(steps: Array, epochs: Array | None) -> bool:
    """Whether steps go back only where a new epoch begins."""
    back = np.flatnonzero(np.diff(steps) < 0)
    if epochs is None or not len(back):
        return False
    whole = np.floor(_filled(epochs))
    return bool((whole[back + 1] > whole[back]).all())


def _signals(table: dict[str, Array], notes: list[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """For each of our signals the best-named column that holds numbers; small gaps are joined."""
    signals, columns = {}, {}
    for ours in SIGNALS:
        ranked = sorted(
            (rank, name)
            for name, column in table.items()
            for signal, rank in read_name(name).signals
            if signal == ours and np.isfinite(column).any()
        )
        if not ranked:
            continue
        named = [r for r in ranked if r[0] < GUESSED]
        ranked = named or ranked
        most = max(np.isfinite(table[name]).sum() for _, name in ranked)
        name = next(n for _, n in ranked if np.isfinite(table[n]).sum() >= most / 2)
        column = table[name].copy()
        for _, other in ranked:  # TensorBoard logs one tag with and without `train/`
            if _same_name(other, name):
                column = np.where(np.isnan(column), table[other], column)
        signals[ours], columns[ours] = column, name
        if min(rank for rank, n in ranked if n == name) >= GUESSED:
            notes.append(f"{name} is taken for the {SIGNALS[ours].title}: a guess by its name")
    if columns.get("shaped_reward") == columns.get("reward"):
        signals.pop("shaped_reward", None)
        columns.pop("shaped_reward", None)
    return signals, columns


def _same_name(a: str, b: str) -> bool:
    return read_name(a).signals == read_name(b).signals


def _others(table: dict[str, Array]) -> dict[tuple[str, str], Array]:
    """Held-out scores of the best kind that is there, parts of the reward, a tool's failures."""
    out, kinds = {}, {n: read_name(n).heldout for n in table if np.isfinite(table[n]).any()}
    best = min((k for k in kinds.values() if k is not None), default=None)
    for name, column in table.items():
        what = read_name(name)
        if best is not None and kinds.get(name) == best:
            out["heldout", name] = column
        if what.part is not None:
            out["part", what.part] = column
        if what.trouble:
            out["trouble", name] = column
    return out


def _ordered(steps: Array, every: dict, notes: list[str]) -> tuple[Array, dict]:
    """Steps that only rise: of a resume the later values stay, of several runs the last long one.

    A step back to the start of a run is a new run; a step back to its middle is a resume.
    """
    back = np.flatnonzero(np.diff(steps) < 0) + 1
    if not len(back):
        return steps, every
    starts = [0] + [int(i) for i in back if steps[i] <= steps[: int(i)].min() + 1]
    if len(starts) > 1:
        ends = [*starts[1:], len(steps)]
        long = [(a, b) for a, b in zip(starts, ends, strict=True) if b - a >= ENOUGH]
        a, b = long[-1] if long else max(zip(starts, ends, strict=True), key=lambda p: p[1] - p[0])
        notes.append(
            f"the file holds {len(starts)} runs, each from its first step; "
            f"judged is number {starts.index(a) + 1} (steps {steps[a]:g} to {steps[b - 1]:g})"
        )
        steps, every = steps[a:b], {k: v[a:b] for k, v in every.items()}
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
    later = np.append(lowest_after[1:], np.inf)
    keep = steps <= later  # a row that a later one goes back behind was done again
    if not keep.all():
        at = steps[np.flatnonzero(np.diff(steps) < 0) + 1]
        shown = ", ".join(f"{s:g}" for s in at[:3])
        notes.append(f"resumed at step {shown}: {int((~keep).sum())} rows were done again")
    return steps[keep], {k: v[keep] for k, v in every.items()}


def _once(steps: Array, every: dict, notes: list[str]) -> tuple[Array, dict]:
    """One row a step: later numbers win; and values that were written several times over, once."""
    _, first = np.unique(steps, return_index=True)
    if len(first) < len(steps):
        group = np.searchsorted(first, np.arange(len(steps)), side="right") - 1
        every = {k: _last_known(v, group, len(first)) for k, v in every.items()}
        steps = steps[first]
    reward = every.get(("signal", "reward"))
    if reward is None or len(reward) < 2 * ENOUGH or not np.isfinite(reward).all():
        return steps, every
    changed = np.flatnonzero(np.diff(reward) != 0) + 1
    width = int(np.median(np.diff(changed))) if len(changed) > 5 else 1
    if width > 1 and np.mean(np.diff(changed) % width == 0) > 0.9:
        keep = np.arange(changed[0] % width, len(steps), width)
        notes.append(f"every value stands {width} times in the log: taken once")
        return steps[keep], {k: v[keep] for k, v in every.items()}
    return steps, every


def _last_known(values: Array, group: Array, count: int) -> Array:
    out = np.full(count, np.nan)
    known = ~np.isnan(values)
    out[group[known]] = values[known]
    return out


def _heldout(held: dict[str, Array], rows: int) -> Array:
    """The mean over the sets that were asked every time."""
    if not held:
        return np.full(rows, np.nan)
    counts = {name: int(np.isfinite(v).sum()) for name, v in held.items()}
    most = max(counts.values())
    full = [v for name, v in held.items() if counts[name] >= 0.8 * most]
    stack = np.stack(full)
    return np.where(np.isfinite(stack).all(0), stack.mean(0), np.nan)


def _set_names(held: dict[str, Array]) -> str:
    names = sorted(held)
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" if names else ""


def _tidy(run: Run) -> None:
    """Shares in percent, zeros that mean "not measured", entropies with a minus sign."""
    for ours, column in list(run.signals.items()):
        known = column[np.isfinite(column)]
        if not len(known):
            del run.signals[ours]
        elif ours in UNMEASURED and not known.any():
            del run.signals[ours]
            run.notes.append(f"{run.columns[ours]} is 0 in every row: not measured")
        elif SIGNALS[ours].unit == "share" and PERCENT < known.max() <= 100:
            run.signals[ours] = column / 100
        elif ours == "entropy" and known.max() <= 0:
            run.signals[ours] = -column
    if "valid_format" not in run.signals:
        for part, column in run.parts.items():
            if "format" in part.lower() and np.nanmax(column) > np.nanmin(column) >= 0:
                run.signals["valid_format"] = column
                run.columns["valid_format"] = f"rewards/{part}"
                break


# -- statistics ------------------------------------------------------------------------------------


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


def values_of(run: Run, name: str) -> Array:
    """A signal, a value a row; nan where nothing finite was logged or there is no such signal."""
    values = run.signals.get(name)
    if values is None:
        return np.full(len(run.steps), np.nan)
    return np.where(np.isfinite(values), values, np.nan)
