"""The regularizers of a micro-batch: they are those of the objective, and they add up."""

import dataclasses

import pytest
import torch

from lldlib.config import LossConfig
from lldlib.losses import Counts, LossInputs, compute_loss, preserved_mask, regularizers

BARE = LossConfig(kl_coef=0.0)
LLDS = {"llds_coef": 0.7}
TERMS = {
    "action": LLDS,
    "response": LLDS | {"llds_gate": "response"},
    "token": LLDS | {"llds_gate": "token"},
    "positive": LLDS | {"llds_preserve": "positive"},
    "all tokens": LLDS | {"llds_normalizer": "all"},
    "MA of the paper": LLDS | {"llds_answer": "paper"},
    "MA of the code": LLDS | {"llds_answer": "code"},
    "Lp-Reg": {"lp_reg_coef": 0.3, "lp_reg_quantile": 0.4},
    "Lp-Reg of the code": {"lp_reg_coef": 0.3, "lp_reg_quantile": 0.4, "lp_reg_selection": "code"},
    "both": {"llds_coef": 0.2, "lp_reg_coef": 0.5, "lp_reg_quantile": 0.5},
}


def inputs(rows: int = 6, tokens: int = 12) -> LossInputs:
    """Random rows with two actions each; the second holds the answer."""
    draw = torch.Generator().manual_seed(1)
    logp = -torch.rand(rows, tokens, generator=draw)
    mask = torch.zeros(rows, tokens, dtype=torch.bool)
    mask[:, 2:5] = mask[:, 7:] = True
    mask[0, 9:] = False
    answer = torch.zeros_like(mask)
    answer[:, 8:10] = True
    return LossInputs(
        logp=logp.requires_grad_(),
        old_logp=0.3 - torch.rand(rows, tokens, generator=draw),
        advantages=torch.tensor([1.0, -1.0, 0.0, 2.0, -0.5, 0.5]),
        action_mask=mask,
        answer_mask=answer & mask,
        proxy_logp=-torch.rand(rows, tokens, generator=draw),
        mean_valid_searches=1.2,
        low_logp=torch.tensor(-0.6),
    )


def counts(x: LossInputs, config: LossConfig = BARE) -> Counts:
    kept = preserved_mask(x.advantages, x.action_mask, config.llds_preserve)
    return Counts(kept.sum().float(), x.action_mask.sum().float())


@pytest.mark.parametrize("changes", TERMS.values(), ids=TERMS)
def test_a_minibatch_gives_the_objectives_terms_and_gradient(changes):
    x, config = inputs(), dataclasses.replace(BARE, **changes)
    ours, stats = regularizers(config, x, counts(x, config))
    whole, expected = compute_loss(config, x)
    alone, _ = compute_loss(BARE, x)
    assert float(ours) > 1e-3
    torch.testing.assert_close(ours, whole - alone, atol=1e-6, rtol=0)
    for key, value in stats.items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(ours, x.logp)
    (reference,) = torch.autograd.grad(whole - alone, x.logp)
    assert reference.abs().max() > 1e-3
    torch.testing.assert_close(gradient, reference, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["action", "all tokens", "MA of the paper", "Lp-Reg"])
def test_micro_batches_add_up(name):
    x, config = inputs(), dataclasses.replace(BARE, **TERMS[name])
    names = ("logp", "old_logp", "advantages", "action_mask", "answer_mask", "proxy_logp")
    whole, stats = regularizers(config, x, counts(x))
    total, summed = 0.0, dict.fromkeys(stats, 0.0)
    for rows in torch.arange(6).split([1, 3, 2]):
        part = dataclasses.replace(x, **{n: getattr(x, n)[rows] for n in names})
        value, numbers = regularizers(config, part, counts(x))
        total = total + value
        summed = {key: summed[key] + numbers[key] for key in summed}
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(summed, stats)


def test_nothing_asked_is_nothing():
    x = inputs()
    loss, stats = regularizers(BARE, x, counts(x))
    assert float(loss) == 0 and stats == {} and not loss.requires_grad
