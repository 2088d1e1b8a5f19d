"""KL estimators against exact sums, and the entropy terms against values worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, tensor

from lldlib import losses

NO, YES = False, True


def ln(rows: list[list[float]]) -> Tensor:
    return tensor(rows).log()


def close(actual: Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, tensor(expected), atol=1e-5, rtol=1e-5)


P = tensor([[0.4, 0.3, 0.15, 0.1, 0.04, 0.01]])
Q = P.flip(1)


def test_kl_estimators_by_hand():
    # pi 0.5, reference 0.25: d = -ln 2; k1 = ln 2, k2 = ln(2)^2 / 2, k3 = 0.5 + ln 2 - 1
    expected = {"k1": 0.693147, "k2": 0.240227, "k3": 0.193147, "low_var_kl": 0.193147}
    for estimator, value in expected.items():
        mask = tensor([[YES, NO]])
        logp, reference = ln([[0.5, 0.5]]), ln([[0.25, 0.25]])
        close(losses.kl_to_reference(logp, reference, mask, estimator), [[value, 0.0]])
        close(losses.kl_to_reference(logp, reference, estimator=estimator), [[value, value]])


def test_kl_estimators_against_the_exact_sum_far_from_zero():
    exact = (P * (P / Q).log()).sum().item()  # 2.07 nats
    mean = {
        k: (P * losses.kl_to_reference(P.log(), Q.log(), estimator=k)).sum().item()
        for k in ("k1", "k2", "k3")
    }
    assert exact > 1.5
    assert mean["k1"] == pytest.approx(exact, rel=1e-5)
    assert mean["k3"] == pytest.approx(exact, rel=1e-5)
    assert abs(mean["k2"] - exact) > 0.2  # biased, as its docstring says


def test_k2_has_the_gradient_of_the_exact_kl():
    logits = P.log().requires_grad_()
    sampled = (P * losses.kl_to_reference(logits.log_softmax(1), Q.log(), estimator="k2")).sum()
    exact = (logits.softmax(1) * (logits.log_softmax(1) - Q.log())).sum()
    gradients = [torch.autograd.grad(v, logits)[0] for v in (sampled, exact)]
    torch.testing.assert_close(*gradients)


def test_kl_holds_the_reference_constant_and_stays_finite():
    logp = tensor([[-200.0, -1.0]], requires_grad=True)
    reference = tensor([[-1.0, -1.0]], requires_grad=True)
    losses.kl_to_reference(logp, reference).sum().backward()
    assert reference.grad is None and torch.isfinite(logp.grad).all()


def test_low_var_kl_gives_up_a_token_where_k3_explodes():
    # d = 2: e^2 - 3 = 4.389, under the limit; d = 5: e^5 - 6 = 142.4, cut off at 10
    gradients = {}
    for estimator, values in {
        "k3": [[4.389056, 142.413]],
        "low_var_kl": [[4.389056, 10.0]],
    }.items():
        logp = tensor([[-3.0, -6.0]], requires_grad=True)
        term = losses.kl_to_reference(logp, tensor([[-1.0, -1.0]]), estimator=estimator)
        close(term.detach(), values)
        gradients[estimator] = torch.autograd.grad(term.sum(), logp)[0]
    close(gradients["k3"], [[-6.389056, -147.413]])  # 1 - e^d
    close(gradients["low_var_kl"], [[-6.389056, 0.0]])


def test_entropy_bonus_is_negative_entropy():
    close(losses.entropy_bonus(tensor([[2.0, 3.0]]), tensor([[YES, NO]])), [[-2.0, 0.0]])


def test_top_entropy_mask_keeps_the_highest_and_all_ties():
    entropy = tensor([[0.1, 0.9, 0.5, 9.0], [0.3, 0.7, 0.3, 9.0]])
    mask = tensor([[YES, YES, YES, NO]] * 2)
    # of 6 tokens 0.3 is 1.8, rounded up to 2: 0.9 and 0.7; 0.6 is 3.6 -> 4, whose edge 0.3 ties
    two = losses.top_entropy_mask(entropy, mask, 0.3)
    assert two.equal(tensor([[NO, YES, NO, NO], [NO, YES, NO, NO]]))
    assert losses.top_entropy_mask(entropy, mask, 0.6).sum() == 5
    assert losses.top_entropy_mask(entropy, mask, 1.0).equal(mask)
    hundred = torch.arange(100.0)[None]  # in floats 0.07 * 100 > 7, yet 7 % of 100 is 7
    assert losses.top_entropy_mask(hundred, hundred >= 0, 0.07).sum() == 7
    with pytest.raises(ValueError, match="share"):
        losses.top_entropy_mask(entropy, mask, 0.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.floats(0.01, 1.0))
def test_top_entropy_share_bounds(count, share):
    entropy = torch.randperm(count, generator=torch.Generator().manual_seed(count))[None].float()
    kept = losses.top_entropy_mask(entropy, torch.ones(1, count, dtype=torch.bool), share)
    assert share - 1e-6 <= kept.sum().item() / count < share + 1 / count
    assert kept.all() or entropy[kept].min() > entropy[~kept].max()


COV_LOGP = tensor([[-1.0, -2.0], [-3.0, -9.0]])
COV_ADVANTAGES = tensor([1.0, -1.0])
COV_MASK = tensor([[YES, YES], [YES, NO]])


def test_token_covariance():
    # means over 3 tokens: -2 and 1/3; (1)(2/3), (0)(2/3), (-1)(-4/3)
    covariance = losses.token_covariance(COV_LOGP, COV_ADVANTAGES, COV_MASK)
    close(covariance, [[2 / 3, 0.0], [4 / 3, 0.0]])


def test_kl_cov_penalises_the_largest_covariance():
    logp, old = COV_LOGP.clone().requires_grad_(), tensor([[0.0, 0.0], [-2.5, 0.0]])
    term = losses.kl_cov_penalty(logp, old, COV_ADVANTAGES, COV_MASK, share=0.3)
    close(term.detach(), [[0.0, 0.0], [0.5, 0.0]])  # int(0.9) = 0, so one: covariance 4/3
    term.sum().backward()
    close(logp.grad, [[0.0, 0.0], [-1.0, 0.0]])


@pytest.mark.parametrize(("share", "count"), [(0.002, 1), (0.05, 5), (0.059, 5), (1.0, 100)])
def test_kl_cov_takes_its_share_of_equal_covariances(share, count):
    """Equal advantages, as in most small minibatches: every covariance is 0."""
    mask = torch.ones(2, 60, dtype=torch.bool)
    mask[:, 50:] = False
    logp = torch.full((2, 60), -1.0)
    term = losses.kl_cov_penalty(logp, logp - 0.5, tensor([1.0, 1.0]), mask, share=share)
    assert (term > 0).sum() == count and not term[~mask].any()


def test_kl_cov_refuses_an_empty_share():
    with pytest.raises(ValueError, match="share is 0"):
        losses.kl_cov_penalty(COV_LOGP, COV_LOGP, COV_ADVANTAGES, COV_MASK, share=0)


def test_clip_cov_draws_within_the_bounds():
    def draw(seed: int, low: float) -> Tensor:
        return losses.clip_cov_mask(
            COV_LOGP,
            COV_ADVANTAGES,
            COV_MASK,
            share=0.3,  # int(0.9) = 0, but at least one
            low=low,
            generator=torch.Generator().manual_seed(seed),
        )

    first, second = tensor([[YES, NO], [NO, NO]]), tensor([[NO, NO], [YES, NO]])
    assert draw(0, 1.0).equal(second)  # only 4/3 lies in (1, 5)
    assert not draw(0, 2.0).any()
    seen = [draw(seed, 0.5) for seed in range(20)]  # 2/3 and 4/3 lie in (0.5, 5)
    assert all(mask.equal(first) or mask.equal(second) for mask in seen)
    assert any(mask.equal(first) for mask in seen) and any(mask.equal(second) for mask in seen)
    assert draw(7, 0.5).equal(draw(7, 0.5))
