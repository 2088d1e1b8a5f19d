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


def trainer(tmp_path, monkeypatch, *, llds_answer="none", **tools) -> LLDGRPOTrainer:
    """Two rows of one question, asked of the script."""
    tokenizer = chat_tokenizer()
    model = tiny_model(len(tokenizer), width=16, layers=1, heads=2, seed=0)
    model.config.max_position_embeddings = 4096  # TRL drops a tool result that would not fit
    monkeypatch.setattr(model, "generate", scripted(tokenizer))
    question = [{"role": "user", "content": "Which city is the capital?"}]
    return LLDGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=environment_reward,
        train_dataset=Dataset.from_list([{"prompt": question, "answers": ["Oslo"]}] * 2),
        args=settings(
            tmp_path,
            max_completion_length=400,
            run_folder=str(tmp_path / "run"),
            llds_coef=0.5,
            llds_answer=llds_answer,
        ),
        **tools,
    )


def search(query: str) -> str:
    """Search a collection of passages.

    Args:
        query: What to look for.
    """
    return "Oslo is the capital."


def test_plain_tools_are_counted_by_their_results(tmp_path, monkeypatch):
    run = trainer(tmp_path, monkeypatch, llds_answer="paper", tools=[search])
    run.train()
    (row,) = Run(tmp_path / "run").metrics
    assert row["search/valid"] == 1.0 and row["reward/mean"] == 0.5 and row["llds/value"] > 0


def test_llds_ma_is_refused_where_nothing_counts_searches(tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"LLDS-MA weighs .* nothing counts them: train"
    ) as refusal:
        trainer(tmp_path, monkeypatch, llds_answer="paper").train()
    assert "\n" not in str(refusal.value)


def test_the_environment_in_trls_tool_loop(tmp_path, monkeypatch):
    stub = StubRetriever(["Oslo is the capital."])
    environment = search_environment(stub, chat_tokenizer(), top_k=1, max_searches=2)
    run = trainer(tmp_path, monkeypatch, environment_factory=environment)
    run.train()
    assert set(map(tuple, stub.calls)) == {("capital",)} and len(stub.calls) == 8
    recorded = Run(tmp_path / "run")
    (row,) = recorded.metrics
    assert row["reward/mean"] == 0.5 and row["search/valid"] == 1.0 and row["llds/value"] > 0
    roles = [turn["role"] for turn in recorded.rollouts[0]["turns"]]
    assert roles == ["prompt", "action", "environment", "action"]
    assert "Oslo is the capital." in recorded.rollouts[0]["turns"][2]["text"]
    assert row["length/tokens"] == len(chat_tokenizer().encode(CALL + ANSWERS[0]))
