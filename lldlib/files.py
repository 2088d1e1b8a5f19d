"""Files of every kind: JSON lines, and writing that is whole or not at all."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path


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
