"""Exercises of notebooks 13 to 16: real models, other engines."""

from lldlib.checks.grading import Case, Function, Verdict, grade


def check_updates(function: Function) -> Verdict:
    """`function(accumulation, split, iterations)`: optimiser updates of a rollout batch in TRL."""
    return grade(
        function,
        [
            Case((1, 10, 1), 10, "Ten micro-batches, an update after each."),
            Case((4, 4, 1), 1, "All four micro-batches make one update: here LLDS is 0."),
            Case((4, 40, 1), 10, "An update after every fourth of the forty micro-batches."),
            Case((2, 2, 3), 3, "Each pass over the rollout batch makes its updates again."),
        ],
    )


def check_divisor(function: Function) -> Verdict:
    """`function(counts)`: what a process divides by, from token counts [process][micro-batch]."""
    return grade(
        function,
        [
            Case(([[30, 10]],), 40.0, "One process: the tokens of all its micro-batches."),
            Case(([[30, 10], [20, 0]],), 30.0, "The mean over 2 processes divides by 2 once more."),
            Case(([[6], [0], [0]],), 2.0, "A process without a preserved token divides alike."),
        ],
    )
