"""Policies by name: the built-in tiny searcher, or any Hugging Face causal LM by name or path."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from lldlib.config import data_dir
from lldlib.protocol import SEARCH_R1, TINY, Protocol

TAGS = tuple(f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/"))
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


@dataclass
class Policy:
    """A model with its tokenizer and the texts of the protocol that suit it."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerFast
    protocol: Protocol


def load_policy(name_or_path: str, device: str = "cpu") -> Policy:
    """`tiny` is the built-in searcher of data/tiny; anything else goes to transformers as a name or a path."""
    path = str(data_dir() / "tiny") if name_or_path == "tiny" else name_or_path
    if name_or_path == "tiny" and not Path(path, "model.safetensors").exists():
        raise FileNotFoundError(f"no tiny searcher in {path}: make it with 'python -m lldlib warmstart'")
    tokenizer = _load_tokenizer(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device)
    model.eval()
    protocol = TINY if tokenizer.convert_tokens_to_ids("</search>") in range(len(tokenizer)) else SEARCH_R1
    return Policy(model, tokenizer, protocol)


def _load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """AutoTokenizer picks the class by the model's architecture, which would rebuild a word tokenizer as Qwen2's."""
    own = Path(path, "tokenizer_config.json")
    if own.exists() and json.loads(own.read_text())["tokenizer_class"] == "TokenizersBackend":
        return PreTrainedTokenizerFast.from_pretrained(path)
    return AutoTokenizer.from_pretrained(path)


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over `words` and the protocol's tags; a tag is one token wherever it stands."""
    vocabulary = [PAD, EOS, UNKNOWN, *TAGS, *[w for w in words if w not in TAGS]]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tags = pre_tokenizers.Split(Regex("|".join(TAGS)), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([tags, pre_tokenizers.WhitespaceSplit()])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def tiny_model(vocabulary: int, *, width: int, layers: int, heads: int, seed: int) -> nn.Module:
    """A freshly initialised Qwen2 of a few hundred thousand parameters; `vocabulary` is its number of tokens."""
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
