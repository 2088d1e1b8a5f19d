"""A minibatch in pieces gives the step of the whole one."""

from dataclasses import replace

import pytest
import torch
from helpers import MICRO, micro_trainer, weights

from lldlib.policy.score import backward_through, leaf_scores, score
from lldlib.recipes import METHODS

pytestmark = pytest.mark.usefixtures("answering_pays")


EVERY_TERM = {
    "llds": METHODS["llds"],
    "entropy and Lp-Reg": replace(METHODS["lp_reg_llds"], entropy_coef=0.01, kl_coef=0.001),
    "Lp-Reg with its exact KL": replace(
        METHODS["lp_reg"], lp_reg_kl="exact", lp_reg_quantile=0.5, lp_reg_coef=5.0
    ),
    "80/20, which is silent on most tokens": METHODS["top_entropy"],
}


@pytest.mark.parametrize("loss", EVERY_TERM.values(), ids=EVERY_TERM)
def test_pieces_give_the_step_of_the_whole(loss):
    """Plain SGD: an optimiser's state must not hide a wrong gradient."""

    def one_step(micro_rows: int) -> tuple[dict, dict]:
        run = micro_trainer(replace(MICRO, loss=loss, lr=0.1, micro_rows=micro_rows, grad_clip=1e9))
        run.optimizer = torch.optim.SGD(run.parameters, lr=0.1)
        metrics, _ = run.step()
        return weights(run), metrics

    (whole, told), (pieces, heard) = one_step(0), one_step(2)
    start = weights(micro_trainer())
    assert max((whole[k] - start[k]).abs().max() for k in whole) > 1e-3
    for name, weight in whole.items():
        torch.testing.assert_close(pieces[name], weight, atol=2e-6, rtol=0)
    assert heard["grad/norm"] == pytest.approx(told["grad/norm"], rel=1e-4)
    assert heard["grad/negative_share"] == pytest.approx(told["grad/negative_share"], rel=1e-4)


def test_outside_the_rollout_no_more_rows_than_that_pass_at_a_time():
    run = micro_trainer(replace(MICRO, loss=METHODS["llds"], micro_rows=2))
    seen = []

    def note(_, given: tuple, named: dict) -> None:
        if not named["use_cache"]:
            seen.append(len(named["input_ids"]))

    run.policy.model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    run.step()
    assert max(seen) == 2


@pytest.mark.parametrize(("slopes", "passed"), [([0.0, 1.0, 0.0, 2.0], 2), ([0.0] * 4, 1)])
def test_only_rows_that_the_gradient_reaches_pass_again(slopes, passed):
    """Where it reaches none, gradients are 0 and not missing: the optimiser's momentum acts."""
    run = micro_trainer(MICRO)
    _, batch = run.collect()
    batch, seen = batch.rows(torch.arange(4)), []
    model, weight = run.policy.model, torch.tensor(slopes)[:, None]
    whole = score(model, batch, 1.0).logp
    (whole * weight).sum().backward()
    wanted = [p.grad.clone() for p in run.parameters]
    model.zero_grad(set_to_none=True)
    leaves = leaf_scores(model, batch, 1.0, 1, entropy=False)
    (leaves.logp * weight).sum().backward()
    model.get_decoder().register_forward_pre_hook(lambda *_: seen.append(1))
    backward_through(model, batch, leaves, 1.0, 1)
    assert len(seen) == passed
    for parameter, grad in zip(run.parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad, atol=1e-5, rtol=1e-5)


def test_a_negative_number_of_rows_is_refused():
    with pytest.raises(ValueError, match="micro_rows is -1: use a whole number of 0 or more"):
        micro_trainer(replace(MICRO, micro_rows=-1))
