"""The verdict on a run, from the scores that its log holds, and the first warning before a fall.

The rules are scale-free: falls are counted in shares of the run's own best score and in standard
errors of its own noise. What is said of a log depends on its rows alone, so a log that is cut gets
the verdict of its prefix.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from lldlib.doctor.series import (
    ENOUGH,
    Array,
    Run,
    Window,
    break_at,
    means,
    noise,
    trailing,
    values_of,
    window_size,
)

Verdict = Literal["healthy", "stagnating", "degrading", "collapsed", "unknown"]
ORDER: tuple[Verdict, ...] = ("unknown", "healthy", "stagnating", "degrading", "collapsed")
SURE = 3.5  # standard errors that a fall must have: the best window is chosen, so 2 say nothing
RISEN = 2.5  # standard errors that a rise must have: its windows are not chosen
FALLEN = 0.25  # share of the best score that is lost: degrading
LOST = 0.6  # ... collapsed
HALF = 0.5  # ... collapsed too, if with it nine tenths of what was learned are lost again
LEARNED = 0.3  # share of the best score that must have been learned for that
GAIN = 0.05  # share of its late score that a run must have won to have learned
HIGH = 0.9  # share of the top score at which a run has nothing left to learn
SIDES = 0.8  # share of the rows before a collapse that lie over the middle, and after it under it
FOR_COLLAPSE = 30  # rows with a reward under which a fall is called degrading at most
CHANCE = -2.3  # log10 of the chance that scores in random order look as collapsed
DEAD_ROWS = 10  # rows in a row at exactly the lowest score
HELDOUT_POINTS = 5  # evaluations under which the held-out score decides nothing
HELDOUT_FALLEN = 0.5  # share of the best held-out score that is lost: degrading
DEAD_ENTROPY = 1e-6  # nats a token: the policy draws nothing any more
BLOWN = 1e4  # times its median that a gradient norm or a KL is broken


@dataclass(frozen=True)
class Level:
    """How a series of scores stands now against its best and its start."""

    first: float
    best: float
    best_from: int  # rows with a score: where the best window begins
    last: float
    late: float  # mean of the last three tenths
    lost: float  # share of the best score, over the floor, that is lost now
    fall: float  # standard errors between best and last
    rise: float  # standard errors between first and late
    gain: float  # share of the late score, over the floor, that was won since the start
    won: float  # share of the best score, over the floor, that was learned since the start


@dataclass(frozen=True)
class Judgement:
    """What is said of a run."""

    verdict: Verdict
    rule: str  # which rule gave it
    sentence: str
    evidence: tuple[str, ...] = ()
    collapsed_at: float | None = None  # a step
    row: int | None = None  # the row of it, among all rows


def judge(run: Run) -> Judgement:
    """The verdict: of all rules that fire the worst; `unknown` where no rule has enough rows."""
    rows = run.scored
    if len(rows) < ENOUGH:
        return _too_short(run, len(rows))
    scores = run.signals["reward"][rows]
    found = [rule(run, rows, scores) for rule in (_dead_floor, _broken_numbers, _fallen, _held_out)]
    found = [judgement for judgement in found if judgement is not None]
    if not found:
        return _standing(run, scores)
    worst = max(ORDER.index(judgement.verdict) for judgement in found)
    alike = [judgement for judgement in found if ORDER.index(judgement.verdict) == worst]
    return min(alike, key=lambda j: len(run.steps) if j.row is None else j.row)  # where it began


def _too_short(run: Run, count: int) -> Judgement:
    what = f"{count} row{'s' if count > 1 else ''} with a reward" if count else "no reward column"
    return Judgement(
        "unknown",
        "too short",
        f"Cannot say: the log has {what}, and a verdict needs {ENOUGH}.",
    )


def floor_of(run: Run, scores: Array) -> float:
    """The score under which a run cannot fall: 0, or, where scores are negative, a lower one.

    Where the best is over 0 it is 0 or the lowest mean of 5 rows; where all scores are negative the
    lowest single answer that was logged, or else that mean.
    """
    low = float(min(means(scores, 5).min(), 0.0))
    if scores.max() > 0:
        return low
    least = run.signals.get("reward_min")
    known = least[np.isfinite(least)] if least is not None else np.empty(0)
    return min(low, float(known.min())) if len(known) else low


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
        last=last,
        late=late,
        lost=(best.mean - last) / room,
        fall=fall,
        rise=(late - first) / error,
        gain=(late - first) / max(late - floor, 1e-12),
        won=(best.mean - first) / room,
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
    ways = [
        _log_choose(n, k) + _log_choose(m, high - k)
        for k in range(over, min(n, high) + 1)
        if high - k <= m
    ]
    top = max(ways)
    chance = top + math.log(sum(math.exp(w - top) for w in ways)) - _log_choose(n + m, high)
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


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


# -- rules -----------------------------------------------------------------------------------------


def _dead_floor(run: Run, rows: Array, scores: Array) -> Judgement | None:
    """Scores that had moved are exactly at their lowest, row after row."""
    low = scores.min()
    above = np.flatnonzero(scores > low + 1e-9 * max(abs(low), 1e-9))
    if not len(above) or scores.max() - low < 1e-9:
        return None
    begin = int(above[-1]) + 1
    dead, head = len(scores) - begin, scores[:begin]
    if dead < DEAD_ROWS or begin < 5 or np.mean(head > low) < 0.8:
        return None
    step = run.steps[rows[begin]]
    said = f"since step {step:g} the score is exactly {low:g}, its lowest, in {dead} rows in a row"
    before = f"before it was {head[: window_size(len(scores))].mean():.3g}"
    return Judgement(
        "collapsed",
        "dead floor",
        f"Collapsed at step {step:g}: every answer scores the lowest.",
        (f"{said}; {before}",),
        float(step),
        int(rows[begin]),
    )


def _fallen(run: Run, rows: Array, scores: Array) -> Judgement | None:
    """The score has lost a large share of its best, by far more than its noise."""
    floor = floor_of(run, scores)
    now = level(scores, floor)
    if now.fall < SURE or now.lost < FALLEN:
        return None
    begin, chance = split(scores, now)
    step, percent = run.steps[rows[begin]], f"{100 * now.lost:.0f} %"
    over = f" (counted from its floor, {floor:.2g})" if floor else ""
    size = window_size(len(scores))
    evidence = (
        f"{run.columns['reward']}: best {now.best:.3g} (mean around step "
        f"{run.steps[rows[min(now.best_from + size, len(rows) - 1)]]:g}), "
        f"now {now.last:.3g} (mean of the last {size} rows): {percent} of it{over} is lost",
        f"the fall is {now.fall:.1f} standard errors of this log's own noise",
    )
    undone = now.won >= LEARNED and now.lost >= max(HALF, 0.9 * now.won)
    sure = chance <= CHANCE and len(scores) >= FOR_COLLAPSE
    if sure and (now.lost >= LOST or undone):
        sentence = f"Collapsed at step {step:g}: the reward lost {percent} of its best{over}."
        return Judgement("collapsed", "fall", sentence, evidence, float(step), int(rows[begin]))
    sentence = f"Degrading: the reward lost {percent} of its best{over} and has not come back."
    return Judgement("degrading", "fall", sentence, evidence, None, int(rows[begin]))


def _broken_numbers(run: Run, rows: Array, scores: Array) -> Judgement | None:
    """The entropy is 0 to rounding and gradients or KL are not finite or absurd.

    Collapsed where the score was also at its lowest for a while, degrading where it was not.
    """
    entropy, broken = run.signals.get("entropy"), blown(run)
    if entropy is None or not len(broken):
        return None
    known = np.flatnonzero(np.isfinite(entropy))
    if len(known) < ENOUGH or np.median(entropy[known[:5]]) < 1e-2:
        return None
    dead = entropy[known] < DEAD_ENTROPY
    if dead[len(dead) // 2 :].mean() < 0.5 or level(scores, floor_of(run, scores)).rise > RISEN:
        return None
    first = run.steps[known[np.flatnonzero(dead)[0]]]
    evidence = [
        f"entropy is under {DEAD_ENTROPY:g} from step {first:g} on "
        f"(it was {np.median(entropy[known[:5]]):.3g})",
        f"gradient norm, KL or loss is not finite or absurd at step {run.steps[broken[0]]:g}",
    ]
    says, stretch = (
        "the numbers broke, and the policy draws nothing any more.",
        _dead_stretch(scores),
    )
    if stretch is None:
        return Judgement("degrading", "broken numbers", f"Degrading: {says}", tuple(evidence))
    begin = int(rows[stretch[0]])
    step = float(run.steps[begin])
    evidence.append(f"from step {step:g} on the score was at its lowest in {stretch[1]} rows")
    sentence = f"Collapsed at step {step:g}: {says}"
    return Judgement("collapsed", "broken numbers", sentence, tuple(evidence), step, begin)


def _dead_stretch(scores: Array) -> tuple[int, int] | None:
    """(first row, length) of the longest stretch at exactly the lowest score, if it is long."""
    at_low = np.concatenate([[0], (scores == scores.min()).astype(int), [0]])
    edges = np.diff(at_low)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    longest = int(np.argmax(ends - starts))
    begin, length = int(starts[longest]), int(ends[longest] - starts[longest])
    alive = begin >= 5 and np.mean(scores[:begin] > scores.min()) >= 0.8
    return (begin, length) if length >= DEAD_ROWS and alive else None


def blown(run: Run) -> Array:
    """Rows in which the gradient norm, the KL or the loss is not finite or absurdly large.

    A column in which more than three of ten values are not finite is taken as not measured there.
    """
    bad = np.zeros(len(run.steps), dtype=bool)
    for name in ("grad_norm", "kl", "loss"):
        values = run.signals.get(name)
        if values is None:
            continue
        finite = np.isfinite(values)
        size = np.abs(values[finite])
        usual = float(np.median(size[size > 0])) if (size > 0).any() else math.inf
        absurd = finite & (np.abs(values) > max(BLOWN * usual, 1e3))
        infinite = np.isinf(values)
        if infinite.sum() <= 0.3 * max(finite.sum(), 1):
            absurd |= infinite
        bad |= absurd if name != "loss" else infinite & absurd
    return np.flatnonzero(bad)


def heldout_level(run: Run) -> tuple[float, float, float, int] | None:
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


def _held_out(run: Run, rows: Array, scores: Array) -> Judgement | None:
    """The held-out score fell, whatever the training reward does."""
    found = heldout_level(run)
    if found is None or found[2] < HELDOUT_FALLEN:
        return None
    best, last, lost, row = found
    values = run.heldout[np.isfinite(run.heldout)]
    steps = np.abs(np.diff(values)) / math.sqrt(2)
    if best - last < SURE * np.median(steps) / 0.6745 * math.sqrt(2 / 3):
        return None  # within the noise from one evaluation to the next
    now = level(scores, floor_of(run, scores))
    fell = now.fall >= SURE and now.lost >= FALLEN
    said = f"the held-out score lost {100 * lost:.0f} % of its best"
    evidence = [f"held-out score ({run.heldout_name}): best {best:.3g}, now {last:.3g}"]
    evidence.append("the training reward did not fall" if not fell else "the reward fell less")
    held = "" if fell else ", while the training reward held"
    return Judgement(
        "degrading", "held-out fall", f"Degrading: {said}{held}.", tuple(evidence), None, row
    )


def _standing(run: Run, scores: Array) -> Judgement:
    """Nothing fell: did the run learn?"""
    floor = floor_of(run, scores)
    now = level(scores, floor)
    said = f"{run.columns['reward']}: {now.first:.3g} at the start, {now.late:.3g} lately"
    dip = _dip(run, scores, floor)
    if now.rise >= RISEN and now.gain >= GAIN:
        return Judgement(
            "healthy",
            "learned",
            "Healthy: the reward rose by far more than its noise and holds.",
            (f"{said}: {now.rise:.1f} standard errors of this log's own noise", *dip),
        )
    top = top_of(run, scores)
    if top is not None and now.late >= HIGH * top:
        return Judgement(
            "healthy",
            "at the top",
            "Healthy: the reward is near its top and holds.",
            (f"{said}; the top is {top:g}", *dip),
        )
    return Judgement(
        "stagnating",
        "no trend",
        "Stagnating: the reward neither rises nor falls by more than its noise.",
        (f"{said}: {now.rise:+.1f} standard errors; {RISEN:g} would be a trend", *dip),
    )


def _dip(run: Run, scores: Array, floor: float) -> tuple[str, ...]:
    """A fall that the run came back from."""
    mean = means(scores, window_size(len(scores)))
    best = np.maximum.accumulate(mean)
    lost = (best - mean) / np.maximum(best - floor, 1e-12)
    low = int(np.argmax(lost))
    spread, rows = noise(scores)
    error = max(spread * math.sqrt(2 * rows / window_size(len(scores))), 1e-12)
    if lost[low] < HALF or (best[low] - mean[low]) / error < SURE:
        return ()
    step = run.steps[run.scored[low + window_size(len(scores)) - 1]]
    return (f"it fell from {best[low]:.3g} to {mean[low]:.3g} by step {step:g} and came back",)


def top_of(run: Run, scores: Array) -> float | None:
    """The highest score that can be had, where the log tells it: of single answers, or 1."""
    most = run.signals.get("reward_max")
    known = most[np.isfinite(most)] if most is not None else np.empty(0)
    if len(known):
        return float(known.max())
    return 1.0 if 0.5 < scores.max() <= 1.0 and scores.min() >= 0 else None


# -- warnings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Warning_:
    """A rule that can ring before the score falls; it looks back only."""

    name: str
    says: str  # with {x} for the threshold
    strength: Callable[[Run], Array]  # a row's size of the sign; it rings over the threshold
    grid: tuple[float, ...]  # thresholds that were tried


START = 5  # rows at the start that no warning watches


def _over_lowest(values: Array) -> Array:
    mean = trailing(values)
    mean[:START] = np.nan
    lowest = np.fmin.accumulate(mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(lowest > 0, mean / lowest, np.nan)


def _under_highest(values: Array) -> Array:
    mean = trailing(values)
    mean[:START] = np.nan
    highest = np.fmax.accumulate(mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(mean > 0, highest / mean, np.where(highest > 0, np.inf, np.nan))


def _over_median(values: Array, held: int = 1) -> Array:
    """Trailing mean of `held` rows over the median of the rows up to 5 before it.

    The median is taken anew whenever a twentieth more rows are known, to be fast on long logs.
    """
    now, out = trailing(values, held), np.full(len(values), np.nan)
    known = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    counts = np.concatenate([[0], np.cumsum(~np.isnan(known))])
    taken, usual = 0, math.nan
    for t in range(2 * START, len(values)):
        count = int(counts[t - START + 1])
        if count >= START and count >= 1.05 * taken:
            taken, usual = count, float(np.nanmedian(known[: t - START + 1]))
        out[t] = now[t] / usual
    return out


def _over_early(values: Array) -> Array:
    """Trailing mean over the median of the first 10 rows."""
    out = np.full(len(values), np.nan)
    early = values[:10][np.isfinite(values[:10])]
    if len(early) >= START and np.median(early) != 0:
        out[10:] = (trailing(values) / np.median(early))[10:]
    return out


def _probe_fall(run: Run) -> Array:
    """Nats a token that fixed correct answers lost within 10 rows, by means of 3."""
    mean, out = trailing(values_of(run, "probe"), 3), np.full(len(run.steps), np.nan)
    out[10:] = mean[:-10] - mean[10:]
    return out


def _reward_fall(run: Run) -> Array:
    """Standard errors that the last 5 scores lie under the best 5 so far, from row 15 on."""
    out, rows = np.full(len(run.steps), np.nan), run.scored
    if len(rows) < 15:
        return out
    scores = run.signals["reward"][rows]
    gaps = np.abs(np.diff(scores)) / 1.128  # mean range of two -> standard deviation
    spread = np.cumsum(gaps)[3:] / np.arange(4, len(scores))
    mean = means(scores, 5)
    fall = np.maximum.accumulate(mean) - mean
    out[rows[4:]] = fall / np.maximum(spread * math.sqrt(2 / 5), 1e-12)
    out[: rows[14]] = np.nan
    return out


WARNINGS = (
    Warning_(
        "probe falls",
        "fixed correct answers lost {x:g} nats a token within 10 rows",
        _probe_fall,
        (0.5, 0.7, 0.85, 1.0, 1.5),
    ),
    Warning_(
        "updates cost",
        "the updates took {x:g} nats a token from correct answers, mean of 5 rows",
        lambda run: -trailing(values_of(run, "displacement")),
        (0.04, 0.06, 0.08, 0.1, 0.15),
    ),
    Warning_(
        "too sure",
        "the batch's correct answers are surer than at the start: 1/{x:g} of the nats",
        lambda run: 1 / np.maximum(_over_early(values_of(run, "likelihood")), 1e-12),
        (3.0, 4.0, 5.0, 6.0, 8.0),
    ),
    Warning_(
        "entropy up",
        "entropy is {x:g} times its lowest so far",
        lambda run: _over_lowest(values_of(run, "entropy")),
        (1.3, 1.5, 2.0, 3.0, 4.0),
    ),
    Warning_(
        "entropy down",
        "entropy is 1/{x:g} of its highest so far",
        lambda run: _under_highest(values_of(run, "entropy")),
        (3.0, 4.0, 5.0, 7.0, 10.0, 30.0),
    ),
    Warning_(
        "gradient spike",
        "a gradient norm is {x:g} times the median of all before",
        lambda run: _over_median(values_of(run, "grad_norm")),
        (3.0, 5.0, 10.0, 20.0, 50.0),
    ),
    Warning_(
        "KL up",
        "the KL is {x:g} times the median of all before",
        lambda run: _over_median(values_of(run, "kl"), 3),
        (5.0, 10.0, 20.0, 50.0, 100.0),
    ),
    Warning_(
        "longer answers",
        "answers are {x:g} times as long as at the start",
        lambda run: _over_early(values_of(run, "length")),
        (1.2, 1.3, 1.5, 2.0, 3.0),
    ),
    Warning_(
        "shorter answers",
        "the longest answers so far were {x:g} times as long",
        lambda run: _under_highest(values_of(run, "length")),
        (1.3, 1.5, 2.0, 3.0),
    ),
    Warning_(
        "reward slips",
        "the reward is {x:g} standard errors under its best",
        _reward_fall,
        (4.0, 5.0, 6.0, 7.0, 8.0, 10.0),
    ),
)


@cache
def evidence() -> dict[str, Any]:
    """The table that travels with the package: thresholds, odds and what remedies did."""
    text = files("lldlib.doctor").joinpath("evidence.json").read_text(encoding="utf-8")
    return json.loads(text)


@dataclass(frozen=True)
class Ring:
    """A warning that rang."""

    name: str
    says: str
    row: int
    odds: str


def first_row(strength: Array, threshold: float) -> int | None:
    """The first row whose sign is over the threshold."""
    over = np.flatnonzero(strength > threshold)
    return int(over[0]) if len(over) else None


WHILE_LEARNING = ("entropy up", "entropy down", "longer answers", "shorter answers", "too sure")
NOW = 10  # rows at the end in which a warning must ring to be said of a run that lives


def rings(run: Run, judged: Judgement) -> list[Ring]:
    """The warnings that rang, the earliest first.

    Of a run that fell those ahead of the fall; of one that lives only those that ring now and have
    seldom rung in runs that lived.
    """
    fell = judged.verdict in ("degrading", "collapsed")
    found = []
    for warning in WARNINGS if judged.verdict != "unknown" else ():
        if judged.verdict == "healthy" and warning.name in WHILE_LEARNING:
            continue
        kept = evidence()["warnings"].get(warning.name, {"use": False})
        if not kept["use"] or not (fell or kept["rare"]):
            continue
        strength = warning.strength(run)
        row = first_row(strength, kept["threshold"])
        loud = np.nanmax(strength[-NOW:], initial=-np.inf) > kept["threshold"]
        ahead = judged.row is not None and row is not None and row < judged.row
        if row is not None and (ahead if fell else loud):
            says = warning.says.format(x=kept["threshold"])
            found.append(Ring(warning.name, says, row, odds_of(kept)))
    return sorted(found, key=lambda ring: ring.row)


def odds_of(kept: dict[str, Any]) -> str:
    """What a warning's record says, each run left out when its threshold was set."""
    return (
        f"over {kept['fell'] + kept['lived']} recorded runs, each left out in turn: it rang before "
        f"{kept['warned']} of {kept['fell']} falls (median lead {kept['lead']:g} rows), and in "
        f"{kept['false']} of {kept['lived']} runs that lived"
    )
