"""`check-llds` on trainers of TRL and on our policy loss of verl; each where its engine is."""

import functools

import pytest

from lldlib.adapters.check_llds import check_llds
from lldlib.losses import aggregate, llds_penalty, preserved_mask


def trainer_with(tmp_path, anchor: str, divided: bool = True, **settings):
    """A function that builds a GRPOTrainer plus 0.2 LLDS, anchored as named.

    `divided`: by the micro-batches of an update, which TRL leaves to the loss.
    """
    from datasets import Dataset
    from helpers import tiny_policy
    from trl import GRPOConfig, GRPOTrainer

    class Mine(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self.seen = out[0]
            return out

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            logp, mask = self.seen, (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            old = inputs.get("old_per_token_logps", logp.detach())
            old = {"old": old, "current": logp, "ref": inputs["ref_per_token_logps"]}[anchor]
            term = llds_penalty(logp, old.detach(), inputs["advantages"], mask)
            kept = preserved_mask(inputs["advantages"], mask)
            parts = self.current_gradient_accumulation_steps if divided else 1
            return loss + 0.2 * aggregate(term, kept, "token-mean") / parts

    def build():
        given = {
            "output_dir": str(tmp_path),
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "num_generations": 4,
            "per_device_train_batch_size": 4,
            **settings,
        }
        policy = tiny_policy()
        policy.tokenizer.pad_token = policy.tokenizer.eos_token
        rows = Dataset.from_list([{"prompt": "Question: x"}] * 4)
        return Mine(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(**given),
            train_dataset=rows,
        )

    return build


@pytest.mark.parametrize(
    ("anchor", "settings", "wrong"),
    [
        ("old", {"steps_per_generation": 4}, set()),
        ("old", {"steps_per_generation": 4, "loss_type": "grpo"}, set()),
        ("old", {"steps_per_generation": 16, "gradient_accumulation_steps": 4}, set()),
        ("ref", {"steps_per_generation": 4}, {"zero-at-first", "old-anchor"}),
        ("current", {"steps_per_generation": 4}, {"then-not", "gradient"}),
        ("old", {"steps_per_generation": 1}, {"then-not", "gradient", "updates"}),
    ],
)
def test_a_trainer_of_trl_is_checked_without_its_base(tmp_path, anchor, settings, wrong):
    pytest.importorskip("trl")
    build = trainer_with(tmp_path, anchor, **settings)
    report = check_llds(build, signature="trl-trainer")
    broken = {p.name for p in report.promises if not p.kept and not p.seen.startswith("not seen")}
    assert broken == wrong
    if not wrong:
        assert len(report.promises) == 27 and report.normaliser.endswith("(the paper)")


@pytest.mark.parametrize("accumulated", [1, 4])
def test_a_term_that_is_not_divided_by_the_accumulation_is_told(tmp_path, accumulated):
    """TRL adds up the losses of an update's micro-batches: undivided, 4 of them weigh 4 lambda."""
    pytest.importorskip("trl")
    given = {"gradient_accumulation_steps": accumulated, "steps_per_generation": 4 * accumulated}
    report = check_llds(trainer_with(tmp_path, "old", False, **given), signature="trl-trainer")
    (broken,) = [promise for promise in report.promises if not promise.kept]
    assert broken.name == "accumulation" and broken.seen.startswith("each weighs 1 of before")


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo"])
@pytest.mark.parametrize("accumulated", [1, 4])
def test_a_case_gives_trls_own_loss_the_weight_of_its_part(tmp_path, loss_type, accumulated):
    """Half the tokens have A = 1: TRL's loss is -1/2, over the micro-batches of an update."""
    pytest.importorskip("trl")
    from lldlib.adapters.check_llds import TrainerCall, rows

    given = {"gradient_accumulation_steps": accumulated, "steps_per_generation": 4 * accumulated}
    call = TrainerCall(trainer_with(tmp_path, "old", loss_type=loss_type, **given)())
    call.trainer.model.train()
    case = rows(("aaaa", [0] * 4, 1), ("aaaa", [0] * 4, 0))

    def loss() -> float:
        with call._forward(case.logp):
            base = call.base._compute_loss(call.trainer, call.trainer.model, call._inputs(case))
        return float(base)

    assert loss() == pytest.approx(-0.5 / accumulated)
    with call.accumulating_twice():
        assert loss() == pytest.approx(-0.25 / accumulated)
    assert loss() == pytest.approx(-0.5 / accumulated)


def test_what_is_no_trainer_of_trl_is_told():
    with pytest.raises(ValueError, match="must return a TRL trainer"):
        check_llds(dict, signature="trl-trainer")


@pytest.mark.parametrize("gate", ["action", "response", "token"])
def test_our_policy_loss_of_verl_keeps_every_promise(gate):
    pytest.importorskip("verl")
    from verl.workers.config import ActorConfig

    from lldlib.adapters.verl import LLDSPolicyLossConfig, llds_policy_loss

    settings = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_mini_batch_size=4,
        ppo_micro_batch_size_per_gpu=4,
        policy_loss=LLDSPolicyLossConfig(llds_coef=0.2, llds_gate=gate),
    )
    bound = functools.partial(llds_policy_loss, config=settings)
    report = check_llds(bound, gate=gate, signature="verl-policy-loss")
    assert [p.seen for p in report.promises] == [""] * 25
    assert report.normaliser.endswith("(the official code)")
