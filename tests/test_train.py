"""The training loop on a random micro policy: what moves the weights, and what must not."""

import copy
import dataclasses
import itertools
import math
from dataclasses import replace
from functools import cache, partial
from statistics import fmean

import pytest
import torch
from helpers import (
    BARE,
    MICRO,
    after,
    micro_trainer,
    naive_logits,
    random_batch,
    same,
    spied,
    tiny_policy,
    weights,
)

from lldlib.config import LossConfig, TrainConfig
from lldlib.losses import (
    LossInputs,
    compute_loss,
    forward_kl,
    group_advantages,
    proxy_logits,
)
from lldlib.losses.llds import dual_weight
from lldlib.policy.score import score
from lldlib.recipes import METHODS, train_config
from lldlib.runs.glossary import describe
from lldlib.seeds import seed_for
from lldlib.train import measure
from lldlib.train import trainer as train
from lldlib.train.run import TrainingRun
from lldlib.types import StopReason

pytestmark = pytest.mark.usefixtures("answering_pays")


def untimed(metrics: dict) -> dict:
    return {k: v for k, v in metrics.items() if not k.startswith("time/") and v == v}


# -- a step --------------------------------------------------------------------------------------


def test_three_steps_log_known_keys_and_finite_numbers():
    probe, _ = random_batch(tiny_policy(3), 6, max_tokens=30)
    run = micro_trainer(probe=probe)
    start = weights(run)
    for step in range(3):
        metrics, episodes = run.step()
        assert len(episodes) == 16 and run.step_index == step + 1
        for key, value in metrics.items():
            assert describe(key) and isinstance(value, float), key
            assert math.isfinite(value) or key.rpartition("/")[2].startswith("action_"), key
        assert 0 < metrics["reward/mean"] < 1 and metrics["reward/mixed_groups"] > 0
        assert metrics["policy/sampler_gap"] < 1e-4 and metrics["grad/norm"] > 0
        assert metrics["update/skipped"] == 0 and "probe/logp" in metrics
    end = weights(run)
    assert not any(torch.equal(start[k], end[k]) for k in start if "bias" not in k)
    assert all(v.isfinite().all() for v in end.values())


def test_an_update_raises_what_paid_against_what_did_not():
    config = replace(MICRO, updates_per_batch=1, lr=1e-4)
    metrics = after(config)[1]
    assert metrics["displacement/correct_token"] > metrics["displacement/incorrect_token"]
    only = replace(config, loss=replace(BARE, negative_weight=0.0))
    assert after(only)[1]["displacement/correct"] > 0


def test_equal_seeds_give_equal_bits_and_others_do_not():
    (one, row), (two, same_row) = after(MICRO, 2), after(MICRO, 2)
    assert same(one, two) and untimed(row) == untimed(same_row)
    other, _ = after(replace(MICRO, seed=1), 2)
    assert not same(one, other)


def test_no_update_draws_with_the_seed_of_another_batch(monkeypatch):
    """At 16 updates per batch, generators that count on from a batch's seed run into the next."""
    run = micro_trainer(replace(MICRO, updates_per_batch=16))
    run.step_index = 1  # two batches without the measurement of the negative share
    seeded, real = [], torch.Generator.manual_seed

    class Noted(torch.Generator):
        def manual_seed(self, seed):
            seeded.append(seed)
            return real(self, seed)

    monkeypatch.setattr(torch, "Generator", Noted)
    seen = spied(monkeypatch)
    for _ in range(2):
        run.step()
    assert len(seeded) == len(set(seeded))
    purposes = ("sampling", "order", "dropped")
    assert seeded == [seed_for(p, 0, t) for t in (1, 2) for p in purposes]
    assert len({id(x.generator) for x in seen}) == 2  # one a batch, which runs on in its updates


def test_rows_of_a_question_form_its_group():
    run = micro_trainer()
    episodes, batch = run.collect()
    for start in range(0, 16, 4):
        assert len({e.question.id for e in episodes[start : start + 4]}) == 1
        assert len(set(batch.group[start : start + 4].tolist())) == 1
    assert len(set(batch.group.tolist())) == len({e.question.id for e in episodes}) == 4
    assert batch.rewards.tolist() == [float(e.answer is not None) for e in episodes]


@pytest.mark.parametrize(("updates", "made"), [(1, 1), (3, 3), (16, 16), (40, 16)])
def test_minibatches_share_out_the_rows(monkeypatch, updates, made):
    run = micro_trainer(replace(MICRO, updates_per_batch=updates))
    run.step_index = 1  # a batch without the measurement of the negative share
    _, batch = run.collect()
    seen = spied(monkeypatch)
    run.step()
    assert len(seen) == made
    assert sum(len(x.advantages) for x in seen) == 16
    tokens = sum(int(x.action_mask.sum()) for x in seen)
    assert tokens == int(batch.action_mask.sum())


def test_old_log_probs_are_those_of_the_policy_that_sampled(monkeypatch):
    run = micro_trainer(replace(MICRO, lr=1e-2))
    run.step_index = 1
    _, batch = run.collect()
    seen = spied(monkeypatch)
    run.step()
    assert torch.equal(seen[0].logp, seen[0].old_logp) and not seen[0].old_logp.requires_grad
    sampled = sorted(batch.sampler_logp[batch.action_mask].tolist())
    old = sorted(v for x in seen for v in x.old_logp[x.action_mask].tolist())
    assert torch.allclose(torch.tensor(old), torch.tensor(sampled), atol=1e-4)
    last = seen[-1]  # two updates on, the policy has moved
    assert (last.logp - last.old_logp)[last.action_mask].abs().max() > 1e-3


@pytest.mark.parametrize("scale", [True, False])
def test_each_row_keeps_its_own_advantage(monkeypatch, scale):
    run = micro_trainer(replace(MICRO, loss=replace(BARE, scale_advantage=scale)))
    run.step_index = 1
    _, batch = run.collect()
    advantages = group_advantages(batch.rewards, batch.group, scale=scale)
    seen = spied(monkeypatch)
    run.step()
    for inputs in seen:
        width = inputs.old_logp.shape[1]
        for old, own in zip(inputs.old_logp, inputs.advantages, strict=True):
            gap = (batch.sampler_logp[:, :width] - old).abs().amax(1)
            assert gap.min() < 1e-4 and own == advantages[gap.argmin()]
    assert len(advantages.unique()) > 2


def test_the_learning_rate_warms_up_over_batches():
    run = micro_trainer(replace(MICRO, lr=0.1, warmup_batches=4, updates_per_batch=1))
    rates = [run.step()[0]["update/lr"] for _ in range(5)]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])


def test_the_reference_stays_where_it_was():
    run = micro_trainer(replace(MICRO, loss=LossConfig(kl_coef=0.1), updates_per_batch=1))
    start = weights(run)
    first, later = run.step()[0], run.step()[0]
    assert first["kl/reference"] == pytest.approx(0.0, abs=1e-6)
    assert later["kl/reference"] > 1e-6
    assert same(start, dict(run.reference.named_parameters()))
    assert all(p.grad is None for p in run.reference.parameters())


def test_the_gradient_is_clipped_for_the_update_only(monkeypatch):
    run = micro_trainer(replace(MICRO, grad_clip=0.01, updates_per_batch=1))
    seen, real = [], run.optimizer.step
    norm = lambda: sum(p.grad.square().sum() for p in run.parameters) ** 0.5  # noqa: E731
    monkeypatch.setattr(run.optimizer, "step", lambda: (seen.append(float(norm())), real()))
    metrics, _ = run.step()
    assert seen == [pytest.approx(0.01, rel=1e-3)] and metrics["grad/norm"] > 0.02


# -- regularizers --------------------------------------------------------------------------------


def test_llds_is_exactly_nothing_at_the_first_update(monkeypatch):
    """Also where the scores before the update are rounded otherwise than those in it."""
    real = train.make_experience

    def rounded(*args):
        experience = real(*args)
        return replace(experience, old=replace(experience.old, logp=experience.old.logp + 1e-4))

    monkeypatch.setattr(train, "make_experience", rounded)
    once = replace(MICRO, updates_per_batch=1)
    plain, _ = after(once, 3)
    llds, metrics = after(replace(once, loss=replace(BARE, llds_coef=10.0)), 3)
    assert metrics["llds/value"] == 0.0 and metrics["llds/open_gate_share"] == 0.0
    assert same(plain, llds)


def test_llds_acts_at_later_updates():
    config = replace(MICRO, lr=1e-2, updates_per_batch=8)
    plain, _ = after(config)
    llds, metrics = after(replace(config, loss=replace(BARE, llds_coef=10.0)))
    assert metrics["llds/value"] > 0 and 0 < metrics["llds/open_gate_share"] < 1
    assert not same(plain, llds)


def test_lambda_follows_what_a_batch_costs_its_correct_rows():
    config = replace(MICRO, lr=1e-2, updates_per_batch=8, loss=replace(BARE, llds_coef=0.2))
    held, following = micro_trainer(config), micro_trainer(replace(config, llds_target=0.01))
    rows = [(held.step()[0], following.step()[0]) for _ in range(3)]
    used = [row["llds/weight"] for _, row in rows]
    assert used[0] == 0.2 and len(set(used)) > 1
    for weight, then, (_, row) in zip(used, used[1:], rows, strict=False):
        assert then == dual_weight(weight, row["displacement/mixed_token"], 0.01)
    assert untimed(rows[0][0]).items() <= rows[0][1].items()  # the first batch is as without
    assert not same(weights(held), weights(following))


@pytest.mark.parametrize(("target", "coef"), [(-0.1, 0.2), (0.01, 0.0)])
def test_a_target_wants_a_lambda_to_start_from(target, coef):
    with pytest.raises(ValueError, match="llds_target"):
        micro_trainer(replace(MICRO, llds_target=target, loss=replace(BARE, llds_coef=coef)))


@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({"llds_gate": "token", "llds_answer": "paper", "llds_normalizer": "all"}, "llds_coef"),
        ({"lp_reg_filter": "fixed", "lp_reg_quantile": 0.5}, "lp_reg_coef"),
        ({"kl_estimator": "k1"}, "kl_coef"),
        ({"kl_estimator": "k1"}, "old_kl_coef"),
        ({"kl_cov_share": 0.5}, "kl_cov_coef"),
        ({}, "entropy_coef"),
    ],
)
def test_a_term_of_weight_zero_leaves_every_bit(settings, weight):
    plain, _ = after(MICRO, 2)
    off, _ = after(replace(MICRO, loss=replace(BARE, **settings, **{weight: 0.0})), 2)
    on, _ = after(replace(MICRO, loss=replace(BARE, **settings, **{weight: 0.5})), 2)
    assert same(plain, off) and not same(plain, on)


@cache
def trained(name: str) -> tuple[dict, dict]:
    """After one batch of a method; Lp-Reg with more tokens, for 1 % of so few is next to none."""
    loss = replace(METHODS[name], lp_reg_quantile=0.5)
    return after(replace(MICRO, loss=loss, updates_per_batch=8, lr=1e-2))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(name):
    end, metrics = trained(name)
    assert all(v.isfinite().all() for v in end.values())
    assert not same(weights(micro_trainer()), end) and metrics["update/skipped"] == 0
    assert all(describe(key) for key in metrics)


def test_no_method_is_another_by_mistake():
    equal = {
        (one, other)
        for one, other in itertools.combinations(METHODS, 2)
        if same(trained(one)[0], trained(other)[0])
    }
    # these two may bite on none of so few tokens
    assert equal <= {("grpo", "clip_higher"), ("grpo", "clip_cov")}
    assert len(set(METHODS.values())) == len(METHODS)


def test_lp_regs_delta_is_taken_once_over_the_rollout_batch(monkeypatch):
    loss = replace(METHODS["lp_reg"], lp_reg_quantile=0.3)
    run = micro_trainer(replace(MICRO, loss=loss, lr=1e-2))
    run.step_index = 1
    _, batch = run.collect()
    seen = spied(monkeypatch)
    run.step()
    assert len(seen) == 3 and len({float(x.low_logp) for x in seen}) == 1
    sampled = batch.sampler_logp[batch.action_mask]
    below = (sampled < seen[0].low_logp - 1e-4).float().mean().item()
    assert below == pytest.approx(0.3, abs=2 / len(sampled))


def test_lp_regs_exact_kl_is_that_of_the_sampling_policys_proxy(monkeypatch):
    """Of both policies' logits at once, as `losses.forward_kl` takes it."""
    loss = replace(METHODS["lp_reg"], lp_reg_kl="exact", lp_reg_quantile=0.5)
    run = micro_trainer(replace(MICRO, loss=loss, lr=1e-2))
    seen, chosen, models, real = spied(monkeypatch), [], [], train.score

    def noted(model, part, *more, **wanted):
        chosen.append(part)
        models.append(copy.deepcopy(model))
        return real(model, part, *more, **wanted)

    monkeypatch.setattr(train, "score", noted)
    run.step_index = 1
    metrics, _ = run.step()
    assert metrics["lp_reg/value"] > 1e-3 and len(seen) == 3
    for x, part, model in zip(seen, chosen, models, strict=True):
        with torch.no_grad():
            old, new = (naive_logits(m, part, 1.0) for m in (models[0], model))
        want = forward_kl(new, proxy_logits(old, kappa=loss.lp_reg_threshold))
        on = part.action_mask & (x.advantages < 0)[:, None]
        assert torch.allclose(x.proxy_kl[on], want[on], atol=1e-4) and on.any()
        assert not x.proxy_kl[~on].any()


def test_nthr_group_by_group_is_nthr_of_the_whole_batch():
    config = replace(MICRO, loss=METHODS["nthr"])
    run = micro_trainer(config)
    _, batch = run.collect()
    whole, parts = (
        train.make_experience(
            run.policy.model, run.reference, batch, 0.0, settings
        ).negative_token_weights
        for settings in (config, replace(config, micro_rows=2))
    )
    assert torch.allclose(parts, whole) and (whole < 1).any()


def test_rollouts_without_their_search_do_not_teach(monkeypatch):
    run = micro_trainer(replace(MICRO, lr=1e-2))
    asked = run.rollout.run
    stop = StopReason.TOOL_ERROR

    def cut(*args, lost, **kwargs):
        episodes = [replace(e, valid_searches=1) for e in asked(*args, **kwargs)]
        return [replace(e, stop=stop, valid_searches=0) for e in episodes[:lost]] + episodes[lost:]

    size = MICRO.rollout.group_size
    monkeypatch.setattr(run.rollout, "run", partial(cut, lost=1))
    metrics, episodes = run.step()
    assert metrics["update/left_out"] == size  # its whole group
    assert metrics["stop/tool_error"] == pytest.approx(1 / len(episodes))
    assert metrics["reward/std"] is not None
    assert metrics["reward/mean"] == pytest.approx(fmean(e.reward for e in episodes[1:]))
    before = weights(run)
    monkeypatch.setattr(run.rollout, "run", partial(cut, lost=len(episodes)))
    with pytest.raises(ConnectionError, match=r"was down for .* of batch 1: start it, then go on"):
        run.step()
    assert run.step_index == 1 and same(before, weights(run))


# -- measurements and state ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grpo", "clip_cov", "top_entropy", "nthr"])
def test_measuring_the_negative_share_moves_nothing(monkeypatch, name):
    # one update: in a part of the batch the chosen tokens may all be of one sign
    config = replace(MICRO, loss=METHODS[name], lr=1e-2, updates_per_batch=1)
    measured, metrics = after(config)
    assert 0 < metrics["grad/negative_share"] <= 1
    monkeypatch.setattr(measure, "negative_share", lambda *args: 0.5)
    assert same(measured, after(config)[0])


def test_the_negative_share_is_of_the_two_parts_of_the_gradient():
    run = micro_trainer(
        replace(MICRO, updates_per_batch=1, loss=replace(BARE, negative_weight=0.0))
    )
    assert run.step()[0]["grad/negative_share"] == 0.0


def test_rollouts_that_are_only_measured_change_nothing_else():
    config = replace(MICRO, loss=METHODS["clip_cov"], lr=1e-2)
    one, two = micro_trainer(replace(config, fresh_every=2)), micro_trainer(config)
    rows = [(untimed(one.step()[0]), untimed(two.step()[0])) for _ in range(3)]
    assert same(weights(one), weights(two))
    names = ("fresh_token", "fresh_correct_token", "fresh_mixed_token", "trained")
    for (row, other), due in zip(rows, [True, False, True], strict=True):
        new = {f"displacement/{name}" for name in names} if due else set()
        assert row.keys() - other.keys() == new and all(describe(key) for key in new)
        assert {k: v for k, v in row.items() if k not in new} == other
        if due:
            gap = row["displacement/mixed_token"] - row["displacement/fresh_mixed_token"]
            assert row["displacement/trained"] == pytest.approx(gap)


def test_fresh_rollouts_are_others_of_the_old_policy_on_the_same_questions(monkeypatch):
    run, seen = micro_trainer(replace(MICRO, fresh_every=1, lr=1e-2)), []
    _, batch = run.collect()
    monkeypatch.setattr(measure, "of_fresh", lambda *args, **kwargs: seen.append(args) or {})
    run.step()
    [(_, fresh, old, _)] = seen
    torch.testing.assert_close(old, fresh.sampler_logp, atol=1e-4, rtol=0)
    assert torch.equal(fresh.group, batch.group)
    prompt = min(int(b.action_mask.int().argmax(1).min()) for b in (fresh, batch))
    assert torch.equal(fresh.tokens[:, :prompt], batch.tokens[:, :prompt])
    width = min(fresh.tokens.shape[1], batch.tokens.shape[1])
    assert not torch.equal(fresh.tokens[:, :width], batch.tokens[:, :width])


@pytest.mark.parametrize("updates", [1, 16])
def test_the_negative_share_is_of_all_rows_before_the_first_update(updates):
    """Held against the gradient of one loss over the whole batch, however small a minibatch is."""
    config = replace(MICRO, loss=BARE, updates_per_batch=updates, lr=1e-2)
    run = micro_trainer(config)
    _, batch = run.collect()
    advantages = group_advantages(batch.rewards, batch.group, scale=True)
    logp = score(run.policy.model, batch, 1.0).logp
    norms = []
    for kept in (advantages.clamp(max=0), advantages.clamp(min=0)):
        x = LossInputs(logp, logp.detach(), kept, batch.action_mask, batch.answer_mask)
        loss, _ = compute_loss(BARE, x)
        grads = torch.autograd.grad(loss, run.parameters, retain_graph=True, allow_unused=True)
        norms.append(float(sum(g.square().sum() for g in grads if g is not None) ** 0.5))
    expected = norms[0] / sum(norms)
    assert 0 < expected < 1
    told = micro_trainer(config).step()[0]["grad/negative_share"]
    assert told == pytest.approx(expected, rel=1e-4)


def test_the_probe_is_scored_when_due_under_the_current_policy():
    probe, _ = random_batch(tiny_policy(3), 6, max_tokens=30)
    run = micro_trainer(replace(MICRO, probe_every=2, lr=1e-2), probe=probe)
    start = run.probe_metrics()
    expected = float(probe.sampler_logp.sum() / probe.action_mask.sum())
    assert start["probe/logp"] == pytest.approx(expected, abs=1e-4)
    rows = [run.step()[0] for _ in range(3)]
    assert ["probe/logp" in row for row in rows] == [True, False, True]
    assert rows[2]["probe/logp"] == run.probe_metrics()["probe/logp"] != start["probe/logp"]


def test_a_restored_trainer_goes_on_bit_for_bit():
    config = replace(MICRO, loss=METHODS["llds_ma"], warmup_batches=5, llds_target=0.01)
    run = micro_trainer(config)
    run.step()
    assert run.llds_weight != config.loss.llds_coef
    run.skipped = 2
    tensors, state = run.state()
    tensors = {name: value.detach().clone() for name, value in tensors.items()}
    again = micro_trainer(config)
    again.load_state(tensors, state)
    assert again.step_index == 1 and again.skipped == 2
    one, two = (untimed(r.step()[0]) for r in (run, again))
    assert one == two and one["update/skipped"] == 2
    assert same(weights(run), weights(again))


def test_the_state_holds_the_settings_as_they_are_now():
    run = micro_trainer()
    run.turn(lr=0.5)
    assert run.state()[1]["config"] == dataclasses.asdict(replace(MICRO, lr=0.5))


# -- a sampler that is not quite the policy ------------------------------------------------------


def with_sampler(**settings) -> TrainConfig:
    return replace(MICRO, rollout=replace(MICRO.rollout, **settings))


@pytest.mark.parametrize(
    ("settings", "least"),
    [({"sampler_noise": 1.0}, 0.3), ({"sampler_weights": "int8"}, 1e-4), ({"top_p": 0.9}, 0.01)],
)
def test_a_sampler_differs_and_the_old_policy_is_the_trainers(monkeypatch, settings, least):
    seen, run = spied(monkeypatch), micro_trainer(with_sampler(**settings))
    before = weights(run)
    old = copy.deepcopy(run.policy.model)
    _, batch = run.collect()
    assert same(before, weights(run))  # what was rounded is whole again
    gap = (batch.sampler_logp - score(old, batch, 1.0).logp)[batch.action_mask].abs()
    assert gap.max() > least
    metrics, _ = run.step()
    assert metrics["policy/sampler_gap"] > least
    assert seen[0].old_logp.equal(seen[0].logp.detach())  # of the trainer


def test_the_correction_weighs_tokens_by_policy_over_sampler():
    noisy = with_sampler(sampler_noise=1.0)
    runs = {}
    for how in ("none", "truncated", "masked"):
        config = replace(noisy, loss=replace(BARE, sampler_correction=how))
        runs[how] = after(config)
    assert "policy/sampler_weight" not in runs["none"][1]
    cut, masked = (runs[how][1]["policy/sampler_weight"] for how in ("truncated", "masked"))
    assert 0 < masked < cut < 1.5
    assert not same(runs["none"][0], runs["truncated"][0])
    exact = replace(MICRO, loss=replace(BARE, sampler_correction="truncated"))
    assert after(exact)[1]["policy/sampler_weight"] == pytest.approx(1.0, abs=1e-4)


def test_exams_ask_the_policy_itself(tmp_path):
    told = []
    for name, given in {"own": {}, "other": {"sampler_noise": 2.0, "top_p": 0.5}}.items():
        config = train_config("grpo", 0, "half_taught", heldout_limit=8, probe_every=0, **given)
        run = TrainingRun(config, tmp_path / name)
        told.append(run.heldout_metrics())
        run.writer.close()
    assert told[0] == told[1] and 0 < told[0]["eval/heldout_em"] < 1


def test_only_mixed_groups_make_fewer_updates_of_as_many_rows(monkeypatch):
    seen, run = spied(monkeypatch), micro_trainer(replace(MICRO, keep_mixed=0.5))
    monkeypatch.setattr(train, "most_mixed", lambda rewards, group, share: group < 2)
    metrics, _ = run.step()  # 8 of 16 rows, so 2 of 3 updates
    told = [inputs for inputs in seen if inputs.logp.requires_grad]
    assert [len(inputs.advantages) for inputs in told] == [4, 4]
    assert metrics["update/left_out"] == 0


def test_a_batch_without_anything_to_train_on_is_logged(monkeypatch):
    run = micro_trainer(replace(MICRO, keep_mixed=0.5, loss=METHODS["lp_reg"]))
    monkeypatch.setattr(run, "_trained_on", lambda rewards, purpose: torch.zeros_like(rewards))
    before = weights(run)
    metrics, _ = run.step()
    assert math.isnan(metrics["grad/norm"]) and "lp_reg/value" not in metrics
    assert metrics["reward/mixed_groups"] == 0 and same(before, weights(run))
