"""TRL trains the hub's model families with LLDS, at small random sizes."""

import math
import os

import pytest

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import test_families
from helpers import retriever
from peft import LoraConfig
from trl_runs import settings, trainer

from lldlib.config import RolloutConfig
from lldlib.policy.load import load_policy
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Run
from lldlib.world.environment import RULES

LIMITS = RolloutConfig(max_tokens=200, max_searches=1)
LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
made = test_families.made  # a fixture: a family's policy in a folder


@pytest.mark.parametrize(
    ("name", "lora"), [("Qwen3-0.6B", None), ("Llama-3.2-1B", LORA), ("Gemma-3", None)]
)
def test_a_family_trains(made, tmp_path, name, lora):
    """The batch's LLDS is all of its second update: nothing has moved at the first."""
    policy = load_policy(made(name, peak=1.0))
    limits = {"max_completion_length": LIMITS.max_tokens, "num_iterations": 2, "max_steps": 2}
    llds = {"llds_coef": 0.7, "llds_gate": "token"}  # no kept response falls as a whole so soon
    run = trainer(
        settings(tmp_path, **limits, **llds, run_folder=str(tmp_path / "run")),
        policy,
        Rollout(policy.tokenizer, RULES["qa"], retriever(), LIMITS),
        peft_config=lora,
    )
    before = {k: v.clone() for k, v in run.model.named_parameters()}
    run.train()
    (batch,) = Run(tmp_path / "run").metrics
    assert batch["llds/value"] > 0 and math.isfinite(batch["llds/value"])
    norms = [entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry]
    assert len(norms) == 2 and all(norm > 0 and math.isfinite(norm) for norm in norms)
    moved = {k for k, v in run.model.named_parameters() if not v.equal(before[k])}
    assert moved == {k for k, v in run.model.named_parameters() if v.requires_grad}
