"""Feeding a model during a rollout: the same states as transformers' forward, however it is cut."""

import functools

import pytest
import torch
from helpers import random_batch, retriever, tiny_policy
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from lldlib.policy.score import score
from lldlib.rollout import decode, draw, loop
from lldlib.rollout.decode import LockstepDecoder, RaggedDecoder, make_decoder
from lldlib.rollout.draw import Drawer
from lldlib.types import StopReason
from lldlib.world.protocol import TINY, ends_turn, parse_action

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


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.allclose(got, want, atol=1e-5 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("large", [False, True])
@torch.no_grad()
def test_a_ragged_feed_gives_the_logits_of_a_fresh_forward(monkeypatch, kind, large):
    model = qwen2(**KINDS[kind])
    if large:  # no copies of matrices, no cache by token
        monkeypatch.setattr(decode, "SMALL", 0)
        monkeypatch.setattr(decode, "FEW", 0)
    decoder = make_decoder(model, 4, 20)
    assert isinstance(decoder, RaggedDecoder)
    assert decoder.by_token == (decoder.heads == decoder.kv_heads and not large)
    random = torch.Generator().manual_seed(1)
    rows = [[], [], [], []]
    # chunks of several tokens next to single ones, only single ones, equal chunks
    for counts in ((3, 1, 5, 2), (1, 1, 1, 1), (1, 4, 1, 2), (2, 2, 2, 2), (1, 1, 6, 1)):
        fed = [torch.randint(50, (n,), generator=random).tolist() for n in counts]
        rows = [row + new for row, new in zip(rows, fed, strict=True)]
        logits = model.lm_head(decoder.feed(fed))
        assert all(close(got, fresh(model, row)) for got, row in zip(logits, rows, strict=True))


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
        assert all(close(got, fresh(model, row)) for got, row in zip(logits, rows, strict=True))
    decoder.move([], [], 1)
    last = model.lm_head(decoder.feed([[17]]))
    assert len(last) == 1 and close(last[0], fresh(model, [*rows[0], 17]))


def lockstep(model, rows, capacity):
    return LockstepDecoder(model.get_decoder(), model.config.num_hidden_layers, capacity)


def test_chunks_and_single_tokens_give_the_same_episodes(monkeypatch):
    """The same draws, so the same episodes: rows that leave and passages that come included."""
    policy = tiny_policy()
    batch, episodes = random_batch(policy, 24, max_tokens=90)

    monkeypatch.setattr(draw, "make_decoder", lockstep)
    slow, others = random_batch(policy, 24, max_tokens=90)
    assert sum(e.valid_searches for e in episodes) >= 4 and len({e.stop for e in episodes}) >= 2
    assert [e.stop for e in episodes] == [e.stop for e in others]
    assert torch.equal(batch.tokens, slow.tokens)
    assert torch.equal(batch.action_mask, slow.action_mask)
    assert (batch.sampler_logp - slow.sampler_logp).abs().max() < 1e-4


@pytest.mark.parametrize("block", [2, 7, 200])
def test_blocks_of_tokens_give_the_same_episodes(monkeypatch, block):
    """Surplus tokens of a turn that has ended are dropped, and the next draws are its own."""
    policy = tiny_policy()
    batch, episodes = random_batch(policy, 24, max_tokens=40)
    in_blocks = functools.partial(Drawer, block=block)
    monkeypatch.setattr(loop, "Drawer", in_blocks)
    other, others = random_batch(policy, 24, max_tokens=40)
    assert {e.stop for e in episodes} >= {StopReason.ANSWER, StopReason.TOKEN_BUDGET}
    assert [e.stop for e in episodes] == [e.stop for e in others]
    assert torch.equal(batch.tokens, other.tokens)
    assert torch.equal(batch.action_mask, other.action_mask)
    assert (batch.sampler_logp - other.sampler_logp).abs().max() < 1e-5


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("block", [1, 5])
def test_few_rows_at_a_time_give_the_same_episodes(monkeypatch, ragged, block):
    """A waiting row takes the place of one that ended, or a wave that of the one before."""
    policy = tiny_policy()
    batch, _ = random_batch(policy, 24, max_tokens=60)
    if not ragged:
        monkeypatch.setattr(draw, "make_decoder", lockstep)
    monkeypatch.setattr(loop, "Drawer", functools.partial(Drawer, block=block))
    few, _ = random_batch(policy, 24, max_tokens=60, at_once=5)
    assert torch.equal(batch.tokens, few.tokens)
    assert (batch.sampler_logp - few.sampler_logp).abs().max() < 1e-4


def count_tokens(monkeypatch, decoder: RaggedDecoder, sizes: list[int]) -> None:
    """Note how many tokens each pass through the model has."""
    real = decoder.states

    def counted(step):
        sizes.append(len(step.tokens))
        return real(step)

    monkeypatch.setattr(decoder, "states", counted)


@torch.no_grad()
def test_long_texts_are_fed_in_pieces(monkeypatch):
    model = qwen2(num_key_value_heads=2)
    decoder, sizes = make_decoder(model, 3, 40), []
    real = decoder.states
    monkeypatch.setattr(
        decoder, "states", lambda step: sizes.append(len(step.tokens)) or real(step)
    )
    monkeypatch.setattr(decode, "PIECE", 3 * 4 * 20 * 7)
    rows = [list(range(20)), [7, 8, 9], list(range(20, 37))]
    assert all(
        close(got, fresh(model, row))
        for got, row in zip(model.lm_head(decoder.feed(rows)), rows, strict=True)
    )
    assert sum(sizes) == 40 and max(sizes) < 20 and decoder.lengths == [20, 3, 17]
    sizes.clear()
    new = [[1], list(range(9)), [2, 3]]
    logits = model.lm_head(decoder.feed(new))
    rows = [row + more for row, more in zip(rows, new, strict=True)]
    assert all(close(got, fresh(model, row)) for got, row in zip(logits, rows, strict=True))
    assert len(sizes) > 1
    sizes.clear()  # an MLP wider than the scores makes the pieces shorter
    decoder.widest = 3 * 4 * 20 * 7 // 3  # one token a row and piece
    decoder.feed([[1, 2], [3, 4], [5, 6]])
    assert sizes == [3, 3]


@torch.no_grad()
def test_equal_prompts_are_fed_once(monkeypatch):
    model = qwen2()
    decoder, sizes = make_decoder(model, 5, 20), []
    real = decoder.states
    monkeypatch.setattr(
        decoder, "states", lambda step: sizes.append(len(step.tokens)) or real(step)
    )
    rows = [[1, 2, 3], [1, 2, 3], [4], [1, 2, 3], [4]]
    decoder.feed(rows)
    assert sizes == [4] and decoder.lengths == [3, 3, 1, 3, 1]
    fed = [[5], [6], [7], [8, 9], [10]]
    for got, row, new in zip(model.lm_head(decoder.feed(fed)), rows, fed, strict=True):
        assert close(got, fresh(model, row + new))


def naive_episode(policy, question, chance: torch.Tensor, max_tokens: int) -> list[int]:
    """The tokens of one row, by transformers' own forward over the whole text at every token."""
    text = loop.TokenText(policy.tokenizer)
    tokens, own, turn = text.encode(TINY.prompt(question.text)), 0, []
    searches = invalid = 0
    while len(tokens) < max_tokens:
        logits = policy.model(input_ids=torch.tensor([tokens])).logits[0, -1].double()
        cumulated = logits.softmax(-1).cumsum(-1)
        token = int(torch.searchsorted(cumulated, chance[own].double() * cumulated[-1], right=True))
        tokens, own, turn = [*tokens, token], own + 1, [*turn, token]
        said = policy.tokenizer.decode(turn)
        if token == text.eos:
            break
        if ends_turn(said):
            action = parse_action(said)
            if action.kind == "answer" or searches + invalid >= 4:
                break
            turn = []
            if action.kind == "search":
                searches += 1
                found = retriever().search([action.content], 1)[0]
                tokens = tokens + TINY.observe(found, text.encode, 0)
            else:
                invalid += 1
                tokens = tokens + text.encode(TINY.invalid_message)
    return tokens[:max_tokens]


@pytest.mark.parametrize("block", [1, 6])
@torch.no_grad()
def test_in_float64_episodes_are_those_of_transformers_forward(monkeypatch, block):
    policy = tiny_policy()
    policy.model.double()
    monkeypatch.setattr(loop, "Drawer", functools.partial(Drawer, block=block))
    _, episodes = random_batch(policy, 12, max_tokens=60)
    chance = torch.rand((12, 60), generator=torch.Generator().manual_seed(0))
    for episode, numbers in zip(episodes, chance, strict=True):
        got = [token for turn in episode.turns for token in turn.tokens]
        assert got == naive_episode(policy, episode.question, numbers, 60)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.25)])
@pytest.mark.parametrize("block", [1, 6])
def test_log_probs_of_a_rollout_are_those_of_scoring(monkeypatch, block, dtype, tolerance):
    """Nats at most, of the model's own type; bfloat16 keeps 8 bits of a logit of size 10."""
    policy = tiny_policy()
    policy.model.to(dtype)
    monkeypatch.setattr(loop, "Drawer", functools.partial(Drawer, block=block))
    batch, _ = random_batch(policy, 12, max_tokens=60)
    with torch.no_grad():
        scored = score(policy.model, batch, 1.0).logp
    assert (batch.sampler_logp - scored).abs().max() < tolerance
    assert (batch.sampler_logp - scored).abs().mean() < tolerance / 20


def test_a_rollout_reads_the_weights_of_its_time():
    model = qwen2()
    with torch.no_grad():
        first = model.lm_head(make_decoder(model, 1, 8).feed([[3, 4]]))[0]
        for parameter in model.parameters():
            parameter.mul_(1.1)
        second = model.lm_head(make_decoder(model, 1, 8).feed([[3, 4]]))[0]
        assert close(second, fresh(model, [3, 4])) and not close(first, second)


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
        assert close(got[0], fresh(llama, [1, 2, 5])) and close(got[1], fresh(llama, [3, 4, 6]))


@torch.no_grad()
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
def test_a_llama_is_fed_like_a_qwen2(biased, heads):
    torch.manual_seed(0)
    biases = {"attention_bias": biased, "mlp_bias": biased}
    settings = LlamaConfig(**SMALL | {"num_key_value_heads": heads} | biases)
    llama = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    for name, parameter in llama.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    decoder = make_decoder(llama, 2, 9)
    assert isinstance(decoder, RaggedDecoder)
    decoder.feed([[1, 2, 7], [3]])
    got = llama.lm_head(decoder.feed([[5], [6, 8]]))
    assert close(got[0], fresh(llama, [1, 2, 7, 5])) and close(got[1], fresh(llama, [3, 6, 8]))
