"""The rollout of a real model: its log-probs, its draws, and the cache behind them."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import (
    character_policy,
    naive_logits,
    random_batch,
    retriever,
    tiny_policy,
    worded,
    world_questions,
)
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    OPTConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import DynamicLayer

from lldlib.config import RolloutConfig
from lldlib.policy.load import Policy, check_length
from lldlib.policy.score import score
from lldlib.retrieval import BM25Retriever, Retriever
from lldlib.rollout.batch import collate
from lldlib.rollout.cache import PreallocatedLayer
from lldlib.rollout.decode import make_decoder
from lldlib.rollout.loop import Rollout
from lldlib.types import Episode, Question
from lldlib.world.environment import RULES
from lldlib.world.protocol import TINY, Protocol

SHAPE = (  # of a Qwen2 that a Qwen3 of the same size needs too
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads"),
)


def flat(episode: Episode) -> list[int]:
    return [token for turn in episode.turns for token in turn.tokens]


GPT2 = GPT2Config(n_positions=32, n_embd=16, n_layer=1, n_head=2)
OPT = OPTConfig(
    max_position_embeddings=32,
    hidden_size=16,
    ffn_dim=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    word_embed_proj_dim=16,
)


@pytest.mark.parametrize("config", [GPT2, OPT], ids=["gpt2", "opt"])
def test_a_table_of_positions_limits_the_rows(config: PreTrainedConfig):
    model = AutoModelForCausalLM.from_config(config)
    check_length(model, 32)
    model(torch.ones(1, 32, dtype=torch.long))
    with pytest.raises(
        ValueError, match=r"max_tokens 33 is more than .* can read: give 32 or less"
    ):
        check_length(model, 33)
    policy = replace(tiny_policy(), model=model)
    with pytest.raises(ValueError, match="max_tokens 90"):
        random_batch(policy, 1, max_tokens=90)
    check_length(tiny_policy().model, 100_000)  # rotary positions have no table


def test_prompts_of_different_lengths():
    policy = tiny_policy()
    texts = ["a", "What is the capital of the largest neighbour of France ?", "b c d"]
    questions = [Question(str(i), text, ("x",)) for i, text in enumerate(texts)]
    batch, episodes = random_batch(policy, 3, questions=questions, max_tokens=40)
    assert [e.turns[0].tokens for e in episodes] == [
        policy.tokenizer.encode(TINY.prompt(text)) for text in texts
    ]
    scored = score(policy.model, batch, 1.0).logp
    assert (scored - batch.sampler_logp).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("seed", "temperature", "config"),
    [
        (0, 1.0, {"max_tokens": 90, "max_searches": 4, "top_k": 1}),
        (1, 0.7, {"max_tokens": 120, "max_searches": 8, "top_k": 3}),
        (2, 1.3, {"max_tokens": 33, "max_searches": 1, "top_k": 1}),
    ],
)
def test_sampler_log_probs_equal_a_fresh_forward(seed, temperature, config):
    policy = tiny_policy(seed)
    batch, episodes = random_batch(policy, 40, seed=seed, temperature=temperature, **config)
    assert len({e.stop for e in episodes}) >= 2  # rows end early, and are dropped
    assert sum(e.valid_searches for e in episodes) >= 4
    scored = score(policy.model, batch, temperature).logp
    assert (scored - batch.sampler_logp).abs().max() < 1e-4
    assert batch.sampler_logp[batch.action_mask].max() < 0


def test_sampler_log_probs_with_grouped_heads_and_characters():
    policy = character_policy()
    config = copy.deepcopy(policy.model.config)
    config.num_key_value_heads = 1
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    policy, rules = Policy(model, policy.tokenizer), worded(Protocol("", "!"))
    batch, _ = random_batch(policy, 6, rules=rules, max_tokens=120)
    assert (score(model, batch, 1.0).logp - batch.sampler_logp).abs().max() < 1e-4


def test_the_same_seed_gives_the_same_episodes():
    policy = tiny_policy()
    (_, first), (_, again), (_, other) = (
        random_batch(policy, 12, seed=seed, max_tokens=60) for seed in (5, 5, 6)
    )
    assert first == again
    assert [e.turns for e in first] != [e.turns for e in other]


def test_sampling_follows_the_temperature():
    """At a low temperature sampling is greedy; at temperature 0 it is by definition."""
    policy, questions = tiny_policy(), world_questions(8)
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=40))
    cold = rollout.run(
        policy.model, questions, temperature=1e-3, generator=torch.Generator().manual_seed(0)
    )
    greedy = rollout.run(policy.model, questions, temperature=0.0)
    assert [flat(e) for e in cold] == [flat(e) for e in greedy]


def test_greedy_is_the_argmax_of_a_fresh_forward():
    policy, questions = tiny_policy(), world_questions(12)
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=80))
    episodes = rollout.run(policy.model, questions, temperature=0.0)
    batch = collate(episodes)
    logits = naive_logits(policy.model, batch, 1.0).detach()
    best = logits.argmax(-1)
    assert torch.equal(best[batch.action_mask], batch.tokens[batch.action_mask])
    expected = logits.log_softmax(-1).amax(-1)
    gap = (expected - batch.sampler_logp)[batch.action_mask]
    assert gap.abs().max() < 1e-4  # given at temperature 1


def test_a_row_does_not_depend_on_its_company():
    policy, questions = tiny_policy(), world_questions(12)
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=80))
    together = rollout.run(policy.model, questions, temperature=0.0)
    backwards = rollout.run(policy.model, questions[::-1], temperature=0.0)[::-1]
    alone = [rollout.run(policy.model, [q], temperature=0.0)[0] for q in questions]
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert flat(one) == flat(two) == flat(three)
        assert one.stop is two.stop is three.stop and one.answer == two.answer == three.answer


def test_the_model_is_left_as_it_was():
    policy = tiny_policy()
    before = copy.deepcopy(policy.model.state_dict())
    random_batch(policy, 4, max_tokens=30)
    assert all(torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())
    assert all(p.grad is None for p in policy.model.parameters())


def test_a_model_in_training_with_checkpointing_draws_as_in_evaluation():
    """In training mode with gradient checkpointing transformers would leave the cache empty."""
    policy, questions = tiny_policy(), world_questions(4)
    shape = {key: getattr(policy.model.config, key) for key in SHAPE}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=16)).eval()
    rollout = Rollout(policy.tokenizer, RULES["qa"], retriever(), RolloutConfig(max_tokens=60))

    def episodes():
        generator = torch.Generator().manual_seed(0)
        ended = rollout.run(model, questions, temperature=1.0, generator=generator)
        return [flat(episode) for episode in ended]

    wanted = episodes()
    model.gradient_checkpointing_enable()
    model.train()
    assert episodes() == wanted and model.training


def test_the_world_retriever_meets_the_protocol():
    assert isinstance(retriever(), Retriever) and isinstance(retriever(), BM25Retriever)


# -- the cache -----------------------------------------------------------------------------------


def test_the_cache_holds_what_the_growing_one_holds():
    torch.manual_seed(0)
    ours, theirs = PreallocatedLayer(9), DynamicLayer()
    for width in (3, 1, 2):
        keys, values = torch.randn(4, 2, width, 5), torch.randn(4, 2, width, 5)
        got, want = ours.update(keys, values), theirs.update(keys, values)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    ours.move([3], [0], 2)
    theirs.batch_select_indices(torch.tensor([3, 1]))
    assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    more = torch.randn(2, 2, 1, 5)
    got, want = ours.update(more, more), theirs.update(more, more)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert ours.get_seq_length() == theirs.get_seq_length() == 7


def test_the_cache_is_written_in_place():
    layer = PreallocatedLayer(4)
    first = layer.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))[0]
    second = layer.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))[0]
    assert first.data_ptr() == second.data_ptr()


def test_a_lora_policy_rolls_out():
    from peft import LoraConfig, get_peft_model

    policy = tiny_policy()
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    plain, _ = random_batch(policy, 4, max_tokens=40)
    model = get_peft_model(policy.model, config).eval()
    assert make_decoder(model, 1, 1).ragged
    batch, _ = random_batch(Policy(model, policy.tokenizer), 4, max_tokens=40)
    assert (score(model, batch, 1.0).logp - batch.sampler_logp).abs().max() < 1e-4
    assert not torch.equal(plain.sampler_logp[:, :20], batch.sampler_logp[:, :20])
