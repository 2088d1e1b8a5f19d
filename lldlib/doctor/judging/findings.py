"""Which known pattern a run resembles, each by a rule with its evidence.

A pattern that explains a fall must show where the fall is: a sign that was there long before, or
that came long after, explains nothing. Columns that are guesses by their name are not looked at.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lldlib.doctor.judge import Judgement, blown
from lldlib.doctor.judging.beside import heldout_fall, moved_parts
from lldlib.doctor.judging.levels import SURE, floor_of, level, top_of
from lldlib.doctor.judging.statistics import noise, trailing, values_of, window_size
from lldlib.doctor.reading.series import ENOUGH, Array, LoggedRun

FELL = ("degrading", "collapsed")
LIVES = (  # rules under which the training reward did not fall
    *("learned", "learned slowly", "at the top", "no trend", "no life", "held-out rise"),
    "held-out fall",
)
SAME = 0.8  # share of the rows with one score from which on nothing is told apart
MOST = 0.5  # share of the rows
SELDOM = 0.01  # share of the scale under which a mean score leaves nothing to tell apart
NO_CONTRAST = 0.9  # share of the groups whose answers score alike
CUT = 0.9  # share of the answers that are cut off
BABBLE = 2.5  # nats per token
STILL_KL = 0.005  # nats per token under which a policy is still its reference
ROUNDING = 1e-3  # nats per token by which a KL estimate may go under 0
TOOL_SHARE, TOOL_NOISE = 0.8, 4.0  # of the fall in one step; standard deviations of a row
STEADY = 3.0  # factor within which a signal did not move
MOVED = 0.3  # share by which a tool's signal must move
DISPLACED = 0.5  # nats per token
UP, UP_BY = 2.0, 0.3  # factor of the entropy, and nats per token
DOWN, DOWN_TO, GONE = 0.2, 0.2, 0.35  # share of the entropy's start, nats per token, share before
LONGER, CUT_BY = 1.8, 0.3  # factor of the length, and share of the answers
SHORTER, ONE_TOKEN = 0.1, 3.0  # share of the length, and tokens
HALF_AS_LONG = 0.5
FORMAT_LEFT, INVALID_UP, INVALID_BY = 0.6, 3.0, 0.3
SPIKE, SPIKES, ONE_SPIKE = 4.0, 2, 10.0  # times the usual norm; how many; times for a single one
KL_UP, KL_FALL, KL_LIVE = 5.0, 0.5, 1.0  # factor; nats per token at a fall, and without one
SHAPED_BY = 0.05  # reward
FAR_START = 0.3  # nats per token
GAP_UP, GAP, WIDE = 5.0, 0.05, 0.1  # factor, nats per token, and from the start on
NEAR = 3  # steps


@dataclass(frozen=True)
class Pattern:
    """A known way to go wrong that this log shows."""

    key: str
    title: str
    evidence: str  # the numbers of this log that made the rule fire
    rule: str  # the rule in words


@dataclass(frozen=True)
class Scene:
    """A run with its verdict, and where the fall is: what the rules of the patterns look at."""

    run: LoggedRun
    judged: Judgement

    @property
    def fell(self) -> bool:
        return self.judged.verdict in FELL

    @property
    def at(self) -> int:
        """The row of the fall; the last row where nothing fell."""
        return self.judged.row if self.judged.row is not None else len(self.run.steps) - 1

    @property
    def size(self) -> int:
        return window_size(len(self.run.scored))

    def early(self, name: str) -> float:
        """Median of a signal over the first 5 rows in which it was measured."""
        known = values_of(self.run, name)
        known = known[np.isfinite(known)]
        return float(np.median(known[:5])) if len(known) >= ENOUGH else math.nan

    def before(self, name: str) -> float:
        """Median of a signal over the rows up to shortly before the fall."""
        known = values_of(self.run, name)[: max(self.at - self.size // 2, 3)]
        known = known[np.isfinite(known)]
        return float(np.median(known)) if len(known) >= 3 else math.nan

    def peak(self, name: str, side: int = 1) -> float:
        """Highest (side 1) or lowest (-1) mean of 3 rows around the fall or after it."""
        values = trailing(values_of(self.run, name), 3)[max(self.at - self.size, 2) :]
        values = values[np.isfinite(values)]
        if not len(values):
            return math.nan
        return float(values.max() if side > 0 else values.min())

    def late(self, name: str) -> float:
        """Median of a signal over the last rows."""
        known = values_of(self.run, name)
        known = known[np.isfinite(known)]
        return float(np.median(known[-self.size :])) if len(known) >= ENOUGH else math.nan

    def steps(self, row: int) -> str:
        return f"{self.run.steps[row]:g}"


def patterns(run: LoggedRun, judged: Judgement) -> list[Pattern]:
    """The patterns that the log shows; none where too few rows were read."""
    if run.kind.word != "rl" or (judged.verdict == "unknown" and not len(blown(run))):
        return []
    scene = Scene(run.sure, judged)
    found = []
    for key, (title, rule, check) in PATTERNS.items():
        if judged.verdict == "unknown" and key != "numbers":
            continue
        said = check(scene)
        if said:
            found.append(Pattern(key, title, said, rule))
    keys = {p.key for p in found}
    if {"short", "entropy down"} <= keys and _entropy_first(scene):
        keys.discard("short")  # both are said, the cause first
        found.sort(key=lambda p: p.key == "short")
    if {"entropy up", "entropy down"} <= keys and scene.late("entropy") > DOWN_TO:
        found = [p for p in found if p.key != "entropy down"]  # it died for a few rows
    for key, hidden in EXPLAINED.items():  # what a stronger pattern explains is not said again
        if key in keys:
            found = [p for p in found if p.key not in hidden]
    if keys & TOLD_BY:
        found = [p for p in found if p.key != "one step"]
    return found


# -- rules: each gives its evidence, or "" ---------------------------------------------------------


def _numbers_broke(s: Scene) -> str:
    rows = blown(s.run)
    if not len(rows):
        return ""
    names = [n for n in ("grad_norm", "kl", "loss") if n in s.run.signals]
    worst = {n: float(np.max(np.abs(s.run.signals[n][rows]))) for n in names}
    said = ", ".join(f"{s.run.columns[n]} up to {v:.3g}" for n, v in worst.items() if v > 0)
    return f"{len(rows)} rows from {s.run.unit} {s.steps(int(rows[0]))} on: {said}"


def _no_signal(s: Scene) -> str:
    if s.fell or s.judged.verdict == "healthy":
        return ""
    scores = s.run.signals["reward"][s.run.scored]
    flat, said = np.abs(np.diff(scores)) < 1e-12, []
    seldom = _seldom_rewarded(s, scores)
    same = float(np.mean(scores == np.median(scores)))
    if same > SAME:
        said.append(f"the score is {np.median(scores):g} in {100 * same:.0f} % of the rows")
    for name, value, what in (
        ("reward_std", 0.0, "answers of a group score alike"),
        ("no_contrast", 1.0, "all groups have one reward"),
        ("grad_norm", 0.0, "the gradient is 0"),
    ):
        values = values_of(s.run, name)
        values = values[np.isfinite(values)]
        share = float(np.mean(np.abs(values - value) < 1e-9)) if len(values) >= ENOUGH else 0.0
        if share > MOST:
            said.append(f"{what} in {100 * share:.0f} % of the rows")
    if seldom:
        said.insert(0, seldom)
    return "; ".join(said) if said and (seldom or flat.mean() > MOST or len(said) > 1) else ""


def _seldom_rewarded(s: Scene, scores: Array) -> str:
    """Whether hardly an answer earns more than the lowest reward, or hardly a group is mixed."""
    low, high = (values_of(s.run, name) for name in ("reward_min", "reward_max"))
    low, high = low[np.isfinite(low)], high[np.isfinite(high)]
    if min(len(low), len(high)) >= ENOUGH:
        floor, top = float(np.median(low)), float(np.median(high))
        share = (float(scores.mean()) - floor) / max(top - floor, 1e-12)
        if top > floor and 0 <= share < SELDOM:
            return (
                f"almost no answer is rewarded: the mean score is {scores.mean():.2g}, "
                f"and single answers score {floor:g} to {top:g}"
            )
    start, end = s.early("no_contrast"), s.late("no_contrast")
    top = top_of(s.run, scores)
    right = top is not None and scores.mean() >= MOST * top  # alike, but mostly in being right
    if min(start, end) >= NO_CONTRAST and not right:  # later on it may be an entropy that died
        known = values_of(s.run, "no_contrast")
        share = 100 * float(np.mean(known[np.isfinite(known)]))
        return f"{share:.0f} % of the groups score all their answers alike, from the start on"
    return ""


def _broken_start(s: Scene) -> str:
    if s.fell or s.judged.verdict == "healthy":
        return ""
    said = []
    if min(s.early("clipped"), s.late("clipped")) >= CUT:
        said.append(f"{100 * s.early('clipped'):.0f} % of the answers are cut off from the start")
    if min(s.early("entropy"), s.late("entropy")) >= BABBLE:
        said.append(f"entropy is {s.early('entropy'):.2g} nats per token from the start")
    return "; ".join(said)


def _hardly_moves(s: Scene) -> str:
    kl = s.late("kl")
    if s.judged.rule != "no trend" or not -ROUNDING <= kl < STILL_KL:
        return ""
    if s.early("kl") > kl + ROUNDING:
        return ""
    if "kl" not in s.run.signals or s.run.columns["kl"] == "actor/reward_kl_penalty":
        return ""
    return f"{s.run.columns['kl']} is still {max(kl, 0.0):.2g} nats per token at the end"


def _tool_died(s: Scene) -> str:
    if s.judged.verdict != "collapsed":
        return ""
    step = _in_one_step(s)
    moved = [said for name in TOOL_SIGNS if (said := _moved(s, name))]
    moved += [said for name in s.run.trouble if (said := _more_trouble(s, name))]
    return f"{step}; {'; '.join(moved[:4])}" if step and moved and _has_tool(s.run) else ""


def _one_step(s: Scene) -> str:
    """The fall of a dead tool in a log without a column of the tool's own."""
    measured = [n for n in ("entropy", "grad_norm", "kl") if s.before(n) == s.before(n)]
    return _in_one_step(s) if s.fell and len(measured) > 1 else ""


def _in_one_step(s: Scene) -> str:
    """Most of the fall is done in one step, and what is measured of the policy does not move."""
    if s.judged.row is None:
        return ""
    scores, rows = s.run.signals["reward"][s.run.scored], s.run.scored
    i = int(np.searchsorted(rows, s.at))
    now = level(scores, floor_of(s.run, scores))
    if i < 5 or i >= len(scores) or now.best <= now.last:
        return ""
    jump = float(np.median(scores[i - 5 : i]) - np.median(scores[i : i + 5]))
    if jump < TOOL_SHARE * (now.best - now.last) or jump < TOOL_NOISE * noise(scores)[0]:
        return ""
    steady = [n for n in ("entropy", "grad_norm", "kl") if _steady(s, n)]
    measured = [n for n in ("entropy", "grad_norm", "kl") if s.before(n) == s.before(n)]
    if not measured or len(steady) < len(measured):
        return ""
    kept = ", ".join(s.run.columns[n] for n in steady)
    return (
        f"in one step ({s.steps(s.at)}) {min(100 * jump / (now.best - now.last), 100):.0f} % of "
        f"the fall is done; {kept} did not move"
    )


def _has_tool(run: LoggedRun) -> bool:
    """Whether a column of a tool's own moves; times and lengths move in any run."""
    own = [run.signals[name] for name in OF_TOOLS if name in run.signals]
    known = [values[np.isfinite(values)] for values in (*own, *run.trouble.values())]
    return any(len(values) and values.max() > values.min() for values in known)


OF_TOOLS = ("turns", "searches", "tool_success", "tool_failure")  # no other run logs them
TOOL_SIGNS = ("rollout_time", *OF_TOOLS, "length")


def _near(s: Scene, name: str, width: int = 5) -> tuple[float, float]:
    """Medians of the last rows before the fall and of the first after it."""
    values = values_of(s.run, name)
    parts = values[max(s.at - width, 0) : s.at], values[s.at : s.at + width]
    known = [p[np.isfinite(p)] for p in parts]
    a, b = (float(np.median(p)) if len(p) else math.nan for p in known)
    return a, b


def _steady(s: Scene, name: str) -> bool:
    a, b = _near(s, name)
    return bool(a == a and b == b and 1 / STEADY <= (abs(b) + 1e-9) / (abs(a) + 1e-9) <= STEADY)


def _moved(s: Scene, name: str) -> str:
    a, b = _near(s, name)
    if a != a or b != b or abs(b - a) < MOVED * max(abs(a), 1e-9):
        return ""
    if name == "length" and b > a:  # a dead tool adds no text
        return ""
    return f"{s.run.columns[name]} went from {a:.3g} to {b:.3g}"


def _more_trouble(s: Scene, name: str) -> str:
    values = s.run.trouble[name]
    known = np.flatnonzero(np.isfinite(values))
    old, new = known[known < s.at - 1], known[known >= s.at - 1]  # a check may end the step before
    if not len(old) or not len(new):
        return ""
    a, b = float(np.median(values[old])), float(values[new].max())
    return f"{name} went from {a:.3g} to {b:.3g}" if b > 2 * a + 0.1 else ""


def _displacement(s: Scene) -> str:
    moved = values_of(s.run, "displacement")[5 : s.at + 1]
    probe = values_of(s.run, "probe")
    lost = float(-np.nansum(np.minimum(moved, 0))) if np.isfinite(moved).any() else 0.0
    known = probe[: s.at + 1][np.isfinite(probe[: s.at + 1])]
    fall = float(known[:5].max() - known[-3:].mean()) if len(known) > 8 else 0.0
    if not s.fell or (lost < DISPLACED and fall < DISPLACED):
        return ""
    said = []
    if lost >= DISPLACED:
        said.append(f"correct answers lost {lost:.2g} nats per token by the updates")
    if fall >= DISPLACED:
        said.append(f"fixed correct answers lost {fall:.2g} nats per token")
    return f"up to the fall {' and '.join(said)}"


def _entropy_up(s: Scene) -> str:
    if s.judged.verdict == "healthy" and not s.late("entropy") >= BABBLE:
        return ""  # a policy that learns may explore
    low, high = s.before("entropy"), s.peak("entropy")
    if not s.fell:
        low, high = s.early("entropy"), s.late("entropy")
    if high == high and high >= UP * low and high - low >= UP_BY:
        return f"{s.run.columns['entropy']} rose from {low:.3g} to {high:.3g} nats per token"
    return ""


def _entropy_down(s: Scene) -> str:
    if s.judged.verdict == "healthy":
        return ""
    start, end = s.early("entropy"), s.peak("entropy", -1) if s.fell else s.late("entropy")
    near = values_of(s.run, "entropy")[max(s.at - 2 * s.size, 0) : s.at]
    near = near[np.isfinite(near)]
    falls_there = not s.fell or (len(near) > 2 and end < 0.5 * float(np.median(near[:3])))
    gone = s.fell and s.before("entropy") <= GONE * start and end <= DOWN * start
    if end == end and end <= DOWN * start and end < DOWN_TO and (falls_there or gone):
        if s.fell and not falls_there and _tool_died(s):
            return ""
        return f"{s.run.columns['entropy']} fell from {start:.3g} to {end:.2g} nats per token"
    return ""


def _longer(s: Scene) -> str:
    if not s.fell:
        return ""
    a, b = s.before("length"), s.peak("length")
    cut_a, cut_b = s.before("clipped"), s.peak("clipped")
    said = []
    if b >= LONGER * a:
        said.append(f"answers grew from {a:.0f} to {b:.0f} tokens")
    if cut_b - cut_a >= CUT_BY:
        said.append(f"cut-off answers went from {100 * cut_a:.0f} to {100 * cut_b:.0f} %")
    return " and ".join(said)


def _shorter(s: Scene) -> str:
    known = values_of(s.run, "length")
    known = known[np.isfinite(known)]
    if not s.fell or len(known) < ENOUGH:
        return ""
    a, b = float(np.median(known[:5])), s.late("length")
    a = max(a, s.before("length")) if s.at > 10 else a
    short = b <= SHORTER * a or b <= ONE_TOKEN < a
    return f"answers shrank from {a:.0f} to {b:.3g} tokens" if short else ""


def _entropy_first(s: Scene) -> bool:
    """Whether the entropy was dead while the answers still had half of their length."""
    entropy, length = (trailing(values_of(s.run, name), 3) for name in ("entropy", "length"))
    usual = max(s.early("length"), s.before("length"))
    dead = np.flatnonzero(entropy < min(DOWN * s.early("entropy"), DOWN_TO))
    short = np.flatnonzero(length < HALF_AS_LONG * usual)
    return bool(len(dead) and dead[0] < s.at and (not len(short) or dead[0] < short[0]))


def _format(s: Scene) -> str:
    if not s.fell:
        return ""
    a, b = s.before("valid_format"), s.late("valid_format")  # a dip that came back is no loss
    if a > 0 and b <= FORMAT_LEFT * a:
        return f"{s.run.columns['valid_format']} fell from {a:.3g} to {b:.3g}"
    a, b = s.before("invalid"), s.peak("invalid")
    if b > INVALID_UP * a + INVALID_BY:
        return f"{s.run.columns['invalid']} rose from {a:.3g} to {b:.3g}"
    return ""


def _spikes(s: Scene) -> str:
    if not s.fell or s.judged.row is None:
        return ""
    norms = values_of(s.run, "grad_norm")
    cut = s.at - min(max(10, len(norms) // 5), s.at // 2)
    past, ahead = norms[:cut], norms[cut : s.at + 1]
    past, ahead = past[np.isfinite(past) & (past > 0)], ahead[np.isfinite(ahead)]
    if len(past) < 5 or not len(ahead):
        return ""
    usual = float(np.median(past))
    high = int((ahead > SPIKE * usual).sum())
    if high < SPIKES and ahead.max() < ONE_SPIKE * usual:
        return ""
    count = "one gradient norm" if high == 1 else f"{high} gradient norms"
    return (
        f"in the {len(ahead)} rows before the fall {count} over {SPIKE * usual:.3g}, up to "
        f"{ahead.max():.3g}; {usual:.3g} was usual"
    )


def _kl_ran(s: Scene) -> str:
    if s.run.columns.get("kl") == "actor/reward_kl_penalty":
        return ""
    known = values_of(s.run, "kl")
    known = known[np.isfinite(known)]
    if len(known) < ENOUGH:
        return ""
    a = s.before("kl") if s.fell else float(np.median(known[: s.size]))
    b = s.peak("kl") if s.fell else s.late("kl")
    if b >= max(KL_UP * abs(a), KL_FALL if s.fell else KL_LIVE):
        return f"{s.run.columns['kl']} rose from {a:.3g} to {b:.3g} nats per token"
    return ""


def _kl_in_reward(s: Scene) -> str:
    shaped = values_of(s.run, "shaped_reward")
    known = np.isfinite(shaped)
    if not s.fell or s.judged.row is None or known.sum() < ENOUGH:
        return ""
    old, new = shaped[: s.at][known[: s.at]], shaped[s.at :][known[s.at :]]
    if len(old) < 3 or len(new) < 3:
        return ""
    a, b = float(np.median(old[-20:])), float(np.median(new))
    if b - a <= 2 * float(np.std(new)) or b - a < SHAPED_BY:
        return ""
    return (
        f"{s.run.columns['shaped_reward']} rose from {a:.3g} to {b:.3g} while "
        f"{s.run.columns['reward']} fell: the penalty is what was optimised"
    )


KL_OF_REFERENCE = ("kl", "train/kl", "actor/kl_loss", "kl/reference")


def _reference(s: Scene) -> str:
    start = s.early("kl")
    if s.fell or s.judged.verdict == "healthy" or not start >= FAR_START:
        return ""
    if s.run.columns["kl"] not in KL_OF_REFERENCE:
        return ""
    return f"{s.run.columns['kl']} is {start:.2g} nats per token in the first rows; near 0 is right"


def _held_out_falls(s: Scene) -> str:
    found = heldout_fall(s.run)
    if found is None or s.judged.rule not in LIVES:
        return ""
    scores = s.run.signals["reward"][s.run.scored]
    if level(scores, floor_of(s.run, scores)).fall >= SURE:
        return ""
    return (
        f"{s.run.heldout_name} went from {found[0]:.3g} to {found[1]:.3g}, "
        f"while {s.run.columns['reward']} held or rose"
    )


def _parts(s: Scene) -> str:
    falls, rises = moved_parts(s.run)
    if not falls or not rises:
        return ""
    (less, low), (more, high) = next(iter(falls.items())), next(iter(rises.items()))
    return (
        f"{less} fell from {low.best:.3g} to {low.last:.3g} while "
        f"{more} rose from {high.first:.3g} to {high.late:.3g}"
    )


def _at_resume(s: Scene) -> str:
    if not s.fell or s.judged.row is None:
        return ""
    step = s.run.steps[s.at]
    near = [r for r in s.run.resumed if abs(r - step) <= NEAR]
    return (
        f"the run was resumed at step {near[0]:g}, and the fall is at step {step:g}" if near else ""
    )


def _sampler(s: Scene) -> str:
    a, b = s.before("sampler_gap"), s.peak("sampler_gap")
    if s.fell and b >= GAP_UP * abs(a) and b >= GAP:
        return f"{s.run.columns['sampler_gap']} rose from {a:.2g} to {b:.2g}"
    start, end = s.early("sampler_gap"), s.late("sampler_gap")
    if s.judged.rule == "no trend" and min(start, end) >= WIDE:
        return (
            f"{s.run.columns['sampler_gap']} is {start:.2g} at the start and {end:.2g} at the end"
        )
    return ""


Check = Callable[[Scene], str]
PATTERNS: dict[str, tuple[str, str, Check]] = {
    "tool": (
        "A tool died, the policy did not",
        "most of the fall in one step, policy signals within a factor of 3, a tool's signal moved",
        _tool_died,
    ),
    "one step": (
        "The reward fell in one step, the policy did not move: a tool, or the reward itself",
        "most of the fall in one step, policy signals within a factor of 3, no other likeness",
        _one_step,
    ),
    "resume": ("A break at a resume", "the fall lies within 3 steps of a resume", _at_resume),
    "numbers": (
        "The numbers blew up: a gradient, KL or loss that is no number any more",
        "gradient norm, KL or loss not finite, or 10,000 times its median and over 1,000",
        _numbers_broke,
    ),
    "no signal": (
        "Nothing to learn from: the answers of a group all score alike",
        "score, spread or gradient constant in most rows, a mean score under a hundredth of the "
        "scale of single answers, or nine tenths of the groups all alike at the start and the end",
        _no_signal,
    ),
    "broken start": (
        "The answers were broken before training began",
        "nine tenths of the answers cut off, or entropy over 2.5 nats, at the start and the end",
        _broken_start,
    ),
    "hardly moves": (
        "The policy hardly moves from where it began",
        "no trend, and a KL to the reference under 0.005 nats per token at the end",
        _hardly_moves,
    ),
    "reference": (
        "The reference is not the policy that training began with",
        "a KL of 0.3 nats per token or more in the first rows, and no trend",
        _reference,
    ),
    "kl in reward": (
        "The policy serves the KL penalty that is hidden in the reward",
        "the reward with the penalty rises while the score falls",
        _kl_in_reward,
    ),
    "short": (
        "Answers shrank to almost nothing",
        "answers shrink to a tenth, or to 3 tokens",
        _shorter,
    ),
    "displacement": (
        "The updates take likelihood from correct answers (likelihood displacement)",
        "correct answers lost 0.5 nats per token or more before the fall",
        _displacement,
    ),
    "spikes": (
        "Single huge gradients came before the fall",
        "before the fall two norms over 4 times the usual, or one over 10 times",
        _spikes,
    ),
    "entropy up": (
        "The policy draws more and more at random (entropy explosion)",
        "entropy doubles, by 0.3 nats or more, at the fall",
        _entropy_up,
    ),
    "entropy down": (
        "The policy gives the same answer again and again (entropy death)",
        "entropy falls to a fifth of its start and under 0.2 nats, and the run does not learn",
        _entropy_down,
    ),
    "length": (
        "Answers grow until they are cut off (length explosion)",
        "answers 1.8 times as long, or 30 points more of them cut off, at the fall",
        _longer,
    ),
    "format": (
        "The answers lost their format",
        "answers in the right format fall to 0.6 of before, or unreadable actions pile up",
        _format,
    ),
    "kl": (
        "The policy ran away from its reference (KL)",
        "the KL grows 5 times, to 0.5 nats per token or more (1 where nothing fell)",
        _kl_ran,
    ),
    "held-out": (
        "The training reward holds while the held-out score falls",
        "the held-out score loses a quarter, beyond its noise, the training reward does not fall",
        _held_out_falls,
    ),
    "parts": (
        "One part of the reward eats another",
        "one part falls by four tenths while another rises, both beyond their noise",
        _parts,
    ),
    "sampler": (
        "The sampler is not the policy",
        "their difference grows 5 times, to 0.05 nats or more, at a fall, or is 0.1 from the start "
        "and nothing is learned",
        _sampler,
    ),
}
EXPLAINED = {
    "short": {"entropy down"},
    "tool": {"kl in reward", "spikes", "short", "length", "entropy down", "format", "displacement"},
    "no signal": {"entropy down", "hardly moves"},
    "broken start": {"hardly moves"},
    "sampler": {"hardly moves"},
}
TOLD_BY = {"tool", "resume", "numbers", "spikes", "displacement", "kl", "kl in reward"} | {
    *("entropy up", "entropy down", "short", "length", "format"),
}  # any of them tells more of a fall than that it was done in one step
