"""Demonstrations and the warm start: what they show, in the very tokens of a rollout."""

import random
from dataclasses import replace

import pytest
import torch
from helpers import ScriptedModel, retriever, tiny_policy, world, world_questions
from torch import nn

from lldlib.config import DemonstrationConfig, RolloutConfig, WarmstartConfig
from lldlib.rollout.batch import demonstration
from lldlib.rollout.loop import Rollout, TokenText
from lldlib.train.lessons import FILLER, demonstrate, filler
from lldlib.train.warmstart import lesson, supervised_loss, warm_start
from lldlib.types import Episode, Span
from lldlib.world.answers import exact_match
from lldlib.world.environment import RULES
from lldlib.world.protocol import parse_action

NOISY = DemonstrationConfig()
CLEAN = replace(NOISY, corrupt=0.0, stop_early=0.0)


def shown(config: DemonstrationConfig, count: int = 60):
    """(question, its actions, its passages) of many demonstrations."""
    rng = random.Random(0)
    for question in world_questions(count):
        pieces = demonstrate(world(), question, retriever(), rng, config)
        actions = [parse_action(text) for text, own in pieces if own]
        passages = [text for text, own in pieces if not own]
        yield question, actions, passages


def test_pieces_alternate_and_each_of_the_policys_is_one_action():
    rng = random.Random(0)
    for question in world_questions(60):
        pieces = demonstrate(world(), question, retriever(), rng, NOISY)
        assert [own for _, own in pieces] == [i % 2 == 0 for i in range(len(pieces))]
        for text, own in pieces:
            if own:
                assert text.startswith("<think> ") and text.count("</think>") == 1
                assert text.count("</search>") + text.count("</answer>") == 1
                assert parse_action(text).kind != "invalid"
            else:
                assert text.startswith("<information>") and text.endswith("</information>")


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


def spans_of(episode: Episode) -> list[Span]:
    return [span for turn in episode.turns for span in turn.spans]


def test_a_demonstration_has_the_tokens_of_a_rollout():
    """What the searcher is trained on is what it meets: the rollout says the same to the same."""
    policy, rng = tiny_policy(), random.Random(0)
    text = TokenText(policy.tokenizer)
    questions = world_questions(20)
    lessons = [lesson(text, q, world(), retriever(), rng, NOISY) for q in questions]
    shown = [([t for turn in e.turns for t in turn.tokens], spans_of(e)) for e in lessons]
    unknown = policy.tokenizer.unk_token_id
    assert not any(unknown in tokens for tokens, _ in shown)
    model = ScriptedModel([tokens for tokens, _ in shown], len(policy.tokenizer), filler=20)
    limits = RolloutConfig(max_tokens=160, max_searches=4)
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), limits)
    episodes = rollout.run(model, questions, temperature=1.0)
    for episode, taught, (tokens, spans) in zip(episodes, lessons, shown, strict=True):
        fed, size = [token for turn in episode.turns for token in turn.tokens], len(tokens)
        assert fed[:size] == tokens and spans_of(episode)[:size] == spans
        assert size == len(fed) or episode.answer is None  # without an answer it babbles on
        assert taught.answer == episode.answer
        if taught.answer is not None:
            assert taught.valid_searches == episode.valid_searches


def test_the_loss_is_over_the_policys_tokens_only():
    model = tiny_policy().model
    text, question = TokenText(tiny_policy().tokenizer), world_questions(1)[0]
    rows = [
        demonstration(text, question, pieces)
        for pieces in (
            [([11, 12], False), ([13], True), ([14], False)],
            [([15], False), ([16], True)],
        )
    ]
    with torch.no_grad():
        got = supervised_loss(model, rows)
        parts = []
        for tokens, at in (([11, 12], 13), ([15], 16)):  # each row alone, no padding
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
            parts.append(nn.functional.cross_entropy(logits, torch.tensor(at)))
    assert torch.allclose(got, torch.stack(parts).mean(), atol=1e-6)


MICRO = WarmstartConfig(
    width=16, layers=1, heads=2, plain_steps=2, steps=4, batch=8, steps_per_world=2, lr=1e-2
)


def test_the_warm_start_trains_and_its_seed_sets_the_weights():
    one, two = (warm_start(world(), MICRO, progress=False) for _ in range(2))
    assert not one.model.training
    rng = random.Random(5)
    text = TokenText(one.tokenizer)
    rows = [lesson(text, q, world(), retriever(), rng, NOISY) for q in world_questions(10)]
    start = warm_start(world(), replace(MICRO, steps=0), progress=False)
    with torch.no_grad():
        assert supervised_loss(one.model, rows) < supervised_loss(start.model, rows)
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
