"""Exercises on whole runs, of notebooks 04, 05, 11 and 12."""

from collections.abc import Mapping, Sequence
from math import comb, sqrt
from statistics import fmean, stdev

from lldlib.checks.grading import Case, Function, Verdict, grade

# -- 04: the collapse, live --------------------------------------------------------------------


def check_rows_and_lag(function: Function) -> Verdict:
    """`function(problems, group_size, updates)`: responses an update, updates before the last."""
    hint = "The rollouts are dealt out evenly; only the first update meets the policy that sampled."
    settings = ((512, 5, 10), (16, 5, 16), (16, 5, 1))
    return grade(function, [Case((p, g, u), (p * g // u, u - 1), hint) for p, g, u in settings])


def check_sign_test(function: Function) -> Verdict:
    """`function(wins, losses)`: the chance that a fair coin does as well as `wins` or better."""
    hint = "Of the 2 ** n ways in which n coins fall, count those with at least `wins` heads."
    cases = []
    for wins, losses in ((5, 0), (3, 2), (9, 1), (0, 4)):
        n = wins + losses
        chance = sum(comb(n, heads) for heads in range(wins, n + 1)) / 2**n
        cases.append(Case((wins, losses), (round(chance, 6),), hint))
    return grade(_rounded(lambda *given: _one(function(*given))), cases)


# -- 05: the death spiral ----------------------------------------------------------------------


def check_lost_likelihood(function: Function) -> Verdict:
    """`function(changes, slack)`: the alarm's sum S_t = max(0, S_{t-1} - change_t - slack)."""
    hint = "A fall adds to the sum, a rise takes from it, and it never goes under 0."
    return grade(
        function,
        [
            Case(([-0.5, -0.25, 1.0, -0.5], 0.125), [0.375, 0.5, 0.0, 0.375], hint),
            Case(([0.5, 0.5], 0.0), [0.0, 0.0], hint),
            Case(([-0.5, None, -0.5], 0.0), [0.5, 0.5, 1.0], "A missing value keeps the sum."),
        ],
    )


def check_order_of(function: Function) -> Verdict:
    """`function(onsets)`: the names by their batch, without those that never left."""
    return grade(
        function,
        [
            Case(({"reward": 40, "likelihood": 12},), ("likelihood", "reward"), "Earliest first."),
            Case(({"reward": 40, "norm": None},), ("reward",), "None never left: leave it out."),
            Case(({"norm": 9, "entropy": 9},), ("norm", "entropy"), "A tie keeps the given order."),
        ],
    )


# -- 11: side by side --------------------------------------------------------------------------


def check_seeds_needed(function: Function) -> Verdict:
    """`function(limit)`: the fewest seeds that, if none collapses, put Wilson's upper end there."""
    hint = "Without a hit the upper end is z^2 / (n + z^2): solve for n and round up."
    return grade(
        function, [Case((limit,), n, hint) for limit, n in ((0.5, 4), (0.28, 10), (0.1, 35))]
    )


def check_paired_difference(function: Function) -> Verdict:
    """`function(a, b)` of {seed: value}: mean and standard error of a - b over common seeds."""
    cases = []
    for a, b, hint in (
        ({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.0}, "Take the difference seed by seed, then its mean."),
        ({0: 1.0, 1: 0.5, 7: 9.0}, {1: 0.0, 0: 0.75}, "A seed that only one arm has says nothing."),
        ({0: 0.5, 1: 0.5, 2: 0.5}, {0: 0.0, 1: 0.5, 2: 1.0}, "The deviation divides by n - 1."),
    ):
        gaps = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
        right = (round(fmean(gaps), 6), round(stdev(gaps) / sqrt(len(gaps)), 6))
        cases.append(Case((a, b), right, hint))
    return grade(_rounded(function), cases)


# -- 12: an unknown run ------------------------------------------------------------------------


def check_probe_loss(function: Function) -> Verdict:
    """`function(probe)`: the mean of the first five measured values less that of the last five."""
    return grade(
        function,
        [
            Case(([-1.0] * 5 + [-2.0] * 5,), 1.0, "First five less last five: a loss is above 0."),
            Case(
                ([-1.0] * 5 + [-1.5] * 3 + [-0.5] * 5,), -0.5, "What lies between does not count."
            ),
            Case(
                ([None] * 3 + [-1.0] * 5 + [-3.0, None] * 5,), 2.0, "None: not measured. Skip it."
            ),
        ],
    )


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


def _one(value: object) -> object:
    """A single number as a tuple of one; None stays None."""
    return value if value is None else (value,)


def _rounded(function: Function) -> Function:
    """The function with the numbers of its result rounded, so that the order of sums is free."""

    def call(*given: object) -> object:
        found = function(*given)
        return found if found is None else tuple(round(float(v), 6) + 0.0 for v in found)

    return call
