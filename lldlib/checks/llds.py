"""Exercises of notebooks 06 and 07: displacement, NTHR, the gates of LLDS."""

from lldlib.checks.grading import Case, Function, Verdict, grade


def check_displacement(function: Function) -> Verdict:
    """`function(old, new, rewards)`: mean over correct responses of the sum of new - old (nats)."""
    old, new = [[-1.0, -2.0], [-1.0], [-3.0, -1.0]], [[-1.5, -2.0], [-0.5], [-4.0, -1.5]]
    return grade(
        function,
        [
            Case((old, new, [1, 0, 1]), -1.0, "Rows 0 and 2 are correct: -0.5 and -1.5."),
            Case((old, new, [0, 1, 0]), 0.5, "Sum over the tokens of a response, no mean."),
            Case((old, new, [0, 0, 0]), None, "No correct response, no displacement: give None."),
        ],
    )


def check_nthr_score(function: Function) -> Verdict:
    """`function(right, wrong)`: sum over right tokens of <g, g'> <h, h'>; a token is (g, h)."""
    wrong = ((1, -1), (2, 0))
    return grade(
        function,
        [
            Case(([((1, -1), (1, 0))], wrong), 4, "<g, g'> is 2 and <h, h'> is 2: multiply them."),
            Case(([((1, -1), (1, 0)), ((-1, 1), (1, 5))], wrong), 0, "Sum over the right tokens."),
            Case(([((1, -1), (0, 1))], wrong), 0, "Orthogonal contexts do not feel each other."),
        ],
    )


def check_action_gate(function: Function) -> Verdict:
    """`function(falls, actions)`: LLDS's charge of each token of a good row, action gate.

    `actions`: the number of each token's action, 0 where the policy did not choose it.
    """
    return grade(
        function,
        [
            Case(
                ([1.0, -0.5, 0.0, 0.5, -1.0], [1, 1, 0, 2, 2]),
                [1.0, 0.0, 0.0, 0.0, 0.0],
                "Action 1 fell by 0.5, so its falling tokens pay; action 2 rose as a whole.",
            ),
            Case(
                ([0.5, -0.5], [1, 1]), [0.0, 0.0], "A sum of exactly 0 leaves the gate shut: > 0."
            ),
            Case(([2.0, 1.0], [0, 1]), [0.0, 1.0], "A token outside the actions is never charged."),
        ],
    )
