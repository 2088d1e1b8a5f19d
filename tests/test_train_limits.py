"""What must not move the weights, or not break a run: odd batches, odd numbers, turned knobs."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from helpers import BARE, MICRO, after, micro_trainer, same, spied, weights
from torch import nn

from lldlib.config import DataConfig, LoadConfig, LossConfig
from lldlib.policy.optimizer import make_optimizer, pack, unpack
from lldlib.train import trainer as train
from lldlib.world.environment import RULES

pytestmark = pytest.mark.usefixtures("answering_pays")


# -- batches from which nothing can be learned ---------------------------------------------------


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_batch_without_contrast_changes_nothing(monkeypatch, reward):
    paid = replace(RULES["qa"], reward=lambda answer, accepted: reward)
    monkeypatch.setitem(RULES, "qa", paid)
    run = micro_trainer()
    before = weights(run)
    metrics, _ = run.step()
    assert same(before, weights(run))
    assert metrics["reward/mean"] == reward and metrics["update/skipped"] == 0
    assert metrics["reward/std"] == metrics["reward/mixed_groups"] == metrics["grad/norm"] == 0
    undefined = "incorrect" if reward else "correct"
    unknown = {key for key, value in metrics.items() if math.isnan(value)}
    assert f"likelihood/{undefined}" in unknown
    assert not {"policy/entropy", "length/tokens", "displacement/" + undefined[:0]} & unknown


@pytest.mark.parametrize("skip", [False, True])
def test_momentum_moves_a_policy_without_a_gradient(monkeypatch, skip):
    run = micro_trainer(replace(MICRO, skip_zero_updates=skip))
    first, _ = run.step()
    assert first["grad/norm"] > 0 and first["update/zero_gradient"] < 1
    before = weights(run)
    paid = replace(run.rollout.rules, reward=lambda answer, accepted: 1.0)
    run.rollout.rules = paid
    second, _ = run.step()
    assert second["reward/mixed_groups"] == 0 and second["update/zero_gradient"] == 1
    assert same(before, weights(run)) == skip


def test_responses_that_are_all_empty_give_a_defined_step():
    """Prompts longer than the budget: no action token at all, so nothing to learn and no error."""
    config = replace(MICRO.rollout, max_tokens=4)
    run = micro_trainer(
        replace(MICRO, rollout=config, loss=LossConfig(llds_coef=0.2, lp_reg_coef=1.0))
    )
    before = weights(run)
    metrics, episodes = run.step()
    assert metrics["length/tokens"] == 0 and metrics["stop/token_budget"] == 1
    assert same(before, weights(run))
    assert all([turn.role for turn in e.turns] == ["prompt"] for e in episodes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rollout": replace(MICRO.rollout, group_size=1)}, "group_size is 1"),
        ({"rollout": replace(MICRO.rollout, problems=9)}, "8 questions for batches of 9"),
        ({"rollout": replace(MICRO.rollout, problems=0)}, "rollout.problems is 0"),
        ({"rollout": replace(MICRO.rollout, temperature=0.0)}, "temperature is 0.0"),
        ({"updates_per_batch": 0}, "updates_per_batch is 0"),
        ({"rollout": replace(MICRO.rollout, top_k=0)}, "top_k is 0"),
        ({"rollout": replace(MICRO.rollout, max_searches=-1)}, "max_searches is -1"),
        ({"loss": LossConfig(lp_reg_quantile=0.0)}, "lp_reg_quantile is 0.0"),
        ({"loss": LossConfig(top_entropy=0.0)}, "top_entropy is 0.0"),
        ({"loss": LossConfig(lp_reg_threshold=1.0)}, "lp_reg_threshold is 1.0"),
        ({"eval_every": -1}, "eval_every is -1"),
    ],
)
def test_settings_without_a_meaning_are_one_line_errors(change, message):
    with pytest.raises(ValueError, match=message) as error:
        micro_trainer(replace(MICRO, **change))
    assert "\n" not in str(error.value)
    run = micro_trainer()
    with pytest.raises(ValueError, match=message):
        run.turn(**change)
    assert run.config == MICRO and run.rollout.config == MICRO.rollout


@pytest.mark.parametrize(("updates", "warned"), [(1, True), (2, False)])
def test_a_term_that_one_update_leaves_at_zero_is_named(caplog, updates, warned):
    micro_trainer(replace(MICRO, updates_per_batch=updates, loss=LossConfig(llds_coef=0.2)))
    assert ("llds_coef: no effect with updates_per_batch 1" in caplog.text) is warned
    caplog.clear()
    micro_trainer(replace(MICRO, updates_per_batch=1))
    assert not caplog.text


def test_the_probe_can_be_turned_off_in_mid_run():
    run = micro_trainer()
    run.turn(probe_every=0)
    assert not any(key.startswith("probe/") for key in run.step()[0])


# -- numbers that are not finite -----------------------------------------------------------------


def not_a_number(inputs):
    return inputs.logp.sum() * float("nan")


def infinite(inputs):
    return inputs.logp.sum() * float("-inf")


def steep(inputs):
    """A loss of 0 whose gradient is infinite: d sqrt(x) / dx at 0."""
    return (inputs.logp.sum() - inputs.logp.sum().detach()).sqrt()


def overflowing(inputs):
    """A loss of 0 with a finite gradient whose norm is beyond float32, as its square is 1e50."""
    return (inputs.logp.sum() - inputs.logp.sum().detach()) * 1e25


def shifted(inputs):
    """An infinite loss with a finite gradient."""
    return inputs.logp.sum() + float("inf")


@pytest.mark.parametrize("bad", [not_a_number, infinite, steep, overflowing, shifted])
def test_a_bad_update_is_skipped_and_counted(monkeypatch, bad):
    run = micro_trainer(replace(MICRO, updates_per_batch=1))
    run.step_index = 1
    before, moments = weights(run), copy.deepcopy(run.optimizer.state_dict())
    real = train.compute_loss
    patched = lambda config, inputs: (bad(inputs), real(config, inputs)[1])  # noqa: E731
    monkeypatch.setattr(train, "compute_loss", patched)
    metrics, _ = run.step()
    assert same(before, weights(run)) and run.optimizer.state_dict() == moments
    assert metrics["update/skipped"] == run.skipped == 1 and metrics["grad/norm"] == math.inf
    monkeypatch.setattr(train, "compute_loss", real)
    metrics, _ = run.step()
    assert metrics["update/skipped"] == 1 and metrics["grad/norm"] > 0
    assert not same(before, weights(run))


def test_the_other_updates_of_the_batch_go_on(monkeypatch):
    run = micro_trainer(replace(MICRO, updates_per_batch=4))
    run.step_index = 1
    before, real, calls = weights(run), train.compute_loss, []

    def second_is_bad(config, inputs):
        calls.append(inputs)
        loss, stats = real(config, inputs)
        return (loss * float("nan") if len(calls) == 2 else loss), stats

    monkeypatch.setattr(train, "compute_loss", second_is_bad)
    metrics, _ = run.step()
    assert len(calls) == 4 and metrics["update/skipped"] == 1 and metrics["grad/norm"] > 0
    assert not same(before, weights(run))
    assert all(v.isfinite().all() for v in weights(run).values())
    counts = {int(state["step"]) for state in run.optimizer.state.values()}
    assert counts == {3}


# -- knobs ---------------------------------------------------------------------------------------


def test_knobs_are_read_at_the_next_step(monkeypatch):
    run = micro_trainer()
    assert run.step()[0]["update/lr"] == 1e-3
    run.turn(lr=5e-4, updates_per_batch=2, betas=(0.5, 0.9), loss=replace(BARE, llds_coef=0.2))
    seen = spied(monkeypatch)
    metrics, _ = run.step()
    assert metrics["update/lr"] == 5e-4 and "llds/value" in metrics and len(seen) == 2
    assert run.optimizer.param_groups[0]["betas"] == (0.5, 0.9)


@pytest.mark.parametrize("knobs", [{"method": "llds"}, {"seed": 5}])
def test_what_would_change_a_name_alone_cannot_be_turned(knobs):
    with pytest.raises(ValueError, match="turn"):
        micro_trainer().turn(**knobs)


def test_turning_the_rollout_reaches_the_rollout():
    run = micro_trainer()
    run.turn(rollout=replace(MICRO.rollout, group_size=3, max_tokens=20))
    _, episodes = run.step()
    assert len(episodes) == 12
    assert max(sum(len(t.tokens) for t in e.turns) for e in episodes) <= 20


def test_a_turned_run_equals_one_that_was_so_from_the_start():
    llds = replace(BARE, llds_coef=0.5)
    turned = micro_trainer(replace(MICRO, lr=0.5))
    turned.turn(loss=llds, lr=3e-3)
    turned.step()
    assert same(weights(turned), after(replace(MICRO, loss=llds, lr=3e-3))[0])


def test_knobs_that_cannot_be_turned():
    run = micro_trainer()
    with pytest.raises(ValueError, match="no reference policy"):
        run.turn(loss=LossConfig(kl_coef=0.1))
    assert run.config == MICRO
    with pytest.raises(TypeError, match="no_such_knob"):
        run.turn(no_such_knob=1)
    run.step()


def test_bfloat16_weights_are_trained_in_float32(tmp_path):
    """Updates that are lost one by one in bfloat16 add up; a checkpoint holds the float32 ones."""
    model = nn.Linear(3, 2, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = make_optimizer(model, 1e-4, (0.9, 0.999))
    plain = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        plain.weight.fill_(1.0)
    exact = torch.optim.AdamW(plain.parameters(), lr=1e-4, weight_decay=0.0)
    for number in range(60):
        if number == 30:
            tensors = pack(model, optimizer)
            model = nn.Linear(3, 2, bias=False).to(torch.bfloat16)
            optimizer = make_optimizer(model, 1e-4, (0.9, 0.999))
            unpack({k: v.clone() for k, v in tensors.items()}, model, optimizer)
        for layer, stepper in ((model, optimizer), (plain, exact)):
            layer.weight.grad = torch.ones_like(layer.weight)
            stepper.step()
    master = optimizer.state[model.weight]["master"]
    assert torch.allclose(master, plain.weight, atol=1e-7) and plain.weight[0, 0] < 0.9945
    assert torch.equal(model.weight, master.bfloat16()) and model.weight[0, 0] < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "sparks"}, "policy cannot be turned in mid-run: start a new run for it"),
        ({"load": LoadConfig(lora_rank=4)}, "load cannot be turned"),
        ({"data": DataConfig(heldout_limit=5)}, "data cannot be turned"),
        ({"probe_every": 5}, "probe_every was 0 at the start"),
        ({"eval_every": 5}, "eval_every cannot be turned"),
    ],
)
def test_a_knob_that_would_do_nothing_is_refused(change, message):
    run = micro_trainer(replace(MICRO, probe_every=0, eval_every=0))
    run.environment = replace(run.environment, heldout=None)
    before = run.config
    with pytest.raises(ValueError, match=message):
        run.turn(**change)
    assert run.config == before
    run.turn(**{name: getattr(before, name) for name in change})  # what stands already may stand


def test_one_update_that_is_not_finite_leaves_the_means_of_the_others(monkeypatch):
    """Of two updates the second gives nan: the batch's mean is the first's value."""
    losses = train.compute_loss

    def second_is_nan(config, inputs):
        loss, numbers = losses(config, inputs)
        if numbers_of.append(numbers) or len(numbers_of) < 2:
            return loss, numbers
        return loss * float("nan"), {key: value * float("nan") for key, value in numbers.items()}

    numbers_of = []
    monkeypatch.setattr(train, "compute_loss", second_is_nan)
    run = micro_trainer(replace(MICRO, updates_per_batch=2))
    run.step_index = 1  # a batch in which the negative share is not measured
    metrics, _ = run.step()
    assert metrics["update/skipped"] == 1 and len(numbers_of) == 2
    for key, value in numbers_of[0].items():
        assert metrics[key] == float(value), key
