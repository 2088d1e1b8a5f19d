"""A log's columns -> clean series on one axis of steps.

Cleaned: repeated steps (a resume, two files joined), several runs in one file, values that were
logged several times over, percent for shares, columns that were never measured.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lldlib.doctor.reading.kind import Kind, kind_of
from lldlib.doctor.reading.log import Ending, Log
from lldlib.doctor.reading.signals import GUESSED, PER_SHARE, SIGNALS, canonical, read_name

Array = np.ndarray
ENOUGH = 20  # rows with a reward under which nothing is said
UNMEASURED = ("entropy", "kl", "learning_rate")  # 0 in every row is no measurement
PERCENT = 1.5  # a share over this is a percentage
RL = Kind("rl")
GLITCH = 10  # times the usual step, and as many steps, that a lone row must jump to be a misprint


@dataclass
class LoggedRun:
    """One training run: every series has one value per row, NaN where nothing was measured."""

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
    step_name: str = ""  # the log's column of steps
    resumed: tuple[float, ...] = ()  # steps at which it went on after a stop
    kind: Kind = RL
    guessed: frozenset[str] = frozenset()  # signals whose column is a guess by its name
    evaluated: dict[str, Array] = field(default_factory=dict)  # evaluations that are no score
    ending: Ending | None = None
    read: int = 0  # values of the reward that were read
    judged_of: int = 0  # of them those in the run that is judged
    in_file: int | None = None  # times that the file names the reward with a number
    refused: int = 0  # rows that were left out: printed answers, repeats, settings, a summary
    path: Path | None = None

    @property
    def unit(self) -> str:
        """What its rows are counted in."""
        return "step" if self.stepped else "row"

    @cached_property
    def scored(self) -> Array:
        """Indices of the rows with a finite reward."""
        return np.flatnonzero(np.isfinite(self.signals.get("reward", np.empty(0))))

    def cut(self, rows: int) -> "LoggedRun":
        """The run as it was after its first `rows` rows."""
        short = {k: {n: v[:rows] for n, v in getattr(self, k).items()} for k in _MANY}
        return replace(
            self,
            steps=self.steps[:rows],
            heldout=self.heldout[:rows],
            resumed=tuple(s for s in self.resumed if rows and s <= self.steps[rows - 1]),
            ending=self.ending if rows >= len(self.steps) else None,
            **short,
        )

    @property
    def sure(self) -> "LoggedRun":
        """The run without the signals that are guesses, the reward excepted."""
        guesses = self.guessed - {"reward"}
        if not guesses:
            return self
        return replace(self, signals={k: v for k, v in self.signals.items() if k not in guesses})

    def hours_after(self, row: int) -> tuple[float, float] | None:
        """(hours from this row to the last, hours of the whole run), where the log has times."""
        clock, took = self.signals.get("clock"), self.signals.get("step_time")
        if clock is not None and np.isfinite(clock[[row, -1]]).all():
            first = clock[np.isfinite(clock)][0]
            after, whole = float(clock[-1] - clock[row]), float(clock[-1] - first)
        elif took is not None and np.isfinite(took).mean() > 0.8:
            after, whole = float(np.nansum(took[row:])), float(np.nansum(took))
        else:
            return None
        return (after / 3600, whole / 3600) if 0 < after <= whole < 1e8 else None


_MANY = ("signals", "parts", "trouble", "evaluated")


def run_of(log: Log) -> LoggedRun:
    """The run that a log tells of; what was mended is in its notes."""
    table = {name: np.asarray(column, dtype=float) for name, column in log.columns.items()}
    _divide_by_shares(table)
    notes = [*log.notes, *(f"left out: {_rows(n)}, {why}" for why, n in log.refused.items() if n)]
    signals, columns, guessed = _signals(table, notes)
    reward = signals.get("reward", np.empty(0))
    step_name = _step_name(table, ~np.isnan(reward) if len(reward) else np.ones(log.rows, bool))
    steps = _counted(table, log.rows) if step_name is None else _filled(table[step_name])
    every = {("signal", n): v for n, v in signals.items()} | _others(table, notes)
    if _within_epochs(steps, signals.get("epoch")):
        notes.append("steps start anew in each epoch: rows are counted instead")
        steps, step_name = _counted(table, log.rows), None
    steps, every = _no_glitches(steps, every, notes)
    back = steps[np.flatnonzero(np.diff(steps) < 0) + 1]
    steps, every = _ordered(steps, every, notes)
    judged_of = int((~np.isnan(every.get(("signal", "reward"), np.empty(0)))).sum())
    steps, every = _once(steps, every, notes)
    held = {k[1]: v for k, v in every.items() if k[0] == "heldout"}
    run = LoggedRun(
        name=log.name,
        format=log.format,
        steps=steps,
        signals={k[1]: v for k, v in every.items() if k[0] == "signal"},
        columns={ours: log.mapped.get(name, name) for ours, name in columns.items()},
        parts={k[1]: v for k, v in every.items() if k[0] == "part"},
        trouble={k[1]: v for k, v in every.items() if k[0] == "trouble"},
        evaluated={k[1]: v for k, v in every.items() if k[0] == "evaluated"},
        heldout=_heldout(held, len(steps)),
        heldout_name=_set_names(held),
        notes=notes,
        stepped=step_name is not None,
        step_name="" if step_name is None else log.mapped.get(step_name, step_name),
        resumed=tuple(float(s) for s in back if s > steps[0]),
        kind=kind_of(log),
        guessed=frozenset(guessed),
        ending=log.ending,
        read=int((~np.isnan(reward)).sum()),
        judged_of=judged_of,
        path=log.path,
        refused=sum(log.refused.values()),
    )
    _tidy(run)
    return run


def _divide_by_shares(table: dict[str, Array]) -> None:
    """Means over micro-batches that had such a row, of our verl loss; in place."""
    for name, share in PER_SHARE.items():
        if name in table and share in table:
            held = np.where(table[share] > 0, table[share], np.nan)
            table[name] = table[name] / held


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"


def _step_name(table: dict[str, Array], rows: Array) -> str | None:
    """The column of steps: one that half of the rows with a reward hold, and that moves.

    Of columns that never disagree the fullest: verl's evaluation before the training has `step`.
    """
    found = []
    for name, column in table.items():
        rank = read_name(name).step
        known = np.isfinite(column) & rows
        if rank is None or not known.any() or known.sum() < rows.sum() / 2:
            continue
        if known.sum() >= ENOUGH and len(np.unique(column[known])) == 1:
            continue
        found.append((-_rising(column), rank, name))
    if not found:
        return None
    best = min(found)[2]
    alike = [name for *_, name in sorted(found) if not _disagree(table[name], table[best])]
    return max(alike, key=lambda name: int(np.isfinite(table[name]).sum()))


def _disagree(a: Array, b: Array) -> bool:
    both = np.isfinite(a) & np.isfinite(b)
    return not both.any() or bool((a[both] != b[both]).any())


def _rising(values: Array) -> float:
    """The share of the known steps that are not under the one before."""
    known = values[np.isfinite(values)]
    return float((np.diff(known) >= 0).mean()) if len(known) > 1 else 0.0


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


def _counted(table: dict[str, Array], rows: int) -> Array:
    """The number of each row, where an evaluation's own row has that of the row before it."""
    trains, evaluates = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    for name, column in table.items():
        what, known = read_name(name), ~np.isnan(column)
        if {signal for signal, _ in what.signals} - {"epoch", "clock"} or what.part is not None:
            trains |= known
        elif what.heldout is not None or what.evaluated:
            evaluates |= known
    return np.maximum(np.cumsum(trains | ~evaluates), 1.0)


def _within_epochs(steps: Array, epochs: Array | None) -> bool:
    """Whether steps go back only where a new epoch begins."""
    back = np.flatnonzero(np.diff(steps) < 0)
    if epochs is None or not len(back):
        return False
    whole = np.floor(_filled(epochs))
    return bool((whole[back + 1] > whole[back]).all())


def _signals(
    table: dict[str, Array], notes: list[str]
) -> tuple[dict[str, Array], dict[str, str], set[str]]:
    """For each of our signals the best-named column that holds numbers, and which are guesses.

    Small gaps are joined from columns of the same name; a guess is joined with nothing.
    """
    signals, columns, guessed = {}, {}, set()
    beside = _beside(table)
    for ours in SIGNALS:
        ranked = sorted(
            (rank, name)
            for name, column in table.items()
            for signal, rank in read_name(name).signals
            if signal == ours and np.isfinite(column).any() and not _counts(ours, column)
        )
        named = [r for r in ranked if r[0] < GUESSED]
        ranked = named or [r for r in ranked if _may_guess(ours, table[r[1]])]
        if not ranked:
            continue
        name = _chosen(table, [n for _, n in ranked], beside if ours == "reward" else None)
        column = table[name].copy()
        for _, other in ranked:  # TensorBoard logs one tag with and without `train/`
            if canonical(other) == canonical(name):
                column = np.where(np.isnan(column), table[other], column)
        signals[ours], columns[ours] = column, name
        if not named:
            guessed.add(ours)
            notes.append(f"{name} is taken for the {SIGNALS[ours].title}: a guess by its name")
    if columns.get("shaped_reward") == columns.get("reward"):
        signals.pop("shaped_reward", None)
        columns.pop("shaped_reward", None)
    return signals, columns, guessed


def _counts(ours: str, column: Array) -> bool:
    """Whether groups of one reward are counted, so that their share is unknown."""
    known = column[np.isfinite(column)]
    return bool(ours == "no_contrast" and known.max() > 1 and (known == np.floor(known)).all())


def _may_guess(ours: str, column: Array) -> bool:
    """Whether a column may be guessed to be a signal: one value is a setting."""
    known = column[np.isfinite(column)]
    return ours == "reward" or len(np.unique(known)) > 1


def _beside(table: dict[str, Array]) -> Array | None:
    """Rows that hold a loss, a gradient norm, a learning rate, an entropy or a KL."""
    held = [
        ~np.isnan(column)
        for name, column in table.items()
        if any(s in TRAINS and rank < GUESSED for s, rank in read_name(name).signals)
    ]
    return np.any(held, axis=0) if held else None


TRAINS = ("loss", "grad_norm", "learning_rate", "entropy", "kl", "kl_old")


def _chosen(table: dict[str, Array], names: list[str], beside: Array | None) -> str:
    """The first name that holds at least half as many values as the fullest.

    Where some rewards stand in the rows of the training, the others count as printed in passing.
    """
    counts = {name: int(np.isfinite(table[name]).sum()) for name in names}
    if beside is not None:
        inside = {n: int((np.isfinite(table[n]) & beside).sum()) for n in names}
        own = [n for n in names if inside[n] >= max(5, counts[n] / 2)]
        names = own or names
    most = max(counts[name] for name in names)
    return next(name for name in names if counts[name] >= most / 2)


def _may_be_heldout(name: str, column: Array) -> bool:
    """Whether an evaluation may be a score: shares, of which a setting has one."""
    known = column[np.isfinite(column)]
    shares = len(known) > 1 and known.min() >= 0 and known.max() <= 1
    return read_name(name).may_be_heldout and bool(shares)


def _others(table: dict[str, Array], notes: list[str]) -> dict[tuple[str, str], Array]:
    """Held-out scores of the best kind, other evaluations, parts of the reward, tool failures."""
    out, kinds = {}, {n: read_name(n).heldout for n in table if np.isfinite(table[n]).any()}
    best = min((k for k in kinds.values() if k is not None), default=None)
    if best is None:
        out = {("heldout", n): c for n, c in table.items() if _may_be_heldout(n, c)}
        notes += [f"{name} is taken for a held-out score: a guess by its name" for _, name in out]
    for name, column in table.items():
        what = read_name(name)
        if best is not None and kinds.get(name) == best:
            out["heldout", name] = column
        if what.part is not None:
            out["part", what.part] = column
        if what.trouble:
            out["trouble", name] = column
        if what.evaluated and not what.trouble and ("heldout", name) not in out:
            out["evaluated", name] = column
    return out


def _no_glitches(steps: Array, every: dict, notes: list[str]) -> tuple[Array, dict]:
    """Leave out lone rows whose step is impossible: far over, or under, both of its neighbours."""
    if len(steps) < 5:
        return steps, every
    usual = max(float(np.median(np.abs(np.diff(steps)))), 1.0)
    before, here, after = steps[:-2], steps[1:-1], steps[2:]
    lone = (before <= after) & (
        np.minimum(np.abs(here - before), np.abs(here - after)) > GLITCH * usual
    )
    lone &= (here > after) | (here < before)
    keep = np.ones(len(steps), dtype=bool)
    keep[1:-1] = ~lone
    if 0 < lone.sum() <= 0.1 * len(steps):
        shown = ", ".join(f"{s:g}" for s in here[lone][:3])
        notes.append(f"{_rows(int(lone.sum()))} left out: impossible step numbers such as {shown}")
        return steps[keep], {k: v[keep] for k, v in every.items()}
    return steps, every


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
        reward = every.get(("signal", "reward"))
        spans = [slice(*span) for span in zip(starts, ends, strict=True)]
        twice = {s.start: _reprinted(steps, reward, s, slice(a, b)) for s in spans if s.start != a}
        own = [start for start in starts if not twice.get(start)]
        if any(twice.values()):
            notes.append(f"the first {_rows(max(twice.values()))} stand twice: taken once")
        if len(own) > 1:
            notes.append(
                f"the file holds {len(own)} runs, each from its first step; "
                f"judged is number {own.index(a) + 1} (steps {steps[a]:g} to {steps[b - 1]:g})"
            )
        steps, every = steps[a:b], {k: v[a:b] for k, v in every.items()}
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
    later = np.append(lowest_after[1:], np.inf)
    keep = steps <= later  # a row that a later one goes back behind was done again
    if not keep.all():
        at = steps[np.flatnonzero(np.diff(steps) < 0) + 1]
        shown = ", ".join(f"{s:g}" for s in at[:3])
        again = _done_again(steps, every.get(("signal", "reward")))
        notes.append(f"resumed at step {shown}: {_rows(again)} {_were(again)} done again")
    return steps[keep], {k: v[keep] for k, v in every.items()}


def _reprinted(steps: Array, reward: Array | None, part: slice, run: slice) -> int:
    """How many rows with a reward `part` has, if they are the first ones of `run`; else 0."""
    if reward is None:
        return 0
    known = np.isfinite(reward)
    (at, there), (first, here) = (
        (steps[span][known[span]], reward[span][known[span]]) for span in (part, run)
    )
    count = len(at)
    alike = np.array_equal(at, first[:count]) and np.array_equal(there, here[:count])
    return count if count > 1 and alike else 0


def _done_again(steps: Array, reward: Array | None) -> int:
    """Rows (with a reward, if there is one) whose step stands once more behind a step back."""
    lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
    block = np.cumsum(np.append(False, np.diff(steps) < 0))  # a step's own rows are no repeat
    ends = np.searchsorted(block, block, side="right")
    again = steps >= np.append(lowest_after, np.inf)[ends]
    return int((again if reward is None else again & ~np.isnan(reward)).sum())


def _were(count: int) -> str:
    return "were" if count != 1 else "was"


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


def _zero(ours: str) -> str:
    if ours == "learning_rate":
        return "it is printed with too few decimals, or the policy was not trained"
    return "taken as not measured"


def _tidy(run: LoggedRun) -> None:
    """Shares in percent, zeros that mean "not measured", entropies with a minus sign."""
    for ours, column in list(run.signals.items()):
        known = column[np.isfinite(column)]
        if not len(known):
            del run.signals[ours]
        elif ours in UNMEASURED and not known.any():
            del run.signals[ours]
            run.notes.append(f"{run.columns[ours]} is 0 in every row: {_zero(ours)}")
        elif SIGNALS[ours].unit == "share" and PERCENT < known.max() <= 100:
            run.signals[ours] = column / 100
        elif ours == "entropy" and known.max() <= 0:
            run.signals[ours] = -column
    contrast = run.signals.pop("contrast", None)
    if contrast is not None and "no_contrast" not in run.signals:
        run.signals["no_contrast"] = 1 - contrast
        run.columns["no_contrast"] = f"1 - {run.columns['contrast']}"
    run.columns.pop("contrast", None)
    if "valid_format" not in run.signals:
        for part, column in run.parts.items():
            if "format" in part.lower() and np.nanmax(column) > np.nanmin(column) >= 0:
                run.signals["valid_format"] = column
                run.columns["valid_format"] = f"rewards/{part}"
                break
