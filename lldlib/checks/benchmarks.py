"""Exercises of notebook 13: scores of answers, and weights in four bits."""

from lldlib.checks.grading import Case, Function, Verdict, grade, to_three_decimals


def check_exact_match(function: Function) -> Verdict:
    """`function(prediction, answers)`: 1.0 if one of the answers is meant, else 0.0."""
    hint = "Lower case, no punctuation, no articles, single spaces; then compare the whole text."
    return grade(
        function,
        [
            Case(("the Nile.", ["Nile", "River Nile"]), 1.0, hint),
            Case(("River  nile", ["Nile", "River Nile"]), 1.0, "Any accepted answer counts."),
            Case(("the Nile in Egypt", ["Nile"]), 0.0, "A part of the text is no match."),
            Case(("theatre", ["atre"]), 0.0, "An article is a whole word."),
        ],
    )


def check_block(function: Function) -> Verdict:
    """`function(weights, levels)`: what a block of weights is after its trip through the levels."""
    hint = "Divide by the largest size in the block, take the nearest level, multiply back."
    levels = [-1.0, -0.5, 0.0, 0.5, 1.0]
    return grade(
        to_three_decimals(function),
        [
            Case(([0.2, -0.4, 0.05], levels), [0.2, -0.4, 0.0], hint),
            Case(([3.0, 1.0, -1.4], levels), [3.0, 1.5, -1.5], hint),
            Case(([-2.0, 1.9], levels), [-2.0, 2.0], "The scale is a size: it has no sign."),
        ],
    )
