"""Likelihood in a plain GRPOTrainer and in verl at weight 0: logged, and nothing else changes."""

import logging
from types import SimpleNamespace

import pytest
import torch

from lldlib.adapters.likelihood import advantage_likelihood, watch_likelihood

KEYS = {
    "likelihood/correct",
    "likelihood/incorrect",
    "likelihood/official",
    "displacement/correct_token",
    "displacement/mixed_token",
    "displacement/all_token",
}


def test_a_minibatch_is_told_by_the_sign_of_its_advantages():
    old = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -4.0, -9.0]])
    new = torch.tensor([[-1.5, -2.5, 0.0], [-2.0, -4.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    assert advantage_likelihood(new, old, advantages, mask) == {
        "actor/likelihood_positive": -1.5,
        "actor/likelihood_negative": -3.5,
        "actor/displacement_positive": -0.5,
        "actor/displacement_all": 0.0,  # (-.5 - .5 + 1 + 0) / 4
        "actor/positive_here": 1.0,
        "actor/negative_here": 1.0,
    }
    none = advantage_likelihood(new, old, torch.zeros(2, 3), mask)
    assert none["actor/likelihood_positive"] == 0.0  # verl averages, and nan would spread
    assert none["actor/positive_here"] == none["actor/negative_here"] == 0.0


def micro_batch_means(tell, rows: dict, size: int) -> dict[str, float]:
    """What verl logs of a minibatch cut into micro-batches: the plain mean of each key."""
    count = len(rows["advantages"])
    parts = [{k: x[s : s + size] for k, x in rows.items()} for s in range(0, count, size)]
    told = [tell(**part) for part in parts]
    return {key: sum(part[key] for part in told) / len(told) for key in told[0]}


@pytest.mark.parametrize(("size", "here"), [(8, 1.0), (4, 0.5), (2, 0.25), (1, 0.125)])
def test_divided_by_its_share_a_mean_is_true_whatever_the_micro_batches(size, here):
    """One row of eight has A > 0: log-prob -1, fallen by .1; the others -2, and they stay."""
    advantages = torch.full((8, 3), -1.0)
    advantages[0] = 1.0
    old = torch.where(advantages > 0, -1.0, -2.0)
    new = old - 0.1 * (advantages > 0)
    rows = {"logp": new, "old_logp": old, "advantages": advantages}
    rows["mask"] = torch.ones(8, 3, dtype=torch.bool)
    logged = micro_batch_means(advantage_likelihood, rows, size)
    assert logged["actor/positive_here"] == here
    assert logged["actor/likelihood_positive"] / here == pytest.approx(-1.0)
    assert logged["actor/displacement_positive"] / here == pytest.approx(-0.1)
    negative = logged["actor/likelihood_negative"] / logged["actor/negative_here"]
    assert negative == pytest.approx(-2.0)


def plain(tmp_path, **changes):
    """A GRPOTrainer of TRL without anything of ours in it."""
    from datasets import Dataset
    from helpers import tiny_policy
    from trl import GRPOConfig, GRPOTrainer

    given = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 1,
        "max_steps": 4,
        "max_completion_length": 12,
        "learning_rate": 1e-2,
        "logging_steps": 1.0,
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }
    policy = tiny_policy(3)
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    rows = [{"prompt": f"Question: what is {word} ?"} for word in ("one", "two", "three", "four")]
    return GRPOTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=lambda completion_ids, **_: [float(sum(ids) % 2) for ids in completion_ids],
        args=GRPOConfig(**(given | changes)),
        train_dataset=Dataset.from_list(rows * 4),
    )


def logged(trainer) -> list[dict]:
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_plain_trainer_logs_likelihood_and_trains_as_before(tmp_path, passes):
    pytest.importorskip("trl")
    before = logged(plain(tmp_path, num_iterations=passes))
    watched = plain(tmp_path, num_iterations=passes)
    watch_likelihood(watched)
    after = logged(watched)
    timed = {"step_time"}
    for one, other in zip(before, after, strict=True):
        assert {k: other[k] for k in one if k not in timed} == {
            k: v for k, v in one.items() if k not in timed
        }
    measured = [row for row in after if row.keys() >= KEYS]
    assert len(measured) == 4 // passes  # at the last update of each rollout batch
    assert all(row["likelihood/correct"] < 0 for row in measured)
    assert any(abs(row["displacement/all_token"]) > 1e-4 for row in measured)


def test_the_displacement_is_of_the_batchs_own_updates(tmp_path):
    """With a rate of 0 nothing moves."""
    pytest.importorskip("trl")
    still = plain(tmp_path, learning_rate=0.0, max_steps=2)
    watch_likelihood(still)
    for row in logged(still):
        assert row["displacement/all_token"] == pytest.approx(0, abs=1e-6)


def test_every_other_batch_can_be_left_out(tmp_path):
    pytest.importorskip("trl")
    trainer = plain(tmp_path)
    watch_likelihood(trainer, every=2)
    assert [row.keys() >= KEYS for row in logged(trainer)] == [True, False, True, False]


def test_a_failure_ends_the_measuring_and_not_the_training(tmp_path, caplog):
    pytest.importorskip("trl")
    trainer = plain(tmp_path)
    watch = watch_likelihood(trainer)

    def fail(rows):
        raise RuntimeError("no pass")

    watch._score = fail
    with caplog.at_level(logging.WARNING):
        assert len(logged(trainer)) == 4
    assert caplog.text.count("likelihood is no longer measured: RuntimeError: no pass") == 1


def test_what_is_no_trainer_is_told():
    with pytest.raises(ValueError, match="no GRPOTrainer of TRL"):
        watch_likelihood(SimpleNamespace())


def test_verl_at_weight_0_logs_likelihood_and_keeps_its_loss():
    pytest.importorskip("verl")
    from test_verl import actor, rows
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    from lldlib.adapters.verl import llds_policy_loss

    config, batch = actor(), rows()
    loss, metrics = llds_policy_loss(**batch, config=config)
    base, theirs = compute_policy_loss_vanilla(**batch, config=config)
    assert torch.equal(loss, base) and theirs.items() <= metrics.items()
    mask = batch["response_mask"].bool()
    good = mask & (batch["advantages"] > 0)
    assert metrics["actor/likelihood_positive"] == pytest.approx(
        float(batch["old_log_prob"][good].mean())
    )
    assert set(metrics) - set(theirs) == {
        "actor/likelihood_positive",
        "actor/likelihood_negative",
        "actor/displacement_positive",
        "actor/displacement_all",
        "actor/positive_here",
        "actor/negative_here",
    }


@pytest.mark.parametrize(("size", "here"), [(4, 1.0), (2, 0.5), (1, 0.25)])
def test_verls_own_means_are_true_when_divided(size, here):
    """One row of four is kept, its gates open by a fall of half a nat; aggregated by verl."""
    pytest.importorskip("verl")
    from test_verl import actor
    from verl.utils.metric import AggregationType, Metric

    from lldlib.adapters.verl import llds_policy_loss

    advantages = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]]).expand(4, 3)
    old, mask, config = torch.full((4, 3), -1.0), torch.ones(4, 3), actor(llds_coef=0.2)
    found: dict[str, Metric] = {}
    for s in range(0, 4, size):
        cut = (x[s : s + size] for x in (old, old - 0.5, advantages, mask))
        _, told = llds_policy_loss(*cut, config=config)
        for key, metric in Metric.from_dict(told, aggregation=AggregationType.MEAN).items():
            found.setdefault(key, metric.init_list()).append(metric)
    logged = {key: metric.aggregate() for key, metric in found.items()}
    kept = logged["actor/llds_kept_here"]
    assert (logged["actor/positive_here"], kept) == (here, here)
    assert logged["actor/likelihood_positive"] / here == pytest.approx(-1.0)
    assert logged["actor/displacement_positive"] / here == pytest.approx(-0.5)
    assert logged["actor/llds_open_gate_share"] / kept == pytest.approx(1.0)


def test_the_doctor_knows_what_verl_logs():
    from lldlib.doctor.page import diagnose_rows

    row = {"critic/score/mean": 0.5, "actor/entropy": 0.4}
    told = {"actor/likelihood_positive": -0.3, "actor/displacement_positive": -0.01}
    found = diagnose_rows([row | told | {"step": step} for step in range(20)])
    assert found.run.columns["likelihood"] == "actor/likelihood_positive"
    assert found.run.columns["displacement"] == "actor/displacement_positive"
