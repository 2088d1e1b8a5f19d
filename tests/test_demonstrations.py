"""Demonstrations and the warm start: what they show, in the very tokens of a rollout."""

import random
from dataclasses import replace

import pytest
import torch
from helpers import ScriptedModel, retriever, tiny_policy, world, world_questions
from torch import nn

from lldlib.config import DemonstrationConfig, RolloutConfig, WarmstartConfig
from lldlib.policy.optimizer import Schedule
from lldlib.rollout.loop import Rollout, TokenText
from lldlib.train.lessons import FILLER, atlas_lesson, filler, lesson_episode
from lldlib.train.supervised import Supervised, warm_start
from lldlib.types import Episode
from lldlib.world.answers import exact_match
from lldlib.world.environment import RULES
from lldlib.world.protocol import TINY, parse_action

NOISY = DemonstrationConfig()
CLEAN = replace(NOISY, corrupt=0.0, stop_early=0.0)


def shown(config: DemonstrationConfig, count: int = 60):
    """(question, its actions, its passages) of many demonstrations."""
    rng = random.Random(0)
    for question in world_questions(count):
        lesson = atlas_lesson(world(), question, retriever(), rng, config)
        actions = [parse_action(text) for text, _ in lesson]
        passages = [read[0].text for _, read in lesson if read]
        yield question, actions, passages


def test_each_text_of_the_policy_is_one_action_and_a_search_reads_one_passage():
    rng = random.Random(0)
    for question in world_questions(60):
        for text, read in atlas_lesson(world(), question, retriever(), rng, NOISY):
            assert text.startswith("<think> ") and text.count("</think>") == 1
            assert text.count("</search>") + text.count("</answer>") == 1
            assert (parse_action(text).kind, len(read)) in (("search", 1), ("answer", 0))


def test_plain_thoughts_lead_to_the_same_actions_in_many_words():
    """What a real model is taught: sentences, the same walk, hardly a thought twice."""
    rng, thoughts = random.Random(0), []
    for question in world_questions(60):
        lesson = atlas_lesson(world(), question, retriever(), rng, CLEAN, plain=True)
        actions = [parse_action(text) for text, _ in lesson]
        assert [action.kind for action in actions] == ["search"] * question.hops + ["answer"]
        for hop, action in zip(question.chain, actions, strict=False):
            assert action.content == " ".join(hop.query_words)
        assert exact_match(actions[-1].content, question.answers) == 1.0
        thoughts += [text.split("</think>")[0] for text, _ in lesson]
        assert all(thought.endswith((". ", "? ")) for thought in thoughts)
        assert not any("  " in thought for thought in thoughts)
    assert len(set(thoughts)) > 0.95 * len(thoughts)


def test_a_clean_demonstration_walks_the_chain_and_is_right():
    for question, actions, passages in shown(CLEAN):
        assert [action.kind for action in actions] == ["search"] * question.hops + ["answer"]
        for hop, action, passage in zip(question.chain, actions, passages, strict=False):
            assert sorted(action.content.split()) == sorted(hop.query_words)
            assert hop.key in passage.split() and hop.answer in passage.split()
        assert exact_match(actions[-1].content, question.answers) == 1.0


def test_every_hop_corrupted_and_never_given_up_uses_up_the_searches():
    config = replace(NOISY, corrupt=1.0, give_up=0.0, max_searches=3)
    for _, actions, passages in shown(config):
        assert [action.kind for action in actions] == ["search"] * 3 and len(passages) == 3


def test_giving_up_answers_from_the_passage():
    config = replace(NOISY, corrupt=1.0, give_up=1.0)
    wrong = 0
    for question, actions, passages in shown(config):
        assert [action.kind for action in actions] == ["search", "answer"]
        assert actions[-1].content in passages[0].split()
        wrong += exact_match(actions[-1].content, question.answers) == 0.0
    assert wrong > 50  # of 60: a corrupted key is the right one now and then


def test_stopping_early_answers_what_the_first_hop_found():
    config = replace(CLEAN, stop_early=1.0)
    for question, actions, _ in shown(config):
        assert len(actions) == 2 and actions[-1].content == question.chain[0].answer


def test_noise_makes_some_right_some_wrong_and_some_silent():
    ends = [
        exact_match(actions[-1].content, question.answers) if actions[-1].kind == "answer" else None
        for question, actions, _ in shown(replace(NOISY, corrupt=0.4), 200)
    ]
    assert set(ends) == {0.0, 1.0, None}


def test_filler_is_free_form_but_of_known_words():
    rng = random.Random(0)
    draws = [filler(rng, 5.0) for _ in range(300)]
    assert all(set(words) <= set(FILLER) for words in draws)
    assert len({tuple(words) for words in draws}) > 200
    lengths = [len(words) for words in draws]
    assert set(lengths) == set(range(1, 10))  # 1 to 2 * 5 - 1, each about as often
    assert 4.5 < sum(lengths) / len(lengths) < 5.5  # their mean, 5, within 3 standard errors
    assert all(len(filler(rng, 1.0)) == 1 for _ in range(20))
    assert filler(random.Random(7), 5.0) == filler(random.Random(7), 5.0)


def demonstrations(policy, count: int) -> list[Episode]:
    rng, text = random.Random(0), TokenText(policy.tokenizer)
    return [
        lesson_episode(q, atlas_lesson(world(), q, retriever(), rng, NOISY), text, TINY)
        for q in world_questions(count)
    ]


def test_a_demonstration_has_the_tokens_of_a_rollout():
    """What the searcher is trained on is what it meets: the rollout says the same to the same."""
    policy = tiny_policy()
    shown = demonstrations(policy, 20)
    rows = [[token for turn in e.turns for token in turn.tokens] for e in shown]
    assert not any(policy.tokenizer.unk_token_id in tokens for tokens in rows)
    model = ScriptedModel(rows, len(policy.tokenizer), filler=20)
    rollout = Rollout(
        policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=160, max_searches=4)
    )
    episodes = rollout.run(model, world_questions(20), temperature=1.0)
    for episode, expected in zip(episodes, shown, strict=True):
        turns = [(turn.role, turn.tokens, turn.spans) for turn in expected.turns]
        found = [(turn.role, turn.tokens, turn.spans) for turn in episode.turns]
        assert found[: len(turns)] == turns
        if expected.answer is not None:  # without an answer it babbles on
            assert len(episode.turns) == len(turns)
            assert (episode.answer, episode.stop) == (expected.answer, expected.stop)
            assert episode.valid_searches == expected.valid_searches


def test_the_loss_is_over_the_policys_tokens_only():
    """Micro-batches change nothing; the mean is over the tokens of all rows, each row alone."""
    policy = tiny_policy()
    shown, total, nats = demonstrations(policy, 5), 0, 0.0
    for episode in shown:
        tokens = torch.tensor([[token for turn in episode.turns for token in turn.tokens]])
        own = torch.tensor([turn.role == "action" for turn in episode.turns for _ in turn.tokens])
        with torch.no_grad():
            logits = policy.model(input_ids=tokens).logits[0, :-1]
        found = nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")[own[1:]]
        total, nats = total + len(found), nats + found.sum().item()
    for rows in (None, 2):
        loop = Supervised(policy, Schedule(0.0, 1), lambda step: shown, rows=rows)
        metrics = loop.step()
        assert metrics["sft/loss"] == pytest.approx(nats / total, rel=1e-5)
        assert metrics["sft/tokens"] == total


def test_the_rate_rises_and_falls_in_lines():
    rate = Schedule(0.8, warmup=2, steps=8, floor=0.25)
    found = [rate.at(step) for step in (0, 1, 4, 6, 7)]
    assert found == pytest.approx([0.4, 0.7, 0.4, 0.2, 0.2])


MICRO = WarmstartConfig(
    width=16, layers=1, heads=2, plain_steps=2, steps=4, batch=8, steps_per_world=2, lr=1e-2
)


def test_the_warm_start_trains_and_its_seed_sets_the_weights():
    one, two = (warm_start(world(), MICRO, progress=False) for _ in range(2))
    assert not one.model.training
    start = warm_start(world(), replace(MICRO, steps=0), progress=False)
    shown = demonstrations(one, 10)
    losses = [
        Supervised(p, Schedule(0.0, 1), lambda step: shown).step()["sft/loss"] for p in (one, start)
    ]
    assert losses[0] < losses[1]
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)
    other = warm_start(world(), replace(MICRO, seed=1, steps=0), progress=False)
    embeddings = [p.model.get_input_embeddings().weight for p in (start, other)]
    assert not torch.equal(*embeddings)


@pytest.mark.parametrize("seed", range(3))
def test_no_held_out_fact_is_ever_shown(seed):
    """In a permuted world no train passage states a true held-out fact."""
    held_out = {(f.relation, f.entity, f.value) for f in world().facts if f.split == "heldout"}
    facts = {(f.relation, f.entity, f.value) for f in world().permuted(seed).facts}
    assert held_out and not held_out & facts
