"""Signs that a run dies in words: answers of later quarters against those of the run's own start.

Each sign is a share of answers that show a fault. It is told where the share of a later quarter is
far over that of the first one and chance does not make that of one source (Fisher's exact test), or
where most answers had the fault from the start.
"""

import html
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np

from lldlib.doctor.completions import Answer, NoAnswers, find_answers, read_answers
from lldlib.doctor.reading.log import printable

log = logging.getLogger(__name__)
LEAST, MOST = 8, 120  # answers of a quarter: fewer are not compared, of more a part is judged
RISE, CHANCE = 0.3, 1e-3  # a share must grow by this much, and this seldom by chance
FROM_START = 0.6  # of the answers of the start, for a fault that needs no comparison
REPEATED = 0.5  # of a text's runs of four words, those that stood in it before
LONG = 24  # words: a shorter text is not searched for repetition
STRANGE = 0.5  # of a text's words, at least, never seen at the start
ODD_LETTERS = 0.1  # of a text's characters, of a kind that the start never wrote
ALIKE = 0.8  # words that two answers to different questions share
COPIED = 0.8  # of a question's words that a search repeats
QUOTED = 280  # characters of an answer that the page shows
SHOWN = 2  # pairs of answers side by side

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")
LETTERS = re.compile(r"[^\W\d_]{3,}")
TAG = re.compile(r"<(/?)([A-Za-z][\w-]{1,30})>")
SEARCH = re.compile(r"<(search|query)>(.*?)</\1>", re.DOTALL)
FINAL = re.compile(
    r"<answer>.*?</answer>|\\boxed\{|^####|final answer|<solution>|answer is\b|答案",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
REFUSES = re.compile(
    r"\b(i (do not|don't|cannot|can't) (know|answer|determine|find)|no (answer|information) "
    r"(is |was )?(available|found|given)|cannot be determined|unable to (answer|determine|find))",
    re.IGNORECASE,
)
ENDS = re.compile(r"[.!?。！？:;)\]}>\"'`$*|…\d]\s*$")


@dataclass(frozen=True)
class Finding:
    """One sign, with the quarter in which it is first seen."""

    key: str
    title: str
    says: str
    step: float | int  # the first of that quarter
    early: float  # share of answers in the first quarter
    late: float  # in that quarter
    last: float  # in the last quarter


@dataclass(frozen=True)
class AnswerReport:
    """What a run's answers show."""

    path: str
    count: int
    first: float | int
    last: float | int
    findings: tuple[Finding, ...]
    shares: tuple[tuple[str, ...], ...]  # a head, then a row a sign: its share quarter by quarter
    examples: tuple[tuple[str, ...], ...]  # a head, then an early answer beside a late one

    def lines(self) -> list[str]:
        """What the page says."""
        read = f"{self.count} answers of steps {self.first:g} to {self.last:g} ({self.path})"
        said = [f"{f.title}: {f.says}" for f in self.findings]
        if len(self.shares[0]) < 5:
            said.append(f"early and late are not compared, under {LEAST} answers a quarter: {read}")
        else:
            said.append(f"read: {read}" if said else f"no sign of death in words: {read}")
        return said

    def pairs(self) -> list[str]:
        """The examples as lines."""
        if not self.examples:
            return []
        (early, late), *rows = self.examples
        return [
            f"{when}: {text}" for row in rows for when, text in zip((early, late), row, strict=True)
        ]

    def html(self) -> str:
        """Lines, examples and shares as HTML."""
        said = "".join(f"<li>{html.escape(line)}</li>" for line in self.lines())
        return f"<ul>{said}</ul>" + "".join(map(_table, (self.examples, self.shares)))


def _table(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) < 2:
        return ""
    lines = [
        "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row)
        for cell, row in zip(("th", *("td",) * len(rows[1:])), rows, strict=True)
    ]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def answers_beside(log_path: Path | str, given: Path | str | None = None) -> AnswerReport | None:
    """Judge the answers in `given`, or those found beside a log; None where there are none.

    Raises NoAnswers where those of `given` cannot be read.
    """
    place = find_answers(log_path) if given is None else Path(given)
    if place is None:
        return None
    try:
        return judge_answers(read_answers(place), str(place))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        what = " ".join(str(error).split())
        if given is not None:
            raise NoAnswers(what) from error
        if place != Path(log_path):  # a log that prints something else says nothing
            log.warning("the answers beside the log are not read: %s", what)
        return None


def judge_answers(answers: Sequence[Answer], path: str = "answers") -> AnswerReport:
    """Compare each quarter of a run's answers, sorted by step, with the first."""
    answers = sorted(answers, key=lambda answer: answer.step)
    parts = [list(part) for part in _quarters(answers)]
    if min(map(len, parts)) < LEAST:  # too few to compare, or all of one step
        parts = [answers] if len(answers) >= LEAST else []
    parts = [_spread(part, MOST) for part in parts]
    start = Start(parts[0] if parts else answers, _in_most(answers))
    findings, table = [], []
    for sign in SIGNS:
        flags = [sign.flags(part, start) for part in parts]
        if not flags or any(len(part) < LEAST for part in flags):
            continue
        shares = [sum(part) / len(part) for part in flags]
        table.append((sign.title, *(f"{share:.0%}" for share in shares)))
        found = _finding(sign, flags, [part[0].step for part in parts], start)
        if found is not None:
            findings.append(found)
    head = ("share of answers", *(f"from step {part[0].step:g}" for part in parts))
    worst = max(findings, key=lambda f: f.late - f.early, default=None)
    shown = tuple(_examples(parts, start, worst))
    ends = (answers[0].step, answers[-1].step) if answers else (0.0, 0.0)
    return AnswerReport(path, len(answers), *ends, tuple(findings), (head, *table), shown)


def _in_most(answers: Sequence[Answer]) -> frozenset[str]:
    """Words of most questions: the template's, not the question's own."""
    asked = {frozenset(_letters(answer.question)) for answer in answers}
    counts = Counter(word for words in asked for word in words)
    return frozenset(w for w, count in counts.items() if len(asked) >= 4 and count > len(asked) / 2)


def _quarters(answers: Sequence[Answer]) -> list[Sequence[Answer]]:
    """Four parts; answers of one step stay together."""
    cuts = [0]
    for part in (1, 2, 3):
        at = len(answers) * part // 4
        while cuts[-1] < at < len(answers) and answers[at].step == answers[at - 1].step:
            at += 1
        cuts.append(max(at, cuts[-1]))
    return [answers[a:b] for a, b in zip(cuts, [*cuts[1:], len(answers)], strict=True)]


def _finding(
    sign: "Sign", flags: Sequence[Sequence[bool]], steps: Sequence[float | int], start: "Start"
) -> Finding | None:
    shares = [sum(part) / len(part) for part in flags]
    known = sign.key != "cut" or start.knows_cut
    if sign.absolute and known and min(shares[0], shares[-1]) >= FROM_START:
        says = f"{sign.says} in {shares[0]:.0%} of the answers from the start"
        return Finding(sign.key, sign.title, says, steps[0], shares[0], shares[0], shares[-1])
    for at in range(1, len(flags)):
        if shares[at] - shares[0] >= RISE and _chance(flags[0], flags[at]) < CHANCE:
            worst, last = max(shares[at:]), shares[-1]
            end = "" if last >= 0.5 * worst else f", {last:.0%} at the end"
            says = (
                f"{sign.says} in {shares[0]:.0%} of the answers at the start, in {worst:.0%} "
                f"later (from step {steps[at]:g} on){end}"
            )
            return Finding(sign.key, sign.title, says, steps[at], shares[0], worst, last)
    return None


def _chance(early: Sequence[bool], late: Sequence[bool]) -> float:
    """Fisher's exact test, one-sided: so uneven or more, were both of one source."""
    a, b, n, m = sum(late), sum(early), len(late), len(early)
    every = comb(n + m, a + b)
    return sum(comb(n, k) * comb(m, a + b - k) for k in range(a, min(n, a + b) + 1)) / every


# -- what the start was like -----------------------------------------------------------------------


class Start:
    """The words, characters, tags and habits of a run's first quarter."""

    def __init__(self, answers: Sequence[Answer], common: frozenset[str]):
        self.common = common  # words of most questions
        self.knows_cut = any(answer.cut is not None for answer in answers)
        texts = [answer.text for answer in answers]
        self.letters = Counter(map(_kind, "".join(texts)))
        self.words = set(_letters(" ".join(texts)))
        self.lengths = float(np.median([len(words_of(text)) for text in texts]))
        self.final = np.mean([bool(FINAL.search(text)) for text in texts]) >= 0.5
        halves = [answers[::2], answers[1::2]]
        strange = [
            _strangeness(answer, set(_letters(" ".join(a.text for a in other))))
            for half, other in (halves, halves[::-1])
            for answer in half
        ]
        known = [share for share in strange if share is not None]
        self.usual_strangeness = float(np.quantile(known, 0.95)) if known else 1.0
        used = Counter(name for text in texts for name in {tag for _, tag in TAG.findall(text)})
        self.tags = {tag for tag, count in used.items() if count >= 0.5 * len(texts)}
        self.balance = {
            tag: Counter(_balance(text, tag) for text in texts).most_common(1)[0][0]
            for tag in self.tags
        }


def words_of(text: str) -> list[str]:
    """Words and signs; of Chinese, Japanese and Korean one character each."""
    return WORD.findall(text.lower())


def _letters(text: str) -> list[str]:
    return [word.lower() for word in LETTERS.findall(text)]


def _balance(text: str, tag: str) -> int:
    return text.count(f"<{tag}>") - text.count(f"</{tag}>")


def _kind(letter: str) -> str:
    """A character's kind: its block of 256 code points; control and replacement by themselves."""
    if letter == "\ufffd" or (ord(letter) < 32 and letter not in "\n\r\t"):
        return "broken"
    return "plain" if ord(letter) < 128 else f"{ord(letter) >> 8:x}"


def _strangeness(answer: Answer, known: set[str]) -> float | None:
    """Share of its words that neither `known` nor its question holds; None of a short text."""
    own = _letters(answer.text)
    if len(own) < 5:
        return None
    asked = set(_letters(answer.question))
    return sum(word not in known and word not in asked for word in own) / len(own)


# -- signs -----------------------------------------------------------------------------------------


def _repeats(answer: Answer, start: Start) -> bool:
    words = words_of(TAG.sub(" ", answer.text))
    if len(words) < LONG:
        return False
    runs = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(runs)) / len(runs) > REPEATED


def _breaks_tags(answer: Answer, start: Start) -> bool:
    if not start.tags:
        return False
    allowed = 1 if answer.cut else 0  # the tag in which it was cut off
    off = [abs(_balance(answer.text, tag) - start.balance[tag]) for tag in start.tags]
    return sum(off) > allowed or not any(f"{tag}>" in answer.text for tag in start.tags)


def _is_gibberish(answer: Answer, start: Start) -> bool:
    text = answer.text
    asked = Counter(map(_kind, answer.question))
    odd = sum(not start.letters[kind] and not asked[kind] for kind in map(_kind, text))
    if len(text) >= 8 and odd / len(text) > ODD_LETTERS:
        return True
    strange = _strangeness(answer, start.words)
    return strange is not None and strange > max(STRANGE, start.usual_strangeness + 0.2)


def _is_cut(answer: Answer, start: Start) -> bool:
    if answer.cut is not None:
        return answer.cut
    return bool(answer.text) and not ENDS.search(answer.text)


def _is_empty(answer: Answer, start: Start) -> bool:
    count = len(words_of(TAG.sub(" ", answer.text)))
    return count == 0 or (count <= 2 and start.lengths >= 10)


def _avoids(answer: Answer, start: Start) -> bool:
    if answer.answered is False or REFUSES.search(answer.text):
        return True
    return bool(start.final and answer.answered is None and not FINAL.search(answer.text))


def _copies(answer: Answer, start: Start) -> bool:
    asked = set(_letters(answer.question)) - start.common
    queries = SEARCH.findall(answer.text)
    searches = [set(_letters(query)) - start.common for _, query in queries]
    if len(asked) < 3 or not searches:
        return False
    copied = [bool(s) and len(s & asked) >= COPIED * max(len(s), len(asked)) for s in searches]
    return all(copied)


@dataclass(frozen=True)
class Sign:
    """A fault that an answer may show."""

    key: str
    title: str
    says: str
    test: Callable[[Answer, Start], bool] | None  # None: seen only in several answers together
    absolute: bool = False  # told as well where most answers have it from the start

    def flags(self, answers: Sequence[Answer], start: Start) -> list[bool]:
        """Which answers show it."""
        if self.test is None:
            return _alike(answers, start)
        return [self.test(answer, start) for answer in answers]


def _alike(answers: Sequence[Answer], start: Start) -> list[bool]:
    """Answers that tell nothing of their question and are like those to most other questions.

    A simple form of the mutual information between question and answer (arXiv 2604.06268): an
    answer is told from its question where it shares more words with it than with the others; and
    answers are alike where their words overlap by ALIKE, the words of all questions left out.
    """
    asked = [frozenset(_letters(answer.question)) - start.common for answer in answers]
    if len(set(asked)) < 4:
        return []
    every = frozenset().union(*asked)
    said = [frozenset(words_of(TAG.sub(" ", answer.text))) for answer in answers]
    flags = []
    for i, own in enumerate(said):
        others = [j for j in range(len(said)) if asked[j] != asked[i]]
        near = [_overlap(own - every, said[j] - every) >= ALIKE for j in others]
        home = len(own & asked[i])
        away = float(np.mean([len(own & asked[j]) for j in others]))
        flags.append(float(np.mean(near)) > 0.5 and home <= away)
    return flags


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    both = len(one | other)
    return len(one & other) / both if both else 1.0


SIGNS = (
    Sign(
        "repetition", "Repetition", "a text of which half and more repeats itself", _repeats, True
    ),
    Sign("tags", "Broken tags", "tags that do not close, or are gone", _breaks_tags),
    Sign(
        "gibberish",
        "Gibberish, or another subject",
        "characters or words that the start never wrote",
        _is_gibberish,
    ),
    Sign("cut", "Cut off", "no end: the answer is cut off", _is_cut, True),
    Sign("empty", "Empty answers", "no word, or two at most", _is_empty, True),
    Sign("avoidance", "Answer avoidance", "no final answer", _avoids),
    Sign("template", "Template collapse", "the same words whatever the question", None),
    Sign("copying", "Searches that copy the question", "searches in the question's words", _copies),
)


# -- side by side ----------------------------------------------------------------------------------


def _examples(
    parts: Sequence[Sequence[Answer]], start: Start, worst: Finding | None
) -> list[tuple[str, ...]]:
    """Early answers beside late ones; where there is a finding, late ones that show it."""
    if len(parts) < 2:
        return []
    early, late = parts[0], parts[-1]
    if worst is not None and worst.step > early[0].step:
        late = next(part for part in parts if part[0].step >= worst.step)
        sign = next(sign for sign in SIGNS if sign.key == worst.key)
        flags = sign.flags(late, start)
        late = [answer for answer, flag in zip(late, flags, strict=True) if flag]
    pairs = zip(_spread(early, SHOWN), _spread(late, SHOWN), strict=False)
    head = (f"early, from step {early[0].step:g}", f"late, from step {late[0].step:g}")
    return [head, *((_quoted(a), _quoted(b)) for a, b in pairs)]


def _spread(answers: Sequence[Answer], most: int) -> list[Answer]:
    """At most so many, evenly."""
    count = min(most, len(answers))
    return [answers[len(answers) * i // count] for i in range(count)]


def _quoted(answer: Answer) -> str:
    text = printable(answer.text)
    cut = text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"
    return cut or "(empty)"
