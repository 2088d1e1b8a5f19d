"""Small versions of the trials in data/trust, each with a fault planted that it must find."""

import pytest
from helpers import script
from small_tokenizers import qwen2

from lldlib.rollout.loop import Rollout, TokenText
from lldlib.world.protocol import Action

transcripts = script("trust/transcripts.py")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["words", "qwen2"])
def test_no_text_of_others_acts(kind, seed):
    tokenizer = transcripts.words() if kind == "words" else qwen2()
    ends, wrong = transcripts.check(tokenizer, seed)
    assert wrong == [] and ends.total() == transcripts.AT_ONCE and len(ends) >= 2


def test_the_trial_sees_a_special_token_of_another(monkeypatch):
    monkeypatch.setattr(TokenText, "_encode", lambda self, *p: tuple(self._tokens("".join(p))))
    _, wrong = transcripts.check(qwen2(), 1)
    assert any("control token" in fault for fault in wrong)


def test_the_trial_sees_a_passage_that_is_read_for_tags(monkeypatch):
    real = Rollout._act

    def act(self, row, action):
        seen = "".join(self.text.piece(t) for turn in row.turns[1:] for t in turn.tokens)
        found = "answer" if "<answer> Lima </answer>" in seen else action.kind
        return real(self, row, Action(found, "Lima" if found != action.kind else action.content))

    monkeypatch.setattr(Rollout, "_act", act)
    wrong = [fault for seed in range(4) for fault in transcripts.check(qwen2(), seed)[1]]
    assert any("in place of" in fault for fault in wrong)
    assert any("another reward" in fault for fault in wrong)
