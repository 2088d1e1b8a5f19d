"""The verl adapter: registered by name, the same term and gradient as ours, verl's divisors."""

import dataclasses
import subprocess
import sys

import jaxtyping
import pytest
import torch

pytest.importorskip("verl", reason="needs the extra 'verl': run make test-adapters")

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config import ActorConfig, FSDPActorConfig

from lldlib.adapters.verl import NO_TOKEN_MEAN, LLDSPolicyLossConfig, check, llds_policy_loss
from lldlib.config import LossConfig
from lldlib.losses.objective import LossInputs, compute_loss

TARGET = "lldlib.adapters.verl.LLDSPolicyLossConfig"
ALLOWED = 1e-5  # of the term and of every entry of its gradient


def actor(**settings) -> ActorConfig:
    """An actor's settings; one update of 4 rows."""
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_mini_batch_size=4,
        ppo_micro_batch_size_per_gpu=4,
        policy_loss=LLDSPolicyLossConfig(**settings),
    )


def rows() -> dict[str, torch.Tensor]:
    """Four rows of two actions with a tool result between them."""
    draw = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 10)
    mask[:, 4:6], mask[1, 8:] = 0.0, 0.0
    advantages = torch.tensor([[1.0], [-1.0], [0.0], [0.5]]).expand(4, 10) * mask
    return {
        "old_log_prob": -torch.rand(4, 10, generator=draw),
        "log_prob": (-torch.rand(4, 10, generator=draw)).requires_grad_(),
        "advantages": advantages,
        "response_mask": mask,
    }


def test_it_is_registered():
    assert get_policy_loss_fn("llds") is llds_policy_loss


def test_installing_lldlib_is_enough():
    """verl finds the entry point in a process that imports nothing of ours."""
    code = "import verl; from verl.trainer.ppo import core_algos as c; c.get_policy_loss_fn('llds')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_settings_come_from_the_command_line():
    given = {
        "_target_": "lldlib.adapters.verl.LLDSPolicyLossConfig",
        "loss_mode": "llds",
        "llds_coef": 0.3,
    }
    made = omega_conf_to_dataclass(OmegaConf.create(given))
    assert isinstance(made, LLDSPolicyLossConfig) and made.llds_coef == 0.3


@pytest.mark.parametrize("preserve", ["nonnegative", "positive"])
@pytest.mark.parametrize("gate", ["action", "response", "token"])
def test_the_term_and_its_gradient_are_ours(gate, preserve):
    where = {"llds_gate": gate, "llds_preserve": preserve}
    x, config = rows(), actor(llds_coef=0.7, **where)
    whole, metrics = llds_policy_loss(**x, config=config)
    base, _ = compute_policy_loss_vanilla(**x, config=config)
    ours = LossConfig(kl_coef=0.0, llds_coef=0.7, **where, llds_normalizer="all")
    mask = x["response_mask"].bool()
    given = LossInputs(
        logp=x["log_prob"],
        old_logp=x["old_log_prob"],
        advantages=torch.tensor([1.0, -1.0, 0.0, 0.5]),
        action_mask=mask,
        answer_mask=torch.zeros_like(mask),
    )
    total, stats = compute_loss(ours, given)
    bare, _ = compute_loss(dataclasses.replace(ours, llds_coef=0.0), given)
    assert float(total - bare) > 100 * ALLOWED
    torch.testing.assert_close(whole - base, total - bare, atol=ALLOWED, rtol=0)
    assert metrics["actor/llds"] == pytest.approx(float(stats["llds/value"]), abs=ALLOWED)
    share = float(stats["llds/open_gate_share"])
    assert metrics["actor/llds_open_gate_share"] == pytest.approx(share, abs=ALLOWED)
    (gradient,) = torch.autograd.grad(whole - base, x["log_prob"])
    (reference,) = torch.autograd.grad(total - bare, x["log_prob"])
    torch.testing.assert_close(gradient, reference, atol=ALLOWED, rtol=0)
    assert gradient[~mask].abs().max() == 0


def test_micro_batches_and_ranks_add_up_by_verls_global_batch_info():
    """Two ranks of one row pair each: the mean of their losses is that of the whole minibatch."""
    x, settings = rows(), {"llds_coef": 0.7, "llds_gate": "action"}
    whole, _ = llds_policy_loss(**x, config=actor(**settings))
    parts = []
    for part in ([0, 1], [2, 3]):
        config = actor(**settings)
        tokens = int(x["response_mask"].sum())
        config.global_batch_info.update(dp_size=2, batch_num_tokens=tokens)
        loss, _ = llds_policy_loss(**{k: v[part] for k, v in x.items()}, config=config)
        parts.append(loss)
    torch.testing.assert_close(sum(parts) / 2, whole)


def test_a_weight_of_zero_is_verls_own_loss():
    x, config = rows(), actor(llds_coef=0.0)
    loss, metrics = llds_policy_loss(**x, config=config)
    base, plain = compute_policy_loss_vanilla(**x, config=config)
    assert torch.equal(loss, base)
    assert plain.items() <= metrics.items()  # the others: test_likelihood.py


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="give 'vanilla'"):
        LLDSPolicyLossConfig(llds_base="llds")
    plain = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_mini_batch_size=4, ppo_micro_batch_size_per_gpu=4
    )
    with pytest.raises(TypeError, match=r"_target_=lldlib\.adapters\.verl"):
        llds_policy_loss(**rows(), config=plain)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"llds_gate": "tokn"}, "llds_gate is tokn: use one of"),
        ({"llds_preserve": "postive"}, "llds_preserve is postive: use one of"),
        ({"llds_coef": -1.0}, "llds_coef is -1.0: use"),
        ({"llds_coef": float("nan")}, "llds_coef is nan: use"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_runs(changes, part, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as at a user's
    with pytest.raises(ValueError, match=part):
        LLDSPolicyLossConfig(**changes)
    where = "+actor_rollout_ref.actor.policy_loss."
    with pytest.raises(ValueError, match=part) as refusal:
        validate_config(whole(**{where + name: v for name, v in changes.items()}), False, False)
    assert "\n" not in str(refusal.value)


def test_an_unknown_base_is_refused_unless_a_library_of_the_users_may_bring_it():
    base = {"+actor_rollout_ref.actor.policy_loss.llds_base": "vanila"}
    with pytest.raises(ValueError, match="unknown policy loss 'vanila': did you mean vanilla"):
        check(whole(**base))
    check(whole(**base, **{"actor_rollout_ref.model.external_lib": "my.losses"}))


def test_llds_that_would_be_off_is_told(caplog):
    loss = "actor_rollout_ref.actor.policy_loss"
    with pytest.raises(ValueError, match="with loss_mode=vanilla: LLDS would be off"):
        check(whole(**{f"{loss}.loss_mode": "vanilla"}))
    with pytest.raises(ValueError, match=r"needs its settings: add .*_target_=lldlib"):
        check(whole(**{f"{loss}._target_": "verl.workers.config.PolicyLossConfig"}))
    config = whole()
    with open_dict(config):
        del config.actor_rollout_ref.actor.policy_loss.llds_coef
    check(config)
    assert "no llds_coef: LLDS is off" in caplog.text


def whole(**changes):
    """verl's whole configuration, as Hydra composes it, with LLDS and eight updates per batch."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        given = {
            "actor_rollout_ref.actor.policy_loss.loss_mode": "llds",
            "actor_rollout_ref.actor.policy_loss._target_": TARGET,
            "+actor_rollout_ref.actor.policy_loss.llds_coef": 0.2,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
            "data.train_batch_size": 512,
        }
        lines = [f"{key}={value}" for key, value in (given | changes).items()]
        return compose("ppo_trainer", overrides=lines)


CORRECTION = "algorithm.rollout_correction"
GATE = "+actor_rollout_ref.actor.policy_loss.llds_gate"
COEF = "+actor_rollout_ref.actor.policy_loss.llds_coef"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({f"{CORRECTION}.bypass_mode": True}, "bypass_mode=True gives .* set it to False"),
        (
            {f"{CORRECTION}.rollout_rs": "token_k1", f"{CORRECTION}.rollout_rs_threshold": "0.5_2"},
            "rollout_rs=token_k1 leaves holes .* set llds_gate=response",
        ),
        (
            {"actor_rollout_ref.actor.ppo_mini_batch_size": 512},
            "ppo_mini_batch_size=512 of train_batch_size=512 is one update .* set it to 64",
        ),
    ],
)
def test_what_would_make_llds_mean_nothing_is_refused_by_verls_own_check(changes, part):
    with pytest.raises(ValueError, match=part) as refusal:
        validate_config(whole(**changes), False, False)
    assert "\n" not in str(refusal.value)
    off = {COEF: 0.0}
    validate_config(whole(**changes, **off), False, False)  # verl's own business


@pytest.mark.parametrize(
    ("mode", "factor"),
    [
        ("token-sum", 12.0),  # tokens
        ("seq-mean-token-sum", 4.0),  # of a row
        ("seq-mean-token-sum-norm", 0.4),  # 4 / 10
        ("token-mean", 1.0),
        ("seq-mean-token-mean", 1.0),
    ],
)
def test_a_base_loss_that_is_no_token_mean_is_warned_of(mode, factor, caplog):
    """Three rows of four tokens; the factor named is that of the base loss to a token mean."""
    batch = {
        "old_log_prob": torch.full((3, 4), -1.0),
        "log_prob": torch.full((3, 4), -1.0),
        "advantages": torch.ones(3, 4),
        "response_mask": torch.ones(3, 4),
    }
    config = actor()
    config.global_batch_info["loss_scale_factor"] = 10
    loss, _ = llds_policy_loss(**batch, config=config, loss_agg_mode=mode)
    assert float(loss) == pytest.approx(-factor)
    check(whole(**{"actor_rollout_ref.actor.loss_agg_mode": mode}))
    named = NO_TOKEN_MEAN.get(mode)
    assert (named is None) == (factor == 1)
    if named:
        assert f"loss_agg_mode='{mode}' is no" in caplog.text
        assert caplog.text.rstrip().endswith(f"multiply llds_coef by {named}")
    else:
        assert caplog.text == ""
    caplog.clear()
    check(whole(**{"actor_rollout_ref.actor.loss_agg_mode": mode, COEF: 0.0}))
    assert caplog.text == ""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {f"'{CORRECTION}.rollout_rs'": "seq_mean_k1"},
        {f"{CORRECTION}.rollout_rs": "token_k2", GATE: "response"},
        {
            "actor_rollout_ref.actor.ppo_mini_batch_size": 512,
            "actor_rollout_ref.actor.ppo_epochs": 2,
        },
    ],
)
def test_what_llds_can_bear_is_let_through(changes):
    changes = {key.strip("'"): value for key, value in changes.items()}
    validate_config(whole(**changes), False, False)


def test_rejected_tokens_do_not_split_what_the_response_gate_sums_over():
    """Falls -2, 5 (rejected), 1, -.5: the sum of the kept ones is -1.5, so the gate is shut."""
    x = {
        "old_log_prob": torch.tensor([[-3.0, -1.0, -1.0, -1.5]]),
        "log_prob": torch.tensor([[-1.0, -6.0, -2.0, -1.0]], requires_grad=True),
        "advantages": torch.ones(1, 4),
        "response_mask": torch.tensor([[1.0, 0.0, 1.0, 1.0]]),
    }
    config = actor(llds_coef=1.0, llds_gate="response")
    loss, told = llds_policy_loss(**x, config=config)
    base, _ = compute_policy_loss_vanilla(**x, config=config)
    assert torch.equal(loss, base) and told["actor/llds_open_gate_share"] == 0.0


def test_log_probs_of_the_rollout_engine_are_refused_by_the_loss_itself():
    """As the worker of verl's fully asynchronous trainer, which checks no configuration."""
    given = {"rollout_n": 1, "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4}
    for coef, rollout in ((0.2, True), (0.2, False), (0.0, True)):
        loss = LLDSPolicyLossConfig(llds_coef=coef)
        config = FSDPActorConfig(**given, policy_loss=loss, use_rollout_log_probs=rollout)
        if coef and rollout:
            with pytest.raises(ValueError, match="use_rollout_log_probs=True gives") as told:
                llds_policy_loss(**rows(), config=config)
            assert "\n" not in str(told.value) and "bypass_mode too" in str(told.value)
        else:
            llds_policy_loss(**rows(), config=config)


def test_bypass_mode_is_refused_where_the_actor_alone_knows_of_it():
    bypass = RolloutCorrectionConfig(bypass_mode=True)
    with pytest.raises(ValueError, match="bypass_mode=True"):
        LLDSPolicyLossConfig(llds_coef=0.1, rollout_correction=bypass)
    assert LLDSPolicyLossConfig(rollout_correction=bypass).llds_coef == 0.0
    with pytest.raises(ValueError, match="llds_base='bypass_mode'"):
        LLDSPolicyLossConfig(llds_base="bypass_mode")
