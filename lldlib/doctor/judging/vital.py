"""Signs that a policy is dead or learns nothing, whatever its reward does.

Each is looked for in every log, and said under every verdict with the step at which it began.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lldlib.doctor.judging.levels import HIGH, level, top_of
from lldlib.doctor.judging.statistics import trailing, values_of, window_size
from lldlib.doctor.reading.series import ENOUGH, Array, LoggedRun

Grave = Literal["dead", "lifeless", "told"]
EARLY = 5  # rows at the start; what was so from there on did not die
ROSE = 2.5  # standard errors
STRETCH = 10  # rows at the end that a sign must hold
BROKEN_ROWS = 3  # rows at the end with no finite loss or gradient: the weights are gone
ENTROPY_GONE = 1e-3  # nats per token
ENTROPY_GOING = 5e-3  # ... from which on an entropy that is gone is so
ENTROPY_LEFT = 0.02  # share of its start that a dead entropy is under
LEAST_ENTROPY = 0.05  # nats per token: a start that is lower counts as this
NO_GRADIENT = 1e-5  # share of its start that a dead gradient norm is under
ALL_CUT = 0.95  # share of answers that are cut off
FEW_TOKENS, SHRUNK = 5, 0.2  # tokens of an answer, and share of its start
FORMAT_SEEN, FORMAT_LIVED, FORMAT_DEAD = 0.03, 0.1, 0.01  # of the answers
MOST = 0.5  # share of answers or groups from which on it is said
NO_CONTRAST = 0.75  # share of the groups whose answers score alike
FROZEN_EVALUATIONS = 5
NO_GATE = 0.99  # share of tokens on which a gated LLDS never acts
LASTS = 0.9  # share of the rows since a sign began that must show it


@dataclass(frozen=True)
class Sign:
    """One sign, and how grave it is.

    dead: the verdict is collapsed; lifeless: it is not healthy; told: it is said, no more.
    """

    key: str
    says: str
    grave: Grave
    row: int | None = None  # where it began, among all rows


def signs(run: LoggedRun) -> list[Sign]:
    """The signs that a run of reinforcement learning shows, the gravest first."""
    if run.kind.word != "rl":
        return []
    run = run.sure
    found = [sign for rule in RULES for sign in rule(run)]
    keys = {sign.key for sign in found}
    if at_top(run):  # what is solved has no contrast, no gradient and little entropy left
        found = [_told(s) if s.key in SOLVED else s for s in found]
    elif {"entropy", "gradient"} <= keys:
        row = max(s.row or 0 for s in found if s.key in ("entropy", "gradient"))
        says = f"the policy draws one answer and has no gradient since {_at(run, row)}"
        alive = row < EARLY or (not keys & BROKEN and _rose(run))
        found.append(Sign("nothing moves", says, "lifeless" if alive else "dead", row))
    return sorted(found, key=lambda s: ("dead", "lifeless", "told").index(s.grave))


def _rose(run: LoggedRun) -> bool:
    """Whether the reward stands far over its start: the task may be solved as far as it can be."""
    if len(run.scored) < ENOUGH:
        return False
    scores = run.signals["reward"][run.scored]
    return level(scores, float(scores.min())).rise >= ROSE


BROKEN = {"cut", "mostly cut", "tokens", "format", "numbers"}  # what no solved task shows
SOLVED = ("entropy", "gradient", "contrast", "frozen", "tokens")


def _told(sign: Sign) -> Sign:
    return Sign(sign.key, f"{sign.says} (the reward is near its top)", "told", sign.row)


def at_top(run: LoggedRun) -> bool:
    """Whether the reward is near the highest that can be had."""
    if len(run.scored) < STRETCH:
        return False
    scores = run.signals["reward"][run.scored]
    top = top_of(run, scores)
    return top is not None and level(scores, 0.0).late >= HIGH * top


def _at(run: LoggedRun, row: int | np.integer) -> str:
    return f"{run.unit} {run.steps[row]:g}"


def _known(run: LoggedRun, name: str) -> tuple[Array, Array]:
    """(rows, values) in which a signal is finite."""
    values = values_of(run, name)
    rows = np.flatnonzero(np.isfinite(values))
    return rows, values[rows]


def since(shows: Array, least: int = STRETCH) -> int | None:
    """The first of the rows from which on a sign shows to the end, or None if it does not last."""
    n = len(shows)
    if n < least or not shows[-min(least, n) :].mean() >= LASTS:
        return None
    left = np.cumsum(shows[::-1])[::-1] / np.arange(n, 0, -1)
    return int(np.flatnonzero(shows & (left >= LASTS))[0])


# -- rules -----------------------------------------------------------------------------------------


def _numbers(run: LoggedRun) -> Iterator[Sign]:
    """NaN or infinity in the loss, the KL or the gradient."""
    died = run.ending is not None and run.ending.how in ("crash", "killed")
    gone = [name for name in NUMBERS if _tail(run, name) >= BROKEN_ROWS]
    dead = died or "loss" in gone or len(gone) > 1  # a lone column may be a fault of the logging
    for name in NUMBERS:
        values = run.signals.get(name)
        if values is None:
            continue
        logged = np.flatnonzero(~np.isnan(values))
        bad = np.isinf(values[logged])
        if not bad.any():
            continue
        column, fine = run.columns[name], np.flatnonzero(~bad)
        if not len(fine):
            grave: Grave = "lifeless" if name == "loss" else "told"
            yield Sign("numbers", f"{column} is not finite in any row", grave, int(logged[0]))
            continue
        tail = len(bad) - 1 - int(fine[-1])
        if tail >= BROKEN_ROWS or (tail and died):
            row = int(logged[fine[-1] + 1])
            says = f"{column} is not finite from {_at(run, row)} on"
            yield Sign("numbers", says, "dead" if dead else "lifeless", row)
            continue
        late = bad[-window_size(len(bad)) :].any()
        row = int(logged[np.flatnonzero(bad)[0]])
        says = f"{column} is not finite in {bad.sum()} of {len(bad)} rows, first at {_at(run, row)}"
        yield Sign("numbers", says, "lifeless" if late else "told", row)


NUMBERS = ("loss", "grad_norm", "kl")


def _tail(run: LoggedRun, name: str) -> int:
    """Rows at the end in which a signal was logged and is not finite, after some that were."""
    values = run.signals.get(name, np.empty(0))
    bad = np.isinf(values[~np.isnan(values)])
    fine = np.flatnonzero(~bad)
    return len(bad) - 1 - int(fine[-1]) if len(fine) else 0


def _ended(run: LoggedRun) -> Iterator[Sign]:
    """An error at the end, or a process that was killed."""
    if run.ending is None or not len(run.steps):
        return
    how, says = run.ending.how, run.ending.says
    row = len(run.steps) - 1
    where = f"after {_at(run, row)}"
    if how == "saving":
        yield Sign("ended", f"the process died {where} while it wrote a file: {says}", "told", row)
    elif how == "stopped":
        yield Sign("ended", f"the process was stopped {where}: {says}", "told", row)
    elif "probability tensor" in says or "nan" in says.lower().split():
        yield Sign("ended", f"the numbers broke {where}: {says}", "dead", row)
    else:
        word = "was killed" if how == "killed" else "died"
        yield Sign("ended", f"the process {word} {where}: {says}", "lifeless", row)


def _entropy(run: LoggedRun) -> Iterator[Sign]:
    rows, values = _known(run, "entropy")
    if len(values) < ENOUGH:
        return
    early = max(float(np.median(values[:5])), LEAST_ENTROPY)
    gone = since(np.abs(values) < min(ENTROPY_GONE, ENTROPY_LEFT * early))
    under = min(ENTROPY_GOING, ENTROPY_LEFT * early)  # it sinks on when it is as good as gone
    begin = since(np.abs(values) < under)
    if gone is not None and begin is not None:
        last = float(np.median(values[-STRETCH:]))
        says = (
            f"the entropy is gone: {last:.2g} nats per token lately, "
            f"under {under:.2g} since {_at(run, rows[begin])}"
        )
        yield Sign("entropy", says, "lifeless", int(rows[begin]))


def _gradient(run: LoggedRun) -> Iterator[Sign]:
    rows, values = _known(run, "grad_norm")
    if len(values) < ENOUGH:
        return
    moving = values[values > 0]
    early = float(np.median(moving[:5])) if len(moving) else 0.0
    begin = since(values <= max(NO_GRADIENT * early, 1e-12))
    if begin is not None:
        says = (
            f"the gradient is gone: {run.columns['grad_norm']} is 0 since {_at(run, rows[begin])}"
        )
        yield Sign("gradient", says, "lifeless", int(rows[begin]))


def _cut(run: LoggedRun) -> Iterator[Sign]:
    rows, values = _known(run, "clipped")
    begin = since(values >= ALL_CUT) if len(values) else None
    if begin is not None:
        share = 100 * float(np.mean(values[-STRETCH:]))
        says = f"{share:.0f} % of the answers are cut off, nearly all since {_at(run, rows[begin])}"
        yield Sign("cut", says, "told" if _rose(run) else "lifeless", int(rows[begin]))
    elif len(values) >= ENOUGH and np.mean(values[-STRETCH:]) >= MOST:
        share = 100 * float(np.mean(values[-STRETCH:]))
        says = f"{share:.0f} % of the answers are cut off lately"
        yield Sign("mostly cut", says, "told", int(rows[-1]))


def _tokens(run: LoggedRun) -> Iterator[Sign]:
    rows, values = _known(run, "length")
    if len(values) < ENOUGH:
        return
    early = float(values[:5].max())
    limit = min(FEW_TOKENS, SHRUNK * early)
    begin = since(values <= limit)
    if begin is not None:
        last = float(np.median(values[-STRETCH:]))
        says = f"answers shrank from {early:.0f} to {last:.2g} tokens by {_at(run, rows[begin])}"
        yield Sign("tokens", says, "lifeless", int(rows[begin]))


def _format(run: LoggedRun) -> Iterator[Sign]:
    formats = {run.columns.get("valid_format", ""): run.signals.get("valid_format")}
    formats |= {f"rewards/{k}": v for k, v in run.parts.items() if "format" in k.lower()}
    for name, column in formats.items():
        if column is None or not np.isfinite(column).sum() >= ENOUGH:
            continue
        rows = np.flatnonzero(np.isfinite(column))
        values = column[rows]
        best = float(np.nanmax(trailing(values, 3)[2:]))
        begin = since(values <= FORMAT_DEAD * max(best, 0.0))
        if begin and values.min() >= 0 and best >= FORMAT_SEEN:
            says = (
                f"the format is dead: {name} fell from {best:.2g}, its best mean of three rows, "
                f"to 0 by {_at(run, rows[begin])}"
            )
            grave: Grave = "lifeless" if best >= FORMAT_LIVED else "told"
            yield Sign("format", says, grave, int(rows[begin]))
            return


def _contrast(run: LoggedRun) -> Iterator[Sign]:
    rows, values = _known(run, "no_contrast")
    said = "of the groups score all their answers alike"
    if len(values) < ENOUGH:
        rows, values = _known(run, "reward_std")
        values = (np.abs(values) < 1e-9).astype(float)
        said = "of the rows have no spread in their rewards"
    if len(values) < ENOUGH:
        return
    mean = trailing(values, STRETCH)
    share = float(mean[-1])
    if share < NO_CONTRAST:
        if share >= MOST:
            yield Sign("contrast", f"{100 * share:.0f} % {said} lately", "told", int(rows[-1]))
        return
    begin = since(mean >= NO_CONTRAST - 0.1)
    at = rows[begin if begin is not None else max(len(rows) - STRETCH, 0)]
    says = (
        f"{100 * share:.0f} % {said} since {_at(run, int(at))}: there is little left to learn from"
    )
    yield Sign("contrast", says, "lifeless", int(at))


def _still_parts(run: LoggedRun) -> Iterator[Sign]:
    """Parts of the reward that never move, in a run of which another part does."""
    known = {name: values[np.isfinite(values)] for name, values in run.parts.items()}
    moves = [name for name, values in known.items() if len(values) and np.ptp(values) > 0]
    for name, values in known.items():
        if moves and len(values) >= ENOUGH and not np.ptp(values):
            says = f"rewards/{name} is {values[0]:g} in all {len(values)} rows: it teaches nothing"
            yield Sign("still part", says, "told")


def _frozen(run: LoggedRun) -> Iterator[Sign]:
    """A constant loss and constant evaluations that both had moved before."""
    rows, loss = _known(run, "loss")
    begin = _constant(loss, STRETCH)
    if begin is None:
        return
    tables = dict(run.evaluated)
    if np.isfinite(run.heldout).any():
        tables[run.heldout_name] = run.heldout
    starts, names, solved = [int(rows[begin])], [], False
    for name, column in tables.items():
        at = np.flatnonzero(np.isfinite(column))
        if len(at) < FROZEN_EVALUATIONS + 1 or len(np.unique(column[at])) == 1:
            continue
        stopped = _constant(column[at], FROZEN_EVALUATIONS)
        if stopped is None:
            return
        starts.append(int(at[stopped]))
        names.append(name)
        solved = solved or bool(_SCORED.search(name) and HIGH <= column[at[-1]] <= 1)
    if names:
        row = max(starts)
        named = ["the loss", *names[:3]]
        held = f"{', '.join(named[:-1])} and {named[-1]}"
        says = f"{held} do not move at all since {_at(run, row)}"
        yield Sign("frozen", says, "told" if solved else "dead", row)


_SCORED = re.compile(r"acc|score|reward|success|correct|em\b|pass", re.I)


def _constant(values: Array, least: int) -> int | None:
    """The first of the rows from which on all values are the same, if they had moved before."""
    if len(values) <= least:
        return None
    moved = np.flatnonzero(np.abs(values - values[-1]) > 1e-12)
    begin = int(moved[-1]) + 1 if len(moved) else 0
    return begin if begin and len(values) - begin >= least else None


def _llds(run: LoggedRun) -> Iterator[Sign]:
    """LLDS is in the log and does nothing, or has no gate."""
    for name in ("llds", "llds_active"):
        rows, values = _known(run, name)
        if len(values) >= STRETCH and not values.any():
            says = (
                f"{run.columns[name]} is 0 in all {len(values)} rows, so LLDS does nothing here: "
                "it is 0 where a batch has one update, where the old log-probs are the current "
                "policy's, and where no row is kept. lldlib check-llds tells which"
            )
            yield Sign("llds idle", says, "told", int(rows[0]))
            return
    rows, values = _known(run, "llds_active")
    if len(values) >= STRETCH and np.mean(values >= NO_GATE) >= LASTS:
        says = (
            f"{run.columns['llds_active']} is {np.median(values):.0%} in the median, so no gate is "
            "at work: LLDS should act only where likelihood fell. lldlib check-llds tells which"
        )
        yield Sign("llds gate", says, "told", int(rows[0]))


RULES: tuple[Callable[[LoggedRun], Iterator[Sign]], ...] = (
    _numbers,
    _ended,
    _entropy,
    _gradient,
    _cut,
    _tokens,
    _format,
    _contrast,
    _still_parts,
    _frozen,
    _llds,
)
