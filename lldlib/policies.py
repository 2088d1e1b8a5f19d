"""Policies by name: the built-in tiny searcher, or any Hugging Face causal LM by name or path."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from lldlib.config import data_dir
from lldlib.protocol import SEARCH_R1, TINY, Protocol

NAMES = ("think", "search", "information", "answer")
TAGS = tuple(f"<{slash}{name}>" for name in NAMES for slash in ("", "/"))
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


@dataclass
class Policy:
    """A model with its tokenizer and the texts of the protocol that suit it."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    protocol: Protocol


def load_policy(name_or_path: str, device: str = "cpu") -> Policy:
    """`tiny` is the built-in searcher of data/tiny; any other is a Hugging Face name or a path.

    A vocabulary that holds the tags as tokens gets the short texts of the tiny protocol. Raises
    FileNotFoundError where `tiny` was not made yet, ValueError for what transformers cannot load.
    """
    path = str(data_dir() / "tiny") if name_or_path == "tiny" else name_or_path
    if name_or_path == "tiny" and not Path(path, "model.safetensors").exists():
        raise FileNotFoundError(
            f"no tiny searcher in {path}: make it with 'python -m lldlib warmstart'"
        )
    try:
        tokenizer = _load_tokenizer(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"cannot load the policy {path!r} ({reason}): give 'tiny', a folder with weights and "
            "tokenizer, or a model name on Hugging Face"
        ) from error
    model.eval()
    return Policy(model, tokenizer, TINY if "</search>" in tokenizer.get_vocab() else SEARCH_R1)


def _load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """AutoTokenizer goes by the architecture and would rebuild a word tokenizer as Qwen2's."""
    own = Path(path, "tokenizer_config.json")
    if own.exists() and json.loads(own.read_text()).get("tokenizer_class") == "TokenizersBackend":
        return PreTrainedTokenizerFast.from_pretrained(path)
    return AutoTokenizer.from_pretrained(path)


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
