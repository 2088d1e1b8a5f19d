"""Group advantages worked out by hand, ties, row order and the group of one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import tensor

from lldlib.losses import group_advantages, mixed_group_share

# group 7: rewards 1, 0, 0 (mean 1/3, unbiased variance (4/9 + 1/9 + 1/9) / 2 = 1/3);
# group 2: rewards 0.5, 0.5 (a tie). Rows are interleaved.
REWARDS = tensor([1.0, 0.5, 0.0, 0.5, 0.0])
GROUP = tensor([7, 2, 7, 2, 7])


def test_centred_advantages():
    actual = group_advantages(REWARDS, GROUP, scale=False)
    torch.testing.assert_close(actual, tensor([2 / 3, 0.0, -1 / 3, 0.0, -1 / 3]))


def test_scaled_advantages():
    # (2/3) / sqrt(1/3) = 1.154701, (-1/3) / sqrt(1/3) = -0.577350
    actual = group_advantages(REWARDS, GROUP, scale=True)
    expected = tensor([1.154701, 0.0, -0.577350, 0.0, -0.577350])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_eps_is_added_to_the_deviation():
    # rewards 0 and 1: mean 0.5, deviation sqrt(0.5) = 0.707107; 0.5 / (0.707107 + 0.292893) = 0.5
    actual = group_advantages(tensor([0.0, 1.0]), tensor([0, 0]), scale=True, eps=0.292893)
    torch.testing.assert_close(actual, tensor([-0.5, 0.5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [True, False])
def test_a_tie_is_exactly_zero_although_its_mean_rounds(scale):
    rewards = torch.full((7,), 0.1)  # in float32 the sum of 7 * 0.1, divided by 7, is not 0.1
    assert rewards.sum() / 7 != rewards[0]
    actual = group_advantages(rewards, torch.zeros(7, dtype=torch.int64), scale=scale)
    assert actual.equal(torch.zeros(7))


def test_group_of_one_is_an_error():
    with pytest.raises(ValueError, match="group 4 has one rollout"):
        group_advantages(tensor([1.0, 0.0, 1.0]), tensor([3, 3, 4]), scale=False)


def test_mixed_group_share():
    assert mixed_group_share(REWARDS, GROUP) == 0.5
    assert mixed_group_share(tensor([1.0, 1.0]), tensor([0, 0])) == 0.0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_groups_are_centred_and_rows_may_be_in_any_order(groups, random):
    rewards = tensor(groups).flatten()
    group = torch.arange(len(groups)).repeat_interleave(3)
    advantages = group_advantages(rewards, group, scale=False)
    assert advantages.view(-1, 3).sum(1).abs().max() < 1e-5
    order = list(range(len(rewards)))
    random.shuffle(order)
    shuffled = group_advantages(rewards[order], group[order], scale=False)
    torch.testing.assert_close(shuffled, advantages[order])


def test_shapes_are_checked_while_tests_run():
    """In every process of the suite: a hook that came too late would let this pass."""
    with pytest.raises(TypeCheckError):
        group_advantages(REWARDS[None], GROUP, scale=False)
