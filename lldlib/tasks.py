"""Questions from JSONL files: one JSON object a line, gzip where the name ends in .gz."""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from lldlib.types import Question


def read_jsonl(path: Path | str) -> Iterator[tuple[str, dict]]:
    """Yield ("file:line", object) for every non-empty line.

    Raises FileNotFoundError for a missing file, and ValueError for a line that is not a JSON
    object (naming file and line) or for a damaged gzip file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; check the path")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}:{number}"
                if line.strip():
                    yield where, _object(line, where)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path}: damaged gzip file ({error}); fetch it again") from error


def _object(line: bytes, where: str) -> dict:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: not JSON ({error}); want one object a line") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: want a JSON object, got {type(row).__name__}")
    return row


def text_field(row: dict, name: str, where: str) -> str:
    """The text under `name`; ValueError naming the line where it is missing or not text."""
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{where}: field '{name}' is missing or not text")
    return value


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
