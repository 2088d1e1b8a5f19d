"""Does a setting fit on a GPU? The memory of training, by parts, from a configuration alone.

What a training step holds beside its weights is found by running one step of the same code on
tensors without storage, and adding up what would be alive at the same time.
"""

import copy
import json
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from lldlib.config import Precision, data_dir
from lldlib.policy.head import CHUNK_ELEMENTS, head_scores
from lldlib.policy.load import (
    BUILT_IN,
    LoraSettings,
    check_name,
    keep_few_activations,
    with_adapters,
)

GB = 1e9
BLOCK, BLOCKS = 64, 256  # NF4: weights per scale, scales per scale of the scales
NF4_BYTES = 0.5 + 1 / BLOCK + 4 / (BLOCK * BLOCKS)  # a weight, with double quantisation
CONTEXT = 0.8 * GB  # CUDA's context and the allocator's waste: a guess, not measured


@dataclass(frozen=True)
class Shape:
    """What a training run holds at a time."""

    update_rows: int  # episodes of one optimiser update
    rollout_rows: int  # episodes generated at the same time: rollout.at_once, or a batch's
    tokens: int  # of the longest episode, retrieved text included


@dataclass(frozen=True)
class Fit:
    """Memory in bytes; a rollout's cache is gone when an update begins.

    The probe set and exams hold no more rows than a rollout of training does.
    """

    always: dict[str, float]
    update: dict[str, float]
    rollout: dict[str, float]
    available: float

    @property
    def total(self) -> float:
        """The peak."""
        passing = max(sum(self.update.values()), sum(self.rollout.values()))
        return sum(self.always.values()) + passing

    @property
    def fits(self) -> bool:
        """Whether the peak is within what the GPU has."""
        return self.total <= self.available

    def table(self) -> str:
        """The parts, the peak and the verdict as text, in GB (1e9 bytes)."""
        groups = {"always": self.always, "in an update": self.update, "in a rollout": self.rollout}
        lines = [
            f"{name:<28}{value / GB:8.2f} GB  {when}"
            for when, parts in groups.items()
            for name, value in parts.items()
        ]
        verdict = "fits" if self.fits else "does NOT fit"
        lines.append(f"{'peak':<28}{self.total / GB:8.2f} GB")
        return "\n".join([*lines, f"{verdict} in {self.available / GB:.1f} GB"])


def estimate(
    policy: str,
    gpu_gb: float | int,
    shape: Shape,
    *,
    quantize: str | None,
    lora: LoraSettings | None,
    dtype: Precision,
    gradient_checkpointing: bool,
    reference: bool,
    move_limit: bool = False,
) -> Fit:
    """The memory of a GRPO run of `policy` with the settings of `load_policy`.

    `reference`: the loss has a KL term, which without adapters needs a second copy of the weights.
    `move_limit`: each update is limited, for which what it moves is copied first (`train.limit`).
    Raises ValueError for an unknown policy, or a quantised one without adapters.
    """
    if quantize and lora is None:
        raise ValueError("a quantised policy trains through adapters only: give lora")
    config = configuration(policy)
    item = torch.finfo(getattr(torch, dtype)).bits // 8
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=getattr(torch, dtype))
        linear = [m for m in model.get_decoder().modules() if isinstance(m, nn.Linear)]
        packed = sum(m.weight.numel() for m in linear) if quantize else 0
        weights = sum(p.numel() for p in model.parameters())  # a tied matrix counts once
        if gradient_checkpointing:
            keep_few_activations(model)
        if lora is not None:
            model = with_adapters(model, lora)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    with FakeTensorMode():
        _replace_weights(model)
        step = _step_peak(model.train(), config, shape.update_rows, shape.tokens)
        head = _head_peak(model, config, shape.update_rows * (shape.tokens - 1), item)
    stored = packed * NF4_BYTES + (weights - packed) * item
    trained = 4 if lora else item  # bytes a number
    moment = 1 + 4 / BLOCKS if quantize else 4
    always = {"weights": float(stored), "optimiser": 2.0 * moment * trainable}
    if not lora and item < 4:  # policy.optimizer.MasterAdamW
        always["master weights"] = 4.0 * trainable
    if lora:
        always["adapters"] = 4.0 * trainable
    elif reference:
        always["reference"] = float(stored)
    # bitsandbytes unpacks one layer's weight at a time
    unpacked = float(max(m.weight.numel() for m in linear) * item if quantize else 0)
    return Fit(
        always=always | {"context": CONTEXT},
        update={
            "gradients": float(trained * trainable),
            "activations": max(0.0, step - head),
            "head": head,
            "unpacked weight": unpacked,
        }
        | ({"weights before the update": 4.0 * trainable} if move_limit else {}),
        rollout=_rollout(config, shape, item) | {"unpacked weight": unpacked},
        available=gpu_gb * GB,
    )


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """Parts of the config.json of the models that the project speaks of, by name.

    With `parameters`, as counted on the published weights.
    """
    return json.loads((data_dir() / "models.json").read_bytes())


def configuration(name_or_path: str) -> PretrainedConfig:
    """The configuration of a policy; of a known model, or its "-Instruct", without any download.

    Raises ValueError for a name or folder that transformers does not find.
    """
    known = known_models().get(name_or_path.removesuffix("-Instruct"))
    if known is not None:
        return AutoConfig.for_model(**{k: v for k, v in known.items() if k != "parameters"})
    check_name(name_or_path)
    path = str(data_dir() / BUILT_IN[name_or_path]) if name_or_path in BUILT_IN else name_or_path
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no configuration of {name_or_path!r}: give a folder, a name on Hugging Face, or one "
            f"of {', '.join(known_models())}"
        ) from error


def _replace_weights(model: nn.Module) -> None:
    """Put tensors of the mode that is on in the place of meta ones; what was tied stays tied."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is not None and id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype)
                    is_weight = isinstance(old, nn.Parameter)
                    made[id(old)] = nn.Parameter(new, old.requires_grad) if is_weight else new
                table[name] = made.get(id(old))


def _rollout(config: PretrainedConfig, shape: Shape, item: int) -> dict[str, float]:
    """Bytes of rollout/: the cache; what is fed; the next tokens.

    Fed texts take the larger of attention's scores, twice and as shares, and as much for every
    number of an MLP (its three products, and the adapters' float32 copies).
    """
    scores = config.num_attention_heads * shape.rollout_rows * shape.tokens**2
    widest = config.intermediate_size * shape.rollout_rows * shape.tokens
    softmax, cumulated = 2 * max(item, 4), max(item, 4) * 2 + 8
    return {
        "key-value cache": float(_cache_numbers(config, shape) * item),
        "texts being fed": float(min(max(scores, widest), CHUNK_ELEMENTS) * (2 * item + softmax)),
        "next tokens": float(shape.rollout_rows * config.vocab_size * (item + cumulated)),
    }


def _cache_numbers(config: PretrainedConfig, shape: Shape) -> int:
    """Keys and values of every layer, token and row."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = 2 * config.num_hidden_layers * config.num_key_value_heads * size
    return layers * shape.tokens * shape.rollout_rows


def _step_peak(model: nn.Module, config: PretrainedConfig, rows: int, tokens: int) -> float:
    """Bytes alive at most in forward and backward, beside weights and their gradients."""
    inputs = torch.zeros(rows, tokens, dtype=torch.long)
    with Live() as live:
        hidden = model.get_decoder()(input_ids=inputs, use_cache=False).last_hidden_state
        states = hidden[:, :-1].reshape(-1, config.hidden_size)
        targets = inputs[:, 1:].reshape(-1)
        head = model.get_output_embeddings()
        head_scores(head, states, targets, 1.0, elements=CHUNK_ELEMENTS).logp.sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
    return float(live.peak - sum(g.untyped_storage().nbytes() for g in grads))


def _head_peak(model: nn.Module, config: PretrainedConfig, tokens: int, item: int) -> float:
    """The same for the head alone, on states that are there already."""
    head = model.get_output_embeddings()
    model.zero_grad(set_to_none=True)
    hidden = torch.zeros(tokens, config.hidden_size, dtype=head.weight.dtype, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.long)
    with Live() as live:
        head_scores(head, hidden, targets, 1.0, elements=CHUNK_ELEMENTS).logp.sum().backward()
    return float(live.peak)


class Live(TorchDispatchMode):
    """Adds up the bytes of the tensors made inside it while they are alive; `peak` is the most."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run the operation and count what it allocated."""
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
        out = function(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if _is_tensor(value) and id(value.untyped_storage()) not in given:
                self._count(value.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = weakref.finalize(storage, self._free, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _free(self, size: int) -> None:
        self.now -= size


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
