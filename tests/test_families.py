"""Models as the hub has them, at small random sizes, through the whole path of a run."""

import dataclasses
import functools
import json
import math

import pytest
import torch
from small_tokenizers import gemma, llama3, qwen2
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from lldlib.config import DataConfig, ExamConfig, LoadConfig, RolloutConfig, TrainConfig
from lldlib.evaluate.exam import Exam
from lldlib.evaluate.heldout import policy_of
from lldlib.policy.load import Policy, end_tokens, load_policy, save_policy
from lldlib.policy.memory import Shape, estimate
from lldlib.recipes import METHODS
from lldlib.retrieval import load_corpus
from lldlib.retrieval.memory import BM25Retriever
from lldlib.rollout.decode import make_decoder
from lldlib.rollout.draw import Drawer
from lldlib.train.run import TrainingRun
from lldlib.types import Question
from lldlib.world.benchmarks import Task

pytestmark = pytest.mark.long  # about a minute

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SCALED = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0}
SCALED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
HALVES = ["sliding_attention", "full_attention"]
# configuration, tokenizer, tokens that end a sequence, whether rows may differ in length when fed
FAMILIES = {
    "Qwen2.5-0.5B": (
        functools.partial(Qwen2Config, tie_word_embeddings=True),
        qwen2,
        ("<|im_end|>", "<|endoftext|>"),
        True,
    ),
    "Qwen2, sliding": (
        functools.partial(
            Qwen2Config, use_sliding_window=True, sliding_window=16, max_window_layers=1
        ),
        qwen2,
        ("<|im_end|>", "<|endoftext|>"),
        False,
    ),
    "Qwen3-0.6B": (
        functools.partial(Qwen3Config, tie_word_embeddings=True, head_dim=32),
        qwen2,
        ("<|im_end|>", "<|endoftext|>"),
        False,
    ),
    "Llama-3.2-1B": (
        functools.partial(LlamaConfig, tie_word_embeddings=True, rope_parameters=SCALED),
        llama3,
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        False,
    ),
    "Mistral": (
        functools.partial(MistralConfig, sliding_window=16),
        llama3,
        ("<|eot_id|>",),
        False,
    ),
    "Gemma": (
        functools.partial(GemmaConfig, head_dim=32),
        gemma,
        ("<eos>", "<end_of_turn>"),
        False,
    ),
    "Gemma-3": (
        functools.partial(Gemma3TextConfig, head_dim=32, sliding_window=16, layer_types=HALVES),
        gemma,
        ("<eos>", "<end_of_turn>"),
        False,
    ),
}
LOADS = {
    "all weights": LoadConfig(),
    "adapters": LoadConfig(lora_rank=4, lora_alpha=8, gradient_checkpointing=True),
    "4 bits": LoadConfig(quantize="nf4", lora_rank=4, lora_alpha=8),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A family's policy in a folder, made once."""

    @functools.cache
    def make(name: str, peak: float = 20.0) -> str:
        configure, tokenize, ends, _ = FAMILIES[name]
        tokenizer = tokenize()
        torch.manual_seed(0)
        marks = {"bos_token_id": None, "pad_token_id": None}
        config = configure(**SIZES | marks, vocab_size=len(tokenizer))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():  # peaked, so that errors would show; 1: as drawn, so that rows differ
            model.get_input_embeddings().weight.mul_(peak)
        model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(ends))
        folder = tmp_path_factory.mktemp("family")
        save_policy(Policy(model, tokenizer), folder)
        return str(folder)

    return make


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Questions and passages; some of their texts are marks of the tokenizers."""
    folder = tmp_path_factory.mktemp("files")
    texts = ["Who wrote it <|im_end|>", "Who <end_of_turn> sang", "Where is <|eot_id|> Lima"]
    questions = [
        {"id": str(n), "question": text, "golden_answers": ["Ann"]} for n, text in enumerate(texts)
    ]
    passages = [{"id": str(n), "title": "T", "text": text} for n, text in enumerate(texts)]
    for name, rows in (("questions", questions), ("corpus", passages)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def settings(policy: str, load: LoadConfig, files) -> TrainConfig:
    """One batch, by rewards that are a coin's: a random model is never right."""
    questions = (str(files / "questions.jsonl"),)
    return TrainConfig(
        policy=policy,
        steps=1,
        updates_per_batch=2,
        lr=1e-3,
        eval_every=1,
        probe_every=0,
        rewards="coin",
        load=load,
        data=DataConfig(train=questions, heldout=questions, corpus=str(files / "corpus.jsonl")),
        rollout=RolloutConfig(problems=2, group_size=3, max_tokens=200),
        loss=dataclasses.replace(METHODS["llds"], kl_coef=0.01),
    )


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_goes_the_whole_path(made, files, tmp_path, name, load):
    config = settings(made(name), LOADS[load], files)
    run = TrainingRun(config, tmp_path / "run")
    before = {k: v.clone() for k, v in run.setting.policy.model.named_parameters()}
    recorded = run.run()
    (row,) = recorded.metrics
    assert row["policy/sampler_gap"] < 2e-3 and abs(row["policy/sampler_kl"]) < 1e-4
    assert row["grad/norm"] > 0 and math.isfinite(row["grad/norm"]) and row["update/skipped"] == 0
    after = dict(run.setting.policy.model.named_parameters())
    moved = {k for k, v in after.items() if not torch.equal(v, before[k])}
    assert moved == {k for k, v in after.items() if v.requires_grad}
    policy = policy_of(recorded, None)
    exam = Exam(policy, BM25Retriever(load_corpus(files / "corpus.jsonl")), EXAM, tmp_path, {})
    answers = exam.ask(Task("t", "T", "qa", "t", None), [Question("0", "Who", ("x",))], False)
    assert len(answers) == 1


EXAM = ExamConfig(max_tokens=200)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_is_fed_and_how_it_ends(made, files, name):
    policy = load_policy(made(name))
    *_, ends, ragged = FAMILIES[name]
    assert make_decoder(policy.model, 1, 9).ragged is ragged
    numbers = set(policy.tokenizer.convert_tokens_to_ids(list(ends)))
    assert end_tokens(policy.model, policy.tokenizer) == numbers | {policy.tokenizer.eos_token_id}
    shape = Shape(update_rows=6, rollout_rows=12, tokens=260)
    plain = {"quantize": None, "lora": None, "dtype": "float32", "reference": True}
    fit = estimate(made(name), 16, shape, gradient_checkpointing=False, **plain)
    drawer = Drawer(policy.model, 12, 260, temperature=1.0)
    drawer.draw([[1, 2, 3]] * 12, torch.zeros(12, 1))
    parts = drawer.decoder.cache
    layers = [parts] if ragged else parts.layers
    held = [(c.keys, c.values) if ragged else (c.key_buffer, c.value_buffer) for c in layers]
    size = sum(t.nbytes for pair in held for t in pair)
    assert size * 260 == fit.rollout["key-value cache"] * 261
