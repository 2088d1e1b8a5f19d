"""The TRL adapter's refusals, its measuring now and then, and what it leaves to TRL."""

import logging
import os

import pytest
import torch
from helpers import random_batch, world_questions

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from peft import LoraConfig
from trl import GRPOTrainer
from trl.trainer import base_config
from trl_runs import Remembering, Replaying, settings, some_policy, trainer

from lldlib.adapters import trl as adapter
from lldlib.adapters import trl_config
from lldlib.adapters.trl import LLDGRPOConfig, LLDGRPOTrainer
from lldlib.losses import regularizers
from lldlib.runs.folder import Run

LLDS = {"llds_coef": 0.7}
LP_REG = {"lp_reg_coef": 0.3, "lp_reg_quantile": 0.5}


@pytest.fixture
def read(monkeypatch) -> list:
    """(inputs, counts, value) of every call of the terms."""
    calls = []

    def noted(config, x, counts):
        value, stats = regularizers(config, x, counts)
        calls.append((x, counts, value.detach()))
        return value, stats

    monkeypatch.setattr(adapter, "regularizers", noted)
    return calls


# -- advantages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_keep_llds_and_are_not_negative(how, scale, tmp_path, read):
    """TRL's mean of eight rewards of .8 rounds, and gives each an advantage under 0."""

    def even(completion_ids, **_):
        return [0.8] * len(completion_ids)

    config = settings(
        tmp_path,
        num_generations=8,
        multi_objective_aggregation=how,
        scale_rewards=scale,
        measure_every=0,
        **LLDS,
        **LP_REG,
    )
    trainer(config, some_policy(), reward_funcs=even).train()
    for x, counts, _ in read:
        assert x.advantages.tolist() == [0.0] * 8
        assert counts.preserved == counts.actions == x.action_mask.sum() > 0
        assert (x.proxy_logp == -torch.inf).all()  # no row is negative


# -- what makes a term zero or meaningless -------------------------------------------------------


def with_dropout(place):
    policy, extra = some_policy(), {}
    if place == "attention":
        for layer in policy.model.model.layers:
            layer.self_attn.attention_dropout = 0.1
    else:
        extra["peft_config"] = LoraConfig(r=2, lora_dropout=0.05, target_modules=["q_proj"])
    return policy, extra


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("attention", r"attention_dropout 0.1\) moves log-probs .* or attention_dropout to 0"),
        ("adapters", r"dropout.* 0.05\) moves log-probs .* set disable_dropout=True"),
    ],
)
def test_dropout_is_refused_with_a_term_and_warned_of_without(place, part, tmp_path, caplog):
    policy, extra = with_dropout(place)
    with pytest.raises(ValueError, match=part) as refusal:
        trainer(settings(tmp_path, **LLDS), policy, **extra)
    assert "\n" not in str(refusal.value)
    policy, extra = with_dropout(place)
    with caplog.at_level(logging.WARNING, logger="lldlib"):
        trainer(settings(tmp_path), policy, **extra)
    assert "moves log-probs by chance" in caplog.text
    caplog.clear()
    policy, extra = with_dropout(place)
    trainer(settings(tmp_path, measure_every=0), policy, **extra)
    assert "dropout" not in caplog.text


def test_dropout_that_trl_switches_off_is_none(tmp_path):
    policy, extra = with_dropout("adapters")
    run = trainer(settings(tmp_path, disable_dropout=True, **LLDS), policy, **extra)
    assert run.active == ["llds"]


def test_masked_truncation_is_refused_with_our_rollout(tmp_path):
    with pytest.raises(ValueError, match="mask_truncated_completions=True would mask every"):
        trainer(settings(tmp_path, mask_truncated_completions=True), some_policy())


def test_a_batch_without_a_token_is_reported(tmp_path):
    """Every completion is cut, so TRL masks all of it; a rollout of one's own, which may end so."""

    def cut(prompts, trainer):
        ids = [[5, 6, 7]] * len(prompts)
        return {"prompt_ids": [[4]] * len(prompts), "completion_ids": ids, "logprobs": None}

    folder = tmp_path / "run"
    config = settings(
        tmp_path, mask_truncated_completions=True, run_folder=str(folder), **LLDS, **LP_REG
    )
    trainer(config, some_policy(), rollout_func=cut).train()
    (row,) = Run(folder).metrics
    assert row["llds/value"] == 0.0 and "reward/mean" in row
    assert not {"entropy", "tokens", "policy/entropy"} & set(row)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"measure_every": -1}, "measure_every is -1: use 1 or more"),
        ({"measure_every": 0, "run_folder": "runs"}, "run_folder needs measurements"),
        ({"gradient_accumulation_steps": 2, "run_folder": "runs"}, "run_folder needs measurements"),
        (LP_REG | {"gradient_accumulation_steps": 2}, "an update would mix rollout batches"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, part, tmp_path):
    with pytest.raises(ValueError, match=part) as refusal:
        settings(tmp_path, **changes)
    assert "\n" not in str(refusal.value)


def test_a_term_that_reads_what_trl_does_not_hand_on_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trl_config, "needs", lambda config: {"ref_logp", "entropy"})
    with pytest.raises(ValueError, match=r"TRL hands no ref_logp to the loss; .* or set beta"):
        settings(tmp_path, **LLDS)
    assert settings(tmp_path, beta=0.1, **LLDS).active == ["llds"]


# -- what silences the policy term ---------------------------------------------------------------


def test_tokens_of_another_sampler_are_left_alone_and_split_no_action(tmp_path, read):
    """Importance ratio 0 on the third token of each row, as TRL's masks set it for vLLM."""
    config = settings(tmp_path, measure_every=0, max_steps=2, num_iterations=2, **LLDS, **LP_REG)
    run = trainer(config, some_policy())
    real = run._generate_and_score_completions

    def masked(inputs):
        output = real(inputs)
        ratio = torch.ones(output["completion_ids"].shape)
        ratio[:, 2] = 0.0
        return output | {"importance_sampling_ratio": ratio}

    run._generate_and_score_completions = masked
    run.train()
    x, _, value = read[-1]
    assert value > 0 and x.action_mask[:, 2].any()  # it is still part of its action
    assert torch.equal(x.old_logp[:, 2], x.logp[:, 2].detach())
    assert not torch.equal(x.old_logp[:, 1], x.logp[:, 1].detach())
    assert (x.proxy_logp[:, 2] == -torch.inf).all() and (x.proxy_logp[:, 1] > -torch.inf).any()


def test_rows_too_far_off_policy_are_left_to_lp_reg_neither(tmp_path, read):
    config = settings(tmp_path, measure_every=0, off_policy_mask_threshold=-1e9, **LP_REG)
    trainer(config, some_policy()).train()
    assert len(read) == 3 and all(value == 0.0 for *_, value in read)
    read.clear()
    trainer(settings(tmp_path, measure_every=0, **LP_REG), some_policy()).train()
    assert all(value > 0 for *_, value in read)


# -- measuring, and what it costs ----------------------------------------------------------------


def test_every_second_batch_is_measured(tmp_path):
    folder = tmp_path / "run"
    config = settings(tmp_path, max_steps=12, measure_every=2, run_folder=str(folder), **LLDS)
    trainer(config, some_policy()).train()
    rows = Run(folder).metrics
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all({"llds/value", "reward/mean"} <= set(row) for row in rows)
    dear = {"displacement/correct_token", "policy/entropy", "grad/norm", "likelihood/correct"}
    assert [bool(dear & set(row)) for row in rows] == [True, False, True, False]
    assert dear <= set(rows[2])


def test_without_measurements_the_terms_own_numbers_are_logged(tmp_path):
    run = trainer(settings(tmp_path, measure_every=0, **LLDS), some_policy())
    run.train()
    logged = {key for entry in run.state.log_history for key in entry}
    assert {"llds/value", "llds/open_gate_share"} <= logged
    assert not {"phase", "alarm", "probe/logp", "grad/norm", "reward/mean"} & logged


def passes(config, kind=LLDGRPOTrainer) -> tuple[int, int]:
    """How often the layers and the head run for two rollout batches of stored episodes."""
    policy, counts = some_policy(), [0, 0]
    questions = [q for q in world_questions(8) for _ in range(4)]
    _, episodes = random_batch(policy, 32, questions=questions, max_tokens=40, max_searches=3)

    def count(at):
        def noted(*_):
            counts[at] += 1

        return noted

    run = trainer(config, policy, Replaying(episodes))
    run.__class__ = kind
    policy.model.model.layers[0].register_forward_hook(count(0))
    policy.model.lm_head.register_forward_hook(count(1))
    run.train()
    return tuple(counts)


@pytest.mark.parametrize("steps", [1, 4], ids=["three passes over it", "four minibatches"])
def test_terms_without_measurements_take_no_further_pass(steps, tmp_path):
    """The layers run as often as in TRL's own trainer; Lp-Reg asks the head for rows of A < 0."""
    rows = {"steps_per_generation": steps, "per_device_train_batch_size": 8 // steps}
    rows |= {"max_steps": 6 if steps == 1 else 8, "num_iterations": 3 if steps == 1 else 1}
    layers, head = passes(settings(tmp_path, measure_every=0, **rows), GRPOTrainer)
    assert (layers, head) == (8 if steps == 1 else 16, 0)  # TRL's loss has a head of its own
    assert passes(settings(tmp_path, measure_every=0, **rows)) == (layers, 0)
    assert passes(settings(tmp_path, measure_every=0, **rows, **LLDS)) == (layers, 0)
    both = passes(settings(tmp_path, measure_every=0, **rows, **LLDS, **LP_REG))
    assert both[0] == layers and 0 < both[1] < 16  # of 16 rows those of A < 0
    assert passes(settings(tmp_path, **rows, **LLDS))[0] > layers


def test_lp_reg_with_one_update_a_batch_takes_a_pass_more_only_for_micro_batches(tmp_path):
    """Of two rollout batches: the delta is the whole batch's, and a micro-batch cannot know it."""
    rows = {"num_iterations": 1, "max_steps": 2, "measure_every": 0}
    assert passes(settings(tmp_path, **rows), GRPOTrainer) == (2, 0)
    layers, head = passes(settings(tmp_path, **rows, **LP_REG))
    assert layers == 2 and 0 < head < 16
    rows |= {"gradient_accumulation_steps": 2, "steps_per_generation": 2}
    rows["per_device_train_batch_size"] = 4
    assert passes(settings(tmp_path, **rows), GRPOTrainer) == (4, 0)
    assert passes(settings(tmp_path, **rows, **LP_REG))[0] == 4 + 4


def test_one_micro_batch_and_two_have_the_same_lp_reg(tmp_path, read):
    """Delta and proxy come out of the live pass in one case, of a pass before it in the other."""
    totals = []
    for size in (8, 4):
        rows = {"per_device_train_batch_size": size, "num_iterations": 1, "max_steps": 1}
        rows |= {"gradient_accumulation_steps": 8 // size, "steps_per_generation": 8 // size}
        read.clear()
        trainer(settings(tmp_path, measure_every=0, **rows, **LP_REG), some_policy()).train()
        totals.append(float(sum(value for *_, value in read)))
        deltas = {float(x.low_logp) for x, *_ in read}
        assert len(deltas) == 1
        totals.append(deltas.pop())
    assert totals[0] > 1e-3
    assert totals[:2] == pytest.approx(totals[2:], abs=1e-5)


# -- what TRL's own tests ask --------------------------------------------------------------------


def test_without_args_it_makes_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = base_config._BaseConfig.__post_init__

    def on_the_cpu(config):
        config.use_cpu, config.bf16 = True, False
        real(config)

    monkeypatch.setattr(base_config._BaseConfig, "__post_init__", on_the_cpu)
    policy = some_policy()
    other = trainer(settings(tmp_path), policy)
    policy.model.config._name_or_path = "somewhere/a-model"
    run = LLDGRPOTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=other.reward_funcs,
        train_dataset=other.train_dataset,
    )
    assert isinstance(run.args, LLDGRPOConfig) and run.active == []
    assert run.args.output_dir == "a-model-GRPO"


def test_updates_of_mixed_rollout_batches_are_trls_own_and_not_measured(tmp_path, caplog):
    rows = {"gradient_accumulation_steps": 2, "steps_per_generation": 3, "num_iterations": 1}
    rows |= {"per_device_train_batch_size": 4, "max_steps": 3}
    with caplog.at_level(logging.WARNING, logger="lldlib"):
        config = settings(tmp_path, **rows)
    assert config.measure_every == 0
    assert "nothing is measured: steps_per_generation=3 is no multiple" in caplog.text
    policies = [some_policy(), some_policy()]
    for policy, kind in zip(policies, (GRPOTrainer, LLDGRPOTrainer), strict=True):
        run = trainer(settings(tmp_path, **rows), policy, Remembering(policy))
        run.__class__ = kind
        run.train()
    ours, theirs = (policy.model.state_dict() for policy in policies)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
