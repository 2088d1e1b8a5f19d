"""`python -m lldlib evaluate --benchmarks` end to end, with the tiny searcher on its own world."""

import json

import pytest
from benchmark_files import passage_row, write_rows
from helpers import world

from lldlib.cli import main
from lldlib.config import RolloutConfig
from lldlib.evaluate import heldout
from lldlib.evaluate.exam import slice_of
from lldlib.evaluate.heldout import Evaluation, heldout_em
from lldlib.policy.load import load_policy
from lldlib.recipes import WORLD, train_config
from lldlib.retrieval import BM25Retriever
from lldlib.train.run import TrainingRun
from lldlib.types import Episode, StopReason
from lldlib.world.benchmarks import GROUPS, TASKS
from lldlib.world.environment import RULES, Environment, Split


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
    held = Split(slice_of(questions, None), BM25Retriever(world().passages("all")))
    environment = Environment.fixed(RULES["qa"], held, held)
    em = heldout_em(load_policy("tiny"), environment, rollout)
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
        (["--out", "o"], "bm25 searches a file: name it, --corpus (of train: --data.corpus)"),
        (["--out", "o", "--tasks", "none"], "unknown task 'none'"),
        (["--out", "o", "--corpus", "no.jsonl"], "no.jsonl: no such file"),
        (["--out", "o", "--retriever", "e5"], "unknown retriever 'e5'"),
        (
            ["--out", "o", "--tasks", "maths", "--limit", "0"],
            "limit is 0: use a whole number of 1 or more",
        ),
    ],
)
def test_bad_input_is_one_line(folder, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", "--policy", "tiny", "--benchmarks", str(folder), *arguments]
    assert main(command) == 2
    text = capsys.readouterr().err
    assert message in text and text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--out", "o"], "--out"),
        (["--retriever", "none"], "--retriever"),
        (["--tasks", "nq", "--against", "o"], "--tasks and --against"),
        (["--limit", "3"], "the exam's settings"),
    ],
)
def test_flags_that_only_benchmarks_read_are_refused_without_them(arguments, flags, capsys):
    assert main(["evaluate", "--policy", "tiny", *arguments]) == 2
    assert f"error: {flags} belong to benchmarks" in capsys.readouterr().err


def test_answers_from_another_corpus_of_the_same_name_are_not_taken(folder, tmp_path, capsys):
    other = tmp_path / "passages.jsonl"
    write_rows(other, [passage_row("0", "The capital of France is Lima .", "Lima")])
    few = ["--tasks", "world", "--limit", "1"]
    assert evaluate(folder, tmp_path / "o", *few, "--corpus", str(folder / "passages.jsonl")) == 0
    assert evaluate(folder, tmp_path / "o", *few, "--corpus", str(other)) == 2
    assert "holds answers with corpus = 'passages.jsonl of" in capsys.readouterr().err


def test_answers_that_other_gold_judged_are_not_taken(tmp_path, capsys):
    row = {"id": "0", "question": "What is this ?", "golden_answers": ["Lima"]}
    few = ["--tasks", "mine", "--retriever", "none", "--max-searches", "0"]
    write_rows(tmp_path / "mine.jsonl", [row])
    assert evaluate(tmp_path, tmp_path / "o", *few) == 0
    write_rows(tmp_path / "mine.jsonl", [row | {"golden_answers": ["Oslo"]}])
    assert evaluate(tmp_path, tmp_path / "o", *few) == 2
    assert "'0' was judged by other answers" in capsys.readouterr().err


def test_the_other_side_is_read_before_anything_is_asked(folder, tmp_path, capsys):
    few = ["--tasks", "world", "--retriever", "none", "--against", str(tmp_path / "typo")]
    assert evaluate(folder, tmp_path / "o", *few) == 2
    assert "typo" in capsys.readouterr().err
    assert not list((tmp_path / "o").glob("predictions/*"))


def test_a_run_that_went_on_is_not_answered_from_before(folder, micro, tmp_path, capsys):
    made = micro | {"checkpoint_every": 1, "eval_every": 0}
    run = TrainingRun(train_config("grpo", 0, recipe=WORLD, **made), tmp_path / "run")
    run.step()
    out = tmp_path / "out"
    asked = ["--benchmarks", str(folder), "--tasks", "world", "--retriever", "none"]
    command = ["evaluate", "--run", str(run.out), *asked, "--limit", "2", "--max-tokens", "60"]
    assert main([*command, "--out", str(out)]) == 0
    assert json.loads((out / "settings.json").read_text())["checkpoint"] == 1
    run.step()
    assert main([*command, "--out", str(out)]) == 2
    assert "holds answers with checkpoint = 1, not 2" in capsys.readouterr().err
    assert main([*command, "--out", str(out), "--checkpoint", "1"]) == 0


def heldout_lines(capsys, *arguments: str) -> list[str]:
    assert main(["evaluate", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_run_is_asked_what_it_held_out(folder, micro, tmp_path, capsys):
    """Its own files; of questions that are no facts of the atlas there is no permuted control."""
    file, out = str(folder / "world.jsonl"), tmp_path / "run"
    made = micro | {"train": (file,), "heldout": (file,), "heldout_limit": 3, "retriever": "none"}
    made |= {"checkpoint_every": 1, "probe_every": 0}
    TrainingRun(train_config("grpo", 0, recipe=WORLD, **made), out).run()
    (line,) = heldout_lines(capsys, "--run", str(out))
    assert line.startswith("held-out exact match  ") and line.endswith("(3 questions)")

    TrainingRun(
        train_config("grpo", 0, recipe=WORLD, **made | {"heldout": (), "eval_every": 0}),
        tmp_path / "bare",
    ).run()
    assert main(["evaluate", "--run", str(tmp_path / "bare")]) == 2
    error = capsys.readouterr().err
    assert "nothing was held out of this run: ask benchmarks" in error and error.count("\n") == 1


def test_a_policy_is_asked_in_its_own_world_by_its_own_budget(capsys, monkeypatch):
    (line,) = heldout_lines(capsys, "--policy", "sparks")
    assert line.endswith("(100 questions)") and float(line.split()[3]) > 0  # sums, answered

    budgets = []

    def ask(policy, rollout, questions, *, temperature):
        budgets.append((rollout.config.max_tokens, len(questions)))
        episodes = [
            Episode(q, [], StopReason.EOS, None, 0, 0, 0.0, group)
            for group, q in enumerate(questions)
        ]
        return Evaluation(0.0, {}, episodes)

    monkeypatch.setattr(heldout, "ask", ask)
    assert len(heldout_lines(capsys, "--policy", "half_taught")) == 3
    assert budgets[0] == (160, 96)  # SHUFFLED; 32 true facts each of 1, 2 and 3 hops
    assert len(budgets) == 2 and budgets[1][0] == 160
    budgets.clear()
    assert len(heldout_lines(capsys, "--policy", "tiny")) == 3
    assert budgets[0] == (112, 103)
