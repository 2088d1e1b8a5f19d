"""Lp-Reg and NTHR against values worked out by hand, double sums and exact gradients."""

import math

import pytest
import torch
from torch import Tensor, tensor

from lldlib import losses

NO, YES = False, True


def ln(rows: list[list[float]]) -> Tensor:
    return tensor(rows).log()


def close(actual: Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, tensor(expected), atol=1e-5, rtol=1e-5)


# --- the proxy ----------------------------------------------------------------------------------

PROBS = [[[0.5, 0.3, 0.15, 0.05]] * 4]  # (1, 4, 4): one token of each kind
TOKENS = tensor([[0, 1, 2, 3]])


def test_proxy_log_prob_renormalises_what_it_keeps():
    # kappa 0.2: threshold 0.2 * 0.5 = 0.1, kept mass 0.95; tau 0.2: kept mass 0.8
    min_p = losses.proxy_log_prob(ln(PROBS), TOKENS, kappa=0.2)
    close(min_p.exp(), [[0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0]])
    assert min_p[0, 3] == -math.inf
    close(losses.proxy_log_prob(ln(PROBS), TOKENS, tau=0.2).exp(), [[0.625, 0.375, 0.0, 0.0]])


def test_proxy_drops_a_token_at_the_threshold():
    logits = ln([[[0.5, 0.25, 0.25]]])
    assert losses.proxy_logits(logits, kappa=0.5).isinf().tolist() == [[[NO, YES, YES]]]
    assert losses.proxy_logits(logits, kappa=0.49).isinf().tolist() == [[[NO, NO, NO]]]
    assert losses.proxy_logits(logits, tau=0.25).isinf().tolist() == [[[NO, YES, YES]]]


def test_proxy_without_any_token_protects_nothing():
    flat = torch.zeros(1, 1, 4, requires_grad=True)  # every pi = 0.25 < tau
    empty = losses.proxy_logits(flat, tau=0.5)
    assert losses.proxy_log_prob(flat, tensor([[0]]), tau=0.5).item() == -math.inf
    divergence = losses.forward_kl(flat, empty)
    divergence.sum().backward()
    assert divergence.item() == 0 and not flat.grad.any()


@pytest.mark.parametrize("threshold", [{}, {"kappa": 0.1, "tau": 0.1}, {"kappa": 1.0}])
def test_proxy_needs_one_threshold(threshold):
    with pytest.raises(ValueError, match="threshold"):
        losses.proxy_log_prob(ln(PROBS), TOKENS, **threshold)


def test_forward_kl_by_hand_and_its_gradient():
    # proxy (3/4, 1/4), policy (1/2, 1/2): 0.75 ln 1.5 + 0.25 ln 0.5; gradient pi - proxy
    logits = ln([[[0.5, 0.5]]]).requires_grad_()
    proxy = ln([[[0.75, 0.25]]]).requires_grad_()
    divergence = losses.forward_kl(logits, proxy)
    close(divergence.detach(), [[0.130812]])
    divergence.sum().backward()
    close(logits.grad, [[[-0.25, 0.25]]])
    assert proxy.grad is None


def test_forward_kl_on_policy_is_minus_log_of_the_kept_mass():
    proxy = losses.proxy_logits(ln(PROBS), kappa=0.2)
    close(losses.forward_kl(ln(PROBS), proxy), [[-math.log(0.95)] * 4])


# --- Lp-Reg -------------------------------------------------------------------------------------

PI = [[0.02, 0.5, 0.6, 0.7, 0.8, 0.001], [0.01, 0.03, 0.9, 0.95, 0.99, 0.001]]
ROWS = tensor([1.0, -1.0])
LP_MASK = tensor([[YES] * 5 + [NO]] * 2)


def selected(quantile: float, selection="paper", proxy: Tensor | None = None, rows=ROWS) -> list:
    """Where the mask is on: [row, token] pairs."""
    proxy = ln(PI) + 0.1 if proxy is None else proxy
    mask = losses.lp_reg_mask(ln(PI), proxy, rows, LP_MASK, quantile=quantile, selection=selection)
    return mask.nonzero().tolist()


def test_lp_reg_mask_of_the_paper_ranks_all_action_tokens():
    # sorted: 0.01, 0.02, 0.03, 0.5, ...; the 0.2-quantile of 10 lies at rank 1.8: 0.01 and 0.02
    # are below it, and 0.02 is in a row with A > 0. At 0.3, rank 2.7, 0.03 joins.
    assert selected(0.2) == [[1, 0]]
    assert selected(0.3) == [[1, 0], [1, 1]]
    assert selected(0.1, rows=-ROWS) == []  # rank 0.9: 0.01 alone, now in a row with A > 0
    proxy = ln(PI).index_put((tensor([1]), tensor([0])), tensor(-math.inf))
    assert selected(0.3, proxy=proxy) == [[1, 1]]  # dropped by the proxy: noise, not a spark
    assert selected(0.3, proxy=ln(PI) - 0.1) == [[1, 0], [1, 1]]  # the paper has no such gate


def test_delta_of_the_rollout_batch_stands_for_every_minibatch():
    # over both rows the 0.3-quantile lies between 0.02 and 0.03; of row 1 alone at rank 1.2
    delta = losses.low_log_prob(ln(PI), LP_MASK, 0.2)
    assert delta.exp().item() == pytest.approx(0.03)
    row = {"quantile": 0.3, "selection": "paper"}
    part = (ln(PI)[1:], ln(PI)[1:] + 0.1, ROWS[1:], LP_MASK[1:])
    assert losses.lp_reg_mask(*part, **row).nonzero().tolist() == [[0, 0], [0, 1]]
    assert losses.lp_reg_mask(*part, **row, low_logp=delta).nonzero().tolist() == [[0, 0]]
    fallen = (ln(PI)[1:] - 2, *part[1:])  # 0.03 is at 0.004 now: under delta, as the others are not
    on = losses.lp_reg_mask(*fallen, **row, low_logp=delta)
    assert on.nonzero().tolist() == [[0, 0], [0, 1]]
    code = row | {"selection": "code", "quantile": 0.4}  # of 5 tokens the two least likely
    assert losses.lp_reg_mask(*part, **code, low_logp=delta).sum() == 2
    term = losses.lp_reg_penalty(part[0], *part[:1], *part[1:], **row, low_logp=delta)
    assert term.count_nonzero() == 1
    assert losses.low_log_prob(ln(PI), ~LP_MASK & LP_MASK, 0.2) == math.inf


def test_lp_reg_mask_of_the_code_ranks_negative_tokens():
    # of the 5 tokens with A < 0: int(5 * 0.4) = 2, int(5 * 0.2) = 1, and 1 is too few
    assert selected(0.4, "code") == [[1, 0], [1, 1]]
    assert selected(0.2, "code") == []
    assert selected(0.4, "code", proxy=ln(PI) - 0.1) == []  # only where logp < proxy_logp


def test_lp_reg_mask_of_the_code_takes_as_many_of_equal_tokens():
    """Half of ten equal tokens are five, as in the official top-k."""
    ten = torch.full((2, 5), 0.1).log()
    every = torch.ones(2, 5, dtype=torch.bool)
    on = losses.lp_reg_mask(
        ten, ten + 0.1, tensor([-1.0, -1.0]), every, quantile=0.5, selection="code"
    )
    assert on.tolist() == [[YES] * 5, [NO] * 5]


def test_lp_reg_mask_of_few_tokens_and_bad_quantile():
    one = tensor([[YES, NO]])
    rows = tensor([-1.0])
    for mask in (one, ~one & one):
        for selection in ("paper", "code"):
            on = losses.lp_reg_mask(
                ln([[0.1, 0.1]]), ln([[0.2, 0.2]]), rows, mask, quantile=1.0, selection=selection
            )
            assert not on.any()
    with pytest.raises(ValueError, match="quantile"):
        selected(0.0)


def test_lp_reg_penalty_value_and_direction():
    # selected: pi 0.01 and 0.03 with proxies 0.02 and 0.015. d = ln 2: 2 - ln 2 - 1 = 0.306853,
    # gradient 1 - 2; d = -ln 2: 0.5 + ln 2 - 1 = 0.193147, gradient 1 - 0.5. Both times beta = 2.
    logp = ln(PI).requires_grad_()
    proxy = tensor([[0.9] * 6, [0.02, 0.015, 0.9, 0.9, 0.9, 0.9]]).log().requires_grad_()
    term = losses.lp_reg_penalty(logp, ln(PI), proxy, ROWS, LP_MASK, quantile=0.3, beta=2.0)
    close(term.detach(), [[0.0] * 6, [0.613706, 0.386294, 0, 0, 0, 0]])
    term.sum().backward()
    close(
        logp.grad, [[0.0] * 6, [-2.0, 1.0, 0, 0, 0, 0]]
    )  # descent raises the token below its proxy
    assert proxy.grad is None


def test_lp_reg_gives_up_a_token_far_below_its_proxy():
    # d = ln(0.9 / 0.01) = 4.5: e^d - d - 1 = 84.5, cut off at 10 and without gradient
    logp = ln(PI).requires_grad_()
    proxy = tensor([[0.9] * 6, [0.9, 0.015, 0.9, 0.9, 0.9, 0.9]]).log()
    term = losses.lp_reg_penalty(logp, ln(PI), proxy, ROWS, LP_MASK, quantile=0.3)
    close(term.detach(), [[0.0] * 6, [10.0, 0.193147, 0, 0, 0, 0]])
    term.sum().backward()
    close(logp.grad, [[0.0] * 6, [0.0, 0.5, 0, 0, 0, 0]])


def test_lp_reg_on_policy_is_small_but_not_zero():
    # the proxy of the policy itself is pi / kept mass: d = -ln 0.95, e^d - d - 1 = 0.001338
    logits = ln([[[0.5, 0.3, 0.15, 0.05]] * 2])
    tokens = tensor([[0, 2]])
    logp = logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    proxy = losses.proxy_log_prob(logits, tokens, kappa=0.2)
    mask = torch.ones(1, 2, dtype=torch.bool)
    term = losses.lp_reg_penalty(logp, logp, proxy, tensor([-1.0]), mask, quantile=0.5)
    close(term, [[0.0, 0.001338]])


def test_lp_reg_gradient_is_finite_beside_dropped_tokens():
    logp = ln(PI).requires_grad_()
    proxy = torch.full((2, 6), -math.inf)
    losses.lp_reg_penalty(logp, ln(PI), proxy, ROWS, LP_MASK, quantile=1.0).sum().backward()
    assert logp.grad.equal(torch.zeros(2, 6))


# --- NTHR ---------------------------------------------------------------------------------------


def test_prediction_error_is_one_hot_minus_probability():
    close(losses.prediction_error(torch.zeros(1, 1, 2), tensor([[1]])), [[[-0.5, 0.5]]])


def nthr(errors: list, advantages: list, beta: float, present: list | None = None) -> list[float]:
    """The factor of one-token rows in one group: V = 2, errors (e, -e), hidden states of 1."""
    g = tensor(errors)
    rows = len(errors)
    weights = losses.nthr_weights(
        torch.ones(rows, 1, 1),
        torch.stack([g, -g], -1)[:, None],
        tensor(advantages),
        torch.zeros(rows, dtype=torch.int64),
        tensor(present or [YES] * rows)[:, None],
        beta=beta,
    )
    return [round(w, 5) for w in weights[:, 0].tolist()]


def test_nthr_by_hand():
    # M = (0.4, -0.4), so a token's score is 0.8 e: 0.32 for the right row (threshold at beta 1),
    # 0.4 for e = 0.5, 0.24 for e = 0.3, -0.4 for e = -0.5. One right row in four: eta = 0.5.
    right_first = [1.5, -0.5, -0.5, -0.5]
    assert nthr([0.4, 0.5, 0.3, -0.5], right_first, 1.0) == [1.0, 0.5, 1.0, 1.0]
    assert nthr([0.4, 0.5, 0.3, -0.5], right_first, 0.5) == [1.0, 0.5, 0.5, 1.0]
    assert nthr([0.4, 0.4, 0.3, -0.5], right_first, 1.0) == [1.0] * 4  # at the threshold
    # right rows 0.4 and 0.2: scores 1.2 e, so 0.36 is above the lesser (0.24); eta = 2 (2/3 - 1/2)
    assert nthr([0.4, 0.2, 0.3], [0.5, 0.5, -1.0], 1.0) == [1.0, 1.0, 0.33333]
    # a right row without tokens has no mean: the threshold is 0.32 of the other, above 0.24
    assert nthr([0.4, 0.2, 0.3], [0.5, 0.5, -1.0], 1.0, [YES, NO, YES]) == [1.0] * 3
    # half of the rows right: eta = 2 |0.5 - 0.5| = 0
    assert nthr([0.4, 0.5], [1.0, -1.0], 1.0) == [1.0, 0.0]


@pytest.mark.parametrize("advantages", [[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
def test_nthr_needs_a_mixed_group(advantages):
    assert nthr([0.4, 0.5], advantages, 0.0) == [1.0, 1.0]


def nthr_batch() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "hidden": torch.randn(6, 5, 3, generator=g),
        "prediction_errors": torch.randn(6, 5, 4, generator=g),
        "advantages": tensor([1.0, 0.7, -1.0, -0.7, -1.0, 1.0]),
        "group": tensor([0, 1, 0, 1, 1, 1]),
        "action_mask": torch.rand(6, 5, generator=g) < 0.7,
    }


def test_nthr_scores_equal_the_double_sum():
    x = nthr_batch()
    g, h, mask = x["prediction_errors"], x["hidden"], x["action_mask"]
    right = x["advantages"] > 0
    expected = torch.zeros(6, 5)
    for j, t in mask.nonzero().tolist():
        for i, k in (mask & right[:, None]).nonzero().tolist():
            expected[j, t] += (g[i, k] @ g[j, t]) * (h[i, k] @ h[j, t])
    torch.testing.assert_close(losses.nthr_scores(h, g, right, mask), expected)


def test_nthr_groups_are_independent_and_padding_is_never_read():
    x = nthr_batch()
    whole = losses.nthr_weights(**x)
    assert (whole[x["advantages"] > 0] == 1).all() and (whole != 1).any()
    garbage = {
        **x,
        "hidden": x["hidden"].clone(),
        "prediction_errors": x["prediction_errors"].clone(),
    }
    garbage["hidden"][~x["action_mask"]] = math.nan
    garbage["prediction_errors"][~x["action_mask"]] = math.inf
    assert losses.nthr_weights(**garbage).equal(whole)
    for number in (0, 1):
        rows = x["group"] == number
        alone = losses.nthr_weights(**{name: value[rows] for name, value in x.items()})
        torch.testing.assert_close(alone, whole[rows])
