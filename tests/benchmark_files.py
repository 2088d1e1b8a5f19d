"""Where the real benchmark files lie, which are no part of the repository, and small made ones."""

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

BENCHMARKS = Path(os.environ.get("LLDLIB_BENCHMARKS", "no benchmarks"))
needs_benchmarks = pytest.mark.skipif(
    not BENCHMARKS.is_dir(),
    reason="no benchmark files: set LLDLIB_BENCHMARKS to their folder",
)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """A JSONL file of the rows, packed where the name ends in .gz."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def question_row(name: str, *answers: str, **more: object) -> dict[str, object]:
    """A normalised question."""
    return {"id": name, "question": f"what is {name}?", "golden_answers": list(answers), **more}


def passage_row(name: str, text: str, title: str = "") -> dict[str, object]:
    """A normalised passage."""
    return {"id": name, "title": title, "text": text}
