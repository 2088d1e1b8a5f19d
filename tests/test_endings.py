"""How commands end: verdict, figure, next commands; extending a run; a dry run; Ctrl-C; tables."""

from dataclasses import replace

import pytest
from test_cli import error_of, train

from lldlib.cli import Asked, main
from lldlib.config import train_config_from
from lldlib.recipes import train_config
from lldlib.runs.folder import Run
from lldlib.train.rehearse import Rehearsal, duration, exams_due
from lldlib.train.run import TrainingRun


def numbers(run: Run) -> list[dict]:
    """What was logged, without times and without the evaluation that a run's end brings."""
    kept = ("time/", "eval/")
    return [{k: v for k, v in row.items() if not k.startswith(kept)} for row in run.metrics]


@pytest.fixture
def quick(micro) -> dict:
    """A run without probe set and evaluations."""
    return micro | {"eval_every": 0, "probe_every": 0}


def test_train_ends_with_verdict_figure_and_three_commands_that_can_be_typed(
    quick, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["lldlib/__main__.py"])
    out = tmp_path / "my run"
    assert train(out, quick) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    ends = dict(line.split(":", 1) for line in lines[-6:])
    assert list(ends) == ["verdict", "figure", "run folder", "why", "held out", "go on"]
    assert ends["verdict"].strip().startswith("Cannot say: the log has 2 rows")
    assert (out / "curves.png").stat().st_size > 1000
    folder = f"'{out}'"
    assert ends["why"].strip() == f"python -m lldlib diagnose {folder} --out '{out}-page'"
    assert ends["held out"].strip() == f"python -m lldlib evaluate --run {folder}"
    assert ends["go on"].strip() == f"python -m lldlib train --out {folder} --resume --steps 4"
    monkeypatch.setattr("sys.argv", ["/usr/bin/lldlib"])
    assert main(["train", "--out", str(out), "--resume"]) == 0
    assert f"go on:      lldlib train --out {folder}" in capsys.readouterr().out


def test_a_finished_run_that_is_extended_is_the_longer_run(quick, tmp_path, capsys):
    short, long = tmp_path / "short", tmp_path / "long"
    assert train(long, quick | {"steps": 4}) == 0
    assert train(short, quick) == 0
    assert main(["train", "--out", str(short), "--resume", "--steps", "4"]) == 0
    assert numbers(Run(short)) == numbers(Run(long)) and len(Run(short).metrics) == 4
    one, other = (Run(path).load_checkpoint(4)[0] for path in (short, long))
    assert all(bool((one[key] == other[key]).all()) for key in one)
    assert [e["steps"] for e in Run(short).events if e["kind"] == "knob"] == [4]
    capsys.readouterr()
    assert main(["train", "--out", str(short), "--resume", "--steps", "3"]) == 2
    assert "short has trained 4 batches: give --steps 4 or more" in error_of(capsys)
    assert len(Run(short).metrics) == 4


def test_what_was_turned_rules_the_commands_that_follow(quick, tmp_path, capsys):
    """`--resume` and `evaluate --run` read the settings as they stand, not as they began."""
    out = tmp_path / "run"
    run = TrainingRun(train_config("grpo", 0, **quick), out)
    run.step()
    run.turn(steps=3, rollout=replace(run.config.rollout, max_tokens=70), lr=2e-4)
    turned = run.config
    run.writer.close()
    assert train_config_from(Run(out).settings()) == turned
    assert train_config_from(Run(out).settings(1)) == train_config("grpo", 0, **quick)
    assert Asked(run=out, checkpoint=1).config() == turned
    assert Asked(run=out, checkpoint=0).config() == train_config("grpo", 0, **quick)
    assert main(["train", "--out", str(out), "--resume", "--dry-run"]) == 0
    assert "to go:     2 batches" in capsys.readouterr().out
    assert main(["train", "--out", str(out), "--resume"]) == 0
    assert len(Run(out).metrics) == 3


@pytest.mark.parametrize("more", [["--lr", "0.5"], ["--method", "llds"], ["--seed", "7"]])
def test_resume_takes_no_other_setting(quick, tmp_path, capsys, more):
    out = tmp_path / "run"
    assert train(out, quick) == 0
    capsys.readouterr()
    assert main(["train", "--out", str(out), "--resume", *more]) == 2
    assert "--resume goes on by the run's own settings" in error_of(capsys)


def test_a_dry_run_measures_and_keeps_nothing(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path / "run", quick | {"steps": 7}, "--dry-run") == 0
    said = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    starts = [line.split(":")[0] for line in said.strip().splitlines()]
    assert starts[:6] == ["questions", "passages", "start", "memory", "a batch", "to go"]
    assert "to go:     7 batches, about" in said
    assert train(tmp_path / "run", quick) == 0
    capsys.readouterr()
    assert train(tmp_path / "run", quick, "--dry-run") == 2  # a run would be refused
    assert "already holds a run" in error_of(capsys)


def test_a_dry_run_checks_questions_and_corpus_before_the_policy(tmp_path, capsys):
    questions, corpus = tmp_path / "q.jsonl", tmp_path / "c.jsonl"
    questions.write_text('{"id": "1", "question": "Q", "golden_answers": "Town"}\n')
    corpus.write_text('{"id": "1", "title": "T"}\n')
    given = ["train", "--dry-run", "--eval-every", "0", "--policy", "no/such-model"]
    given += ["--data.train", str(questions), "--data.corpus", str(corpus)]
    assert main(given) == 2
    assert "c.jsonl:1: " in error_of(capsys)
    corpus.write_text('{"id": "1", "title": "T", "text": "Town"}\n')
    assert main(given) == 2
    assert "q.jsonl:1: " in error_of(capsys)


def test_what_a_dry_run_adds_up():
    config = train_config("grpo", 0, eval_every=5, steps=12)
    # at batches 5, 10 and 12; before any training there is one more
    assert exams_due(config, 0) == 4 and exams_due(config, 6) == 2 and exams_due(config, 12) == 0
    assert exams_due(train_config("grpo", 0, eval_every=0), 0) == 0
    plan = Rehearsal(
        questions=9,
        heldout=3,
        found=None,
        right=0.5,
        mixed=0.25,
        peak=1.5e9,
        available=16e9,
        seconds=60.0,
        exam_seconds=30.0,
        batches=100,
        exams=4,
    )
    assert plan.left == 6120.0
    assert plan.text().splitlines() == [
        "questions: 9 to train on, 3 held out",
        "start:     50% right, 25% of groups mixed",
        "memory:    1.50 GB at most, of 16.0 GB",
        "a batch:   60 s, the mean of 2",
        "an exam:   30 s, 4 to go",
        "to go:     100 batches, about 1 h 42 min",
    ]
    assert not replace(plan, bfloat16_price=0.6).text().count("warning")
    assert replace(plan, bfloat16_price=1.9).text().splitlines()[-1] == (
        "warning:   this processor takes 1.9 times as long for a product in bfloat16 as in "
        "float32: --load.dtype float32 is faster"
    )
    assert [duration(s) for s in (40.0, 720.0, 11100.0)] == ["40 s", "12 min", "3 h 5 min"]


def test_ctrl_c_names_the_command_that_goes_on(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/lldlib"])
    step = TrainingRun.step

    def interrupted(self):
        if self.next_batch == 2:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(TrainingRun, "step", interrupted)
    out = tmp_path / "run"
    assert train(out, quick | {"steps": 3, "checkpoint_every": 1}) == 130
    said = capsys.readouterr().err.strip().splitlines()[-1]
    expected = f"stopped; it goes on from batch 2 with: lldlib train --out {out} --resume"
    assert said == expected
    monkeypatch.undo()
    run = TrainingRun(train_config("grpo", 0), out, resume=True)
    monkeypatch.setattr(run, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.run()  # its object stays, as in a notebook, and holds the folder no more
    monkeypatch.undo()
    assert main(said.partition("lldlib ")[2].split()) == 0
    assert len(Run(out).metrics) == 3


@pytest.mark.parametrize(
    ("command", "fails"),
    [
        (["sweep", "--grid", "method=grpo", "seed=0"], "lldlib.train.sweep.train_with_bar"),
        (["demo"], "lldlib.train.demo.demo"),
    ],
)
def test_ctrl_c_in_many_runs_says_how_to_go_on(command, fails, tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(fails, interrupted)
    assert main([*command, "--out", str(tmp_path / "out")]) == 130
    assert "the same command goes on with every run where it stands" in error_of_last(capsys)


def error_of_last(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_sweep_ends_with_a_table_of_its_cells(quick, tmp_path, capsys):
    grid = [f"{name}={value}" for name, value in quick.items()]
    out = tmp_path / "sweep"
    assert main(["sweep", "--grid", "method=grpo", "seed=0,1", *grid, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if line.startswith("| method=grpo")]
    assert len(rows) == 2 and "seed=0 | 0 |" in rows[0] and "seed=1 | 1 |" in rows[1]
    assert said.strip().splitlines()[-1] == f"rows: {out / 'sweep.json'}"
