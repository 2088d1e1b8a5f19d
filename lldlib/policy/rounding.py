"""A model whose weights are rounded for a while, as a rollout engine may hold them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

STEPS = 127  # of int8, on either side of 0


@contextmanager
def rounded(model: nn.Module, how: Literal["same", "bfloat16", "int8"]) -> Iterator[None]:
    """In this context the model's floating weights are rounded; then they are what they were.

    "int8": matrices by `to_int8`, a row a scale; vectors stay. "same" leaves all as it is. Weights
    that are packed in 4 bits stay too.
    """
    own = [] if how == "same" else [p for p in model.parameters() if p.is_floating_point()]
    kept = [p.data for p in own]
    try:
        for p in own:
            p.data = p.data.to(torch.bfloat16).to(p.dtype) if how == "bfloat16" else to_int8(p.data)
        yield
    finally:
        for p, data in zip(own, kept, strict=True):
            p.data = data


def to_int8(weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A matrix rounded to 127 steps on either side of 0, of a size that its row's largest sets."""
    if weight.dim() < 2:
        return weight
    step = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / STEPS
    return (weight / step).round() * step
