"""Rewards of question answering: exact match and F1 after SQuAD's normalisation."""

import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces (SQuAD, 1606.05250)."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str | None, answers: tuple[str, ...] | list[str]) -> float:
    """1.0 if the normalised prediction equals a normalised answer, else 0.0; no prediction: 0.0.

    Search-R1's reward (2503.09516): no part of it looks at the format. Where normalisation leaves
    nothing of a text ("A", "?!"), its plain lower-case form counts instead, so that an empty
    prediction is never right; Search-R1 would take it for every such answer.
    """
    mine = _comparable(prediction or "")
    return float(bool(mine) and mine in {_comparable(answer) for answer in answers})


def f1(prediction: str | None, answers: tuple[str, ...] | list[str]) -> float:
    """The best word-overlap F1, 0 to 1, of the prediction with an answer, as in `exact_match`."""
    mine = _comparable(prediction or "").split()
    return max((_overlap_f1(mine, _comparable(a).split()) for a in answers), default=0.0)


def _comparable(text: str) -> str:
    return normalise_answer(text) or " ".join(text.lower().split())


def _overlap_f1(predicted: list[str], gold: list[str]) -> float:
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0
