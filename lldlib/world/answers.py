"""What an answer is worth: exact match and F1 (SQuAD), and equality in maths (math-verify).

Maths needs the extra `benchmarks`.
"""

import importlib.util
import re
import string
from collections import Counter
from functools import lru_cache

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_POWER = re.compile(r"^([-+]?[\d.]+)e([-+]?\d+)$")
LIMIT = 60  # seconds for one reading of maths; the library's 5 fail plain answers on a busy machine


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


def need_math_verify() -> None:
    """ValueError, saying what to install, where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise ValueError("maths needs math-verify: pip install 'lldlib[benchmarks]'")


def boxed(text: str) -> str | None:
    """What the last complete \\boxed{...} or \\fbox{...} of a text holds, braces balanced."""
    for match in reversed(list(_BOX.finditer(text))):
        depth, escaped = 1, False
        for place in range(match.end(), len(text)):
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[place], 0)
            escaped = text[place] == "\\" and not escaped
            if depth == 0:
                return text[match.end() : place].strip()
    return None


def is_right(prediction: str | None, answers: tuple[str, ...]) -> float:
    """1.0 if the prediction is mathematically equal to an answer, else 0.0 (math-verify).

    Texts that are the same but for spaces and dollar signs are equal too, also where math-verify
    cannot read them. OlympiadBench's tolerance (one question has one) is not applied. Call it from
    the main thread: math-verify's time limit is a signal.
    """
    mine = _bare(prediction or "")
    if not mine:
        return 0.0
    bare = [_bare(answer) for answer in answers]
    if mine.replace(" ", "") in {answer.replace(" ", "") for answer in bare}:
        return 1.0
    return float(any(_equal(mine, answer) for answer in bare))


@lru_cache(4096)  # rollouts of one question repeat their answers
def _equal(mine: str, answer: str) -> bool:
    from math_verify import parse, verify

    gold, read = (parse(f"${text}$", parsing_timeout=LIMIT) for text in (answer, mine))
    return verify(gold, read, timeout_seconds=LIMIT)


def _bare(text: str) -> str:
    """Without dollar signs, and 4.5e33, as Minerva's answers have it, as LaTeX."""
    plain = re.sub(r"(?<!\\)\$", "", text).strip()
    return _POWER.sub(r"\1 \\times 10^{\2}", plain)
