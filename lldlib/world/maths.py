"""Maths questions: the prompt, the boxed answer and its check (extra `benchmarks`: math-verify)."""

import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache

from lldlib.world.protocol import Protocol

INSTRUCTION = "Reason step by step, and put the final answer within \\boxed{}."
LIMIT = 60  # seconds for one reading; the library's 5 fail plain answers on a busy machine
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")

_POWER = re.compile(r"^([-+]?[\d.]+)e([-+]?\d+)$")


@dataclass(frozen=True)
class MathsProtocol(Protocol):
    """The texts of an episode without search: the problem as it is, then the instruction."""

    def prompt(self, question: str) -> str:
        """The text that opens an episode."""
        return f"{self.chat[0]}{question.strip()}\n{self.instruction}\n{self.chat[1]}"

    def final_answer(self, said: str, tagged: str | None) -> str | None:
        """What the last complete box of all that was said holds; else the <answer>, if any."""
        return boxed(said) or tagged

    def reward(self, answer: str | None, accepted: tuple[str, ...]) -> float:
        """1.0 if the answer is mathematically equal to an accepted one, else 0.0."""
        return is_right(answer, accepted)


MATHS = MathsProtocol(INSTRUCTION, invalid_message="")


def need_math_verify() -> None:
    """ValueError, saying what to install, where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise ValueError("maths needs math-verify: pip install -e '.[benchmarks]'")


def boxed(text: str) -> str | None:
    """What the last complete \\boxed{...} or \\fbox{...} of a text holds, braces balanced."""
    for match in reversed(list(_BOX.finditer(text))):
        depth = 1
        for place in range(match.end(), len(text)):
            escaped = text[place - 1] == "\\"
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[place], 0)
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
