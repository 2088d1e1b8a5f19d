"""What the notebooks of the course import, and the loop that notebook 3 writes."""

import pytest

from lldlib import course


def test_every_name_that_a_notebook_gets_is_there():
    assert len(set(course.__all__)) == len(course.__all__)
    assert all(hasattr(course, name) for name in course.__all__)


def test_recorded_runs_are_whole_and_in_order_of_seed():
    seeds = {arm: [run.config["seed"] for run in course.recorded(arm)] for arm in course.ARMS}
    assert seeds["grpo"] == seeds["llds"] == list(range(10))
    assert seeds["cooler"] == [0, 1, 3, 4, 5, 6, 7, 8, 9]  # seed 2 stands with the ladder of rates
    rates = {arm: {run.config["lr"] for run in course.recorded(arm)} for arm in course.ARMS}
    assert rates == {"grpo": {1e-3}, "llds": {1e-3}, "cooler": {2e-4}}


def test_the_demos_runs_are_of_one_seed():
    runs = {arm: course.demo(arm) for arm in course.ARMS}
    assert {arm: run.config["method"] for arm, run in runs.items()} == {
        "grpo": "grpo",
        "llds": "llds",
        "cooler": "grpo",
    }
    assert all(len(run.metrics) == 25 and run.config["seed"] == 0 for run in runs.values())


@pytest.mark.parametrize("of", [course.recorded, course.demo])
def test_an_unknown_arm_is_told(of):
    with pytest.raises(ValueError, match="no recorded arm 'ppo': use grpo, llds, cooler"):
        of("ppo")


def test_a_figure_is_shown_with_its_alt_text(monkeypatch):
    shown = []
    monkeypatch.setattr(course, "display", lambda *given, **more: shown.append((given, more)))
    course.show(course.Figure(), "an empty figure")
    ((picture,), more) = shown[0]
    assert picture["image/png"].startswith(b"\x89PNG") and picture["text/plain"] == more["metadata"]["image/png"]["alt"]
    assert more == {"raw": True, "metadata": {"image/png": {"alt": "an empty figure"}}}


def test_a_table_is_markdown(monkeypatch):
    shown = []
    monkeypatch.setattr(course, "display", lambda given: shown.append(given.data))
    course.table(("arm", 1), [("GRPO", 0.5)])
    assert shown == ["| arm | 1 |\n| --- | --- |\n| GRPO | 0.5 |"]


def test_a_live_lab_starts_at_the_half_taught_searcher_and_can_go_back_to_any_batch():
    lab = course.live("llds", 3, lr=2e-4, problems=4, updates_per_batch=2)
    try:
        config = lab.runs["A"].config
        assert (config.method, config.seed, config.lr) == ("llds", 3, 2e-4)
        assert config.policy == "half_taught" and config.loss.llds_coef == 0.5
        lab.step(2)
        run = course.Run(lab.runs["A"].out)
        assert [step for step, _ in run.checkpoints] == [0, 1, 2]
    finally:
        lab.folder.cleanup()


def test_the_graders_are_those_beside_the_notebooks():
    import exercises

    assert course.checks is exercises
