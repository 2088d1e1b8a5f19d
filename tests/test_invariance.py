"""Padding, row order and micro-batches change neither a loss nor its gradient, for any term."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lldlib import losses

Batch = dict[str, Tensor]
ROWS, WIDTH = 6, 9


def random_batch(seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(ROWS, WIDTH, generator=g)
    mask = torch.rand(ROWS, WIDTH, generator=g) < 0.7
    mask[2] = False  # a row without any action token
    return {
        "logp": old + 0.4 * torch.randn(ROWS, WIDTH, generator=g),
        "old_logp": old,
        "other_logp": old + 0.4 * torch.randn(ROWS, WIDTH, generator=g),  # reference or proxy
        "entropy": torch.rand(ROWS, WIDTH, generator=g),
        "advantages": torch.tensor([1.0, 0.0, -1.0, -0.7, 0.5, -0.3]),
        "action_mask": mask,
    }


def _row_terms() -> dict:
    """Terms of which each row depends on itself alone."""

    def policy(**how):
        return lambda x: losses.policy_gradient(
            x["logp"], x["old_logp"], x["advantages"], x["action_mask"], **how
        )

    def llds(gate):
        return lambda x: losses.llds_penalty(
            x["logp"], x["old_logp"], x["advantages"], x["action_mask"], gate=gate
        )

    return {
        "token ratio": policy(),
        "sequence ratio": policy(level="sequence"),
        "capped ratio": policy(ratio_cap=1.3),
        **{f"llds {gate}": llds(gate) for gate in ("action", "response", "token")},
        **{
            k: lambda x, k=k: losses.kl_to_reference(
                x["logp"], x["other_logp"], x["action_mask"], k
            )
            for k in ("k1", "k2", "k3", "low_var_kl")
        },
        "entropy": lambda x: losses.entropy_bonus(x["logp"], x["action_mask"]),
    }


def _batch_terms() -> dict:
    """Terms that rank the tokens of the whole batch."""

    def lp_reg(selection):
        return lambda x: losses.lp_reg_penalty(
            x["logp"],
            x["old_logp"],
            x["other_logp"],
            x["advantages"],
            x["action_mask"],
            quantile=0.3,
            selection=selection,
        )

    return {
        "lp_reg paper": lp_reg("paper"),
        "lp_reg code": lp_reg("code"),
        "kl_cov": lambda x: losses.kl_cov_penalty(
            x["logp"], x["old_logp"], x["advantages"], x["action_mask"], share=0.2
        ),
        "top entropy": lambda x: torch.where(
            losses.top_entropy_mask(x["entropy"], x["action_mask"], 0.3), x["logp"], 0.0
        ),
    }


ROW_TERMS, TERMS = _row_terms(), _row_terms() | _batch_terms()
HOW = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]


def loss_and_gradient(term, batch: Batch, how: str, denominator=None) -> tuple[Tensor, Tensor]:
    x = {**batch, "logp": batch["logp"].clone().requires_grad_()}
    value = losses.aggregate(term(x), x["action_mask"], how, denominator)
    (gradient,) = torch.autograd.grad(value, x["logp"])
    return value.detach(), gradient


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("how", HOW)
def test_row_order_does_not_matter(name, how):
    batch, order = random_batch(1), torch.tensor([4, 2, 0, 5, 1, 3])
    value, gradient = loss_and_gradient(TERMS[name], batch, how)
    shuffled = {key: tensor[order] for key, tensor in batch.items()}
    same_value, same_gradient = loss_and_gradient(TERMS[name], shuffled, how)
    assert gradient.any()  # the comparison below is not one of zeros
    torch.testing.assert_close(same_value, value)
    torch.testing.assert_close(same_gradient, gradient[order])


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("how", HOW)
def test_padding_and_what_it_holds_do_not_matter(name, how):
    batch = random_batch(2)
    value, gradient = loss_and_gradient(TERMS[name], batch, how)
    padded = dict(batch)
    for key in ("logp", "old_logp", "other_logp", "entropy"):
        garbage = math.inf if key == "old_logp" else math.nan
        masked = batch[key].masked_fill(~batch["action_mask"], garbage)
        padded[key] = torch.nn.functional.pad(masked, (0, 4), value=garbage)
    padded["action_mask"] = torch.nn.functional.pad(batch["action_mask"], (0, 4))
    same_value, same_gradient = loss_and_gradient(TERMS[name], padded, how)
    torch.testing.assert_close(same_value, value)
    torch.testing.assert_close(same_gradient[:, :WIDTH], gradient)
    assert not same_gradient[:, WIDTH:].any()


@pytest.mark.parametrize("how", HOW)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**20), cut=st.integers(1, ROWS - 1), name=st.sampled_from([*ROW_TERMS]))
def test_micro_batches_add_up_with_an_explicit_denominator(how, seed, cut, name):
    batch = random_batch(seed)
    mask = batch["action_mask"]
    count = mask.sum() if how == "token-mean" else mask.any(1).sum()
    value, gradient = loss_and_gradient(ROW_TERMS[name], batch, how)
    parts = [
        loss_and_gradient(
            ROW_TERMS[name], {key: tensor[rows] for key, tensor in batch.items()}, how, count
        )
        for rows in (slice(cut), slice(cut, None))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TERMS)
def test_nothing_but_masked_rows_gives_zero(name):
    batch = random_batch(3)
    batch["action_mask"] = torch.zeros_like(batch["action_mask"])
    value, gradient = loss_and_gradient(TERMS[name], batch, "token-mean")
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_float32_and_leave_their_inputs_alone(name):
    batch = random_batch(4)
    before = {key: tensor.clone() for key, tensor in batch.items()}
    term = TERMS[name](batch)
    assert term.dtype == torch.float32 and not term[~batch["action_mask"]].any()
    assert all(batch[key].equal(before[key]) for key in batch)
    if name != "top entropy":
        half = {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch.items()}
        assert TERMS[name](half).dtype == torch.float32
