"""Means, bootstrap intervals and the comparison of two policies, by hand where it can be."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from benchmark_files import write_rows

from lldlib.evaluate.scores import (
    Prediction,
    bootstrap,
    compare,
    macro_average,
    mean_of,
    read_predictions,
    score_task,
)

ONE = Prediction("a", 0, "q", ["x"], "x", 1.0, 0.5, 2, 0, 10, "answer")


def answers(*scores: float) -> list[Prediction]:
    """One prediction a score, questions a, b, c, ..."""
    return [replace(ONE, id="abcdefgh"[i], score=float(s)) for i, s in enumerate(scores)]


def test_a_task_by_hand():
    rows = [
        ONE,
        replace(ONE, id="b", score=0.0, f1=0.0, searches=1, tokens=30, prediction=None, stop="eos"),
        replace(ONE, id="c", score=0.0, f1=0.25, searches=0, tokens=20, stop="tool_error"),
    ]
    task = score_task("T", "qa", rows)
    assert task.scores == [1.0, 0.0, 0.0] and task.f1 == [0.5, 0.0, 0.25]
    assert (task.searches, task.tokens, task.samples, task.tool_errors) == (1.0, 20.0, 1, 1)
    assert task.answered == pytest.approx(2 / 3)
    summary = json.loads(json.dumps(task.summary()))
    assert summary["score"]["mean"] == pytest.approx(1 / 3) and summary["questions"] == 3
    assert summary["f1"]["mean"] == pytest.approx(0.25)


def test_samples_of_a_question_are_averaged_first():
    rows = [replace(ONE, id=name, sample=n, f1=None) for name in "ab" for n in range(4)]
    rows[0] = replace(rows[0], score=0.0)
    task = score_task("AIME24", "maths", rows)
    assert task.scores == [0.75, 1.0] and task.samples == 4 and task.f1 is None
    assert task.summary()["f1"] is None
    with pytest.raises(ValueError, match=r"AIME24: the questions have \[3, 4\] samples"):
        score_task("AIME24", "maths", rows[1:])


def test_an_interval_is_that_of_the_binomial():
    """The bootstrap of 0/1 values resamples a binomial: its standard deviation is known."""
    values = [1.0] * 30 + [0.0] * 70
    means = bootstrap(values, "x")
    assert len(means) == 10_000
    assert means.mean() == pytest.approx(0.3, abs=0.003)
    assert means.std() == pytest.approx((0.3 * 0.7 / 100) ** 0.5, rel=0.05)
    found = mean_of(values, "x")
    assert found.mean == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - 1.96 * 0.0458, abs=0.015)
    assert found.high == pytest.approx(0.3 + 1.96 * 0.0458, abs=0.015)


def test_a_certain_value_has_no_width_and_luck_repeats():
    sure = mean_of([1.0] * 5, "x")
    assert (sure.mean, sure.low, sure.high) == (1.0, 1.0, 1.0)
    assert np.array_equal(bootstrap([0.0, 1.0], "x"), bootstrap([0.0, 1.0], "x"))
    assert not np.array_equal(bootstrap([0.0, 1.0], "x"), bootstrap([0.0, 1.0], "y"))


def test_the_macro_average_weighs_tasks_alike():
    big, small = score_task("B", "qa", answers(1, 1, 1, 1, 1, 0)), score_task("S", "qa", answers(0))
    found = macro_average([big, small])
    assert found.mean == pytest.approx((5 / 6 + 0) / 2)
    alone = mean_of(big.scores, "B")  # S does not vary, so the interval is half as wide
    assert found.high - found.low == pytest.approx((alone.high - alone.low) / 2)


def test_two_policies_are_compared_question_by_question():
    first, second = answers(1, 1, 0, 1), answers(0, 1, 1, 0)
    found = compare("T", first, second[::-1])
    assert (found.questions, found.wins, found.losses) == (4, 2, 1)
    assert found.difference.mean == pytest.approx(0.25)
    assert found.difference.low < 0.25 < found.difference.high
    same = compare("T", first, first)
    assert (same.difference.low, same.difference.high, same.wins, same.losses) == (0, 0, 0, 0)
    assert compare("T", second, first).difference.mean == pytest.approx(-0.25)


def test_pairing_is_tighter_than_two_intervals_apart():
    """Policies that differ on one question of eight: the pairs know that the rest is equal."""
    first, second = answers(1, 0, 1, 0, 1, 0, 1, 1), answers(1, 0, 1, 0, 1, 0, 1, 0)
    paired = compare("T", first, second).difference
    single = mean_of([one.score for one in first], "T")
    assert paired.high - paired.low < single.high - single.low


def test_a_question_that_one_was_not_asked_is_named():
    with pytest.raises(ValueError, match="T: 'c' was not asked of both policies"):
        compare("T", answers(1, 1, 1), answers(1, 1))
    assert compare("T", answers(1, 1), answers(1, 1, 1)).questions == 2  # more of the other is fine


def test_predictions_are_read_back(tmp_path):
    rows = [asdict(ONE), asdict(replace(ONE, sample=1, prediction=None, f1=None))]
    assert [asdict(p) for p in read_predictions(write_rows(tmp_path / "p.jsonl", rows))] == rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([asdict(ONE)] * 2, "p.jsonl:2: 'a', sample 0, stands here twice"),
        ([asdict(ONE), {"id": "b"}], "p.jsonl:2: not a prediction"),
        ([{**asdict(ONE), "luck": 1}], "p.jsonl:1: not a prediction"),
    ],
)
def test_a_broken_predictions_file_is_named_by_line(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read_predictions(write_rows(tmp_path / "p.jsonl", rows))
