"""The sweep for the point of no return, on micro runs whose collapse is made by hand."""

import pytest

from lldlib.runs.folder import Run
from lldlib.train import studies as module
from lldlib.train.studies import SUMMARY, branch_points, no_return, points_of_no_return


@pytest.fixture
def collapse_at_4(monkeypatch):
    """No micro run collapses by itself: the rule that says when is replaced in this process."""
    monkeypatch.setattr(module, "collapse_batch", lambda rewards: 4)


def test_branches_leave_from_the_checkpoints_before_the_collapse(tmp_path, micro, collapse_at_4):
    settings = micro | {"steps": 5}
    rows, failures = no_return(tmp_path, [1], 1, every=1, window=2, **settings)
    assert not failures and [row["branched_at"] for row in rows] == [2, 3, 4]
    seed = tmp_path / "seed=1"
    alone, branch = Run(seed / "alone"), Run(seed / "llds_from=3")
    assert [len(run.metrics) for run in (alone, branch)] == [5, 5]
    for batch in range(4):  # the branch's own batch is sampled before the knob acts
        assert alone.metrics[batch]["reward/mean"] == branch.metrics[batch]["reward/mean"]
    assert "llds/value" not in alone.metrics[3] and "llds/value" in branch.metrics[3]
    assert "llds/value" not in branch.metrics[2]
    assert not branch.checkpoints and alone.checkpoints
    before = (tmp_path / SUMMARY).read_bytes()
    metrics = (seed / "llds_from=3" / "metrics.jsonl").read_bytes()
    again, _ = no_return(tmp_path, [1], 1, every=1, window=2, **settings)
    assert again == rows and (tmp_path / SUMMARY).read_bytes() == before
    assert (seed / "llds_from=3" / "metrics.jsonl").read_bytes() == metrics  # nothing was retrained


def test_a_run_that_lives_has_no_branches(tmp_path, micro):
    rows, failures = no_return(tmp_path, [0], 1, every=1, window=9, **micro)
    assert not rows and not failures
    assert branch_points(Run(tmp_path / "seed=0" / "alone"), 9) == []


def test_the_latest_that_lived():
    rows = [
        {"seed": 0, "branched_at": 10, "lived": True},
        {"seed": 0, "branched_at": 20, "lived": False},
        {"seed": 0, "branched_at": 30, "lived": True},
        {"seed": 4, "branched_at": 10, "lived": False},
    ]
    assert points_of_no_return(rows) == {0: 30, 4: None}
