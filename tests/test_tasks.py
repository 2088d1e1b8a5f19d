"""The loader of question files."""

import gzip
import json
from pathlib import Path

import pytest
from benchmark_files import BENCHMARKS, needs_benchmarks

from lldlib.types import Question
from lldlib.world.benchmarks import load_questions


def row(**changes: object) -> str:
    base = {"id": "q1", "question": "who?", "golden_answers": ["Ann", "Anna"], "source": "s"}
    return json.dumps({k: v for k, v in {**base, **changes}.items() if v is not None})


def write(path: Path, *lines: str) -> Path:
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_rows_become_questions_in_order(tmp_path, name):
    path = write(tmp_path / name, row(), "", row(id="q0", golden_answers=["", "Bo"], type="3hop1"))
    assert load_questions(str(path)) == [
        Question("q1", "who?", ("Ann", "Anna"), 0),
        Question("q0", "who?", ("Bo",), 3),
    ]


@pytest.mark.parametrize(("kind", "hops"), [("2hop", 2), ("4hop3", 4), ("bridge", 0), (None, 0)])
def test_hops_come_from_the_type(tmp_path, kind, hops):
    (question,) = load_questions(write(tmp_path / "q.jsonl", row(type=kind)))
    assert question.hops == hops


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((row(), row(id="q2", golden_answers=[])), "q.jsonl:2: question 'q2' has no answer"),
        ((row(golden_answers=["", "  "]),), "q.jsonl:1: question 'q1' has no answer"),
        ((row(golden_answers=None),), "q.jsonl:1: 'golden_answers' is missing"),
        ((row(golden_answers="Ann"),), "q.jsonl:1: 'golden_answers' is missing or not a list"),
        ((row(golden_answers=[3]),), "q.jsonl:1: 'golden_answers' is missing or not a list"),
        ((row(), row(id="q2"), row()), "q.jsonl:3: id 'q1' is already taken"),
        ((row(question=None),), "q.jsonl:1: field 'question' is missing"),
        ((row(id=None),), "q.jsonl:1: field 'id' is missing"),
        (("null",), "q.jsonl:1: want a JSON object, got NoneType"),
        ((row(), "who?"), "q.jsonl:2: not JSON"),
        (("",), "q.jsonl: holds no question"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, lines, message):
    with pytest.raises(ValueError) as caught:
        load_questions(write(tmp_path / "q.jsonl", *lines))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl: no such file"):
        load_questions(tmp_path / "none.jsonl")
    with pytest.raises(FileNotFoundError, match="is a folder: give a file"):
        load_questions(tmp_path)


@needs_benchmarks
@pytest.mark.parametrize(
    ("name", "rows"),
    [("bamboogle.jsonl", 125), ("musique_dev.jsonl", 791), ("nq_open_gold_context.jsonl.gz", 2655)],
)
def test_benchmark_files_load(name, rows):
    questions = load_questions(BENCHMARKS / name)
    assert len(questions) == rows
    assert all(question.answers and question.text for question in questions)
