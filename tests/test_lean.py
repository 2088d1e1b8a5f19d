"""The chunked head against the plain formula: values, gradients, what is never allocated."""

from dataclasses import replace

import pytest
import torch
from helpers import random_batch, tiny_policy
from torch import nn

from lldlib.config import LossConfig
from lldlib.losses import forward_kl, proxy_log_prob, proxy_logits
from lldlib.policy import head as lean
from lldlib.policy.head import head_scores
from lldlib.policy.score import score

TOKENS, HIDDEN, VOCABULARY = 23, 6, 17
MIN_P = LossConfig(lp_reg_filter="min-p", lp_reg_threshold=0.3)
FIXED = LossConfig(lp_reg_filter="fixed", lp_reg_threshold=0.08)


def example(*, dtype=torch.float32, frozen=False):
    """A head, states and targets; states are wide, so that the softmax is peaked."""
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=dtype).requires_grad_(not frozen)
    hidden = (4 * torch.randn(TOKENS, HIDDEN, dtype=dtype)).requires_grad_()
    return head, hidden, torch.randint(VOCABULARY, (TOKENS,))


def naive(head, hidden, targets, temperature):
    """log-probs (N, V) by the plain formula."""
    logits = head(hidden) / temperature
    log_probs = logits.log_softmax(-1)
    return log_probs.gather(-1, targets[:, None])[:, 0], log_probs, logits


def test_a_large_frozen_head_is_read_for_128_rows_or_more():
    hidden = torch.zeros(1, HIDDEN)
    for words, frozen, elements in (
        (151_936, True, 128 * 151_936),
        (1000, True, lean.CPU_ELEMENTS),
        (1_000_000, True, lean.CHUNK_ELEMENTS),
        (151_936, False, lean.CHUNK_ELEMENTS),
    ):
        head = nn.Linear(HIDDEN, words, device="meta").requires_grad_(not frozen)
        assert lean._elements(head, hidden) == elements


@pytest.mark.parametrize("per_chunk", [1, 5, 22])  # 5 leaves a short last chunk
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("proxy", [MIN_P, FIXED])
def test_values(per_chunk, temperature, proxy):
    head, hidden, targets = example()
    got = head_scores(
        head,
        hidden,
        targets,
        temperature,
        entropy=True,
        proxy=proxy,
        top1=True,
        elements=per_chunk * VOCABULARY,
    )
    logp, log_probs, logits = naive(head, hidden, targets, temperature)
    assert torch.allclose(got.logp, logp, atol=1e-5)
    assert torch.allclose(got.entropy, -(log_probs.exp() * log_probs).sum(-1), atol=1e-5)
    assert torch.allclose(got.top1, log_probs.exp().amax(-1), atol=1e-5)
    name = "kappa" if proxy is MIN_P else "tau"
    want = proxy_log_prob(logits[None], targets[None], **{name: proxy.lp_reg_threshold})[0]
    assert torch.equal(got.proxy_logp.isinf(), want.isinf())
    assert want.isinf().any() and not want.isinf().all()
    assert torch.allclose(got.proxy_logp[~want.isinf()], want[~want.isinf()], atol=1e-5)
    assert got.logp.requires_grad and got.entropy.requires_grad
    assert not got.proxy_logp.requires_grad and not got.top1.requires_grad


EXACT = {proxy: replace(proxy, lp_reg_kl="exact") for proxy in (MIN_P, FIXED)}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 5, 100])
@pytest.mark.parametrize("proxy", EXACT.values(), ids=["min-p", "fixed"])
def test_the_exact_kl_to_another_policys_proxy(frozen, per_chunk, proxy):
    """Value and gradient of losses.forward_kl, without all logits at once."""
    elements = per_chunk * VOCABULARY
    head, hidden, targets = example(frozen=frozen)
    old = hidden.detach() + torch.randn(TOKENS, HIDDEN)
    with torch.no_grad():
        full = head_scores(head, old, targets, 0.7, proxy=proxy, elements=elements).proxy
    absent = torch.arange(TOKENS) % 4 == 0
    toward = replace(full, count=full.count.masked_fill(absent, 0))
    got = head_scores(head, hidden, targets, 0.7, toward=toward, elements=elements)

    name = "kappa" if proxy.lp_reg_filter == "min-p" else "tau"
    kept = proxy_logits(head(old)[None] / 0.7, **{name: proxy.lp_reg_threshold})
    want = forward_kl(head(hidden)[None] / 0.7, kept)[0].masked_fill(absent, 0.0)
    torch.testing.assert_close(got.proxy_kl, want, atol=1e-5, rtol=1e-5)
    assert want.max() > 0.1 and full.count.equal((kept[0] > -torch.inf).sum(-1))

    weights, inputs = torch.randn(TOKENS), [hidden] if frozen else [hidden, head.weight]
    ours, plain = (torch.autograd.grad((weights * kl).sum(), inputs) for kl in (got.proxy_kl, want))
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    assert plain[0].abs().max() > 1e-2


def test_the_exact_kl_of_no_token():
    head, hidden, targets = example()
    full = head_scores(head, hidden, targets, 1.0, proxy=EXACT[MIN_P]).proxy
    none = head_scores(head, hidden[:0], targets[:0], 1.0, proxy=EXACT[MIN_P])
    assert len(none.proxy.count) == 0
    off = replace(full, count=torch.zeros_like(full.count))
    assert not head_scores(head, hidden, targets, 1.0, toward=off).proxy_kl.any()


def test_hand_worked():
    """Logits (ln 1, ln 2, ln 5): probabilities 1/8, 2/8, 5/8; at T = 1/2 1/30, 4/30, 25/30."""
    head = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [2.0], [5.0]]).log())
    hidden, targets = torch.ones(2, 1), torch.tensor([0, 2])
    one = head_scores(head, hidden, targets, 1.0, entropy=True, top1=True, elements=3)
    assert torch.allclose(one.logp.exp(), torch.tensor([1 / 8, 5 / 8]))
    p = torch.tensor([1 / 8, 2 / 8, 5 / 8])
    assert torch.allclose(one.entropy, -(p * p.log()).sum().expand(2))
    assert torch.allclose(one.top1, torch.tensor([5 / 8, 5 / 8]))
    half = head_scores(head, hidden, targets, 0.5, elements=3)
    assert torch.allclose(half.logp.exp(), torch.tensor([1 / 30, 25 / 30]))
    assert half.entropy is half.proxy_logp is half.top1 is None


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_gradcheck_in_float64(frozen, entropy):
    head, hidden, targets = example(dtype=torch.float64, frozen=frozen)

    def scores(hidden, weight):
        head.weight = nn.Parameter(weight, requires_grad=weight.requires_grad)
        settings = (temperature, 4, entropy, None, False)
        out = lean._LeanHead.apply(hidden, weight, targets, *settings)
        return out[:2] if entropy else out[0]

    temperature = 0.7
    weight = head.weight.detach().clone().requires_grad_(not frozen)
    assert torch.autograd.gradcheck(scores, (hidden, weight))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.3)])
def test_gradients_equal_the_plain_ones(frozen, weights):
    """Of logp alone, of entropy alone, of both; and a second backward pass gives the same."""
    by_logp, by_entropy = (w * torch.randn(TOKENS) if w else None for w in weights)
    found = []
    for elements in (4 * VOCABULARY, 10**9):
        head, hidden, targets = example(frozen=frozen)
        got = head_scores(head, hidden, targets, 0.7, entropy=True, elements=elements)
        terms = [(by_logp, got.logp), (by_entropy, got.entropy)]
        loss = sum((w * value).sum() for w, value in terms if w is not None)
        inputs = [hidden] if frozen else [hidden, head.weight]
        twice = [torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(2)]
        assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True))
        found.append(twice[0])
    for ours, plain in zip(*found, strict=True):
        assert torch.allclose(ours, plain, atol=1e-5)
        assert plain.abs().max() > 1e-2


def test_a_sure_token_keeps_its_small_gradient_in_bfloat16():
    """1 - p of a token with p = 0.9997 would round to 0 if p were rounded before it is taken."""
    head = nn.Linear(2, 3, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[8.0, 0.0], [0.0, 8.0], [0.0, 0.0]]))
    hidden = torch.tensor([[1.0, 0.0]] * 2, dtype=torch.bfloat16, requires_grad=True)
    got = head_scores(head, hidden, torch.tensor([0, 0]), 1.0, elements=3)
    got.logp.sum().backward()
    p = torch.tensor([8.0, 0.0, 0.0]).softmax(-1)
    assert 1 - p[0] < 2**-8  # what bfloat16 cannot tell from 1
    assert torch.allclose(hidden.grad[0, 0].float(), 8 * (1 - p[0]), rtol=0.02)


def test_no_gradient_is_kept_where_none_is_wanted():
    head, hidden, targets = example()
    with torch.no_grad():
        got = head_scores(head, hidden, targets, 1.0, entropy=True, elements=2 * VOCABULARY)
    assert got.logp.grad_fn is None and got.entropy.grad_fn is None


@pytest.mark.parametrize("frozen", [False, True])
def test_all_logits_never_exist(frozen):
    """No tensor in forward and backward has more than a chunk's logits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            for value in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(value, torch.Tensor):
                    largest = max(largest, value.numel())
            return out

    head, hidden, targets = example(frozen=frozen)
    elements, wanted = 4 * VOCABULARY, {"entropy": True, "proxy": EXACT[MIN_P], "top1": True}
    toward = head_scores(head, hidden.detach(), targets, 0.7, proxy=EXACT[MIN_P]).proxy
    with Watch():
        got = head_scores(head, hidden, targets, 1.0, toward=toward, elements=elements, **wanted)
        (got.logp.sum() + got.entropy.sum() + got.proxy_kl.sum()).backward()
    assert VOCABULARY < largest <= max(elements, head.weight.numel(), hidden.numel())
    assert largest < TOKENS * VOCABULARY


def test_a_head_with_a_bias_takes_the_plain_formula():
    head = nn.Linear(HIDDEN, VOCABULARY)
    _, hidden, targets = example()
    got = head_scores(head, hidden, targets, 1.0, elements=1)
    assert torch.allclose(got.logp, naive(head, hidden, targets, 1.0)[0], atol=1e-6)


def test_on_a_cpu_a_head_that_is_not_trained_takes_smaller_chunks(monkeypatch):
    """16 MiB in place of 128; a trained one would compute the logits of several chunks twice."""
    chunks = []

    def watched(*given):
        chunks.append(given[-1])
        return scores(*given)

    scores = lean._scores
    monkeypatch.setattr(lean, "_scores", watched)
    for frozen in (True, False):
        head_scores(*example(frozen=frozen), 1.0)
    with torch.no_grad():
        head_scores(*example(), 1.0)
    assert [4 * chunk / 2**20 for chunk in chunks] == [16, 128, 16]


def test_a_model_scored_in_chunks(monkeypatch):
    """Masks, temperature and gradients through a whole model, chunks of three tokens."""
    policy = tiny_policy()
    batch, _ = random_batch(policy, 6, max_tokens=40)
    wanted = {"entropy": True, "proxy": MIN_P, "top1": True}

    def run():
        policy.model.zero_grad()
        got = score(policy.model, batch, 0.7, **wanted)
        (got.logp.sum() - 0.1 * got.entropy.sum()).backward()
        return got, [p.grad.clone() for p in policy.model.parameters()]

    plain, plain_grads = run()
    monkeypatch.setattr(lean, "_plain", None)  # so that the other path cannot be taken
    monkeypatch.setattr(
        "lldlib.policy.score.head_scores",
        lambda *a, **k: head_scores(*a, **k, elements=3 * policy.model.config.vocab_size),
    )
    chunked, grads = run()
    for name in ("logp", "entropy", "proxy_logp", "top1"):
        a, b = getattr(chunked, name), getattr(plain, name)
        assert torch.equal(a.isinf(), b.isinf())
        assert torch.allclose(a[~a.isinf()], b[~b.isinf()], atol=1e-5), name
        assert (a[~batch.action_mask] == 0).all()
    for a, b in zip(grads, plain_grads, strict=True):
        assert torch.allclose(a, b, atol=1e-4 * float(b.abs().max()) + 1e-6)
