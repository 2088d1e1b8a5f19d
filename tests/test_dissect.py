"""One batch taken apart."""

import pytest
from helpers import MICRO, micro_trainer

from lldlib.recipes import method
from lldlib.train import trainer as train
from lldlib.train.dissect import dissect

pytestmark = pytest.mark.usefixtures("answering_pays")


def test_a_batch_token_by_token():
    trainer, loss = (
        micro_trainer(),
        method("lp_reg_llds", lp_reg_quantile=0.5, lp_reg_threshold=0.0),
    )
    rows = dissect(trainer, loss)
    size = MICRO.rollout.problems * MICRO.rollout.group_size
    assert len(rows) == size and trainer.step_index == 1
    assert {row.reward for row in rows} == {0.0, 1.0}
    for row in rows:
        chosen = [t for t in row.tokens if t.role == "action"]
        assert chosen and all(t.logp <= 0 for t in chosen)
        assert all((t.gate_open is None) == (row.advantage < 0) for t in chosen)
        assert all((t.protected is None) == (row.advantage >= 0) for t in chosen)
        others = [t for t in row.tokens if t.role != "action"]
        assert others and all(t.logp is t.change is None for t in others)
    tokens = [t for row in rows for t in row.tokens]
    assert any(t.change for t in tokens if t.change is not None)
    assert any(t.gate_open for t in tokens) and any(t.protected for t in tokens)


def test_the_weights_move_as_in_any_step():
    one, other = micro_trainer(), micro_trainer()
    dissect(one, method("lp_reg_llds"))
    assert isinstance(other, train.Trainer)
    other.step()
    for p, q in zip(one.parameters, other.parameters, strict=True):
        assert p.equal(q)
