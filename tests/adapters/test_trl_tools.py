"""TRL's own tool loop over our retriever: the environment, its masks, and the adapter's terms."""

import os
import string
from pathlib import Path

import pytest
import torch
from helpers import StubRetriever

pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import trl
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl_runs import settings

from lldlib.adapters.search import environment_reward, search_environment
from lldlib.adapters.trl import LLDGRPOTrainer
from lldlib.policy.load import tiny_model
from lldlib.runs.folder import Run

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "capital"}}\n</tool_call>' + END
ANSWERS = ["<answer> Oslo </answer>" + END, "<answer> Rome </answer>" + END]


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, with the chat template of Qwen2.5 as TRL knows it."""
    vocabulary = {c: i for i, c in enumerate([PAD, END, START, "<unk>", *string.printable])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([PAD, END, START])
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=PAD,
        unk_token="<unk>",
        chat_template=template.read_text(),
        clean_up_tokenization_spaces=False,
    )


def scripted(tokenizer):
    """In place of `generate`: search first, then right and wrong answers by turns."""

    def generate(input_ids, **_):
        prompts = tokenizer.batch_decode(input_ids)
        searched = ["<tool_response>" in prompt.split(START)[-2] for prompt in prompts]
        said = [ANSWERS[k % 2] if done else CALL for k, done in enumerate(searched)]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in said]
        width = max(map(len, ids))
        new = [row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids]
        return torch.cat([input_ids, torch.tensor(new)], dim=1)

    return generate


def test_the_environment_in_trls_tool_loop(tmp_path, monkeypatch):
    tokenizer, stub = chat_tokenizer(), StubRetriever(["Oslo is the capital."])
    model = tiny_model(len(tokenizer), width=16, layers=1, heads=2, seed=0)
    model.config.max_position_embeddings = 4096  # TRL drops a tool result that would not fit
    monkeypatch.setattr(model, "generate", scripted(tokenizer))
    question = [{"role": "user", "content": "Which city is the capital?"}]
    run = LLDGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=environment_reward,
        environment_factory=search_environment(stub, top_k=1, max_searches=2),
        train_dataset=Dataset.from_list([{"prompt": question, "answers": ["Oslo"]}] * 2),
        args=settings(
            tmp_path, max_completion_length=400, run_folder=str(tmp_path / "run"), llds_coef=0.5
        ),
    )
    run.train()
    assert set(map(tuple, stub.calls)) == {("capital",)} and len(stub.calls) == 8
    recorded = Run(tmp_path / "run")
    (row,) = recorded.metrics
    assert row["reward/mean"] == 0.5 and row["search/valid"] == 1.0 and row["llds/value"] > 0
    roles = [turn["role"] for turn in recorded.rollouts[0]["turns"]]
    assert roles == ["prompt", "action", "environment", "action"]
    assert "Oslo is the capital." in recorded.rollouts[0]["turns"][2]["text"]
    assert row["length/tokens"] == len(tokenizer.encode(CALL + ANSWERS[0]))
