"""Caches of rollouts: none outlives its rollout, and none has more rows than `fit` counts."""

import dataclasses
import functools
import gc
import weakref

import pytest
import torch
from helpers import retriever, tiny_policy, world_questions

from lldlib.config import ExamConfig, RolloutConfig, TrainConfig
from lldlib.evaluate.exam import Exam
from lldlib.evaluate.heldout import heldout_em
from lldlib.policy.memory import Shape, estimate
from lldlib.rollout import cache, draw, loop
from lldlib.rollout.decode import LockstepDecoder
from lldlib.rollout.draw import Drawer
from lldlib.rollout.loop import Rollout
from lldlib.train.run import TrainingRun
from lldlib.world.benchmarks import Task
from lldlib.world.environment import RULES


class Held:
    """The caches that are alive, and the most rows and bytes of them since the last look."""

    def __init__(self, monkeypatch):
        self.alive, self.rows, self.bytes = weakref.WeakSet(), 0, 0
        made, filled = cache.RaggedCache.__init__, cache.PreallocatedLayer.lazy_initialization

        def ragged(one, *arguments):
            made(one, *arguments)
            self.add(one, one.keys.shape[1], one.keys.nbytes + one.values.nbytes)

        def layer(one, keys, values):
            filled(one, keys, values)
            size = one.key_buffer.nbytes + one.value_buffer.nbytes
            self.add(one, one.key_buffer.shape[0], size)

        monkeypatch.setattr(cache.RaggedCache, "__init__", ragged)
        monkeypatch.setattr(cache.PreallocatedLayer, "lazy_initialization", layer)

    def add(self, one, rows: int, size: int) -> None:
        one.test_rows, one.test_bytes = rows, size
        self.alive.add(one)
        self.rows = max(self.rows, sum(c.test_rows for c in self.alive))
        self.bytes = max(self.bytes, sum(c.test_bytes for c in self.alive))

    def most(self) -> int:
        """The most rows since the last look; there must be no cache left."""
        assert not self.alive
        rows, self.rows = self.rows, 0
        return rows


@pytest.fixture
def held(monkeypatch):
    """With the collector off, so that only what nobody refers to is gone."""
    gc.collect()
    gc.disable()
    yield Held(monkeypatch)
    gc.enable()


def lockstep(model, rows, capacity):
    return LockstepDecoder(model.get_decoder(), model.config.num_hidden_layers, capacity)


def decode_by(monkeypatch, kind: str) -> int:
    """Choose a decoder; the number of objects that a cache of one row is made of."""
    if kind == "lockstep":
        monkeypatch.setattr(draw, "make_decoder", lockstep)
        return 2  # layers
    if kind == "blocks":
        monkeypatch.setattr(loop, "Drawer", functools.partial(Drawer, block=16))
    return 1


KINDS = ("single", "blocks", "lockstep")


@pytest.mark.parametrize("kind", KINDS)
def test_no_cache_is_alive_after_its_rollout(held, monkeypatch, kind):
    parts = decode_by(monkeypatch, kind)
    policy = tiny_policy()
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=60))
    for rows in (7, 3, 5):
        rollout.run(policy.model, world_questions(rows), temperature=1.0)
        assert held.most() == parts * rows


@pytest.mark.parametrize("kind", KINDS)
def test_waves_do_not_meet(held, monkeypatch, kind):
    parts = decode_by(monkeypatch, kind)
    policy = tiny_policy()
    config = RolloutConfig(max_tokens=60, at_once=4)
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), config)
    rollout.run(policy.model, world_questions(10), temperature=1.0)
    assert held.most() == parts * 4


@pytest.mark.parametrize("at_once", [0, 5])
def test_nothing_holds_more_rows_than_fit_counts(held, monkeypatch, guesser, tmp_path, at_once):
    """192 rows are asked for the probe set, 120 in the exam, 12 in training and afresh."""
    limits = RolloutConfig(problems=3, group_size=4, max_tokens=40, at_once=at_once)
    config = TrainConfig(policy=guesser, steps=1, updates_per_batch=2, eval_every=1, rollout=limits)
    rows = at_once or 12
    shape = Shape(update_rows=6, rollout_rows=rows, tokens=40)
    settings = {"quantize": None, "lora": None, "dtype": "float32", "reference": True}
    fit = estimate(guesser, 16, shape, gradient_checkpointing=False, **settings)

    run = TrainingRun(config, tmp_path / "run")
    assert held.most() == rows, "probe set"
    run.trainer.step()
    assert held.most() == rows, "training"
    run.trainer.turn(fresh_every=1)
    assert "fresh" in " ".join(run.trainer.step()[0])
    assert held.most() == rows, "afresh"
    run.heldout_metrics()
    assert held.most() == rows, "exams"
    heldout_em(run.setting.policy, run.setting.environment, limits)
    assert held.most() == rows, "evaluate"
    # the cache has room for the token that is drawn after the last
    assert held.bytes * 40 == fit.rollout["key-value cache"] * 41


def test_an_exam_of_benchmarks_holds_the_rows_it_is_told(held, guesser, tmp_path):
    policy = tiny_policy()
    settings = ExamConfig(rows=100, max_tokens=40)  # more than the 80 of a batch by default
    exam = Exam(policy, retriever(), settings, tmp_path, {})
    exam.ask(Task("t", "T", "qa", "t", None), world_questions(130), False)
    assert held.most() == 100


def test_draws_do_not_depend_on_how_many_rows_go_at_once():
    policy = tiny_policy()
    whole, few = (
        Rollout(policy.tokenizer, RULES["qa"], retriever(), dataclasses.replace(limits, problems=p))
        for limits in [RolloutConfig(group_size=2, max_tokens=60)]
        for p in (20, 3)
    )
    episodes = [
        rollout.run(
            policy.model,
            world_questions(20),
            temperature=1.0,
            samples=2,
            generator=torch.Generator().manual_seed(1),
        )
        for rollout in (whole, few)
    ]
    tokens = [[turn.tokens for e in each for turn in e.turns] for each in episodes]
    assert tokens[0] == tokens[1]
