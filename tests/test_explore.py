"""The explorers' numbers by hand, and tokens of records and of batches."""

import math

import pytest
import torch
from torch.testing import assert_close

from lldlib.config import LossConfig
from lldlib.show.tokens import record_tokens, turn_words
from lldlib.show.widgets import GateCase, gate_values, proxy_values
from lldlib.train.dissect import batch_tokens
from lldlib.train.run import record
from lldlib.types import Batch, Episode, Question, StopReason, Turn

MASK = torch.tensor([[True, True, False, True], [True, True, False, False]])


def case(change) -> GateCase:
    """Two rows from -1 nat per token: A = +1 with two actions (the second is the answer), A = -1.

    `change` is of the first row; the second falls by half a nat per token.
    """
    old = torch.full((2, 4), -1.0)
    return GateCase(
        words=(("a", "b", "env", "c"), ("a", "d", "", "")),
        old_logp=old,
        new_logp=old + torch.tensor([change, [-0.5, -0.5, 0.0, 0.0]]),
        advantages=torch.tensor([1.0, -1.0]),
        action_mask=MASK,
        answer_mask=torch.tensor([[False, False, False, True], [False] * 4]),
    )


@pytest.mark.parametrize(
    ("gate", "opened", "charged"),
    [
        ("token", [True, False, False, True], [0.3, 0.0, 0.0, 0.2]),
        ("action", [False, False, False, True], [0.0, 0.0, 0.0, 0.2]),  # -0.3 + 0.4 > 0
        ("response", [True, True, False, True], [0.3, 0.0, 0.0, 0.2]),  # -0.3 + 0.35 - 0.2 < 0
    ],
)
def test_gates_by_hand(gate, opened, charged):
    rise = 0.4 if gate == "action" else 0.35
    values = gate_values(case([-0.3, rise, 0.0, -0.2]), gate=gate, answer_weight=1, coef=0.5)
    assert values.gate_open.tolist() == [opened, [False] * 4]
    assert_close(values.penalty, torch.tensor([charged, [0.0] * 4]))
    assert values.loss == pytest.approx(0.5 * sum(charged) / 3)  # three preserved tokens
    pull = [-0.5 / 3 * (value > 0) for value in charged]
    assert_close(values.gradient, torch.tensor([pull, [0.0] * 4]))
    assert values.preserved.tolist() == [MASK[0].tolist(), [False] * 4]


def test_the_answer_weight_scales_the_answer_alone():
    values = gate_values(case([-0.3, 0.0, 0.0, -0.2]), gate="token", answer_weight=0.5, coef=1)
    assert_close(values.penalty[0], torch.tensor([0.3, 0.0, 0.0, 0.1]))
    assert_close(values.gradient[0], torch.tensor([-1 / 3, 0.0, 0.0, -0.5 / 3]))


def test_the_proxy_by_hand():
    probs = torch.tensor([0.6, 0.3, 0.09, 0.01])
    found = proxy_values(probs.log(), filtering="min-p", threshold=0.1)  # under 0.06: dropped
    assert found.kept.tolist() == [True, True, True, False]
    assert_close(found.proxy, torch.tensor([0.6, 0.3, 0.09, 0.0]) / 0.99)
    assert found.kl == pytest.approx(-math.log(0.99), abs=1e-6)
    assert_close(found.gradient, found.probs - found.proxy)
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in probs.tolist()), abs=1e-6)
    assert proxy_values(probs.log(), filtering="fixed", threshold=0.1).kept.sum() == 2


def test_a_proxy_that_drops_everything_is_empty():
    found = proxy_values(torch.zeros(4), filtering="fixed", threshold=0.5)
    assert found.kl == 0 and not found.proxy.any() and not found.gradient.any()


def turn(role, text, logp=()):
    return {"role": role, "text": text, "logp": list(logp)}


def test_tokens_of_a_record():
    turns = [
        turn("prompt", "Question: x ?"),
        turn("action", "go on", [-1.0, -2.0]),
        turn("environment", "<information> y </information>"),
    ]
    tokens = record_tokens({"turns": turns})
    assert [t.text for t in tokens[:5]] == ["Question:", "x", "?", "go", "on"]
    assert [t.logp for t in tokens] == [None] * 3 + [-1.0, -2.0] + [None] * 3
    assert {t.role for t in tokens[5:]} == {"environment"}
    with pytest.raises(ValueError, match="2 words but 1 log-probs"):
        record_tokens({"turns": [turn("action", "go on", [-1.0])]})


def test_words_of_a_record_whose_tokens_are_parts_of_words():
    """A word's log-prob is the sum of its tokens'."""
    pieces = ["<", "think", ">", " It", " is", " Bra", "zil", ".", " </", "think", ">", "\n"]
    logp = [-float(2**i) for i in range(len(pieces))]
    told = turn("action", "".join(pieces), logp) | {"pieces": pieces}
    words = [(t.text, t.logp) for t in record_tokens({"turns": [told]})]
    assert words == [
        ("<think>", -7),
        ("It", -8),
        ("is", -16),
        ("Brazil.", -224),
        ("</think>", -3840),
    ]
    with pytest.raises(ValueError, match="3 words but 12 log-probs"):
        record_tokens({"turns": [turn("action", "It is Brazil.", logp)]})


class Spelled:
    """A tokenizer of letters, or with `gap` a space of words of one letter."""

    def __init__(self, gap: str = ""):
        self.gap = gap

    def decode(self, tokens: list[int]) -> str:
        return self.gap.join(map(chr, tokens))


def test_an_episode_is_logged_with_tokens_that_are_no_words():
    def logged(tokenizer: Spelled) -> dict:
        own = Turn("action", [*map(ord, "abc")], [-1.0] * 3, [])
        question = Question("1", "q", ("x",))
        episode = Episode(question, [own], StopReason.EOS, None, 0, 0, 0.0, 0)
        return record(episode, tokenizer)["turns"][0]

    assert turn_words(logged(Spelled())) == [("abc", -3.0)]
    assert logged(Spelled())["pieces"] == ["a", "b", "c"]
    assert "pieces" not in logged(Spelled(" "))
    assert turn_words(logged(Spelled(" "))) == [("a", -1.0), ("b", -1.0), ("c", -1.0)]


def test_tokens_of_a_batch():
    """LLDS's gate is told of on the good row, Lp-Reg's protection on the bad one."""
    old = torch.tensor([[-1.0, -1.0, 0.0, -1.0], [-0.1, -5.0, 0.0, 0.0]])
    new = torch.tensor([[-1.5, -1.0, 0.0, -0.9], [-0.1, -6.0, 0.0, 0.0]])
    batch = Batch(
        tokens=torch.zeros(2, 4, dtype=torch.long),
        attention_mask=torch.ones(2, 4, dtype=torch.bool),
        action_mask=MASK,
        span=MASK.long(),
        sampler_logp=old,
        rewards=torch.tensor([1.0, 0.0]),
        group=torch.tensor([0, 0]),
    )
    texts, roles = [["a", "b", "env", "c"], ["a", "d"]], [["action"] * 4, ["action"] * 2]
    roles[0][2] = "environment"
    rows = batch_tokens(
        texts,
        roles,
        batch,
        old,
        new,
        proxy_logp=old + 0.1,
        advantages=torch.tensor([1.0, -1.0]),
        config=LossConfig(lp_reg_quantile=0.3),
    )
    assert [t.gate_open for t in rows[0]] == [True, True, None, False]
    assert [t.protected for t in rows[0]] == [None] * 4
    assert [t.protected for t in rows[1]] == [False, True]
    assert [t.gate_open for t in rows[1]] == [None, None]
    assert [t.change for t in rows[0]] == pytest.approx([-0.5, 0.0, None, 0.1], abs=1e-6)
    assert rows[0][2].logp is None and rows[1][1].logp == -5.0
