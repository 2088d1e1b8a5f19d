"""What the terms read of TRL's rows: ties, masks, and Lp-Reg's proxy without a further pass."""

import os

import pytest
import torch

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Cohere2Config, Gemma2Config, Qwen3MoeConfig
from transformers import Qwen2Config as Qwen2

from lldlib.adapters.trl_rows import backbone, listening, proxy, tied
from lldlib.config import LossConfig
from lldlib.losses import proxy_log_prob

NONE = float("nan")
SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
MODELS = {
    "scaled logits": Cohere2Config(**SMALL, logit_scale=0.25),
    "capped logits": Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0),
    "experts": Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=8
    ),
    "adapters": Qwen2(**SMALL),
}


@pytest.mark.parametrize(
    ("parts", "by_part", "expected"),
    [
        ([[0.8]] * 4 + [[0.1], [0.2], [0.3], [0.2]], False, [True] * 4 + [False] * 4),
        ([[0.1, 0.2, 0.3], [0.3, 0.1, 0.2]] * 2, False, [True] * 4),  # .6 in every row
        ([[0.0, 1.0], [1.0, 0.0]] * 2, True, [True] * 4),
        ([[0.1, 0.0], [0.1, 0.0], [0.1, 0.0], [0.1, 1.0]], True, [False] * 4),
        ([[0.7, 0.3]] * 4, True, [True] * 4),
        ([[0.8], [NONE], [0.8], [0.8]], False, [True] * 4),  # None is no other reward
        ([[0.0], [NONE], [1.0], [0.0]], False, [False] * 4),
        ([[NONE]] * 4, False, [True] * 4),
        ([[1e-4], [1e-4], [1e-4], [2e-4]], False, [False] * 4),  # small, and different
    ],
)
def test_ties(parts, by_part, expected):
    parts = torch.tensor(parts)
    found = tied(parts, torch.ones(parts.shape[1]), 4, by_part=by_part)
    assert found.tolist() == expected


def test_weights_make_and_break_ties():
    parts = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert tied(parts, torch.tensor([2.0, 1.0]), 2, by_part=False).tolist() == [True, True]
    assert tied(parts, torch.tensor([1.0, 1.0]), 2, by_part=False).tolist() == [False, False]


@pytest.mark.parametrize("settings", [{}, {"lp_reg_filter": "fixed"}], ids=["min-p", "fixed"])
@pytest.mark.parametrize("name", MODELS)
def test_the_proxy_of_a_kept_pass_is_that_of_the_models_logits(name, settings):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name])
    if name == "adapters":
        model = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False))
    tokens, asked = torch.randint(1, 50, (3, 9)), torch.tensor([True, False, True])
    with torch.no_grad(), listening(backbone(model), 4) as heard:
        logits = model(input_ids=tokens).logits[:, -5:-1] / 0.7
    config = LossConfig(**settings)
    found = proxy(model, Accelerator(), *heard, tokens[:, -4:], asked, config, 0.7)
    which = {"tau": 0.02} if settings else {"kappa": 0.02}
    expected = proxy_log_prob(logits, tokens[:, -4:], **which)
    assert (expected[asked] > -torch.inf).any()
    torch.testing.assert_close(found[asked], expected[asked], atol=1e-5, rtol=0)
    assert (found[~asked] == -torch.inf).all()
    again = model(input_ids=tokens).logits[:, -5:-1] / 0.7  # the model is as it was
    torch.testing.assert_close(again, logits)
