"""Group-relative advantages: a rollout's reward against the other rollouts of its question."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def group_advantages(
    rewards: Float[Tensor, " B"],
    group: Int[Tensor, " B"],
    *,
    scale: bool,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """(B,) reward minus its group's mean, divided by the group's deviation + eps if `scale`.

    The deviation is the unbiased one (n - 1), as in the LLDS and Search-R1 code. A group of equal
    rewards gets exactly 0. Rows may be in any order. Raises ValueError on a group of one.
    Source: GRPO 2402.03300 section 4.1.2 (`scale=True`); Dr. GRPO 2503.20783 (`scale=False`).
    """
    rewards = rewards.float()
    numbers, index, size = group.unique(return_inverse=True, return_counts=True)
    if len(size) and int(size.min()) < 2:
        lonely = int(numbers[size.argmin()])
        raise ValueError(f"group {lonely} has one rollout: a group needs at least 2 to compare")
    centred = rewards - (_group_sum(rewards, index, len(numbers)) / size)[index]
    if scale:
        variance = _group_sum(centred.square(), index, len(numbers)) / (size - 1)
        centred = centred / (variance.sqrt()[index] + eps)
    # rounding of the mean must not turn a tie into a tiny negative advantage
    return torch.where(_mixed(rewards, index, len(numbers))[index], centred, 0.0)


def mixed_group_share(rewards: Float[Tensor, " B"], group: Int[Tensor, " B"]) -> float:
    """The share of groups, 0 to 1, whose rewards are not all equal: only these give a gradient."""
    numbers, index = group.unique(return_inverse=True)
    return float(_mixed(rewards, index, len(numbers)).float().mean())


def _group_sum(
    values: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int
) -> Float[Tensor, " P"]:
    return values.new_zeros(groups).index_add(0, index, values)


def _mixed(rewards: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int) -> Tensor:
    """(P,) True where a group holds two different rewards."""
    empty = rewards.new_zeros(groups)
    least = empty.scatter_reduce(0, index, rewards, "amin", include_self=False)
    most = empty.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return least < most
