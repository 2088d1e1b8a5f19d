"""`python -m lldlib evaluate --benchmarks` end to end, with the tiny searcher on its own world."""

import json

import pytest
from benchmark_files import passage_row, write_rows
from helpers import world

from lldlib.cli import main
from lldlib.config import RolloutConfig
from lldlib.evaluate.exam import slice_of
from lldlib.evaluate.heldout import heldout_em
from lldlib.policy.load import load_policy
from lldlib.world.benchmarks import GROUPS, TASKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The world's held-out questions under a name of their own and under each benchmark's."""
    path = tmp_path_factory.mktemp("benchmarks")
    rows = [
        {"id": q.id, "question": q.text, "golden_answers": list(q.answers), "type": f"{q.hops}hop"}
        for q in world().questions("heldout")[::40]
    ]
    for file in ["world", *(TASKS[name].file for name in GROUPS["all"])]:
        write_rows(path / f"{file}.jsonl", rows)
    passages = [passage_row(p.id, p.text, p.title) for p in world().passages("all")]
    write_rows(path / "passages.jsonl", passages)
    return path


def evaluate(folder, out, *more: str) -> int:
    where = ["--benchmarks", str(folder), "--out", str(out)]
    how = ["--max-tokens", "160", "--top-k", "1"]
    return main(["evaluate", "--policy", "tiny", *where, *how, *more])


def test_the_tiny_searcher_on_its_world_in_the_benchmarks_shape(folder, tmp_path, capsys):
    out, corpus = tmp_path / "out", ["--corpus", str(folder / "passages.jsonl")]
    assert evaluate(folder, out, "--tasks", "world", *corpus) == 0
    table = capsys.readouterr().out
    (task,) = json.loads((out / "summary.json").read_text())["tasks"]
    rows = [json.loads(line) for line in (out / "predictions" / "world.jsonl").open()]
    assert len(rows) == task["questions"] > 10
    assert f"| world | {len(rows)} | 1 | {task['score']['mean']:.3f} [" in table

    questions = [q for q in world().questions("heldout") if q.id in {row["id"] for row in rows}]
    rollout = RolloutConfig(max_tokens=160, top_k=1, max_searches=4)
    em = heldout_em(load_policy("tiny"), world(), slice_of(questions, None), rollout)
    assert task["score"]["mean"] == pytest.approx(em) and 0 < em <= 1

    # without search it knows next to nothing, and the comparison says so on the same questions
    alone = tmp_path / "alone"
    assert evaluate(folder, alone, "--tasks", "world", "--retriever", "none") == 0
    assert evaluate(folder, out, "--tasks", "world", *corpus, "--against", str(alone)) == 0
    (pair,) = json.loads((out / "summary.json").read_text())["against"]
    assert pair["difference"]["mean"] > 0 and pair["wins"] > pair["losses"]
    assert "Against the other policy" in (out / "table.md").read_text()


def test_all_tasks_make_both_tables(folder, tmp_path, capsys):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    out, corpus = tmp_path / "out", ["--corpus", str(folder / "passages.jsonl")]
    few = ["--limit", "1", "--maths-tokens", "50"]
    assert evaluate(folder, out, *corpus, *few) == 0
    text = (out / "table.md").read_text()
    assert text in capsys.readouterr().out
    assert "published, other retriever" in text and "| Lp-Reg, on-policy (published) |" in text
    sizes = {
        path.stem: len(path.read_text().splitlines()) for path in (out / "predictions").iterdir()
    }
    assert sizes == {name: TASKS[name].samples for name in GROUPS["all"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a folder for the predictions: --out DIR"),
        (["--out", "o"], "--retriever bm25 searches a file"),
        (["--out", "o", "--tasks", "none"], "unknown task 'none'"),
        (["--out", "o", "--corpus", "no.jsonl"], "no.jsonl: no such file"),
        (["--out", "o", "--retriever", "e5"], "unknown retriever 'e5'"),
        (["--out", "o", "--tasks", "maths", "--limit", "0"], "must be at least 1"),
    ],
)
def test_bad_input_is_one_line(folder, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", "--policy", "tiny", "--benchmarks", str(folder), *arguments]
    assert main(command) == 2
    text = capsys.readouterr().err
    assert message in text and text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_out_folder_without_benchmarks_is_refused(capsys):
    assert main(["evaluate", "--policy", "tiny", "--out", "o"]) == 2
    assert "--out and --corpus belong to benchmarks" in capsys.readouterr().err
