"""The doctor's hooks in the real engines; each test runs where its engine is installed."""

import logging

import numpy as np
import pytest

from lldlib.doctor.live import Collapsed, trl_callback, watch_tracking


def test_grpo_trainer_is_judged_from_what_it_logs(tmp_path, caplog):
    """A reward that is lost after 24 steps is warned of with a page, and the training stops."""
    pytest.importorskip("trl")
    from helpers import tiny_policy
    from trl_runs import settings, trainer

    step = iter(range(1000))

    def lost(completion_ids, **_) -> list[float]:
        alive = next(step) < 24
        return [float(alive) - 0.1 * (i % 2) * alive for i in range(len(completion_ids))]

    callback = trl_callback(tmp_path / "page", stop=True)
    config = settings(tmp_path, max_steps=60, num_iterations=1, learning_rate=1e-5)
    grpo = trainer(config, tiny_policy(), reward_funcs=lost, callbacks=[callback])
    with caplog.at_level(logging.WARNING):
        grpo.train()
    assert callback.watcher.found.judged.verdict == "collapsed"
    assert 24 < grpo.state.global_step < 60
    assert (tmp_path / "page" / "index.html").is_file() and "Collapsed" in caplog.text


def test_verl_tracking_is_judged_from_what_it_logs(tmp_path):
    tracking = pytest.importorskip("verl.utils.tracking")
    tracker = tracking.Tracking("project", "run", "console")
    watch_tracking(tracker, tmp_path, stop=True)
    chance = np.random.default_rng(0)
    with pytest.raises(Collapsed, match="Collapsed at step 41"):
        for t in range(60):
            score = (0.2 + t / 60 if t < 40 else 0.0) + 0.02 * chance.standard_normal()
            tracker.log(data={"critic/score/mean": score, "actor/entropy": 0.5}, step=t + 1)
    assert (tmp_path / "index.html").is_file()


def test_the_completions_that_trl_logs_are_read(tmp_path):
    pytest.importorskip("trl")
    from test_likelihood import plain

    from lldlib.doctor.answers import answers_beside
    from lldlib.doctor.completions import find_answers, read_answers

    trainer = plain(tmp_path, max_steps=2, log_completions=True)
    trainer.train()
    assert find_answers(tmp_path) == tmp_path / "completions"
    found = read_answers(tmp_path / "completions")
    assert [answer.step for answer in found] == [1] * 8 + [2] * 8
    assert found[0].question.startswith("Question: what is") and found[0].text
    assert answers_beside(tmp_path).count == 16
