"""Aggregation, the policy term and LLDS against values worked out by hand, and their gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, tensor

from lldlib import losses
from lldlib.losses.llds import dual_weight

NO, YES = False, True


def ln(rows: list[list[float]]) -> Tensor:
    return tensor(rows).log()


def close(actual: Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, tensor(expected), atol=1e-5, rtol=1e-5)


# --- aggregate and action_ids -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "expected", "over_4"),
    [
        ("token-mean", 2.5, 2.5),  # (1 + 2 + 3 + 4) / 4 tokens; 10 / 4
        ("seq-mean-token-mean", 3.0, 1.5),  # (2 + 4) / 2 rows, the empty row not counted; 6 / 4
        ("seq-mean-token-sum", 5.0, 2.5),  # (6 + 4) / 2 rows; 10 / 4
    ],
)
def test_aggregate(how, expected, over_4):
    term = tensor([[1.0, 2, 3], [4, math.inf, math.nan], [math.nan, 0, 0]])
    mask = tensor([[YES, YES, YES], [YES, NO, NO], [NO, NO, NO]])
    assert losses.aggregate(term, mask, how).item() == pytest.approx(expected)
    assert losses.aggregate(term, mask, how, denominator=4).item() == pytest.approx(over_4)


@pytest.mark.parametrize("how", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("denominator", [None, 0, tensor(0)])
def test_aggregate_of_nothing_is_zero_without_gradient(how, denominator):
    term = torch.ones(2, 3, requires_grad=True)
    value = losses.aggregate(term, torch.zeros(2, 3, dtype=torch.bool), how, denominator)
    value.backward()
    assert value.item() == 0 and not term.grad.any()


def test_action_ids_number_the_runs_of_each_row():
    mask = tensor([[YES, YES, NO, YES, NO], [NO, YES, NO, NO, YES], [NO] * 5])
    expected = tensor([[1, 1, 0, 2, 0], [0, 1, 0, 0, 2], [0] * 5])
    assert losses.action_ids(mask).equal(expected)


# --- policy gradient ----------------------------------------------------------------------------

RATIOS = [[1.5, 0.5, 1.1, 3.0]] * 2
PG_MASK = tensor([[YES, YES, YES, NO]] * 2)


def test_policy_gradient_clips_on_the_side_of_the_advantage():
    # A = 1: -min(1.5, 1.2), -min(0.5, 0.8), -1.1; A = -2: max(3, 2.4), max(1, 1.6), 2.2
    expected = [[-1.2, -0.5, -1.1, 0.0], [3.0, 1.6, 2.2, 0.0]]
    old = torch.zeros(2, 4)
    rows, tokens = tensor([1.0, -2.0]), tensor([[1.0] * 4, [-2.0] * 4])
    close(losses.policy_gradient(ln(RATIOS), old, rows, PG_MASK), expected)
    close(losses.policy_gradient(ln(RATIOS), old, tokens, PG_MASK), expected)
    ratio = losses.importance_ratio(ln(RATIOS), old, PG_MASK, "token")
    clipped = losses.clipped_tokens(ratio, rows, PG_MASK, clip_low=0.2, clip_high=0.2)
    assert clipped.equal(tensor([[YES, NO, NO, NO], [NO, YES, NO, NO]]))


def test_clip_higher_only_widens_the_upper_side():
    terms = losses.policy_gradient(
        ln([[1.25, 0.5], [1.25, 0.5]]),
        torch.zeros(2, 2),
        tensor([1.0, -1.0]),
        torch.ones(2, 2, dtype=torch.bool),
        clip_high=0.28,
    )
    close(terms, [[-1.25, -0.5], [1.25, 0.8]])


def test_ratio_limit_cuts_the_ratio_off_before_the_clip():
    # ratios 150, 50, 0.5, off the mask; A < 0 above 1.2 is not clipped, so only the limit acts
    logp = ln([[150.0, 50.0, 0.5, 150.0]] * 2).requires_grad_()
    mask = tensor([[YES, YES, YES, NO]] * 2)
    rows, old = tensor([-1.0, 1.0]), torch.zeros(2, 4)
    term = losses.policy_gradient(logp, old, rows, mask, ratio_limit=100.0)
    close(term.detach(), [[100.0, 50.0, 0.8, 0.0], [-1.2, -1.2, -0.5, 0.0]])
    term.sum().backward()
    close(logp.grad, [[0.0, 50.0, 0.0, 0.0], [0.0, 0.0, -0.5, 0.0]])
    clipped = losses.clipped_tokens(
        logp.exp(), rows, mask, clip_low=0.2, clip_high=0.2, ratio_limit=100.0
    )
    assert clipped.tolist() == [[YES, NO, YES, NO], [YES, YES, NO, NO]]
    free = losses.policy_gradient(logp, old, rows, mask)
    assert free[0, 0].item() == pytest.approx(150.0, rel=1e-5)  # without one: e^20


def test_ratio_cap_is_a_hard_clip_without_lower_bound():
    # -min(r, 10) A; above the cap no gradient for either sign, below: -r A
    logp = ln([[12.0, 0.05], [12.0, 0.05]]).requires_grad_()
    mask, rows = torch.ones(2, 2, dtype=torch.bool), tensor([1.0, -1.0])
    term = losses.policy_gradient(logp, torch.zeros(2, 2), rows, mask, ratio_cap=10.0)
    close(term.detach(), [[-10.0, -0.05], [10.0, 0.05]])
    term.sum().backward()
    close(logp.grad, [[0.0, -0.05], [0.0, 0.05]])
    clipped = losses.clipped_tokens(
        logp.exp(), rows, mask, clip_low=0.2, clip_high=0.2, ratio_cap=10.0
    )
    assert clipped.equal(tensor([[YES, NO], [YES, NO]]))


def test_gspo_value_and_gradient_are_those_of_the_sequence_ratio():
    # row 0: ratios 4 and 1, s = exp((ln 4 + 0) / 2) = 2; row 1: s = exp(ln(1.1 * 1.1) / 2) = 1.1
    logp = ln([[4.0, 1.0, 9.0], [1.1, 1.1, 9.0]]).requires_grad_()
    mask = tensor([[YES, YES, NO]] * 2)
    term = losses.policy_gradient(
        logp, torch.zeros(2, 3), tensor([-1.0, 3.0]), mask, level="sequence"
    )
    close(term.detach(), [[2.0, 2.0, 0.0], [-3.3, -3.3, 0.0]])
    losses.aggregate(term, mask, "seq-mean-token-mean").backward()
    # d/dlogp_t of mean_i -s_i A_i = -s A / (2 rows * 2 tokens): 2 / 4 and -3.3 / 4
    close(logp.grad, [[0.5, 0.5, 0.0], [-0.825, -0.825, 0.0]])


def test_gspo_clips_the_sequence_as_a_whole():
    logp = ln([[4.0, 1.0]]).requires_grad_()  # s = 2 > 1.2: both tokens are flat
    mask = torch.ones(1, 2, dtype=torch.bool)
    term = losses.policy_gradient(logp, torch.zeros(1, 2), tensor([1.0]), mask, level="sequence")
    close(term.detach(), [[-1.2, -1.2]])
    term.sum().backward()
    assert not logp.grad.any()


def test_gradient_of_the_first_update_is_minus_the_advantage():
    logp = torch.full((2, 2), -1.0, requires_grad=True)
    old = torch.full((2, 2), -1.0, requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    losses.policy_gradient(logp, old, tensor([1.0, -0.5]), mask).sum().backward()
    close(logp.grad, [[-1.0, -1.0], [0.5, 0.5]])
    assert old.grad is None


def test_huge_ratios_stay_finite():
    logp, mask = torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2, dtype=torch.bool)
    term = losses.policy_gradient(logp, tensor([[-500.0, 0.0]]), tensor([-1.0]), mask)
    close(term.detach(), [[math.exp(20), 1.0]])  # the log-ratio is clamped to 20 nats
    term.sum().backward()
    close(logp.grad, [[0.0, 1.0]])


# --- LLDS ---------------------------------------------------------------------------------------

# how much each token's log-prob fell; column 2 is retrieved text between two actions
FALL = tensor([[0.3, -0.1, 9, 0.2, -0.5], [-0.1, 0.4, 9, -0.1, -0.1], [1.0, 1, 9, 1, 1]])
LLDS_ADVANTAGES = tensor([1.0, 0.0, -1.0])
LLDS_MASK = tensor([[YES, YES, NO, YES, YES]] * 3)
LLDS_EXPECTED = {
    # sums per action: 0.2 open, -0.3 closed; 0.3 open, -0.2 closed; row 2 is not preserved
    "action": [[0.3, 0, 0, 0, 0], [0, 0.4, 0, 0, 0], [0.0] * 5],
    # sums per row: -0.1 closed; 0.1 open
    "response": [[0.0] * 5, [0, 0.4, 0, 0, 0], [0.0] * 5],
    "token": [[0.3, 0, 0, 0.2, 0], [0, 0.4, 0, 0, 0], [0.0] * 5],
}


@pytest.mark.parametrize("gate", ["action", "response", "token"])
def test_llds_penalty_by_gate(gate):
    logp = (-1 - FALL).requires_grad_()
    old = torch.full((3, 5), -1.0, requires_grad=True)
    term = losses.llds_penalty(logp, old, LLDS_ADVANTAGES, LLDS_MASK, gate=gate)
    close(term.detach(), LLDS_EXPECTED[gate])
    term.sum().backward()  # -1 on each penalised token and nothing through gate or old policy
    assert logp.grad.equal(-(tensor(LLDS_EXPECTED[gate]) > 0).float())
    assert old.grad is None


def test_llds_divisors_of_paper_and_code():
    term = losses.llds_penalty(-1 - FALL, -torch.ones(3, 5), LLDS_ADVANTAGES, LLDS_MASK)
    preserved = losses.preserved_mask(LLDS_ADVANTAGES, LLDS_MASK)
    # zero-advantage rows are preserved: (0.3 + 0.4) / 8 tokens; over all 12 action tokens: 0.7 / 12
    assert losses.aggregate(term, preserved, "token-mean").item() == pytest.approx(0.0875)
    assert losses.aggregate(term, LLDS_MASK, "token-mean").item() == pytest.approx(0.7 / 12)


def test_llds_may_keep_correct_rows_of_mixed_groups_alone():
    rows = (-1 - FALL, -torch.ones(3, 5), LLDS_ADVANTAGES, LLDS_MASK)
    term = losses.llds_penalty(*rows, preserve="positive")
    close(term, [LLDS_EXPECTED["action"][0], [0.0] * 5, [0.0] * 5])  # row 1 has advantage 0
    assert losses.llds_gate(*rows, "action", "positive").any(1).tolist() == [YES, NO, NO]
    preserved = losses.preserved_mask(LLDS_ADVANTAGES, LLDS_MASK, "positive")
    assert preserved.sum(1).tolist() == [4, 0, 0]


def test_llds_may_keep_incorrect_rows_as_a_control():
    opposite = torch.tensor([-1.0, 0.0, 1.0])
    preserved = losses.preserved_mask(opposite, LLDS_MASK, "negative")
    assert preserved.sum(1).tolist() == [4, 0, 0]


def test_llds_gate_mask_holds_every_token_of_an_open_action():
    gate = losses.llds_gate(-1 - FALL, -torch.ones(3, 5), LLDS_ADVANTAGES, LLDS_MASK, "action")
    assert gate.equal(tensor([[YES, YES, NO, NO, NO]] * 2 + [[NO] * 5]))


def test_llds_weighs_answer_tokens():
    answer = tensor([[NO, NO, NO, YES, YES]] * 3)
    term = losses.llds_penalty(
        -1 - FALL,
        -torch.ones(3, 5),
        LLDS_ADVANTAGES,
        LLDS_MASK,
        gate="token",
        answer_mask=answer,
        answer_weight=0.5,
    )
    close(term, [[0.3, 0, 0, 0.1, 0], [0, 0.4, 0, 0, 0], [0.0] * 5])
    with pytest.raises(ValueError, match="answer_mask"):
        losses.llds_penalty(FALL, FALL, LLDS_ADVANTAGES, LLDS_MASK, answer_weight=0.5)


@pytest.mark.parametrize("gate", ["action", "response", "token"])
def test_llds_is_exactly_zero_on_the_first_update(gate):
    logp = -torch.rand(3, 5).requires_grad_()
    logp.retain_grad()
    term = losses.llds_penalty(logp, logp.detach(), LLDS_ADVANTAGES, LLDS_MASK, gate=gate)
    term.sum().backward()
    assert not term.any() and not logp.grad.any()


def test_llds_leaves_an_unchanged_token_of_an_open_action_alone():
    logp = tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    losses.llds_penalty(logp, tensor([[-1.0, -1.0]]), tensor([1.0]), mask).sum().backward()
    close(logp.grad, [[0.0, -1.0]])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_llds_token_gate_bounds_the_others(seed):
    g = torch.Generator().manual_seed(seed)
    logp, old = -torch.rand(2, 4, 9, generator=g)
    mask = torch.rand(4, 9, generator=g) < 0.7
    rows = torch.randn(4, generator=g)
    by = {gate: losses.llds_penalty(logp, old, rows, mask, gate=gate) for gate in LLDS_EXPECTED}
    assert (by["token"] >= by["action"]).all() and (by["token"] >= by["response"]).all()
    assert not by["token"][rows < 0].any()


def test_lambda_moves_by_what_is_lost_over_the_target():
    assert dual_weight(0.2, -0.05, 0.01) == pytest.approx(0.2 + 5 * 0.04)
    assert dual_weight(0.2, 0.01, 0.01) == pytest.approx(0.2 - 0.5 * 0.02)  # ten times as slow
    assert dual_weight(0.05, 0.2, 0.01) == 0.0 and dual_weight(0.9, -0.5, 0.01) == 1.0
    assert dual_weight(0.3, math.nan, 0.01) == 0.3  # nothing was measured


def test_answer_weight_schedules():
    values = [
        [losses.answer_weight_schedule(v, s) for v in (0.0, 1.0, 1.5, 3.0)]
        for s in ("paper", "code")
    ]
    assert values == [[0.0, 0.5, 0.75, 1.0], [0.0, 0.0, 0.5, 1.0]]


# -- rivals of 2026 ------------------------------------------------------------------------------


def test_cispo_weighs_the_log_prob_by_a_ratio_cut_off_above_alone():
    # ratios 1.5, .5, 8 with a cap of 5: -w A logp, whose gradient is -w A, for either sign
    logp = ln([[1.5, 0.5, 8.0, 3.0]] * 2).requires_grad_()
    rows, old = tensor([1.0, -2.0]), torch.zeros(2, 4)
    term = losses.policy_gradient(logp, old, rows, PG_MASK, clip_high=4.0, surrogate="cispo")
    weights = tensor([[1.5, 0.5, 5.0, 0.0]])
    close(term.detach(), (-weights * rows[:, None] * logp.detach()).tolist())
    term.sum().backward()
    close(logp.grad, [[-1.5, -0.5, -5.0, 0.0], [3.0, 1.0, 10.0, 0.0]])


def test_reinforce_has_no_ratio():
    logp = ln([[1.5, 0.5, 8.0, 3.0]] * 2).requires_grad_()
    rows, old = tensor([1.0, -2.0]), torch.zeros(2, 4)
    losses.policy_gradient(logp, old, rows, PG_MASK, surrogate="reinforce").sum().backward()
    close(logp.grad, [[-1.0, -1.0, -1.0, 0.0], [2.0, 2.0, 2.0, 0.0]])
    ratio = losses.importance_ratio(logp, old, PG_MASK, "token")
    kept = losses.clipped_tokens(
        ratio, rows, PG_MASK, clip_low=0.2, clip_high=0.2, surrogate="reinforce"
    )
    assert not kept.any()


def test_sapo_charges_tokens_of_good_rows_whose_ratio_is_under_its_threshold():
    # ratios .5, .9, 1.1: under .8 is the first alone; rows of A < 0 are left alone
    logp = ln([[0.5, 0.9, 1.1, 0.1]] * 3).requires_grad_()
    rows, old, mask = tensor([1.0, 0.0, -1.0]), torch.zeros(3, 4), tensor([[YES, YES, YES, NO]] * 3)
    term = losses.sapo_penalty(logp, old, rows, mask, ratio=0.8)
    close(term.detach(), [[math.log(2), 0.0, 0, 0], [math.log(2), 0, 0, 0], [0.0] * 4])
    term.sum().backward()
    close(logp.grad, [[-1.0, 0, 0, 0], [-1.0, 0, 0, 0], [0, 0, 0, 0]])
    strict = losses.sapo_penalty(logp, old, rows, mask, ratio=0.8, preserve="positive")
    assert strict[0, 0] > 0 and not strict[1:].any()


def test_sapo_at_ratio_one_is_llds_with_the_gate_of_a_token():
    generator = torch.Generator().manual_seed(0)
    logp, old = -torch.rand(2, 4, 6, generator=generator)
    rows, mask = tensor([1.0, 0.0, -1.0, 2.0]), torch.rand(4, 6, generator=generator) > 0.3
    llds = losses.llds_penalty(logp, old, rows, mask, gate="token")
    assert llds.any()
    assert losses.sapo_penalty(logp, old, rows, mask, ratio=1.0).equal(llds)


def test_the_most_mixed_groups_hold_a_share_of_the_deviation():
    # deviations of 5 rewards: one right .4472, two right .5477, all equal 0; the sum is 1.4422
    rewards = tensor([1.0, 0, 0, 0, 0] + [1.0, 1, 0, 0, 0] + [1.0] * 5 + [0.0, 0, 0, 0, 1])
    group = torch.arange(4).repeat_interleave(5)
    each = [losses.most_mixed(rewards, group, share).view(4, 5) for share in (0.3, 0.6, 1.0)]
    assert all(kept.all(1).equal(kept.any(1)) for kept in each)
    assert [kept[:, 0].tolist() for kept in each] == [
        [NO, YES, NO, NO],  # .5477 >= .3 * 1.4422
        [YES, YES, NO, NO],  # .5477 < .8653 <= .9949
        [YES, YES, NO, YES],
    ]
    assert not losses.most_mixed(torch.ones(10), group[:10], 0.9).any()


def test_the_weight_of_the_samplers_correction():
    # policy over sampler 3, .4, 1.5, off the mask; the limit 2 also bounds .5 from below
    old, sampler = ln([[3.0, 0.4, 1.5, 9.0]]), torch.zeros(1, 4)
    mask = tensor([[YES, YES, YES, NO]])
    given = {"correction": "truncated", "limit": 2.0}
    close(losses.sampler_weight(old, sampler, mask, **given), [[2.0, 0.4, 1.5, 1.0]])
    given["correction"] = "masked"
    close(losses.sampler_weight(old, sampler, mask, **given), [[0.0, 0.0, 1.5, 1.0]])
