"""Exercises of notebook 14: the boxed answer, several samples of one question."""

from lldlib.checks.grading import Case, Function, Verdict, grade, to_three_decimals


def check_last_box(function: Function) -> Verdict:
    """`function(text)`: what the last \\boxed{...} holds, inner braces included; None without."""
    return grade(
        function,
        [
            Case(("so \\boxed{7}.",), "7", "What stands between the braces."),
            Case(("\\boxed{1} no, \\boxed{2}",), "2", "The last box counts, not the first."),
            Case(("\\boxed{\\frac{1}{2}} ok",), "\\frac{1}{2}", "Count the braces: +1, -1."),
            Case(("the answer is 7",), None, "No box, no answer: give None."),
        ],
    )


def check_pass_at_k(function: Function) -> Verdict:
    """`function(n, c, k)`: the chance that k of n samples, c of them right, hold a right one."""
    hint = "1 - C(n - c, k) / C(n, k): one less the chance to draw k wrong ones."
    cases = ((8, 1, 1, 0.125), (16, 1, 8, 0.5), (8, 2, 4, 0.786), (8, 0, 8, 0.0), (4, 3, 2, 1.0))
    return grade(
        to_three_decimals(function), [Case((n, c, k), float(p), hint) for n, c, k, p in cases]
    )
