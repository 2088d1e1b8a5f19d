"""A limit on an update's move: worked by hand, then in the trainer."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import MICRO, after, micro_trainer, same, weights
from torch import nn

from lldlib.policy.optimizer import MasterAdamW
from lldlib.policy.score import score
from lldlib.train.limit import ENOUGH, TRIES, Limit

pytestmark = pytest.mark.usefixtures("answering_pays")


class Jump(torch.optim.Optimizer):
    """Adds 2 to every weight."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight += 2


def jumped(moved):
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = Jump([weight])
    limit = Limit([weight], optimizer)
    optimizer.step()
    return weight.data, limit.shorten(lambda: moved(float(weight - 1)), 0.5)


def test_a_quadratic_move_is_met_at_once():
    """x^2 / 2 is 2 at a step of 2; a limit of .5 keeps a half of it."""
    weight, (move, kept) = jumped(lambda x: x * x / 2)
    assert float(weight) == 2.0 and move == 0.5 and kept == 0.5


def test_a_short_update_is_left_alone():
    weight, (move, kept) = jumped(lambda x: x / 10)
    assert float(weight) == 3.0 and move == pytest.approx(0.2) and kept == 1.0


def test_a_cliff_is_approached_in_small_steps():
    """A move of .6 beyond a step of 1.5, .1 up to it: a little is taken off, three times."""
    weight, (move, kept) = jumped(lambda x: 0.6 if x > 1.5 else 0.1)
    ratio = min(0.9, (0.5 / 0.6) ** 0.5)
    assert kept == pytest.approx(ratio**3) and move == 0.1
    assert float(weight) == pytest.approx(1 + 2 * ratio**3)


@pytest.mark.parametrize("never", [math.nan, math.inf, 9.0])
def test_what_never_comes_under_the_limit_is_taken_back(never):
    tried = []
    weight, found = jumped(lambda x: tried.append(x) or never)
    assert float(weight) == 1.0 and found == (0.0, 0.0) and len(tried) == TRIES + 1
    ratio = (0.5 / never) ** 0.5 if never == 9.0 else 0.5
    assert tried == pytest.approx([2 * ratio**i for i in range(TRIES + 1)], abs=1e-5)


def test_weights_that_overflow_are_taken_back():
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = Jump([weight])
    limit = Limit([weight], optimizer)
    weight.data.fill_(math.inf)
    assert limit.shorten(lambda: math.nan, 0.5) == (0.0, 0.0) and float(weight.data) == 1.0


def test_rounded_weights_follow_their_float32_copies():
    """AdamW's first step is the rate; the copies are shortened, and the model's own rounded."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.bfloat16))
    optimizer = MasterAdamW([weight], {"lr": 0.5, "betas": (0.9, 0.999), "weight_decay": 0.0})
    for _ in range(2):  # without a copy yet, and with one
        before = float(optimizer.state[weight]["master"]) if optimizer.state else 1.0
        weight.grad = torch.ones_like(weight)
        limit = Limit([weight], optimizer)
        optimizer.step()
        copy = optimizer.state[weight]["master"]
        _, kept = limit.shorten(lambda was=before, now=copy: float((now - was).square() / 2), 0.02)
        assert kept == pytest.approx(0.4, abs=1e-3)
        assert float(copy) == pytest.approx(before - 0.2, abs=1e-3)
        assert torch.equal(weight, copy.to(torch.bfloat16))


# -- in the trainer -------------------------------------------------------------------------------


def moved_by(limit, micro_rows=0):
    """How far each update of a batch moved, read by a hand-written loop over its rows."""
    run = micro_trainer(replace(MICRO, move_limit=limit, micro_rows=micro_rows, lr=3e-2))
    real, found = run._apply, []

    def spy(loss, inputs, experience, rows):
        norm = real(loss, inputs, experience, rows)
        part = experience.minibatch(rows)[0]
        with torch.no_grad():
            now = score(run.policy.model, part, run.config.rollout.temperature).logp
        terms = [
            float(now[b, t] - inputs.logp.data[b, t]) ** 2 / 2
            for b in range(len(now))
            for t in range(now.shape[1])
            if part.action_mask[b, t]
        ]
        found.append(sum(terms) / len(terms))
        return norm

    run._apply = spy
    metrics, _ = run.step()
    return run, metrics, found


@pytest.mark.parametrize("micro_rows", [0, 2])
def test_no_update_goes_beyond_the_limit(micro_rows):
    _, _, free = moved_by(0.0)
    assert max(free) > 0.1
    _, metrics, found = moved_by(0.01, micro_rows)
    assert 0 < max(found) <= 0.01 * ENOUGH * 1.001
    assert metrics["update/move"] == pytest.approx(sum(found) / len(found), rel=1e-3)
    assert 0 < metrics["update/kept"] < 1


def test_a_limit_that_is_never_met_changes_nothing():
    free, metrics = after(MICRO, steps=2)
    assert "update/move" not in metrics
    bound, metrics = after(replace(MICRO, move_limit=1e9), steps=2)
    assert same(free, bound) and metrics["update/kept"] == 1


def test_the_optimiser_remembers_the_whole_update():
    """Its moments do not know of the limit: those after a first update are the same."""
    one = replace(MICRO, updates_per_batch=1, lr=3e-2)
    runs = [micro_trainer(replace(one, move_limit=limit)) for limit in (0.0, 1e-3)]
    for run in runs:
        run.step()
    free, bound = (run.state()[0] for run in runs)
    assert all(torch.equal(free[k], bound[k]) for k in free if k.startswith("optimizer."))
    assert not same(weights(runs[0]), weights(runs[1]))
