"""The legend of `lldlib.types`, held on sampled batches of many kinds."""

import dataclasses

import pytest
import torch
from helpers import padded, random_batch, tiny_policy

from lldlib.losses import action_ids
from lldlib.policy.score import score
from lldlib.types import Span


@pytest.fixture(scope="module", params=[(0, 90), (1, 30), (2, 12)], ids=str)
def sampled(request):
    seed, budget = request.param
    policy = tiny_policy(seed)
    batch, episodes = random_batch(policy, 24, seed=seed, max_tokens=budget, top_k=2)
    return policy, batch, episodes


def test_real_tokens_come_first_and_padding_after(sampled):
    _, batch, episodes = sampled
    sizes = [sum(len(turn.tokens) for turn in e.turns) for e in episodes]
    expected = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    assert torch.equal(batch.attention_mask, expected)


def test_actions_are_what_the_policy_said_and_nothing_else(sampled):
    _, batch, episodes = sampled
    for row, episode in enumerate(episodes):
        said = [t for turn in episode.turns if turn.role == "action" for t in turn.tokens]
        assert batch.tokens[row][batch.action_mask[row]].tolist() == said
        logp = torch.tensor([v for t in episode.turns if t.role == "action" for v in t.logp])
        assert torch.equal(batch.sampler_logp[row][batch.action_mask[row]], logp)


def test_every_mask_is_where_the_legend_says(sampled):
    _, batch, _ = sampled
    assert not batch.action_mask[:, 0].any()  # column 0 has no prefix
    assert not (batch.action_mask & ~batch.attention_mask).any()
    assert torch.equal(batch.span == Span.NONE, ~batch.action_mask)
    assert not (batch.answer_mask & ~batch.action_mask).any()
    assert (batch.sampler_logp[~batch.action_mask] == 0).all()
    assert (batch.sampler_logp[batch.action_mask] < 0).all()


def test_one_run_of_the_mask_is_one_turn(sampled):
    _, batch, episodes = sampled
    turns = [sum(turn.role == "action" for turn in e.turns) for e in episodes]
    assert action_ids(batch.action_mask).amax(1).tolist() == turns


def test_an_answer_is_marked_exactly_where_one_was_given(sampled):
    _, batch, episodes = sampled
    assert batch.answer_mask.any(1).tolist() == [e.answer is not None for e in episodes]
    last = torch.where(batch.answer_mask, torch.arange(batch.tokens.shape[1]), -1).amax(1)
    for row, episode in enumerate(episodes):
        if episode.answer is not None:  # the answer closes the episode
            assert last[row] == batch.attention_mask[row].sum() - 1


def test_trimming_to_fewer_rows_changes_no_log_prob(sampled):
    policy, batch, _ = sampled
    whole = score(policy.model, batch, 1.0).logp
    short = batch.attention_mask.sum(1).argsort()[:6]
    part = batch.rows(short)
    assert part.tokens.shape[1] == int(batch.attention_mask[short].sum(1).max())
    for field in ("rewards", "group"):
        assert torch.equal(getattr(part, field), getattr(batch, field)[short])
    logp = score(policy.model, part, 1.0).logp
    assert torch.allclose(logp, whole[short, : part.tokens.shape[1]], atol=1e-5)
    assert (whole[short, part.tokens.shape[1] :] == 0).all()


def test_padding_on_the_right_changes_no_log_prob(sampled):
    policy, batch, _ = sampled
    whole = score(policy.model, batch, 1.0).logp
    for token in (0, 1, 40):  # pad, eos, a word
        wide = score(policy.model, padded(batch, 7, token), 1.0).logp
        assert torch.allclose(wide[:, :-7], whole, atol=1e-5) and (wide[:, -7:] == 0).all()


def test_to_moves_every_tensor(sampled):
    _, batch, _ = sampled
    moved = batch.to("meta")
    fields = [field.name for field in dataclasses.fields(batch)]
    assert all(getattr(moved, name).device.type == "meta" for name in fields)
