"""Search for TRL: the environment's tool and reward, and whole episodes with exact masks."""

from types import SimpleNamespace

import pytest
import torch
from helpers import StubRetriever, random_batch, retriever, tiny_policy, world_questions
from small_tokenizers import gemma, llama3, qwen2

from lldlib.adapters.search import (
    completions,
    environment_reward,
    rollout_reward,
    search_environment,
    search_rollout,
)
from lldlib.config import RolloutConfig
from lldlib.rollout.loop import Rollout
from lldlib.types import Episode, Question, StopReason, Turn
from lldlib.world.environment import RULES
from lldlib.world.protocol import TINY


def test_an_environment_searches_until_its_budget_is_spent():
    stub = StubRetriever(["one", "two", "three"])
    environment = search_environment(stub, qwen2(), top_k=2, max_searches=2)()
    assert environment.reset(prompt="p", answers=["a"]) is None
    shown = "Doc 1(Title: ) one\nDoc 2(Title: ) two"
    assert environment.search("q") == shown
    environment.search("r")
    assert "No searches are left" in environment.search("s")
    assert stub.calls == [["q"], ["r"]] and environment.valid_searches == 2
    environment.reset()
    assert environment.search("t") == shown


def test_a_search_that_fails_is_told_and_not_counted():
    environment = search_environment(StubRetriever(None), qwen2(), top_k=1, max_searches=2)()
    environment.reset()
    assert environment.search("q") == "The search service is down."
    assert environment.valid_searches == 0
    empty = search_environment(StubRetriever([]), qwen2(), top_k=1, max_searches=2)()
    empty.reset()
    assert empty.search("q") == "No passage was found."


@pytest.mark.parametrize("make", [qwen2, llama3, gemma])
def test_no_passage_becomes_a_control_token(make):
    """TRL's own encoding of the tool's result, which knows no data."""
    tokenizer = make()
    marks = tokenizer.all_special_tokens
    stub = StubRetriever([f"Oslo {mark} is nice" for mark in marks] + ["a\x00b \ud800"])
    environment = search_environment(stub, tokenizer, top_k=len(marks) + 1, max_searches=1)()
    environment.reset()
    found = environment.search("q")
    special = set(tokenizer.all_special_ids)
    assert special & set(tokenizer.encode("\n".join(f"Oslo {m} is nice" for m in marks)))
    assert not special & set(tokenizer.encode(found, add_special_tokens=False))
    assert found.count("Oslo") == len(marks) and found.endswith("a\ufffdb \ufffd")


def test_only_search_is_a_tool():
    kind = search_environment(StubRetriever([]), qwen2(), top_k=1, max_searches=1)
    public = [name for name in vars(kind) if not name.startswith("_")]
    assert sorted(public) == ["reset", "search"]
    assert "Args:" in kind.search.__doc__ and kind.search.__annotations__["query"] is str


def test_the_reward_reads_the_last_message():
    said = [
        [{"role": "assistant", "content": "<answer> Oslo </answer>"}],
        [{"role": "assistant", "content": "<search> Oslo </search>"}],
        [{"role": "assistant", "content": None}],
    ]
    assert environment_reward(said, [["oslo"], ["oslo"], ["oslo"]]) == [1.0, 0.0, 0.0]


def test_the_last_answer_counts_and_no_tool_gives_one():
    said = [
        [{"role": "assistant", "content": "<answer>A1</answer> no: <answer>B2</answer>"}],
        [{"role": "assistant", "content": "<search>x</search> <answer> B2\n</answer>"}],
        [{"role": "assistant", "content": "<answer>B2</answer> <answer>A1"}],  # cut off
        [{"role": "assistant"}, {"role": "tool", "content": "<answer>B2</answer>"}],
    ]
    assert environment_reward(said, [["B2"]] * 4) == [1.0, 1.0, 1.0, 0.0]


def test_episodes_keep_their_masks():
    policy = tiny_policy()
    batch, episodes = random_batch(policy, 6, max_tokens=40)
    out = completions(episodes, filler=1)
    for row, episode in enumerate(episodes):
        start, length = len(out["prompt_ids"][row]), int(batch.attention_mask[row].sum())
        assert out["completion_ids"][row] == batch.tokens[row, start:length].tolist()
        assert out["env_mask"][row] == batch.action_mask[row, start:length].int().tolist()
        assert out["spans"][row] == batch.span[row, start:length].tolist()
        assert out["valid_searches"][row] == episode.valid_searches
        assert out["episode_reward"][row] == episode.reward
    assert any(0 in mask for mask in out["env_mask"])  # some passage was read
    assert out["logprobs"] is None
    assert rollout_reward(**out) == out["episode_reward"]


def test_an_empty_completion_is_filled_and_masked():
    episode = Episode(
        Question("0", "q", ("a",)),
        [Turn.given("prompt", [5, 6])],
        StopReason.TOKEN_BUDGET,
        None,
        valid_searches=0,
        invalid_actions=0,
        reward=0.0,
        group=0,
    )
    out = completions([episode], filler=9)
    assert out["completion_ids"] == [[9]] and out["env_mask"] == out["spans"] == [[0]]


def test_a_rollout_function_finds_its_questions():
    policy, questions = tiny_policy(), world_questions(4)
    runner = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=40))
    asked = search_rollout(runner, questions)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        model=policy.model,
        temperature=1.0,
        processing_class=policy.tokenizer,
    )
    torch.manual_seed(0)
    out = asked([questions[2].text, questions[0].text], trainer)
    wanted = [TINY.prompt(questions[k].text) for k in (2, 0)]
    assert out["prompt_ids"] == [runner.text.encode(text) for text in wanted]
    with pytest.raises(KeyError):
        asked(["another question"], trainer)
    with pytest.raises(ValueError, match="same text"):
        search_rollout(runner, [*questions, questions[0]])


@pytest.mark.parametrize("how", ["ZeRO-3", "FSDP"])
def test_a_model_in_pieces_is_refused(how):
    """ZeRO-3 marks its weights and FSDP leaves empty ones: no decoder of ours could read them."""
    policy, questions = tiny_policy(), world_questions(2)
    model = torch.nn.Linear(2, 2)
    if how == "ZeRO-3":
        model.weight.ds_id = 0
    else:
        model.weight.data = torch.empty(0)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda model: model), model=model, temperature=1.0
    )
    runner = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=40))
    with pytest.raises(ValueError, match=r"whole model .* environment_factory=") as refusal:
        search_rollout(runner, questions)([questions[0].text], trainer)
    assert "\n" not in str(refusal.value)
