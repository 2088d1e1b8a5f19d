"""Exercises of notebooks 09 and 10: rare tokens, Lp-Reg."""

from lldlib.checks.grading import Case, Function, Verdict, grade, to_three_decimals


def check_entropy(function: Function) -> Verdict:
    """`function(probabilities)`: the entropy in nats, compared to three decimals."""
    return grade(
        to_three_decimals(function),
        [
            Case(([0.25] * 4,), 1.386, "Four equal choices: ln 4 nats, the natural logarithm."),
            Case(([0.5, 0.5, 0.0],), 0.693, "What cannot be drawn adds nothing: skip p = 0."),
            Case(([1.0],), 0.0, "A certain choice has no entropy."),
            Case(([0.7, 0.2, 0.1],), 0.802, "The sum of -p ln p over the list."),
        ],
    )


def check_rare_and_wrong(function: Function) -> Verdict:
    """`function(probabilities, advantages, share)`: indices of the rarest share with A < 0."""
    probs = [0.9, 0.01, 0.3, 0.02, 0.03]
    return grade(
        function,
        [
            Case((probs, [1, -1, 1, 1, -1], 0.6), [1, 4], "The rarest 3 of 5 are 1, 3 and 4."),
            Case((probs, [1, -1, -1, 1, -1], 0.4), [1], "First the share of all tokens, then A."),
            Case((probs, [-1] * 5, 0.41), [1, 3, 4], "2.05 tokens are rounded up to 3."),
            Case((probs, [1, 0, 1, 0, 0], 0.6), [], "An advantage of 0 is not negative."),
        ],
    )


def check_proxy(function: Function) -> Verdict:
    """`function(probabilities, kappa)`: the min-p proxy, compared to three decimals."""
    return grade(
        to_three_decimals(function),
        [
            Case(([0.5, 0.4, 0.1], 0.5), [0.556, 0.444, 0.0], "0.1 is under 0.5 * 0.5: dropped."),
            Case(([0.5, 0.25, 0.25], 0.5), [1.0, 0.0, 0.0], "At the threshold is not over it."),
            Case(([0.25] * 4, 0.9), [0.25] * 4, "Measured against the largest, not against 1."),
        ],
    )


def check_protected(function: Function) -> Verdict:
    """`function(probability, largest, delta, advantage, kappa)`: does Lp-Reg protect it?"""
    return grade(
        function,
        [
            Case((0.02, 0.5, 0.03, -1.0, 0.02), True, "Rare, kept (over 0.01) and A < 0: yes."),
            Case((0.02, 0.5, 0.03, 1.0, 0.02), False, "A rewarded token needs no protection."),
            Case((0.02, 0.5, 0.01, -1.0, 0.02), False, "It is not under delta: not rare."),
            Case((0.008, 0.5, 0.03, -1.0, 0.02), False, "0.008 is not over 0.02 * 0.5: noise."),
            Case((0.02, 0.5, 0.03, 0.0, 0.02), False, "An advantage of 0 is not negative."),
        ],
    )


def check_floor_ratio(function: Function) -> Verdict:
    """`function(advantage, kept_mass)`: the ratio at which both pulls cancel, three decimals."""
    hint = "Solve |A| x = 1 / (m x) - 1 for x > 0: a quadratic equation."
    cases = ((-1.0, 1.0, 0.618), (-1.0, 0.97, 0.632), (-2.0, 1.0, 0.5), (-0.25, 0.8, 1.0))
    return grade(to_three_decimals(function), [Case((a, m), x, hint) for a, m, x in cases])
