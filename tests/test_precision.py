"""Losses of numbers in bfloat16, float32 and float64 against the same formulas in float64.

The terms compute in float32 whatever they are given. So of the same numbers a loss is within
BOUND of float64, and its gradient within that and the last bit of the numbers' own format.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lldlib.losses import LossInputs, compute_loss, needs
from lldlib.recipes import METHODS

BOUND = 2e-6  # of the largest value that is added up
BITS = {torch.bfloat16: 2**-7, torch.float32: 0.0, torch.float64: 0.0}  # several terms round
ROWS, TOKENS = 12, 40


def numbers(dtype: torch.dtype, loss) -> LossInputs:
    """A random batch whose numbers are exact in the format."""
    rng = torch.Generator().manual_seed(0)

    def draw(low: float, high: float, *shape: int) -> Tensor:
        values = low + (high - low) * torch.rand(shape, generator=rng, dtype=torch.float64)
        return values.to(dtype)

    shape, wanted = (ROWS, TOKENS), needs(loss)
    logp = draw(-4.0, -0.01, *shape)
    advantages = draw(-2.0, 2.0, ROWS)
    mask = torch.rand(shape, generator=rng) < 0.7
    optional = {
        "entropy": draw(0.0, 3.0, *shape),
        "ref_logp": draw(-4.0, -0.01, *shape),
        "proxy_logp": draw(-4.0, -0.01, *shape),
        "negative_token_weights": draw(0.0, 1.0, *shape),
        "low_logp": draw(-3.0, -2.0),
        "mean_valid_searches": 1.5,
        "proxy_kl": draw(0.0, 3.0, *shape),
    }
    return LossInputs(
        logp=logp.requires_grad_(),
        old_logp=(logp.detach().double() + 0.3 * draw(-1.0, 1.0, *shape).double()).to(dtype),
        advantages=advantages,
        action_mask=mask,
        answer_mask=mask & (torch.rand(shape, generator=rng) < 0.3),
        generator=torch.Generator().manual_seed(1),
        **{name: value for name, value in optional.items() if name in wanted},
    )


def in_float64(x: LossInputs) -> LossInputs:
    """The same numbers, in float64."""
    tensors = {k: v for k, v in vars(x).items() if isinstance(v, Tensor) and v.is_floating_point()}
    wide = {k: v.detach().double() for k, v in tensors.items()}
    return replace(x, **wide | {"generator": torch.Generator().manual_seed(1)})


def value_and_gradient(loss, x: LossInputs) -> tuple[float, Tensor]:
    logp = x.logp.detach().requires_grad_()
    value, _ = compute_loss(loss, replace(x, logp=logp))
    value.backward()
    return float(value), logp.grad.double()


def off(loss, dtype: torch.dtype) -> tuple[float, float]:
    """How far loss and gradient are from float64, the gradient as a share of its largest."""
    x = numbers(dtype, loss)
    got, gradient = value_and_gradient(loss, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)  # the formulas' only way to float32
        want, exact = value_and_gradient(loss, in_float64(x))
    largest = float(exact.abs().max())
    return abs(got - want), float((gradient - exact).abs().max()) / largest


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_a_loss_is_as_near_to_float64_as_is_said(name, dtype):
    loss = replace(METHODS[name], kl_coef=0.1)
    value, gradient = off(loss, dtype)
    assert value <= 4 * BOUND and gradient <= 10 * BOUND + BITS[dtype], (value, gradient)


def test_a_ratio_in_bfloat16_would_be_seen(monkeypatch):
    """Without the step to float32 a loss of bfloat16 is off by a thousand times the bound."""
    wide = Tensor.float
    same = lambda values: values if values.is_floating_point() else wide(values)  # noqa: E731
    monkeypatch.setattr(Tensor, "float", same)
    x = numbers(torch.bfloat16, METHODS["grpo"])
    x = replace(x, ref_logp=x.old_logp)
    got, _ = value_and_gradient(METHODS["grpo"], x)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    want, _ = value_and_gradient(METHODS["grpo"], in_float64(x))
    assert abs(got - want) > 100 * BOUND
