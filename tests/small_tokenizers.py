"""Small tokenizers of the kinds that are about: byte-level BPE, with their marks and templates."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lldlib.world.protocol import SEARCH_R1

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
CORPUS = [SEARCH_R1.instruction, "Question: Who wrote the play? Doc 1(Title: A) information answer"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>"
    "\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "<bos>{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def fast(special: list[str], template: str, eos: str, plain: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE; `plain` are added tokens that are not special, as tools' tags are."""
    inner = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(QWEN), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    inner.add_tokens([AddedToken(mark, special=False) for mark in plain])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=eos, clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made


def qwen2() -> PreTrainedTokenizerFast:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return fast(special, CHATML, "<|im_end|>", ["<tool_call>", "</tool_call>"])


def llama3() -> PreTrainedTokenizerFast:
    headers = ["<|start_header_id|>", "<|end_header_id|>"]
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", *headers]
    return fast(special, LLAMA, "<|eot_id|>", [])


def gemma() -> PreTrainedTokenizerFast:
    special = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    return fast(special, GEMMA, "<eos>", [])
