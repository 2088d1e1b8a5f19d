"""The boxed answer and its equality with the accepted ones."""

import pytest

from lldlib.world.answers import boxed, is_right
from lldlib.world.protocol import MATHS


def test_the_prompt_leaves_the_problem_as_it_is():
    assert MATHS.prompt(" Find $x$. ").startswith("Find $x$.\nReason step by step")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \\boxed{7}.", "7"),
        ("\\boxed{1} no, \\boxed{ 2 }", "2"),  # the last one
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\fbox {x}", "x"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),  # escaped braces do not count
        ("\\boxed{1 \\\\{2} 3}", "1 \\\\{2} 3"),  # nor is a brace after \\\\ escaped
        ("\\boxed{x \\\\}", "x \\\\"),
        ("\\boxed{3} and \\boxed{4", "3"),  # the last complete one
        ("\\boxed{}", ""),
        ("the answer is 7", None),
        ("", None),
    ],
)
def test_boxed(text, expected):
    assert boxed(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answer", "right"),
    [
        ("0.5", "\\frac12", 1.0),
        ("033", "33", 1.0),
        ("\\frac{1}{2(n+1)}", "$\\frac{1}{2 n+2}$", 1.0),
        ("84, 69", "$69$,$84$", 1.0),  # OlympiadBench's several parts, in any order
        ("69", "$69$,$84$", 0.0),
        ("(4,2)", "$(2,4)$", 0.0),  # a pair has an order
        ("4.5 \\times 10^{33}", "4.5e33", 1.0),  # Minerva's notation
        ("34", "33", 0.0),
    ],
)
def test_mathematical_equality(prediction, answer, right):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    assert is_right(prediction, (answer,)) == right


@pytest.mark.parametrize(("prediction", "right"), [("x", 1.0), ("np . f(1/2)", 1.0), (" $ ", 0.0)])
def test_equal_texts_need_no_reading(prediction, right):
    assert is_right(prediction, ("y", "$x$", "np.f(1/2)")[: 3 if right else 0]) == right


@pytest.mark.parametrize("prediction", [None, "", "  "])
def test_no_answer_is_never_right(prediction):
    assert is_right(prediction, ("", "7")) == 0.0
