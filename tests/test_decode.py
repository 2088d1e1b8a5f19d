"""Feeding a model during a rollout: the same states as transformers' forward, however it is cut."""

import pytest
import torch
from helpers import random_batch, tiny_policy
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from lldlib.rollout import loop as rollout
from lldlib.rollout.decode import LockstepDecoder, RaggedDecoder, make_decoder

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
KINDS = {
    "plain": {},
    "grouped heads": {"num_key_value_heads": 2},
    "one head of keys, untied": {"num_key_value_heads": 1, "tie_word_embeddings": False},
    "tied, far rotation": {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}},
    "many layers": {"num_hidden_layers": 5, "rms_norm_eps": 1e-3},
}


def qwen2(**settings) -> torch.nn.Module:
    """A random model whose every parameter matters, biases and norms included."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SMALL | settings), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def fresh(model: torch.nn.Module, row: list[int]) -> torch.Tensor:
    """Logits of the last token, by transformers' forward over the whole row."""
    return model(input_ids=torch.tensor([row])).logits[0, -1]


def closed(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.allclose(got, want, atol=1e-5 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_ragged_feed_gives_the_logits_of_a_fresh_forward(kind):
    model = qwen2(**KINDS[kind])
    decoder = make_decoder(model, 4, 20)
    assert isinstance(decoder, RaggedDecoder)
    random = torch.Generator().manual_seed(1)
    rows = [[], [], [], []]
    # chunks of several tokens next to single ones, only single ones, equal chunks
    for counts in ((3, 1, 5, 2), (1, 1, 1, 1), (1, 4, 1, 2), (2, 2, 2, 2), (1, 1, 6, 1)):
        fed = [torch.randint(50, (n,), generator=random).tolist() for n in counts]
        rows = [row + new for row, new in zip(rows, fed, strict=True)]
        logits = model.lm_head(decoder.feed(fed))
        assert all(closed(got, fresh(model, row)) for got, row in zip(logits, rows, strict=True))


@pytest.mark.parametrize("ragged", [True, False])
@torch.no_grad()
def test_rows_that_leave_make_room_for_the_last_ones(ragged):
    model = qwen2(num_key_value_heads=2)
    decoder = RaggedDecoder(model.model, 5, 9) if ragged else LockstepDecoder(model.model, 2, 9)
    counts = (2, 1, 3, 4, 2) if ragged else (3,) * 5
    rows = [list(range(7 * i, 7 * i + n)) for i, n in enumerate(counts)]
    decoder.feed(rows)
    decoder.move([3, 4], [1, 0], 3)  # rows 0 and 1 end
    rows = [rows[4], rows[3], rows[2]]
    for size in (1, 2):
        fed = [[11, 12][:size], [13, 14][:size], [15, 16][:size]]
        rows = [row + new for row, new in zip(rows, fed, strict=True)]
        logits = model.lm_head(decoder.feed(fed))
        assert all(closed(got, fresh(model, row)) for got, row in zip(logits, rows, strict=True))
    decoder.move([], [], 1)
    last = model.lm_head(decoder.feed([[17]]))
    assert len(last) == 1 and closed(last[0], fresh(model, [*rows[0], 17]))


def test_chunks_and_single_tokens_give_the_same_episodes(monkeypatch):
    """The same draws, so the same episodes: rows that leave and passages that come included."""
    policy = tiny_policy()
    batch, episodes = random_batch(policy, 24, max_tokens=90)

    def lockstep(model, rows, capacity):
        return LockstepDecoder(model.get_decoder(), model.config.num_hidden_layers, capacity)

    monkeypatch.setattr(rollout, "make_decoder", lockstep)
    slow, others = random_batch(policy, 24, max_tokens=90)
    assert sum(e.valid_searches for e in episodes) >= 4 and len({e.stop for e in episodes}) >= 2
    assert [e.stop for e in episodes] == [e.stop for e in others]
    assert torch.equal(batch.tokens, slow.tokens)
    assert torch.equal(batch.action_mask, slow.action_mask)
    assert (batch.sampler_logp - slow.sampler_logp).abs().max() < 1e-4


def test_a_rollout_reads_the_weights_of_its_time():
    model = qwen2()
    with torch.no_grad():
        first = model.lm_head(make_decoder(model, 1, 8).feed([[3, 4]]))[0]
        for parameter in model.parameters():
            parameter.mul_(1.1)
        second = model.lm_head(make_decoder(model, 1, 8).feed([[3, 4]]))[0]
        assert closed(second, fresh(model, [3, 4])) and not closed(first, second)


def test_other_models_go_through_transformers():
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    scaled = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    for settings in (sliding, scaled):
        assert isinstance(make_decoder(qwen2(**settings), 2, 9), LockstepDecoder)
    far = LlamaConfig(**SMALL, rope_parameters=scaled["rope_parameters"])
    llama = AutoModelForCausalLM.from_config(far, dtype=torch.float32).eval()
    decoder = make_decoder(llama, 2, 9)
    assert isinstance(decoder, LockstepDecoder)
    with torch.no_grad():
        decoder.feed([[1, 2], [3, 4]])
        got = llama.lm_head(decoder.feed([[5], [6]]))
        assert closed(got[0], fresh(llama, [1, 2, 5])) and closed(got[1], fresh(llama, [3, 4, 6]))


@torch.no_grad()
def test_a_llama_has_no_biases_and_is_fed_like_a_qwen2():
    torch.manual_seed(0)
    settings = LlamaConfig(**SMALL | {"num_key_value_heads": 2})
    llama = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    decoder = make_decoder(llama, 2, 9)
    assert isinstance(decoder, RaggedDecoder)
    decoder.feed([[1, 2, 7], [3]])
    got = llama.lm_head(decoder.feed([[5], [6, 8]]))
    assert closed(got[0], fresh(llama, [1, 2, 7, 5])) and closed(got[1], fresh(llama, [3, 6, 8]))
