"""Who lives: by hand, against the start of the run and by the rule of a collapse."""

import pytest

from lldlib.runs.fate import Fate, fate_of
from lldlib.runs.folder import Run, RunWriter


def fate(path, rewards) -> Fate:
    writer = RunWriter.create(path, {"method": "grpo", "seed": 0})
    for step, reward in enumerate(rewards):
        writer.metrics(step, {"reward/mean": reward})
    writer.close()
    return fate_of(Run(path))


@pytest.mark.parametrize(
    ("rewards", "numbers", "verdict"),
    [
        ([0.2, 0.4] + [0.5] * 9 + [0.2], (0.3, 0.5, 0.4), "lives"),
        ([0.4, 0.4] + [0.5] * 7 + [0.3] * 3, (0.4, 0.5, 0.3), "below its start"),
        # the mean of ten falls under 0.3 of 0.6 with the eighth zero
        ([0.6] * 10 + [0.0] * 8, (0.6, 0.6, 0.0), "collapsed"),
        ([0.6] * 10 + [0.0] * 7, (0.6, 0.6, 0.0), "below its start"),
        # back over 0.8 of 0.6: the mean of ten is 0.54 after nine good batches
        ([0.6] * 10 + [0.0] * 8 + [0.6] * 9, (0.6, 0.6, 0.6), "lives"),
        ([0.6] * 9, (0.6, 0.6, 0.6), "too early to say"),
        ([0.2], (0.2, 0.2, 0.2), "too early to say"),
    ],
)
def test_a_fate_by_hand(tmp_path, rewards, numbers, verdict):
    found = fate(tmp_path / "run", rewards)
    assert (found.start, found.best, found.end) == pytest.approx(numbers)
    assert (found.batches, found.verdict) == (len(rewards), verdict)


def test_a_run_without_a_batch(tmp_path):
    assert fate(tmp_path / "run", []) == Fate(0, None, None, None, "too early to say")
