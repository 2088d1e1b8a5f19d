"""A number that is not finite, at every place of a batch: counted, named, never in the weights."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
import torch
from helpers import BARE, MICRO, micro_trainer, random_batch, same, tiny_policy, weights

from lldlib.evaluate.heldout import Evaluation
from lldlib.policy.optimizer import Schedule
from lldlib.runs.folder import METRICS, Run, RunWriter
from lldlib.train import experience, measure, supervised, trainer
from lldlib.train import run as training
from lldlib.train.setup import Setting

pytestmark = pytest.mark.usefixtures("answering_pays")

INF = math.inf
SMALL = replace(
    MICRO, updates_per_batch=2, rollout=replace(MICRO.rollout, problems=2, group_size=4)
)
LP_REG = replace(BARE, lp_reg_coef=1.0, lp_reg_quantile=0.5)


def call(patch, owner, name: str, number: int, change: Callable) -> None:
    """Let the call of that number, from 0, give something else."""
    real, calls = getattr(owner, name), count()

    def changed(*args, **kwargs):
        found = real(*args, **kwargs)
        return change(found) if next(calls) == number else found

    patch.setattr(owner, name, changed)


def at_an_action(scores, field: str, value: float):
    """The scores with the value at the first token that one of them has."""
    values = getattr(scores, field)
    row, token = (scores.logp.detach() != 0).nonzero()[0].tolist()
    spot = torch.zeros_like(values, dtype=torch.bool)
    spot[row, token] = True
    return replace(scores, **{field: torch.where(spot, value, values)})


def reward(patch, run, value):
    real, calls = run.rollout.rules.reward, count()
    rules = run.rollout.rules
    bad = lambda *args: value if next(calls) == 0 else real(*args)  # noqa: E731
    run.rollout.rules = replace(rules, reward=bad)


def advantage(patch, run, value):
    call(patch, experience, "group_advantages", 0, lambda a: torch.cat([a[:1] + value, a[1:]]))


def sampled(patch, run, value):
    def change(batch):
        first = batch.action_mask.cumsum(1).cumsum(1) == 1
        return replace(batch, sampler_logp=torch.where(first, value, batch.sampler_logp))

    call(patch, trainer, "collate", 0, change)


def old(patch, run, value):
    call(patch, experience, "scored", 0, lambda s: at_an_action(s, "logp", value))


def reference(patch, run, value):
    call(patch, experience, "scored", 1, lambda s: at_an_action(s, "logp", value))


def proxy(patch, run, value):
    call(patch, experience, "scored", 0, lambda s: at_an_action(s, "proxy_logp", value))


def factor(patch, run, value):
    call(patch, experience, "nthr_weights", 0, lambda w: torch.full_like(w, value))


def new(patch, run, value):
    call(patch, trainer, "score", 0, lambda s: at_an_action(s, "logp", value))


def entropy(patch, run, value):
    call(patch, trainer, "score", 0, lambda s: at_an_action(s, "entropy", value))


def in_pieces(patch, run, value):
    call(patch, trainer, "leaf_scores", 0, lambda s: at_an_action(s, "logp", value))


def loss(patch, run, value):
    call(patch, trainer, "compute_loss", 0, lambda found: (found[0] * value, found[1]))


def statistic(patch, run, value):
    bad = torch.tensor(value)
    for number in range(2):  # of both updates
        change = lambda found: (found[0], found[1] | {"policy/clip_share": bad})  # noqa: E731
        call(patch, trainer, "compute_loss", number, change)


def gradient(patch, run, value):
    calls = count()
    bad = lambda grad: grad + value if next(calls) == 0 else grad  # noqa: E731
    run.parameters[0].register_hook(bad)


def after(patch, run, value):
    call(patch, measure, "scored", 0, lambda s: at_an_action(s, "logp", value))


def probe(patch, run, value):
    run.probe = random_batch(run.policy, 4)[0]
    call(patch, measure, "scored", 1, lambda s: at_an_action(s, "logp", value))


# what it is named by: rows left out, skipped updates, or a null; and what the batch needs
PLACES = {
    "reward": (reward, {"update/left_out": 4.0, "reward/mean": None}, {}),
    "advantage": (advantage, {"update/left_out": 1.0}, {}),
    "sampler's log-prob": (sampled, {"policy/sampler_gap": None, "policy/sampler_kl": None}, {}),
    "old log-prob": (old, {"update/left_out": 1.0, "displacement/all_token": None}, {}),
    "reference": (reference, {"update/left_out": 1.0}, {"loss": replace(BARE, kl_coef=0.1)}),
    "proxy": (proxy, {"update/left_out": 1.0}, {"loss": LP_REG}),
    "NTHR's factor": (factor, {"update/left_out": 8.0}, {"loss": replace(BARE, nthr=True)}),
    "new log-prob": (new, {"update/skipped": 1}, {}),
    "entropy": (entropy, {"update/skipped": 1}, {"loss": replace(BARE, entropy_coef=0.1)}),
    "log-prob in pieces": (in_pieces, {"update/skipped": 1}, {"micro_rows": 2}),
    "loss": (loss, {"update/skipped": 1}, {}),
    "statistic": (statistic, {"policy/clip_share": None}, {}),
    "gradient": (gradient, {"update/skipped": 1}, {}),
    "log-prob after the updates": (after, {"displacement/all_token": None}, {}),
    "probe": (probe, {"probe/logp": None}, {}),
}


def faults(name: str, value: float, folder) -> list[str]:
    """What is wrong after a batch with the value at that place."""
    put, named, changed = PLACES[name]
    run = micro_trainer(replace(SMALL, **changed))
    run.step_index = 1  # a batch in which the negative share is not measured
    before = weights(run)
    with pytest.MonkeyPatch.context() as patch:
        put(patch, run, value)
        metrics, _ = run.step()
    wrong, end = [], weights(run)
    if not all(one.isfinite().all() for one in end.values()):
        wrong.append("it is in the weights")
    if same(before, end) and named.get("update/left_out") != 8:
        wrong.append("the rest of the batch was not trained on")
    writer = RunWriter.create(folder, {})
    writer.metrics(1, metrics)
    writer.close()
    json.loads((folder / METRICS).read_text(), parse_constant=wrong.append)
    (row,) = Run(folder).metrics
    wrong += [f"{k}: {row.get(k, 'absent')}" for k, v in named.items() if row.get(k, "") != v]
    return wrong


@pytest.mark.parametrize("value", [math.nan, INF, -INF], ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_it_is_counted_and_named_and_never_in_the_weights(name, value, tmp_path):
    if name == "proxy" and value == -INF:
        pytest.skip("a token that the proxy drops")
    assert faults(name, value, tmp_path / "run") == []


def test_faults_would_be_seen(monkeypatch, tmp_path):
    """Rows that are not looked at, and an update that is not."""
    monkeypatch.setattr(experience, "_finite", lambda rows, *rest: torch.ones_like(rows) > 0)
    assert "update/left_out: 0.0" in faults("old log-prob", math.nan, tmp_path / "one")
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: torch.tensor(1.0))
        assert "it is in the weights" in faults("gradient", math.nan, tmp_path / "two")


def test_what_is_left_out_is_as_if_it_were_not_there():
    """The weights are the same whichever value stood there."""
    ends = []
    for value in (math.nan, INF):
        run = micro_trainer(SMALL)
        with pytest.MonkeyPatch.context() as patch:
            old(patch, run, value)
            run.step()
        ends.append(weights(run))
    assert same(*ends)


def test_a_batch_of_which_nothing_is_finite_moves_nothing():
    run = micro_trainer(SMALL)
    run.rollout.rules = replace(run.rollout.rules, reward=lambda *args: math.nan)
    before = weights(run)
    metrics, _ = run.step()
    assert metrics["update/left_out"] == 8 and metrics["grad/norm"] == INF
    assert same(before, weights(run)) and not run.optimizer.state


def test_an_exam_whose_score_is_not_finite_is_named(monkeypatch):
    scores = Evaluation(math.nan, {"f1": -INF}, [])
    monkeypatch.setattr(training, "ask", lambda *args, **kwargs: scores)
    environment = micro_trainer().environment
    setting = Setting(tiny_policy(3), environment, None)
    found = training._exam(setting, SMALL.rollout, "heldout", environment.training(0))
    assert set(found.values()) == {INF} and len(found) == 3


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_a_warm_start_skips_what_is_not_finite(bad):
    policy = tiny_policy(3)
    _, episodes = random_batch(policy, 4)
    learner = supervised.Supervised(policy, Schedule(1e-3, 0), lambda step: episodes)
    before = {k: v.detach().clone() for k, v in policy.model.named_parameters()}
    with pytest.MonkeyPatch.context() as patch:
        if bad == "loss":
            call(patch, supervised, "score", 0, lambda s: replace(s, logp=s.logp * math.nan))
        else:
            hook = next(policy.model.parameters()).register_hook(lambda grad: grad * INF)
        metrics = learner.step()
    assert metrics["update/skipped"] == 1 and same(before, dict(policy.model.named_parameters()))
    assert INF in (metrics["sft/loss"], metrics["grad/norm"])
    if bad == "gradient":
        hook.remove()
    assert learner.step()["update/skipped"] == 1
    assert not same(before, dict(policy.model.named_parameters()))
