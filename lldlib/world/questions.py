"""Questions from JSONL files: one JSON object a line, gzip where the name ends in .gz."""

import re
from collections.abc import Iterable
from pathlib import Path

from lldlib.files import read_jsonl, text_field
from lldlib.types import Question


def load_questions(path: Path | str) -> list[Question]:
    """Read questions from rows {id, question, golden_answers, ...}, in the order of the file.

    Raises FileNotFoundError for a missing file, and what `to_questions` raises, naming file and
    line.
    """
    return to_questions(read_jsonl(path), str(path))


def to_questions(rows: Iterable[tuple[str, dict]], source: str) -> list[Question]:
    """Questions from pairs of a row's place and the row {id, question, golden_answers, ...}.

    `hops` is the leading digit of a `type` such as "2hop" or "3hop1" (MuSiQue), else 0 = unknown.
    Raises ValueError, naming the place, for a row that is malformed, has no answer or repeats an
    id; and, naming the source, where there is no row.
    """
    questions: dict[str, Question] = {}
    for where, row in rows:
        name = text_field(row, "id", where)
        if name in questions:
            raise ValueError(f"{where}: id '{name}' is already taken; make ids unique")
        answers = row.get("golden_answers")
        if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
            raise ValueError(f"{where}: 'golden_answers' is missing or not a list of texts")
        if not any(answer.strip() for answer in answers):
            raise ValueError(f"{where}: question '{name}' has no answer; drop it or add one")
        hops = re.match(r"(\d)hop", str(row.get("type", "")))
        questions[name] = Question(
            id=name,
            text=text_field(row, "question", where),
            answers=tuple(answer for answer in answers if answer.strip()),
            hops=int(hops[1]) if hops else 0,
        )
    if not questions:
        raise ValueError(f"{source}: holds no question")
    return list(questions.values())
