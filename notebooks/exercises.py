"""Graders of the notebooks' exercises: each takes the reader's function and says how to go on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean, stdev
from typing import Literal

Function = Callable[..., object]


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check found; a notebook shows its message."""

    state: Literal["open", "wrong", "right"]  # "open": the stub is not filled in yet
    message: str

    def __repr__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Case:
    """One call with the result it should give, and what to think of where it gives another."""

    given: tuple[object, ...]
    expected: object
    hint: str


def exercise(meaning: str, *cases: Case, digits: int = 12) -> Callable[[Function], Verdict]:
    """A grader of `cases`, its help text `meaning`; numbers count to so many decimals."""

    def check(function: Function) -> Verdict:
        return grade(function, cases, digits)

    check.__doc__ = meaning
    return check


def grade(function: Function, cases: Sequence[Case], digits: int = 12) -> Verdict:
    """The first failing case in plain English; it never raises, so a notebook runs on.

    A function that raises NotImplementedError, or gives None where a value is due in the first
    case, counts as not filled in. A list is as good as a tuple, and a bool as an int.
    """
    for number, case in enumerate(cases):
        shown = ", ".join(repr(brief(value)) for value in case.given)
        try:
            found = plain(function(*case.given), digits)
        except NotImplementedError:
            return Verdict("open", "Not filled in yet: write the body, then run this cell again.")
        except Exception as error:
            kind = type(error).__name__
            return Verdict("wrong", f"Not yet: it raised {kind} ({error}) for {shown}.")
        if number == 0 and found is None and case.expected is not None:
            return Verdict("open", "Not filled in yet: it returned None. Write the body.")
        if found != plain(case.expected, digits):
            gave, right = brief(found), brief(case.expected)
            told = f"for {shown} it gave {gave!r}, and {right!r} is right"
            return Verdict("wrong", f"Not yet: {told}. {case.hint}")
    return Verdict("right", f"Right: all {len(cases)} cases pass.")


def plain(value: object, digits: int) -> object:
    """Values that a reader may fairly give in another type, made alike."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    return round(value, digits) + 0.0 if isinstance(value, float) else value


def brief(value: object) -> object:
    """The same with numbers of four digits, to be read; what is no number stays as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(brief(item) for item in value)
    return float(f"{value:.4g}") if isinstance(value, float) else value


# -- notebooks 1 to 5 ------------------------------------------------------------------------------

OPEN = Verdict("open", "Not filled in yet: put your answer in place of None, then run this again.")


def check_dead(function: Function) -> Verdict:
    """`function(rewards)`: whether a run is dead by the rule that notebook 1 states."""
    rise, fall = [0.3, 0.4, 0.5, 0.5], [0.1, 0.0, 0.0, 0.1]
    return grade(
        function,
        [
            Case((rise + fall,), True, "It came down from .5 to nearly nothing."),
            Case(([0.3, 0.0, 0.4, 0.5],), False, "A single bad batch is bad luck, not death."),
            Case(([*rise, 0.0, 0.0, 0.0, 0.0, 0.4, 0.5, 0.5, 0.4],), False, "It came back."),
            Case(([0.02, 0.01, 0.02, 0.01, 0.02],), False, "It never rose, so it never fell."),
        ],
    )


FIELDS = ("method", "rate", "start", "seed")
SAVED = {"method": "GRPO + LLDS", "rate": 1e-3, "start": "half-taught", "seed": 0}


def check_one_difference(control: Mapping[str, object] | None) -> Verdict:
    """A run to set beside `SAVED`: right if it differs from it in the method alone."""
    if control is None:
        return OPEN
    if missing := [name for name in FIELDS if name not in control]:
        return Verdict("wrong", f"Not yet: say its {', '.join(missing)} as well.")
    if "LLDS" in str(control["method"]):
        return Verdict("wrong", "Not yet: it has LLDS too, so it cannot tell what LLDS does.")
    if other := [name for name in FIELDS[1:] if control[name] != SAVED[name]]:
        told = f"it also differs in {' and '.join(other)}, which may be the cause as well"
        return Verdict("wrong", f"Not yet: {told}.")
    return Verdict("right", "Right: the two runs differ in LLDS and in nothing else.")


CAPITALS = ("Lima", "Rome", "Cairo", "Oslo", "Quito")


def check_loose_reward(answer: str | None) -> Verdict:
    """One text that contains every right answer, and is none of them."""
    if answer is None:
        return OPEN
    if missing := [name for name in CAPITALS if name not in answer]:
        earned = len(CAPITALS) - len(missing)
        return Verdict("wrong", f"Not yet: it earns 1 on {earned} of 5 questions.")
    return Verdict("right", "Right: it earns 1 on all five, and exact match would give 0 on each.")


def check_least_advantage(rewards: Sequence[float] | None) -> Verdict:
    """Five rewards of 0 or 1, of which a right one has the smallest advantage over 0."""
    if rewards is None:
        return OPEN
    if len(rewards) != 5 or set(rewards) - {0, 1}:
        return Verdict("wrong", "Not yet: give five numbers, each 0 or 1.")
    if sum(rewards) in (0, 5):
        return Verdict("wrong", "Not yet: all are alike, so every advantage is 0.")
    spread = stdev(rewards)
    best = (1 - fmean(rewards)) / spread
    if sum(rewards) < 4:
        return Verdict("wrong", f"Not yet: a right answer has {best:.2f} there. Less is possible.")
    return Verdict("right", f"Right: a right answer has {best:.2f}, the wrong one {-4 * best:.2f}.")


check_token_loss = exercise(
    "`function(new, old, A)`: GRPO's loss of one token, from two log-probs and its advantage.",
    Case((0.0, 0.0, 1.0), -1.0, "Nothing has moved: the ratio is 1."),
    Case((log(1.5), 0.0, 1.0), -1.2, "A good token past 1.2 earns no more: take the smaller gain."),
    Case((log(0.5), 0.0, 1.0), -0.5, "A good token that fell is pulled back without a limit."),
    Case((log(0.5), 0.0, -1.0), 0.8, "A bad token under 0.8 earns no more."),
    Case((log(1.5), 0.0, -1.0), 1.5, "A bad token that rose is charged in full."),
    digits=6,
)

check_paid = exercise(
    "`function(logps)`: what LLDS charges one good token before each update.",
    Case(([-1.0, -1.5, -1.25],), [0.0, 0.5, 0.25], "Compare with the log-prob when written."),
    Case(([-2.0, -1.0, -1.5],), [0.0, 0.0, 0.0], "It is still likelier than when it was written."),
    Case(([-1.0],), [0.0], "At the first update nothing has moved."),
)


def check_spared_token(changes: Sequence[float] | None) -> Verdict:
    """Changes of four tokens, two an action, of which one pays by the response gate alone."""
    if changes is None:
        return OPEN
    if len(changes) != 4:
        return Verdict("wrong", "Not yet: give four numbers.")
    spared = [x for a in (changes[:2], changes[2:]) if sum(a) > 0 for x in a if x < 0]
    if not spared:
        told = "no token falls in an action that gained, so the action gate spares nobody"
        return Verdict("wrong", f"Not yet: {told}.")
    if sum(changes) >= 0:
        told = "the whole answer gained, so the response gate is shut. Let the other one lose more"
        return Verdict("wrong", f"Not yet: {told}.")
    return Verdict("right", f"Right: the response gate charges {-sum(spared):g} more.")


check_pays = exercise(
    "`function(old, new)`: what each token of one action of a good answer pays by the action gate.",
    Case(([-1.0, -1.0], [-1.5, -0.75]), [0.5, 0.0], "It lost in total: its falling token pays."),
    Case(([-1.0, -1.0], [-1.5, -0.25]), [0.0, 0.0], "It gained in total: the gate is shut."),
    Case(([-1.0], [-1.0]), [0.0], "Nothing moved."),
)


def check_control_pair(pair: Sequence[int] | None) -> Verdict:
    """The two runs of notebook 5 that differ in LLDS and move equally far."""
    if pair is None:
        return OPEN
    why = {
        frozenset({1, 3}): "they differ in LLDS, and also in how far they move: which one counts?",
        frozenset({2, 3}): "they differ in LLDS and in the rate, and need not move equally far.",
        frozenset({3, 5}): "this asks whether rewards matter, not whether the size of steps does.",
        frozenset({1, 2}): "neither has LLDS.",
    }
    if set(pair) == {3, 4}:
        return Verdict("right", "Right: they move equally far, and differ in how they are held.")
    told = why.get(frozenset(pair), "which run moves as far as run 3, but without LLDS?")
    return Verdict("wrong", f"Not yet: {told}")


hint = "Compare the mean difference with 4.30 standard errors, stdev(gaps) / sqrt(3)."
check_verdict = exercise(
    '`function(grpo, llds)` of ends by seed: "ahead" or "not told apart".',
    Case(([0.78, 0.89, 0.93], [0.93, 0.92, 0.92]), "not told apart", hint),
    Case(([0.34, 0.03, 0.36], [0.62, 0.85, 0.72]), "not told apart", "Large gaps can be noisy."),
    Case(([0.61, 0.64, 0.37], [0.91, 0.93, 0.68]), "ahead", "A steady gap is told apart."),
    Case(([0.91, 0.93, 0.68], [0.61, 0.64, 0.37]), "not told apart", "GRPO is ahead there."),
)

check_action_mask = exercise(
    "`function(turns)` of (role, number of tokens) pairs: one bool a token, True for actions.",
    Case(
        ([("prompt", 2), ("action", 3), ("environment", 1), ("action", 1)],),
        [False, False, True, True, True, False, True],
        "One value a token, in order; only the policy's turns are True.",
    ),
    Case(
        ([("prompt", 1), ("action", 1), ("environment", 2)],),
        [False, True, False, False],
        "What the environment says is not the policy's, also at the end of a row.",
    ),
    Case(([("prompt", 2)],), [False, False], "A row without an action has an empty mask."),
)

# -- notebooks 6 to 10 -----------------------------------------------------------------------------


def check_diagnosis(
    function: Function, patients: Sequence[Mapping[str, object]], labels: Sequence[str]
) -> Verdict:
    """`function(metrics)`: the label of each run; right if it beats guessing.

    The score is `balanced_accuracy`; guessing earns 1 / number of labels.
    """
    kinds, guesses = sorted(set(labels)), []
    for number, metrics in enumerate(patients):
        try:
            guess = function(metrics)
        except NotImplementedError:
            return Verdict("open", "Not filled in yet: write the body, then run this cell again.")
        except Exception as error:
            kind = type(error).__name__
            return Verdict("wrong", f"Not yet: it raised {kind} ({error}) for run {number}.")
        if guess not in kinds:
            told = f"for run {number} it gave {guess!r}: give one of {', '.join(kinds)}"
            return Verdict("wrong", f"Not yet: {told}.")
        guesses.append(guess)
    score, chance = balanced_accuracy(guesses, labels), 1 / len(kinds)
    told = f"balanced accuracy {score:.2f} on {len(labels)} runs; guessing earns {chance:.2f}."
    if score > chance:
        return Verdict("right", f"Right: {told}")
    return Verdict("wrong", f"Not yet: {told} Look for the metric in which the two kinds differ.")


def balanced_accuracy(guesses: Sequence[object], labels: Sequence[object]) -> float:
    """The mean over the labels of the share of each that was guessed right."""
    shares = []
    for kind in set(labels):
        found = [g == kind for g, label in zip(guesses, labels, strict=True) if label == kind]
        shares.append(sum(found) / len(found))
    return fmean(shares)


hint = "Lower case, no punctuation, no articles, single spaces; then compare the whole text."
check_exact_match = exercise(
    "`function(prediction, answers)`: 1.0 if one of the answers is meant, else 0.0.",
    Case(("the Nile.", ["Nile", "River Nile"]), 1.0, hint),
    Case(("River  nile", ["Nile", "River Nile"]), 1.0, "Any accepted answer counts."),
    Case(("the Nile in Egypt", ["Nile"]), 0.0, "A part of the text is no match."),
    Case(("theatre", ["atre"]), 0.0, "An article is a whole word."),
)

check_holds = exercise(
    "`function(p, top, delta, kappa, kept, beta, advantage)`: whether Lp-Reg holds a losing token: "
    "rare, over the filter, and pushed up at least as hard as down.",
    Case((0.02, 0.93, 0.0285, 0.02, 0.96, 25, -0.8), True, "Rare, kept, and 25 (1 / Z - 1) > 0.8."),
    Case((0.02, 0.93, 0.0285, 0.02, 0.96, 1, -0.8), False, "The push up is beta (1 / Z - 1)."),
    Case((0.03, 0.93, 0.0105, 0.02, 0.96, 25, -0.8), False, "At p >= delta it is not rare."),
    Case((0.015, 0.93, 0.0285, 0.02, 0.96, 100, -0.8), False, "Under kappa * top it is dropped."),
    Case((0.02, 0.93, 0.0285, 0.0, 1.0, 100, -0.8), False, "With Z = 1 there is no push up."),
)

hint = "1 - C(n - c, k) / C(n, k): one less the chance to draw k wrong ones."
check_pass_at_k = exercise(
    "`function(n, c, k)`: the chance that k of n samples, c of them right, hold a right one.",
    Case((8, 1, 1), 0.125, hint),
    Case((16, 1, 8), 0.5, hint),
    Case((8, 2, 4), 0.786, hint),
    Case((8, 0, 8), 0.0, hint),
    Case((4, 3, 2), 1.0, hint),
    digits=3,
)

check_updates = exercise(
    "`function(accumulation, split, iterations)`: optimiser updates of a rollout batch in TRL.",
    Case((1, 10, 1), 10, "Ten micro-batches, an update after each."),
    Case((4, 4, 1), 1, "All four micro-batches make one update: here LLDS is 0."),
    Case((4, 40, 1), 10, "An update after every fourth of the forty micro-batches."),
    Case((2, 2, 3), 3, "Each pass over the rollout batch makes its updates again."),
)


def check_answer(given: object, right: object, hint: str) -> Verdict:
    """A single answer: a number, a word or a set of them; None is an open exercise."""
    if given is None:
        return OPEN
    if given == right:
        return Verdict("right", "Right.")
    return Verdict("wrong", f"Not yet: {hint}")


def check_falling(given: set[int] | None) -> Verdict:
    """The places of the words that lose when the word of .12 is pushed down."""
    hint = "a word gains only if its probability is above sum of squares - 0.12 = 0.26."
    return check_answer(None if given is None else set(given), {1, 2, 3, 4, 5}, hint)


def check_standing(given: set[str] | None) -> Verdict:
    """The conclusions that the measurements bear out."""
    hint = "two of the four stand; in the others a control is missing, or two things differ."
    return check_answer(None if given is None else set(given), {"b", "d"}, hint)


def check_late(given: int | None) -> Verdict:
    """The batch at which a mean of ten is first under .3 of the best, after a drop at 20."""
    return check_answer(given, 27, "how many of the ten batches must be 0 before the mean is 0.15?")


level, lucky = [0.5, 0.4, 0.6, 0.5, 0.5] * 3, [0.3, 0.3, 0.9, 0.3, 0.3] * 2
check_fell = exercise(
    "`function(rewards)`: whether the mean of the last five is under half of the best such mean.",
    Case(([*level, 0.1],), False, "One unlucky batch at the end is no fall: take a mean there."),
    Case(([*level, 0.1, 0.1, 0.1, 0.1],), True, "The last five have a mean of 0.18."),
    Case((lucky,), False, "One lucky batch is no level: the best must be a mean as well."),
    Case(([0.1] * 5 + level,), False, "A rise is no fall."),
)


def check_search_controls(given: set[str] | None) -> Verdict:
    """The controls of "it is good because it searches"."""
    hint = "a control keeps all but the searching as it is; two of the four do."
    return check_answer(None if given is None else set(given), {"b", "c"}, hint)


check_llds_sum = exercise(
    "`function(lost_tokens, total)`: what one micro-batch adds to the mean over the whole update.",
    Case(([0.5, 0.0, 0.25], 3), 0.25, "All in one micro-batch: the plain mean."),
    Case(([0.5, 0.0], 3), 1 / 6, "A micro-batch divides by the count of the whole update."),
    Case(([0.25], 3), 1 / 12, "With the part before it must add up to 0.25."),
    Case(([], 3), 0.0, "A micro-batch without a kept token adds nothing."),
)
