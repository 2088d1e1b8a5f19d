"""Log-probs, entropy and proxy against the plain formula on full (B, T, V) logits."""

import copy
import dataclasses
import math

import pytest
import torch
from helpers import naive_logits, random_batch, tiny_policy

from lldlib.config import LossConfig
from lldlib.losses import nthr_weights, prediction_error, proxy_log_prob
from lldlib.policy.head import next_token, nucleus
from lldlib.policy.rounding import rounded
from lldlib.policy.score import score, score_sorted

MIN_P = LossConfig(lp_reg_filter="min-p", lp_reg_threshold=0.02)
FIXED = LossConfig(lp_reg_filter="fixed", lp_reg_threshold=0.005)


@pytest.fixture(scope="module")
def sampled():
    policy = tiny_policy()
    batch, _ = random_batch(policy, 30, max_tokens=60)
    return policy.model, batch


def naive_logp(model, batch, temperature):
    log_probs = naive_logits(model, batch, temperature).log_softmax(-1)
    logp = log_probs.gather(-1, batch.tokens[..., None])[..., 0]
    return torch.where(batch.action_mask, logp, 0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_log_probs(sampled, temperature):
    model, batch = sampled
    got = score(model, batch, temperature)
    assert torch.allclose(got.logp, naive_logp(model, batch, temperature), atol=1e-5)
    assert got.logp.dtype == torch.float32
    assert got.entropy is got.proxy_logp is got.hidden is got.errors is None


def test_temperatures_differ(sampled):
    model, batch = sampled
    gap = score(model, batch, 1.0).logp - score(model, batch, 0.7).logp
    assert gap[batch.action_mask].abs().mean() > 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropy(sampled, temperature):
    model, batch = sampled
    p = naive_logits(model, batch, temperature).softmax(-1)
    expected = torch.where(batch.action_mask, -(p * p.log()).sum(-1), 0.0)
    got = score(model, batch, temperature, entropy=True).entropy
    assert torch.allclose(got, expected, atol=1e-4)


def test_entropy_of_even_logits(sampled):
    model, batch = sampled
    flat = copy.deepcopy(model)
    with torch.no_grad():
        flat.get_output_embeddings().weight.zero_()
    got = score(flat, batch, 1.0, entropy=True)
    size = torch.tensor(float(model.config.vocab_size))  # ln V, and -ln V for every token
    assert torch.allclose(got.entropy[batch.action_mask], size.log())
    assert torch.allclose(got.logp[batch.action_mask], -size.log())


@pytest.mark.parametrize(("config", "name"), [(MIN_P, "kappa"), (FIXED, "tau")])
def test_proxy(sampled, config, name):
    model, batch = sampled
    logits = naive_logits(model, batch, 0.7)
    expected = proxy_log_prob(logits, batch.tokens, **{name: config.lp_reg_threshold})
    got = score(model, batch, 0.7, proxy=config).proxy_logp
    mask = batch.action_mask
    assert torch.equal(got[mask].isinf(), expected[mask].isinf())
    kept = mask & ~got.isinf()
    assert kept.any() and (kept != mask).any()
    assert torch.allclose(got[kept], expected[kept], atol=1e-5)
    assert (got[~mask] == 0).all()


def test_internals_give_nthr_what_it_reads(sampled):
    model, batch = sampled
    advantages = torch.where(torch.arange(30) % 2 == 0, 1.0, -1.0)
    got = score(model, batch, 0.7, internals=True)
    mask = batch.action_mask
    logits = naive_logits(model, batch, 0.7)
    errors = prediction_error(logits, batch.tokens)
    assert torch.allclose(got.errors[mask], errors[mask], atol=1e-5)
    state = model.get_decoder()(input_ids=batch.tokens).last_hidden_state
    hidden = torch.nn.functional.pad(state[:, :-1], (0, 0, 1, 0))
    assert torch.allclose(got.hidden[mask], hidden[mask], atol=1e-5)
    args = (advantages, batch.group, mask)
    weights = nthr_weights(got.hidden, got.errors, *args)
    assert torch.allclose(weights, nthr_weights(hidden, errors, *args))
    assert (weights != 1).any()


def test_sorted_chunks_give_the_same(sampled):
    model, batch = sampled
    with torch.no_grad():
        whole = score(model, batch, 0.7, entropy=True, proxy=MIN_P)
        for chunk in (1, 7, 100):
            parts = score_sorted(model, batch, 0.7, chunk=chunk, entropy=True, proxy=MIN_P)
            for name in ("logp", "entropy", "proxy_logp"):
                got, want = getattr(parts, name), getattr(whole, name)
                assert torch.equal(got.isinf(), want.isinf())
                finite = ~want.isinf()
                assert torch.allclose(got[finite], want[finite], atol=1e-5)
        assert score_sorted(model, batch, 0.7).entropy is None


def test_gradient(sampled):
    model, batch = copy.deepcopy(sampled[0]), sampled[1]
    weight = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(0))

    def gradient(logp):
        model.zero_grad()
        (weight * logp).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    got = gradient(score(model, batch, 0.7).logp)
    want = gradient(naive_logp(model, batch, 0.7))
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-4 * float(b.abs().max()) + 1e-6)
    assert max(float(b.abs().max()) for b in want) > 0.1


def test_gradient_of_the_entropy(sampled):
    model, batch = copy.deepcopy(sampled[0]), sampled[1]
    score(model, batch, 1.0, entropy=True).entropy.sum().backward()
    got = model.get_input_embeddings().weight.grad.clone()
    model.zero_grad()
    p = naive_logits(model, batch, 1.0).softmax(-1)
    torch.where(batch.action_mask, -(p * p.log()).sum(-1), 0.0).sum().backward()
    want = model.get_input_embeddings().weight.grad
    assert torch.allclose(got, want, atol=1e-4 * float(want.abs().max()))


def test_a_batch_without_an_action_scores_zero(sampled):
    model, batch = sampled
    silent = dataclasses.replace(batch, action_mask=torch.zeros_like(batch.action_mask))
    got = score(model, silent, 1.0, entropy=True, proxy=MIN_P)
    assert not got.logp.any() and not got.entropy.any() and not got.proxy_logp.any()


def test_a_lora_model_is_scored_through_its_wrapper(sampled):
    from peft import LoraConfig, get_peft_model

    model, batch = copy.deepcopy(sampled[0]), sampled[1]
    plain = score(model, batch, 1.0).logp.detach()
    torch.manual_seed(0)
    settings = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    wrapped = get_peft_model(model, settings).eval()
    got = score(wrapped, batch, 1.0).logp
    assert torch.allclose(got, naive_logp(wrapped, batch, 1.0), atol=1e-5)
    assert (got - plain).abs().max() > 1e-3  # the adapters are in it
    got.sum().backward()
    trained = {name for name, p in wrapped.named_parameters() if p.grad is not None}
    assert trained and all("lora" in name for name in trained)


# -- the next token ------------------------------------------------------------------------------


def drawn(probabilities: list[float], uniforms: list[float], temperature: float = 1.0):
    """Draws from one distribution, given as the state under a head that changes nothing."""
    hidden = torch.tensor(probabilities).log().expand(len(uniforms), -1)
    uniform = torch.tensor(uniforms)
    return next_token(torch.nn.Identity(), hidden, temperature=temperature, uniform=uniform)


def test_a_draw_is_the_first_token_whose_cumulated_probability_exceeds_u():
    p = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0]  # cumulated: 0, 0.25, 0.25, 0.75, 1, 1
    tokens, logp = drawn(p, [0.0, 0.2, 0.26, 0.7, 0.8, 1 - 2**-24])
    assert tokens.tolist() == [1, 1, 3, 3, 4, 4]
    assert torch.allclose(logp.exp(), torch.tensor(p)[tokens])


def test_the_largest_u_never_draws_a_token_of_probability_0():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 301, generator=random) * 4
    logits[:, 150:] = -torch.inf
    for u in (0.0, 1 - 2**-24):  # the least and the largest that torch.rand gives
        uniform = torch.full((2000,), u)
        tokens, logp = next_token(torch.nn.Identity(), logits, temperature=0.7, uniform=uniform)
        assert tokens.max() < 150 and logp.isfinite().all()


def test_logits_that_are_not_finite_draw_some_token():
    states = torch.tensor([[math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [0.0, 0.0, 0.0]])
    uniform = torch.tensor([0.5, 0.5, 0.5])
    tokens, logp = next_token(torch.nn.Identity(), states, temperature=1.0, uniform=uniform)
    assert set(tokens.tolist()) <= {0, 1, 2} and tokens[2] == 1
    assert logp.isfinite().tolist() == [False, False, True]


def test_even_draws_give_the_distribution():
    """Over a grid of u, a token's share is its probability, to one step of the grid."""
    p = torch.tensor([0.1, 0.2, 0.05, 0.65])
    grid = ((torch.arange(1000) + 0.5) / 1000).tolist()
    for temperature in (1.0, 0.5):
        want = (p.log() / temperature).softmax(-1)
        tokens, logp = drawn(p.tolist(), grid, temperature)
        share = torch.bincount(tokens, minlength=4) / 1000
        assert (share - want).abs().max() <= 1.5e-3
        assert torch.allclose(logp, want.log()[tokens], atol=1e-5)


def test_temperature_0_is_greedy_and_gives_the_log_prob_at_temperature_1():
    tokens, logp = drawn([0.1, 0.2, 0.65, 0.05], [0.0, 0.99], temperature=0.0)
    assert tokens.tolist() == [2, 2]
    assert torch.allclose(logp.exp(), torch.tensor(0.65))


# -- a sampler that is not quite the policy ------------------------------------------------------


def test_a_nucleus_holds_the_likeliest_tokens_and_sums_to_1():
    # .5, then .8, then .95: .9 needs three of them; .8 is reached by two
    probs = torch.tensor([[0.05, 0.5, 0.15, 0.3]])
    assert torch.allclose(nucleus(probs, 0.9), torch.tensor([[0, 0.5, 0.15, 0.3]]) / 0.95)
    assert torch.allclose(nucleus(probs, 0.75), torch.tensor([[0, 0.5, 0, 0.3]]) / 0.8)
    assert torch.allclose(nucleus(probs, 0.1), torch.tensor([[0.0, 1, 0, 0]]))


def test_noise_on_logits_is_gaussian_and_a_matter_of_the_row_alone():
    """At equal logits of two tokens their log-odds are the noise's difference, sqrt(2) wide."""
    uniform = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    hidden = torch.zeros(4000, 2)
    token, logp = next_token(
        torch.nn.Identity(), hidden, temperature=1.0, uniform=uniform, noise=0.5
    )
    odds = torch.where(token == 0, 1.0, -1.0) * (logp - (-logp.exp()).log1p())
    assert odds.mean().abs() < 0.05 and odds.std() == pytest.approx(0.5 * 2**0.5, rel=0.05)
    some = slice(100, 110)
    again, same = next_token(
        torch.nn.Identity(), hidden[some], temperature=1.0, uniform=uniform[some], noise=0.5
    )
    assert again.equal(token[some]) and same.equal(logp[some])


def test_greedy_draws_know_no_noise_and_no_nucleus():
    hidden, uniform = torch.tensor([[0.1, 0.2, 0.0]]), torch.tensor([0.99])
    token, logp = next_token(
        torch.nn.Identity(), hidden, temperature=0.0, uniform=uniform, noise=9.0, top_p=0.1
    )
    assert token.item() == 1 and logp.item() == pytest.approx(hidden.log_softmax(-1)[0, 1].item())


def test_rounded_weights_are_themselves_again():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))
    before = [p.clone() for p in model.parameters()]
    with torch.inference_mode(), rounded(model, "int8"):
        weight = model[0].weight
        steps = weight / (weight.abs().amax(1, keepdim=True) / 127)
        assert torch.allclose(steps, steps.round(), atol=1e-4)
        assert not weight.equal(before[0]) and (weight - before[0]).abs().max() < 0.01
        assert model[1].weight.equal(before[2])  # a vector stays
    with pytest.raises(KeyError), rounded(model, "bfloat16"):
        assert model[0].weight.equal(before[0].bfloat16().float())
        raise KeyError
    assert all(p.equal(old) for p, old in zip(model.parameters(), before, strict=True))
    with rounded(model, "same"):
        assert model[0].weight.equal(before[0])
