"""The TRL adapter: the same terms and gradients as ours, refusals, diagnostics, LoRA, QLoRA."""

import copy
import logging
import os
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl_runs import Remembering, settings, some_policy, trainer

from lldlib.adapters import trl as adapter
from lldlib.adapters.trl import LLDGRPOTrainer
from lldlib.losses import LossInputs, compute_loss, low_log_prob, needs, regularizers
from lldlib.policy.load import save_policy
from lldlib.policy.score import score
from lldlib.rollout.batch import collate
from lldlib.runs.folder import Run
from lldlib.show.compare import write_report

LLDS = {"llds_coef": 0.7}
LP_REG = {"lp_reg_coef": 0.3, "lp_reg_quantile": 0.5}
TERMS = {
    "action": LLDS,
    "response": LLDS | {"llds_gate": "response"},
    "token": LLDS | {"llds_gate": "token"},
    "positive": LLDS | {"llds_preserve": "positive"},
    "all tokens": LLDS | {"llds_normalizer": "all"},
    "MA": LLDS | {"llds_answer": "paper"},
    "Lp-Reg": LP_REG,
    "Lp-Reg, code and tau": LP_REG | {"lp_reg_selection": "code", "lp_reg_filter": "fixed"},
}
ALLOWED = 1e-5  # of a term and of every entry of its gradient


class Recorder:
    """Keeps, at every update, the adapter's term and gradient, the rows and the weights."""

    def __init__(self, monkeypatch, policy):
        self.model, self.updates = policy.model, []
        self.start = copy.deepcopy(policy.model.state_dict())
        monkeypatch.setattr(adapter, "regularizers", self.regularizers)
        real = LLDGRPOTrainer._compute_loss

        def compute(trainer, model, rows):
            self.rows = rows
            return real(trainer, model, rows)

        monkeypatch.setattr(LLDGRPOTrainer, "_compute_loss", compute)

    def regularizers(self, config, x, counts):
        """The real terms; what they are is kept."""
        loss, stats = regularizers(config, x, counts)
        gradient = None
        if loss.requires_grad:
            parameters = list(self.model.parameters())
            gradient = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        weights = copy.deepcopy(self.model.state_dict())
        self.updates.append((loss.detach(), gradient, self.rows, weights, stats))
        return loss, stats


def ours(config, policy, runner, start, rows, weights) -> tuple[torch.Tensor, list]:
    """The same rows through our own collation, scoring and objective."""
    episodes = runner.episodes
    batch = collate(episodes)
    texts = [tuple(t for turn in e.turns for t in turn.tokens) for e in episodes]
    index = torch.tensor([texts.index(row) for row in read(rows)])
    part = batch.rows(index)
    proxy = config if "proxy_logp" in needs(config) else None
    policy.model.load_state_dict(start)
    with torch.no_grad():
        old = score(policy.model, part, 1.0, proxy=proxy)
        every = score(policy.model, batch, 1.0).logp  # of the rollout batch, not of the update
    policy.model.load_state_dict(weights)
    x = LossInputs(
        logp=score(policy.model, part, 1.0).logp,
        old_logp=old.logp,
        advantages=rows["advantages"],
        action_mask=part.action_mask,
        answer_mask=part.answer_mask,
        proxy_logp=old.proxy_logp,
        mean_valid_searches=sum(e.valid_searches for e in episodes) / len(episodes),
        low_logp=low_log_prob(every, batch.action_mask, config.lp_reg_quantile),
    )
    bare = type(config)(kl_coef=0.0)
    term = compute_loss(config, x)[0] - compute_loss(bare, x)[0]
    return term, torch.autograd.grad(term, list(policy.model.parameters()), allow_unused=True)


def read(rows) -> list[tuple[int, ...]]:
    """The rows' tokens without padding."""
    out = []
    for row in range(len(rows["prompt_ids"])):
        prompt = rows["prompt_ids"][row][rows["prompt_mask"][row].bool()]
        said = rows["completion_ids"][row][rows["completion_mask"][row].bool()]
        out.append((*prompt.tolist(), *said.tolist()))
    return out


@pytest.mark.parametrize("changes", TERMS.values(), ids=TERMS)
def test_the_term_and_its_gradient_are_ours(changes, monkeypatch, tmp_path):
    policy = some_policy()
    runner, record = Remembering(policy), Recorder(monkeypatch, policy)
    own = some_policy()
    run = trainer(settings(tmp_path, **changes), policy, runner)
    run.train()
    assert len(record.updates) == 3
    sizes = []
    for number, (value, gradient, rows, weights, _) in enumerate(record.updates):
        if "llds_coef" in changes and number == 0:
            assert value == 0.0  # both policies are one
            continue
        term, reference = ours(run.terms, own, runner, record.start, rows, weights)
        torch.testing.assert_close(value, term.detach(), atol=ALLOWED, rtol=0)
        for a, b in zip(gradient, reference, strict=True):
            torch.testing.assert_close(a, b, atol=ALLOWED, rtol=0)
        sizes.append(max(float(b.abs().max()) for b in reference))
    assert max(sizes) > 100 * ALLOWED  # there was something to compare


def test_a_weight_of_zero_leaves_trl_as_it_is(monkeypatch, tmp_path):
    """Bit for bit the weights of the plain trainer, diagnostics and run folder included."""
    from trl import GRPOTrainer

    after = []
    for bare in (False, True):
        policy = some_policy()
        config = settings(tmp_path, run_folder=None if bare else str(tmp_path / "run"))
        run = trainer(config, policy, Remembering(policy))
        if bare:
            plain = GRPOTrainer(
                model=policy.model,
                processing_class=policy.tokenizer,
                reward_funcs=run.reward_funcs,
                rollout_func=run.rollout_func,
                train_dataset=run.train_dataset,
                args=config,
            )
            run = plain
        run.train()
        after.append({k: v.clone() for k, v in policy.model.state_dict().items()})
    assert all(torch.equal(after[0][k], after[1][k]) for k in after[0])
    start = some_policy().model.state_dict()
    assert not all(torch.equal(after[0][k], start[k]) for k in start)  # it did train


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (LP_REG | {"lp_reg_kl": "exact"}, "TRL hands no logits to the loss"),
        (LLDS | {"num_iterations": 1}, "LLDS would be 0 at every update.*steps_per_generation=10 "),
        (
            LLDS
            | {"num_iterations": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 4},
            "set steps_per_generation=40 .* or num_iterations=2",
        ),
        (LLDS | {"gradient_accumulation_steps": 2}, "steps_per_generation=1 is no multiple"),
    ],
)
def test_settings_that_make_llds_zero_are_refused(changes, part, tmp_path):
    with pytest.raises(ValueError, match=part) as refusal:
        settings(tmp_path, **changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("llds_gate", "tokn"), ("llds_preserve", "postive"), ("llds_normalizer", "kept")),
        *(("llds_coef", -1.0), ("llds_coef", float("nan")), ("llds_coef", "0.2")),
        *(("llds_answer", "papr"), ("lp_reg_quantile", 5.0)),
    ],
)
def test_settings_out_of_range_are_refused(name, value, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as at a user's
    with pytest.raises(ValueError, match=f"^{name} is {value}: use ") as refusal:
        settings(tmp_path, **LLDS | {name: value})
    assert "\n" not in str(refusal.value)


def test_without_llds_one_update_a_batch_is_allowed(tmp_path):
    assert settings(tmp_path, num_iterations=1, **LP_REG).updates_per_batch == 1


@pytest.mark.parametrize(
    ("loss_type", "term", "factor"),
    [
        ("dr_grpo", LLDS, "by mean length / max_completion_length"),
        ("luspo", LP_REG, "by mean length"),
        ("dr_grpo", {}, None),
        ("grpo", LLDS, None),
        ("dapo", LLDS | LP_REG, None),
    ],
)
def test_a_loss_that_is_no_token_mean_is_warned_of(loss_type, term, factor, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="lldlib"):
        settings(tmp_path, loss_type=loss_type, **term)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("lldlib")]
    assert len(said) == (factor is not None)
    assert all(loss_type in line and line.endswith(factor) for line in said)


def test_accumulation_counts_the_tokens_of_the_whole_update(monkeypatch, tmp_path):
    """Four rows at a time, two at a time: one update has the same divisors and adds up."""
    values = []
    for size, accumulated in ((8, 1), (4, 2)):
        policy = some_policy()
        record = Recorder(monkeypatch, policy)
        config = settings(
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulated,
            steps_per_generation=accumulated,
            **LLDS,
        )
        trainer(config, policy, Remembering(policy)).train()
        terms = torch.stack([update[0] for update in record.updates]).view(3, accumulated)
        values.append(terms.sum(1))
        monkeypatch.undo()
    assert values[0][1] > 1e-4
    torch.testing.assert_close(values[0], values[1], atol=1e-5, rtol=1e-3)


def test_the_run_folder_and_trls_logs(tmp_path):
    policy, folder = some_policy(), tmp_path / "run"
    config = settings(tmp_path, max_steps=6, run_folder=str(folder), **LLDS, **LP_REG)
    run = trainer(config, policy)
    run.train()
    recorded = Run(folder)
    assert [row["step"] for row in recorded.metrics] == [0, 1]
    row = recorded.metrics[-1]
    wanted = ["llds/value", "llds/open_gate_share", "lp_reg/protected_share", "probe/logp"]
    wanted += ["likelihood/correct", "likelihood/incorrect", "likelihood/action_1", "grad/norm"]
    wanted += ["displacement/correct_token", "policy/entropy", "reward/mean", "time/step"]
    assert set(wanted) <= set(row)
    opened = recorded.metrics[0]["llds/open_gate_share"]  # in the second batch no response falls
    assert 0 < opened < 1 and row["grad/norm"] > 0
    logged = {key for entry in run.state.log_history for key in entry}
    assert set(wanted) <= logged and {"phase", "alarm"} <= logged
    assert recorded.config["method"] == "llds_lp_reg" and recorded.config["steps"] == 2
    told = recorded.rollouts[0]["turns"]
    assert [turn["role"] for turn in told[:2]] == ["prompt", "action"]
    assert (tmp_path / "report" / "table.md") in write_report([folder], tmp_path / "report")


def test_a_resumed_run_goes_on_with_its_probe_set(tmp_path):
    folder = tmp_path / "run"
    for steps, checkpoint in ((3, None), (6, str(tmp_path / "trl" / "checkpoint-3"))):
        saving = {"save_strategy": "steps", "save_steps": 3.0, "run_folder": str(folder)}
        config = settings(tmp_path, max_steps=steps, **saving, **LLDS)
        trainer(config, some_policy()).train(resume_from_checkpoint=checkpoint)
    first, second = Run(folder).metrics
    assert (first["step"], second["step"]) == (0, 1)
    assert first["probe/logp"] != second["probe/logp"]
    assert abs(first["probe/logp"] - second["probe/logp"]) < 5  # of the same trajectories


def test_a_plain_config_is_refused(tmp_path):
    from trl import GRPOConfig

    policy = some_policy()
    plain = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(TypeError, match="pass args=LLDGRPOConfig"):
        trainer(plain, policy)


def test_lora_trains_the_adapter_alone(tmp_path):
    policy = some_policy()
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    config = settings(tmp_path, run_folder=str(tmp_path / "run"), **LLDS, **LP_REG)
    run = trainer(config, policy, peft_config=lora)
    run.train()
    state = run.model.state_dict()
    moved = [k for k in state if "lora_B" in k and state[k].abs().max() > 0]
    assert moved
    name = "model.layers.0.self_attn.q_proj.weight"
    kept = next(
        v for k, v in state.items() if k.endswith("layers.0.self_attn.q_proj.base_layer.weight")
    )
    assert torch.equal(kept, before[name])
    assert Run(tmp_path / "run").metrics[-1]["llds/value"] > 0


def test_qlora_trains_the_adapter_alone(tmp_path):
    """bitsandbytes' NF4 on the CPU; TRL loads the model from its folder."""
    pytest.importorskip("bitsandbytes", reason="QLoRA needs bitsandbytes")
    policy, lora = some_policy(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    save_policy(policy, tmp_path / "policy")
    four_bit = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    run = trainer(
        settings(tmp_path, run_folder=str(tmp_path / "run"), **LLDS, **LP_REG),
        policy,
        model=str(tmp_path / "policy"),
        quantization_config=four_bit,
        peft_config=lora,
    )
    run.train()
    moved = {n: p for n, p in run.model.named_parameters() if "lora_B" in n and p.abs().max() > 0}
    assert moved and run.model.is_loaded_in_4bit
    assert Run(tmp_path / "run").metrics[-1]["llds/value"] > 0


def test_two_processes_give_the_numbers_of_one(tmp_path):
    """Rows are replayed and a batch is one minibatch, so both do the same work; gloo on the CPU."""
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here.parent.parent, here.parent, here)))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"  # the machine's own name may have no address
    program = [str(here / "trl_worker.py")]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    launcher += ["--nproc_per_node", "2"]
    for count, command in ((1, program), (2, launcher + program)):
        whole = [sys.executable, *command, str(tmp_path / str(count))]
        done = subprocess.run(whole, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    one, two = (Run(tmp_path / str(count) / "run") for count in (1, 2))
    assert two.config["processes"] == 2 and len(one.metrics) == len(two.metrics) == 2
    for a, b in zip(one.metrics, two.metrics, strict=True):
        numbers = set(a) - {"time/step"}
        assert numbers == set(b) - {"time/step"} and min(a["llds/value"], a["lp_reg/value"]) > 0
        assert {k: b[k] for k in numbers} == pytest.approx(
            {k: a[k] for k in numbers}, rel=1e-4, abs=1e-5
        )
    weights = [torch.load(tmp_path / str(count) / "weights.pt") for count in (1, 2)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=1e-4, rtol=0)
