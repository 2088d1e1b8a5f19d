"""One update token by token: every number by hand, the formula in words, the run left alone."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import MICRO, micro_trainer, same, weights

from lldlib.config import LossConfig
from lldlib.losses import LossInputs
from lldlib.show.inspector import StepInspector, formula
from lldlib.train import trainer as train
from lldlib.train.dissect import DissectedUpdate, dissect_update, token_steps
from lldlib.types import TokenStep

BARE = LossConfig(kl_coef=0.0)
LLDS = replace(BARE, llds_coef=0.5)


def steps(old, new, advantages, config, *, after=None, mask=None, **more) -> list[list]:
    """TokenSteps of rows of log-probs; every token is the policy's, but for those off `mask`."""
    old, new = torch.tensor(old), torch.tensor(new)
    mask = torch.ones_like(old, dtype=torch.bool) if mask is None else torch.tensor(mask)
    inputs = LossInputs(
        logp=new,
        old_logp=old,
        advantages=torch.tensor(advantages),
        action_mask=mask,
        answer_mask=torch.zeros_like(mask),
        **more,
    )
    texts = [[f"w{t}" for t in range(old.shape[1])] for _ in old]
    roles = [["action" if own else "environment" for own in row] for row in mask.tolist()]
    after = new if after is None else torch.tensor(after)
    return token_steps(texts, roles, inputs, after, config)


def test_a_token_over_the_clip_has_no_gradient():
    """A = 1, r = 1.3, clip .2: the term is -1.2 and flat."""
    ((token,),) = steps([[-1.0]], [[-1.0 + math.log(1.3)]], [1.0], BARE, after=[[-0.7]])
    assert (token.ratio, token.policy) == pytest.approx((1.3, -1.2))
    assert token.clipped is True and token.gradient == 0
    assert token.logp == -1.0 and token.now == pytest.approx(-0.737636, abs=1e-6)
    assert token.change == pytest.approx(0.037636, abs=1e-6)
    assert "-min(1.300 x 1.000, 1.200 x 1.000) = -1.200, one of 1" in formula(token, BARE)
    assert "its gradient: 0, clipped: r is out of range on the side of A" in formula(token, BARE)
    assert formula(token, BARE).endswith("= +0 (policy) = +0: no pull")


def test_the_same_ratio_passes_where_the_advantage_is_negative():
    """A = -1: max(1.3, 1.2) = 1.3 of the two surrogates, with gradient +1.3."""
    ((token,),) = steps([[-1.0]], [[-1.0 + math.log(1.3)]], [-1.0], BARE)
    assert (token.policy, token.gradient) == pytest.approx((1.3, 1.3))
    assert token.clipped is False and token.gate_open is None
    assert "its gradient: -r A / 1 = +1.3" in formula(token, BARE)
    assert "LLDS: keeps rows of A >= 0, not this one" in formula(token, BARE)
    assert formula(token, BARE).endswith("makes it less likely")


def test_llds_pulls_back_a_token_that_fell_by_a_tenth():
    """One good token of two in the minibatch fell by 0.1: lambda .5, one token is kept."""
    good, bad = steps([[-1.0], [-2.0]], [[-1.1], [-2.0]], [1.0, -1.0], LLDS)
    (token,) = good
    assert token.gate_open is True and token.charge == pytest.approx(0.1)
    parts = dict(token.gradients)
    assert parts["llds"] == pytest.approx(-0.5)
    assert parts["policy"] == pytest.approx(-math.exp(-0.1) / 2)
    assert token.gradient == pytest.approx(-0.5 - math.exp(-0.1) / 2)
    told = formula(token, LLDS)
    assert "charge = max(0, sampled - now) = max(0, 0.100) = 0.100" in told
    assert "lambda charge / 1 = 0.5 x 0.100 / 1 = 0.05; its gradient: -0.5" in told
    assert "-r A / 2 = -0.452" in told and told.endswith("-0.952: makes it likelier")
    assert bad[0].gradient == pytest.approx(0.5) and bad[0].charge == 0


def test_a_shut_gate_charges_nothing():
    """One token of the action fell by .1, the other rose by .2: the gate of an action is shut."""
    ((fell, rose),) = steps([[-1.0, -1.0]], [[-1.1, -0.8]], [1.0], LLDS)
    assert fell.gate_open is False and fell.charge == 0 and dict(fell.gradients)["llds"] == 0
    assert "LLDS: the gate is shut, no charge" in formula(fell, LLDS)
    one = replace(LLDS, llds_gate="token")
    ((fell, rose),) = steps([[-1.0, -1.0]], [[-1.1, -0.8]], [1.0], one)
    assert (fell.gate_open, rose.gate_open) == (True, False)
    assert dict(fell.gradients)["llds"] == pytest.approx(-0.25)  # two tokens are kept


def test_the_charge_is_told_where_llds_is_off_and_others_tokens_have_none():
    ((token, other),) = steps([[-1.0, -9.0]], [[-1.1, -8.0]], [1.0], BARE, mask=[[True, False]])
    assert token.charge == pytest.approx(0.1) and "llds" not in dict(token.gradients)
    assert "not in this loss: lambda = 0" in formula(token, BARE)
    assert not isinstance(other, TokenStep) and formula(other, BARE) == ""
    assert token.policy_share == 1.0


def test_a_cap_and_a_kl():
    """Lp-Reg's printed rule has no min; the KL's k2 has the gradient logp - reference."""
    capped = replace(BARE, ratio_cap=1.1)
    ((token,),) = steps([[-1.0]], [[-1.0 + math.log(1.3)]], [-1.0], capped)
    assert token.clipped is True and token.gradient == 0
    assert "-min(r, 1.1) A = -1.100 x -1.000 = +1.100" in formula(token, capped)
    pulled = replace(BARE, kl_coef=0.1, kl_estimator="k2")
    ((token,),) = steps([[-1.0]], [[-1.0]], [0.0], pulled, ref_logp=torch.tensor([[-1.5]]))
    assert dict(token.gradients) == {"policy": 0.0, "kl": pytest.approx(0.05)}


def test_a_silenced_token_says_so():
    """80/20: of two tokens only the one of higher entropy is trained."""
    loud = replace(BARE, top_entropy=0.5)
    ((quiet, other),) = steps(
        [[-1.0, -1.0]], [[-1.0, -1.0]], [1.0], loud, entropy=torch.tensor([[0.1, 2.0]])
    )
    assert quiet.gradient == 0 and other.gradient == pytest.approx(-0.5)
    assert "0, silenced: not among the tokens that are trained" in formula(quiet, loud)


@pytest.mark.usefixtures("answering_pays")
def test_an_update_of_a_run_that_stays_as_it_is():
    """The numbers are those of training: the update's ratio and loss are what a step would log."""
    trainer, twin = micro_trainer(), micro_trainer()
    before = weights(trainer)
    found = dissect_update(trainer, 1)
    assert same(before, weights(trainer)) and trainer.step_index == 0
    assert (found.batch, found.number, found.loss) == (0, 1, MICRO.loss)
    tokens = [t for row in found.rows for t in row.tokens if isinstance(t, TokenStep)]
    assert len(found.rows) == 5  # of 16 rows in three updates
    for token in tokens:
        assert token.ratio == pytest.approx(math.exp(token.now - token.logp), rel=1e-4)
        assert token.policy_share == pytest.approx(1 / len(tokens))
        expected = 0.0 if token.clipped else -token.ratio * token.advantage / len(tokens)
        assert token.gradient == pytest.approx(expected, abs=1e-7)
    assert any(token.change for token in tokens) and any(t.ratio != 1 for t in tokens)
    assert all(t.ratio == 1 for row in dissect_update(trainer, 0).rows for t in _steps(row))
    trainer.step()
    twin.step()
    assert same(weights(trainer), weights(twin))
    with pytest.raises(ValueError, match="update 3: this batch has updates 0 to 2"):
        dissect_update(trainer, 3)


@pytest.mark.usefixtures("answering_pays")
@pytest.mark.parametrize(("mixed", "has"), [(2, "updates 0 to 1"), (0, "none, since no group")])
def test_an_update_that_a_batch_of_few_mixed_groups_lacks(monkeypatch, mixed, has):
    """Four groups of four rows in three updates; of `mixed` groups alone it has fewer."""
    trainer = micro_trainer(replace(MICRO, keep_mixed=0.5))
    monkeypatch.setattr(train, "most_mixed", lambda rewards, group, share: group < mixed)
    with pytest.raises(ValueError, match=f"update 2: this batch has {has}"):
        dissect_update(trainer, 2)


def _steps(row) -> list[TokenStep]:
    return [token for token in row.tokens if isinstance(token, TokenStep)]


@pytest.mark.usefixtures("answering_pays")
def test_the_last_update_ends_where_the_batch_ends():
    """`now` plus `change` of the last update is the log-prob under the weights after the batch."""
    trainer = micro_trainer()
    last = dissect_update(trainer, 2)
    twin = micro_trainer()
    _, batch = twin.collect()
    twin.step()
    from lldlib.policy.score import score_sorted

    with torch.no_grad():
        logp = score_sorted(twin.policy.model, batch, MICRO.rollout.temperature).logp
    ends = sorted(logp[batch.action_mask].tolist())
    for token in (token for row in last.rows for token in _steps(row)):
        end = token.now + token.change
        assert min(abs(end - value) for value in ends) < 1e-4


@pytest.mark.usefixtures("answering_pays")
def test_the_widget_writes_every_formula_out():
    update = dissect_update(micro_trainer(replace(MICRO, loss=LLDS)), 2)
    page = StepInspector(update, height=300).value
    tokens = [token for row in update.rows for token in _steps(row)]
    assert page.count('class="tip"') == len(tokens) and "Update 2 of batch 0." in page
    assert page.count("one of") == len(tokens) and "height: 300px" in page
    with pytest.raises(ValueError, match="no token has a value to show"):
        StepInspector(DissectedUpdate(0, 0, LLDS, []), height=300)
