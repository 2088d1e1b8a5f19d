"""Held-out scores of a scripted policy, worked out by hand."""

from dataclasses import replace

import pytest
import torch
from helpers import (
    PLAIN,
    ScriptedModel,
    StubRetriever,
    character_tokenizer,
    tiny_policy,
    worded,
    world_questions,
)
from helpers import retriever as bm25

from lldlib.config import RolloutConfig
from lldlib.evaluate.heldout import ask
from lldlib.policy.load import Policy
from lldlib.rollout.loop import Rollout
from lldlib.types import Question, StopReason
from lldlib.world.environment import RULES

SAID = [
    "<answer> Red  cat </answer>",
    "<answer>cat</answer>",
    "no idea<eos>",
    "<answer>dog</answer>",
]
QUESTIONS = [Question(str(i), f"q{i}", ("the red cat", "puma")) for i in range(len(SAID))]


def scripted() -> tuple[Policy, Rollout]:
    tokenizer = character_tokenizer()
    encode = tokenizer.encode
    scripts = [
        encode(PLAIN.prompt(question.text)) + encode(said)
        for question, said in zip(QUESTIONS, SAID, strict=True)
    ]
    model = ScriptedModel(scripts, len(tokenizer), filler=encode("z")[0])
    rollout = Rollout(tokenizer, worded(PLAIN), StubRetriever([]), RolloutConfig(max_tokens=60))
    return Policy(model, tokenizer), rollout


def test_scores_by_hand():
    result = ask(*scripted(), QUESTIONS, temperature=0.0)
    assert result.reward == 0.25
    # "red cat" 1; "cat": precision 1, recall 1/2, so 2/3; no answer 0; "dog" 0
    assert result.scores == {"f1": pytest.approx((1 + 2 / 3) / 4)}
    assert [e.question.id for e in result.episodes] == ["0", "1", "2", "3"]
    assert result.episodes[2].answer is None and result.episodes[2].stop is StopReason.EOS


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 100])
def test_the_number_of_rows_at_a_time_changes_nothing(rows):
    whole = ask(*scripted(), QUESTIONS, temperature=0.0)
    policy, rollout = scripted()
    rollout.config = replace(rollout.config, at_once=rows)
    assert ask(policy, rollout, QUESTIONS, temperature=0.0) == whole


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_repeats_itself_and_leaves_the_global_generator_alone(temperature):
    policy = tiny_policy()
    rollout = Rollout(policy.tokenizer, RULES["qa"], bm25(), RolloutConfig(max_tokens=40))
    state = torch.get_rng_state()
    one, two = (ask(policy, rollout, world_questions(5), temperature=temperature) for _ in range(2))
    assert one == two and torch.equal(state, torch.get_rng_state())
    assert one.reward == 0.0 and len(one.episodes) == 5


def test_temperature_0_is_greedy_and_1_samples():
    policy = tiny_policy()
    rollout = Rollout(policy.tokenizer, RULES["qa"], bm25(), RolloutConfig(max_tokens=40))
    greedy, sampled = (
        ask(policy, rollout, world_questions(5), temperature=temperature).episodes
        for temperature in (0.0, 1.0)
    )
    assert greedy == rollout.run(policy.model, world_questions(5), temperature=0.0)
    assert [e.turns for e in greedy] != [e.turns for e in sampled]


def test_no_question_is_a_one_line_error():
    with pytest.raises(ValueError, match="no questions to evaluate") as error:
        ask(*scripted(), [], temperature=0.0)
    assert "\n" not in str(error.value)
