"""Answer normalisation, exact match and F1 on literal strings."""

import pytest

from lldlib.world.answers import exact_match, f1, normalise_answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Eiffel\tTower. ", "eiffel tower"),
        ("An apple, a day!", "apple day"),
        ("theatre", "theatre"),  # an article only as a whole word
        ("U.S.A.", "usa"),
        ("São Tomé", "são tomé"),
        ("The", ""),
    ],
)
def test_normalise_answer(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("the Paris", ("Paris",), 1.0),
        ("paris!", ("London", "Paris"), 1.0),
        ("Paris, France", ("Paris",), 0.0),  # a superstring is no exact match
        ("", ("Paris",), 0.0),
        (None, ("Paris",), 0.0),
        ("Paris", (), 0.0),
        ("", ("The", "?"), 0.0),  # nothing is never right, also where the answer normalises to it
        ("  ", ("",), 0.0),
        ("an", ("The",), 0.0),
        ("A", ("a",), 1.0),  # as in "which vitamin?"
        ("?!", (" ?! ",), 1.0),
    ],
)
def test_exact_match(prediction, answers, expected):
    assert exact_match(prediction, answers) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("Paris France", ("Paris",), 2 / 3),  # 1 common: precision 1/2, recall 1
        ("new new york", ("New York City",), 2 / 3),  # 2 common of 3 and 3: a repeat counts once
        ("blue whale", ("red fox", "a blue whale"), 1.0),  # the best answer counts
        ("cat", ("dog",), 0.0),
        ("the", ("dog",), 0.0),
        ("", ("The",), 0.0),  # both are empty once normalised
        ("A", ("a",), 1.0),
        (None, ("dog",), 0.0),
        ("dog", (), 0.0),
    ],
)
def test_f1(prediction, answers, expected):
    assert f1(prediction, answers) == pytest.approx(expected)
