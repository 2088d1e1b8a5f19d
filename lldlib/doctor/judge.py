"""The verdict on a run, from the scores that its log holds, and the first warning before a fall.

The rules are scale-free: falls are counted in shares of the run's own best score and in standard
errors of its own noise. What is said of a log depends on its rows alone, so a log that is cut gets
the verdict of its prefix.
"""

import math
import re
import shlex
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lldlib.doctor.judging.beside import heldout_fall, heldout_level, heldout_rise, moved_parts
from lldlib.doctor.judging.levels import (
    FALLEN,
    HALF,
    HIGH,
    LAST,
    RISEN,
    SURE,
    SURER,
    Level,
    floor_of,
    lately,
    level,
    slope,
    split,
    top_of,
    until,
)
from lldlib.doctor.judging.statistics import (
    means,
    noise,
    window_size,
    without_glitches,
)
from lldlib.doctor.judging.vital import Sign, signs
from lldlib.doctor.reading.series import ENOUGH, Array, LoggedRun

Verdict = Literal["healthy", "stagnating", "degrading", "collapsed", "unknown"]
ORDER: tuple[Verdict, ...] = ("unknown", "healthy", "stagnating", "degrading", "collapsed")
LOST = 0.6  # share of the best score that is lost: collapsed
UNLEARNED = 0.6  # share of what was learned that is lost: degrading, whatever the score's offset
SUNK = 0.1  # share of the best score that must be lost for that
LEARNED = 0.3  # share of the best score that must have been learned for that
GAIN = 0.05  # share of its late score that a run must have won to have learned
SHORT = 100  # rows up to which the line through all of them may show the rise as well
LINE = 3.0  # standard errors of that line's slope
FOR_COLLAPSE = 30  # rows with a reward under which a fall is called degrading at most
CHANCE = -2.3  # log10 of the chance that scores in random order look as collapsed
DEAD_ROWS = 10  # rows in a row at exactly one score
UNHEARD_OF = -9.0  # log10 of the chance that so many rows in a row miss
SELDOM = 0.25  # share of the rows before that may have had that score
DEAD_ENTROPY = 1e-6  # nats per token: every word is certain
BLOWN = 1e4  # times its median that a gradient norm or a KL is broken


@dataclass(frozen=True)
class Judgement:
    """What is said of a run."""

    verdict: Verdict
    rule: str  # which rule gave it
    sentence: str
    evidence: tuple[str, ...] = ()
    collapsed_at: float | None = None  # a step
    row: int | None = None  # the row of it, among all rows


def judge(run: LoggedRun) -> Judgement:
    """The verdict: of all rules that fire the worst; `unknown` where no rule has enough rows.

    Only reinforcement learning is judged. A sign of a dead policy makes it collapsed, and a lesser
    sign never leaves it healthy.
    """
    if run.kind.word != "rl":
        return _not_judged(run)
    run = without_glitches(run)
    rows, shown = run.scored, signs(run)
    if len(rows) < ENOUGH:
        return _too_short(run, len(rows))
    scores = run.signals["reward"][rows]
    rules = (_dead_floor, _stuck, _broken_numbers, _fallen, _held_out)
    found = [rule(run, rows, scores) for rule in rules]
    found += [_dead(run, sign) for sign in shown if sign.grave == "dead"]
    found = [judgement for judgement in found if judgement is not None]
    told = next((j for j in found if j.rule in FALLS and _outdone(run, j)), None)
    found = [judgement for judgement in found if judgement is not told]
    if not found:
        stands = _standing(run, scores) if told is None else _harder(run, told)
        judged = _not_for_a_gamed_reward(run, _not_over_a_corpse(stands, shown))
        return _with_heldout(run, judged)
    worst = max(ORDER.index(judgement.verdict) for judgement in found)
    alike = [judgement for judgement in found if ORDER.index(judgement.verdict) == worst]
    first = min(alike, key=lambda j: len(run.steps) if j.row is None else j.row)  # where it began
    return _with_heldout(run, _on_a_guess(run, first))


FALLS = ("fall", "unlearned")  # rules that look at nothing but the training reward


def _outdone(run: LoggedRun, fell: Judgement) -> bool:
    """Whether the held-out score rose, and stands near its best in evaluations after the fall."""
    after = int(np.isfinite(run.heldout[fell.row :]).sum())
    if after < 3 or heldout_rise(run) is None:  # what was asked before the fall says nothing of it
        return False
    return heldout_level(run)[2] < SUNK


def _harder(run: LoggedRun, fell: Judgement) -> Judgement:
    """A training reward that falls while the held-out score rises: its questions grew harder."""
    sentence = "Healthy: the held-out score rises by more than its noise; the training reward fell."
    return Judgement("healthy", "held-out rise", sentence, (heldout_rise(run), *fell.evidence))


def _with_heldout(run: LoggedRun, judged: Judgement) -> Judgement:
    """The first and the last held-out score stand under every verdict."""
    values = run.heldout[np.isfinite(run.heldout)]
    if len(values) < 2 or any(line.startswith("held-out score") for line in judged.evidence):
        return judged
    line = (
        f"held-out score ({run.heldout_name}): {values[0]:.3g} in the first of {len(values)} "
        f"evaluations, {values[-1]:.3g} in the last"
    )
    fell = heldout_fall(run)
    if fell is not None:
        line += f"; {100 * fell[2]:.0f} % of its best mean of three, {fell[0]:.3g}, is lost"
    return replace(judged, evidence=(*judged.evidence, line))


def _not_judged(run: LoggedRun) -> Judgement:
    """What is no reinforcement learning gets one sentence and no verdict."""
    said = f"No verdict: {run.kind.says[:1].lower()}{run.kind.says[1:]}, and only reinforcement "
    guess = run.columns.get("reward") if run.kind.word == "answers" else None
    column = shlex.quote(guess or "COLUMN")
    tail = f"learning is judged here. If a column is a reward, name it: --map reward={column}."
    return Judgement("unknown", "kind", said + tail)


def _too_short(run: LoggedRun, count: int) -> Judgement:
    if count:
        what = f"{count} row{'s' if count > 1 else ''} with a reward, and a verdict needs {ENOUGH}"
    else:
        what = "no reward that is known; name its column: --map reward=COLUMN"
    return Judgement("unknown", "too short", f"Cannot say: the log has {what}.")


def _on_a_guess(run: LoggedRun, judged: Judgement) -> Judgement:
    """A fall of a column that only may be the reward is told, and is no verdict."""
    name = run.columns["reward"]
    if "reward" not in run.guessed or "reward" in name.lower() or judged.rule == "dead policy":
        return judged
    said = (
        f"Cannot say: {name} fell, and that it is the reward is a guess. If it is, say so: "
        f"--map reward={name}."
    )
    return Judgement("unknown", "guess", said, judged.evidence)


def _dead(run: LoggedRun, sign: Sign) -> Judgement:
    step = float(run.steps[sign.row])
    return Judgement(
        "collapsed",
        "dead policy",
        f"Collapsed at {run.unit} {step:g}: {sign.says}.",
        (sign.says,),
        step,
        sign.row,
    )


def _not_over_a_corpse(judged: Judgement, shown: list[Sign]) -> Judgement:
    """A healthy verdict is not given over a policy that shows no life."""
    grave = [sign for sign in shown if sign.grave == "lifeless"]
    if judged.verdict != "healthy":
        return judged
    if not grave:
        though = "".join(f", though {sign.says}" for sign in shown if sign.key == "cut") + "."
        return replace(judged, sentence=judged.sentence.removesuffix(".") + though)
    broke = [sign for sign in grave if sign.key in ("numbers", "ended")]
    verdict: Verdict = "degrading" if broke else "stagnating"
    sign = (broke or grave)[0]
    had = {
        "at the top": "the reward is near its top",
        "held-out rise": "the held-out score rose",
    }.get(judged.rule, "the reward rose")
    sentence = f"{verdict.capitalize()}: {had}, but {sign.says}."
    return replace(judged, verdict=verdict, rule="no life", sentence=sentence)


def _not_for_a_gamed_reward(run: LoggedRun, judged: Judgement) -> Judgement:
    """A reward that rises while its part for right answers falls leaves no run healthy."""
    falls, rises = moved_parts(run)
    right = [name for name in falls if RIGHT.search(name) and not NOT_RIGHT.search(name)]
    if judged.verdict != "healthy" or not right or not rises:
        return judged
    name, other = right[0], next(iter(rises))
    now, more = falls[name], rises[other]
    said = f"{name} fell from {now.best:.3g} to {now.last:.3g}"
    told = f"{said}; {other} rose from {more.first:.3g} to {more.late:.3g}"
    sentence = f"Degrading: the reward holds, but its part {said}."
    evidence = (*judged.evidence, told)
    return replace(judged, verdict="degrading", rule="parts", sentence=sentence, evidence=evidence)


# what pays for right answers, and what pays for their form; a part of another name is only told
RIGHT = re.compile(r"correct|accura|exact|success|solve|outcome|pass|verif|(?:^|_)em(?:$|_)", re.I)
NOT_RIGHT = re.compile(r"format|len|style|tag|brev|penal|incorrect", re.I)


# -- rules -----------------------------------------------------------------------------------------


def _dead_floor(run: LoggedRun, rows: Array, scores: Array) -> Judgement | None:
    """Scores that had moved are exactly at their lowest, row after row."""
    low = scores.min()
    above = np.flatnonzero(scores > low + 1e-9 * max(abs(low), 1e-9))
    if not len(above) or scores.max() - low < 1e-9:
        return None
    begin = int(above[-1]) + 1
    dead, head = len(scores) - begin, scores[:begin]
    if dead < DEAD_ROWS or begin < 5 or not _lived(head > low, dead):
        return None
    step = run.steps[rows[begin]]
    began = f"since {run.unit} {step:g}"
    said = f"{began} the score is exactly {low:g}, its lowest, in {dead} rows in a row"
    before = f"just before it was {head[-window_size(len(scores)) :].mean():.3g}"
    return Judgement(
        "collapsed",
        "dead floor",
        f"Collapsed at {run.unit} {step:g}: every answer scores the lowest.",
        (f"{said}; {before}",),
        float(step),
        int(rows[begin]),
    )


def _lived(above: Array, dead: int) -> bool:
    """Whether scores over the lowest were the rule, so that `dead` rows without one say something.

    Either four in five were, or half of them, and as many rows without one are beyond chance.
    """
    share = float(np.mean(above))
    return share >= 0.8 or (share >= 0.5 and dead * math.log10(1 - share) <= UNHEARD_OF)


def _stuck(run: LoggedRun, rows: Array, scores: Array) -> Judgement | None:
    """Scores that had moved are exactly constant, far under their best."""
    moved = np.flatnonzero(scores != scores[-1])
    if not len(moved):
        return None
    begin = int(moved[-1]) + 1
    stuck, head = len(scores) - begin, scores[:begin]
    if stuck < DEAD_ROWS or begin < ENOUGH or np.mean(head == scores[-1]) > SELDOM:
        return None
    best, low, here = float(means(head, 5).max()), float(scores.min()), float(scores[-1])
    far = best - here > (HALF + 1e-9) * (best - min(low, 0.0))
    if not far or here >= np.median(head):
        return None
    step = run.steps[rows[begin]]
    return Judgement(
        "collapsed",
        "stuck",
        f"Collapsed at {run.unit} {step:g}: every row scores exactly {here:g}, far under the best.",
        (f"the best mean of 5 rows was {best:.3g}; {stuck} rows in a row are exactly {here:g}",),
        float(step),
        int(rows[begin]),
    )


def _stands(scores: Array, floor: float) -> tuple[Level, tuple[int, float]]:
    """Where the scores stand, and `split` of it.

    A last tenth of which half is dead says too little, and late: the last rows alone count where
    all of them lie behind the break and chance is ruled out. Where a break is sure, the rows that
    end at it may be the best.
    """
    now = level(scores, floor)
    late = lately(scores, floor, now)
    if late is not None and late.fall >= SURE:
        parted = split(scores, late)
        if parted[1] <= CHANCE and len(scores) - parted[0] >= LAST:
            return late, parted
    parted = split(scores, now)
    if now.fall >= SURE and parted[1] <= CHANCE:
        now = until(scores, floor, now, parted[0])
    return now, parted


def _fallen(run: LoggedRun, rows: Array, scores: Array) -> Judgement | None:
    """The score has lost a large share of its best, by far more than its noise."""
    floor = floor_of(run, scores)
    now, (begin, chance) = _stands(scores, floor)
    if now.fall < SURE:
        return None
    if now.lost < FALLEN:
        return _unlearned(run, rows, now, begin)
    step, percent = run.steps[rows[begin]], f"{100 * now.lost:.0f} %"
    over = f" (counted from its floor, {floor:.2g})" if floor else ""
    evidence = (
        f"{_from_best(run, rows, now)}: {percent} of it{over} is lost",
        f"the fall is {_errors(now.fall)}",
    )
    undone = now.won >= LEARNED and now.lost >= max(HALF, 0.9 * now.won)
    sure = chance <= CHANCE and len(scores) >= FOR_COLLAPSE
    if sure and (now.lost >= LOST or undone):
        sentence = f"Collapsed at {run.unit} {step:g}: the reward lost {percent} of its best{over}."
        return Judgement("collapsed", "fall", sentence, evidence, float(step), int(rows[begin]))
    sentence = f"Degrading: the reward lost {percent} of its best{over} and has not come back."
    return Judgement("degrading", "fall", sentence, evidence, None, int(rows[begin]))


def _unlearned(run: LoggedRun, rows: Array, now: Level, begin: int) -> Judgement | None:
    """A score that rests on a high base has lost most of what it had learned."""
    undone = now.lost / max(now.won, 1e-12)
    if min(now.learned, now.fall) < SURER or undone < UNLEARNED or now.lost < SUNK:
        return None
    share = f"{100 * undone:.0f} %" if undone < 0.995 else "all"
    evidence = (
        f"{_from_best(run, rows, now)}; it began at {now.first:.3g}",
        f"the rise was {_errors(now.learned)}, the fall is {_errors(now.fall)}",
    )
    sentence = f"Degrading: the reward lost {share} of what it had learned and has not come back."
    return Judgement("degrading", "unlearned", sentence, evidence, None, int(rows[begin]))


def _from_best(run: LoggedRun, rows: Array, now: Level) -> str:
    middle = min(now.best_from + now.best_rows // 2, len(rows) - 1)
    return (
        f"{run.columns['reward']}: best {now.best:.3g} (mean around {run.unit} "
        f"{run.steps[rows[middle]]:g}), now {now.last:.3g} (mean of the last {now.last_rows} rows)"
    )


def _broken_numbers(run: LoggedRun, rows: Array, scores: Array) -> Judgement | None:
    """The entropy is 0 to rounding and gradients or KL are not finite or absurd.

    Collapsed where the score was also at its lowest for a while, degrading where it was not.
    """
    entropy, broken = run.signals.get("entropy"), blown(run)
    if entropy is None or not len(broken):
        return None
    known = np.flatnonzero(np.isfinite(entropy))
    if len(known) < ENOUGH or np.median(entropy[known[:5]]) < 1e-2:
        return None
    dead, now = entropy[known] < DEAD_ENTROPY, level(scores, floor_of(run, scores))
    if dead[len(dead) // 2 :].mean() < 0.5 or now.rise > RISEN:
        return None
    first = run.steps[known[np.flatnonzero(dead)[0]]]
    evidence = [
        f"entropy is under {DEAD_ENTROPY:g} in {dead.sum()} of {len(dead)} rows, the first at "
        f"{run.unit} {first:g} (it was {np.median(entropy[known[:5]]):.3g})",
        f"gradient norm, KL or loss is not finite or absurd at {run.unit} {run.steps[broken[0]]:g}",
        _from_best(run, rows, now),
    ]
    says, stretch = (
        "the numbers broke, and most of the later rows have an entropy of 0.",
        _dead_stretch(scores),
    )
    if stretch is None:
        return Judgement("degrading", "broken numbers", f"Degrading: {says}", tuple(evidence))
    begin = int(rows[stretch[0]])
    step = float(run.steps[begin])
    evidence.append(f"from {run.unit} {step:g} on the score was at its lowest in {stretch[1]} rows")
    sentence = f"Collapsed at {run.unit} {step:g}: {says}"
    return Judgement("collapsed", "broken numbers", sentence, tuple(evidence), step, begin)


def _dead_stretch(scores: Array) -> tuple[int, int] | None:
    """(first row, length) of the longest stretch at exactly the lowest score, if it is long."""
    at_low = np.concatenate([[0], (scores == scores.min()).astype(int), [0]])
    edges = np.diff(at_low)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    longest = int(np.argmax(ends - starts))
    begin, length = int(starts[longest]), int(ends[longest] - starts[longest])
    alive = begin >= 5 and _lived(scores[:begin] > scores.min(), length)
    return (begin, length) if length >= DEAD_ROWS and alive else None


def blown(run: LoggedRun) -> Array:
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


def _held_out(run: LoggedRun, rows: Array, scores: Array) -> Judgement | None:
    """The held-out score fell, whatever the training reward does."""
    found = heldout_fall(run)
    if found is None:
        return None
    best, last, lost, row = found
    now, _ = _stands(scores, floor_of(run, scores))
    said = f"the held-out score lost {100 * lost:.0f} % of its best"
    evidence = [f"held-out score ({run.heldout_name}): best {best:.3g}, now {last:.3g}"]
    if now.fall < SURE:
        held = ", while the training reward held"
        evidence.append("the training reward did not fall")
    else:  # a fall too small to count by itself is a fall
        held = f", and the training reward {100 * now.lost:.0f} %"
        evidence.append(f"{_from_best(run, rows, now)}: the fall is {_errors(now.fall)}")
    return Judgement(
        "degrading", "held-out fall", f"Degrading: {said}{held}.", tuple(evidence), None, row
    )


def _standing(run: LoggedRun, scores: Array) -> Judgement:
    """Nothing fell: did the run learn?"""
    floor = floor_of(run, scores)
    now, _ = _stands(scores, floor)
    said = f"{run.columns['reward']}: {now.first:.3g} at the start, {now.late:.3g} lately"
    dip = _dip(run, scores, floor)
    holds = "holds"
    if now.fall >= SURE:  # too small a fall for a verdict is told
        holds = f"has lost {100 * now.lost:.0f} % of its best since"
        dip = (f"{_from_best(run, run.scored, now)}: the fall is {_errors(now.fall)}",)
    if now.rise >= RISEN and now.gain >= GAIN:
        return Judgement(
            "healthy",
            "learned",
            f"Healthy: the reward rose by more than its noise and {holds}.",
            (f"{said}: {_errors(now.rise)}", *dip),
        )
    top = top_of(run, scores)
    if top is not None and now.late >= HIGH * top:
        return Judgement(
            "healthy",
            "at the top",
            f"Healthy: the reward is near its top and {holds}.",
            (f"{said}; the top is {top:g}", *dip),
        )
    return (
        _by_all_rows(run, scores, now, said)
        or _by_heldout(run, said)
        or Judgement("stagnating", "no trend", *_no_trend(now, said, dip))
    )


def _no_trend(now: Level, said: str, dip: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The sentence and the evidence of a run that neither learns nor falls."""
    moved = f"{said}: {now.rise:+.1f} standard errors"
    if now.fall >= SURE:
        sentence = "Stagnating: the reward fell by more than its noise, but by too little to count."
        return sentence, (said, *dip)
    if abs(now.rise) < RISEN:
        sentence = "Stagnating: the reward neither rises nor falls by more than its noise."
        return sentence, (f"{moved}; {RISEN:g} would be a trend", *dip)
    way, share = ("rises", GAIN) if now.rise > 0 else ("falls", FALLEN)
    sentence = f"Stagnating: the reward {way} by more than its noise, but by too little to count."
    return sentence, (f"{moved}, and less than {100 * share:.0f} % of it", *dip)


def _by_all_rows(run: LoggedRun, scores: Array, now: Level, said: str) -> Judgement | None:
    """A rise that a short log shows only in all of its rows together."""
    line = slope(scores) if len(scores) <= SHORT else 0.0
    if line < LINE or now.gain < GAIN:
        return None
    return Judgement(
        "healthy",
        "learned slowly",
        "Healthy: the reward rises slowly but steadily.",
        (f"{said}; the line through all {len(scores)} rows rises by {line:.1f} standard errors",),
    )


def _by_heldout(run: LoggedRun, said: str) -> Judgement | None:
    """A held-out score that rose counts for a run whose training reward does not move."""
    rise = heldout_rise(run)
    if rise is None:
        return None
    sentence = (
        "Healthy: the held-out score rises by more than its noise; the training reward does not."
    )
    return Judgement("healthy", "held-out rise", sentence, (rise, said))


def _dip(run: LoggedRun, scores: Array, floor: float) -> tuple[str, ...]:
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
    return (
        f"it fell from {best[low]:.3g} to {mean[low]:.3g} by {run.unit} {step:g} and came back",
    )


def _errors(ratio: float) -> str:
    count = f"{ratio:.1f}" if ratio <= 100 else "over 100"
    return f"{count} standard errors of this log's own noise"
