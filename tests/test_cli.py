import json
import os
import subprocess
import sys

import pytest
import torch

from lldlib.cli import main
from lldlib.evaluate.heldout import policy_of
from lldlib.recipes import SHUFFLED, WORLD
from lldlib.runs.folder import Run, RunWriter

COMMANDS = ["demo", "train", "evaluate", "serve", "report", "sweep", "warmstart", "sft", "fit"]


def train(out, micro, *more: str) -> int:
    rollout = {"problems", "group_size"}
    flags = []
    for name, value in micro.items():
        prefix = "rollout." if name in rollout else ""
        flags += [f"--{prefix}{name.replace('_', '-')}", str(value)]
    return main(["train", "--out", str(out), *flags, *more])


def error_of(capsys) -> str:
    """What the command wrote on stderr: one line."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert "--out" in capsys.readouterr().out or command in ("serve", "fit")


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_says_which_settings_runs_start_from(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for recipe, updates, lr, said in (
        (SHUFFLED, 16, 1e-3, "the shuffled atlas, 16 updates per batch, learning rate 1e-3"),
        (WORLD, 64, 4e-4, "fixed facts, 64 updates per batch, 4e-4"),
    ):
        settings = recipe.settings
        assert said in text and (settings["updates_per_batch"], settings["lr"]) == (updates, lr)
    assert "half_taught" in text[: text.index("the shuffled atlas, 16 updates")]


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_train_writes_a_run_and_resumes_it(micro, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(out, micro, "--method", "llds", "--seed", "5", "--loss.llds-gate", "token") == 0
    run = Run(out)
    assert len(run.metrics) == 2
    assert (run.config["method"], run.config["seed"]) == ("llds", 5)
    # the paper's recipe, as for every policy but "tiny", but for the flags given
    assert run.config["lr"] == 1e-6 and run.config["rollout"]["max_tokens"] == 4096
    assert run.config["loss"]["llds_coef"] == 0.2
    assert run.config["loss"]["llds_preserve"] == "nonnegative"
    assert run.config["loss"]["llds_gate"] == "token"

    capsys.readouterr()
    assert train(out, micro) == 2
    assert "already holds a run" in error_of(capsys)

    metrics = (out / "metrics.jsonl").read_text()
    assert main(["train", "--out", str(out), "--resume"]) == 0  # whole already: nothing to do
    assert (out / "metrics.jsonl").read_text() == metrics

    capsys.readouterr()
    assert main(["train", "--out", str(out), "--resume", "--lr", "9"]) == 2
    assert "give it only --out" in error_of(capsys)


def test_a_setting_of_a_term_that_is_off_is_refused(micro, tmp_path, capsys):
    out = tmp_path / "run"
    gate = ["--loss.llds-gate", "token"]
    assert train(out, micro, "--method", "grpo", *gate) == 2
    assert "loss.llds_gate is of a term that is off: turn it on" in error_of(capsys)
    assert not out.exists()
    assert train(out, micro, "--method", "lp_reg", "--loss.sapo-ratio", "1") == 2
    assert "loss.sapo_ratio" in error_of(capsys)
    assert train(out, micro, "--method", "llds", "--loss.llds-coef", "0", "--dry-run") == 0
    # turned on, or of no term that is a method
    assert train(out, micro, "--loss.llds-coef", "0.1", *gate, "--loss.entropy-coef", "0.01") == 0
    assert train(tmp_path / "sapo", micro, "--method", "sapo", *KEPT) == 0


KEPT = ["--loss.llds-preserve", "positive"]  # SAPO reads it too


def test_evaluate_and_report_read_a_run(micro, tmp_path, capsys):
    out = tmp_path / "run"
    train(out, micro)
    capsys.readouterr()
    assert main(["evaluate", "--run", str(out), "--checkpoint", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "held-out exact match",
        "on a permuted corpus, against its answers",
        "on a permuted corpus, against true answers",
    ]
    assert main(["evaluate", "--policy", str(micro["policy"])]) == 0
    assert capsys.readouterr().out.splitlines() == lines  # checkpoint 0 is the policy untouched

    assert main(["report", str(out), "--out", str(tmp_path / "report")]) == 0
    assert "| grpo | 0 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "report" / "summary.json").read_text())[0]["arm"] == "grpo"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--out", "x", "--method", "ppo"], "unknown method 'ppo': use one of grpo"),
        (["train", "--out", "x", "--resume"], "no run folder at x"),
        (["evaluate"], "either --run DIR or --policy NAME"),
        (["evaluate", "--run", "x", "--policy", "tiny"], "either --run DIR or --policy NAME"),
        (["evaluate", "--policy", "tiny", "--checkpoint", "1"], "--checkpoint belongs to --run"),
        (["evaluate", "--run", "x"], "no run folder at x"),
        (["report", "--out", "y"], "no run folders given"),
        (["report", "x", "--out", "y"], "no run folder at x"),
        (["sweep", "--grid", "seed=0", "--out", "y"], "names no method"),
        (
            ["demo", "--policy", "nosuch", "--out", "y"],
            "unknown policy 'nosuch': use one of tiny, half_",
        ),
        (["train", "--data.train", "x", "--out", "y"], "bm25 searches a file: name it, --corpus"),
        (["evaluate", "--policy", "tiny", "--load.device", "cuda"], "no device 'cuda' here"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(arguments) == 2
    assert message in error_of(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_full_gpu_is_one_line_and_other_faults_are_not_hidden(monkeypatch, capsys):
    def fail(kind):
        def write_report(runs, out):
            raise kind("tried to allocate 2 GiB\nof 16")

        monkeypatch.setattr("lldlib.show.compare.write_report", write_report)
        return main(["report", "x", "--out", "y"])

    assert fail(torch.OutOfMemoryError) == 2
    assert "out of GPU memory: lower --rollout.at-once" in error_of(capsys)
    with pytest.raises(RuntimeError, match="tried to allocate"):
        fail(RuntimeError)


def test_a_group_of_one_is_refused_before_anything_is_written(micro, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(out, micro | {"group_size": 1}) == 2
    assert "group_size is 1" in error_of(capsys)
    assert not out.exists()


def test_a_missing_checkpoint_is_named(tmp_path, capsys):
    RunWriter.create(tmp_path / "run", {})
    assert main(["evaluate", "--run", str(tmp_path / "run")]) == 2
    assert "holds no checkpoint" in error_of(capsys)


def test_failed_cells_make_exit_code_1(micro, tmp_path, capsys):
    grid = [f"{name}={value}" for name, value in (micro | {"problems": 10**6}).items()]
    arguments = ["sweep", "--grid", "method=grpo", "seed=0", *grid, "--out", str(tmp_path / "s")]
    assert main(arguments) == 1
    assert "failed: " in capsys.readouterr().err


# -- real models ---------------------------------------------------------------------------------


def test_fit_adds_up_and_its_exit_code_is_the_verdict(capsys):
    assert main(["fit", "--policy", "tiny", "--gpu", "16", "--tokens", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "fits in 16.0 GB" and lines[-2].startswith("peak")
    assert main(["fit", "--policy", "tiny", "--gpu", "0.5", "--tokens", "64"]) == 1
    assert "does NOT fit in 0.5 GB" in capsys.readouterr().out


def test_a_warm_start_wants_files_or_a_run(tmp_path, capsys):
    assert main(["sft", "--out", str(tmp_path / "run")]) == 2
    assert "name the train files with gold passages" in error_of(capsys)
    assert main(["sft", "--out", str(tmp_path / "run"), "--resume", "--files", "a.jsonl"]) == 2
    assert "give it only --out" in error_of(capsys)
    assert main(["sft", "--out", str(tmp_path / "run"), "--resume"]) == 2
    assert "run" in error_of(capsys)
    assert not (tmp_path / "run").exists()


def test_a_qlora_run_on_question_files_trains_evaluates_and_resumes(tmp_path, capsys):
    questions = [
        {"id": str(n), "question": f"What is the capital of Land{n} ?", "golden_answers": ["Town"]}
        for n in range(6)
    ]
    corpus = [
        {"id": str(n), "title": f"Land{n}", "text": f"The capital of Land{n} is Town ."}
        for n in range(6)
    ]
    for name, rows in {"questions": questions, "corpus": corpus}.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    files, out = str(tmp_path / "questions.jsonl"), tmp_path / "run"
    given = ["--method", "llds", "--out", str(out), "--steps", "2", "--probe-every", "0"]
    given += ["--rollout.problems", "2", "--rollout.group-size", "2", "--micro-rows", "1"]
    given += ["--updates-per-batch", "2", "--load.quantize", "nf4", "--load.lora-rank", "2"]
    given += ["--data.train", files, "--data.corpus", str(tmp_path / "corpus.jsonl")]
    given += ["--loss.entropy-coef", "0.01"]  # moves the adapters where no answer is right
    assert main(["train", *given, "--eval-every", "1"]) == 2
    assert "no held-out questions: name files in data.heldout" in error_of(capsys)
    given += ["--data.heldout", files, "--eval-every", "1", "--data.heldout-limit", "3"]
    assert main(["train", *given]) == 0
    run = Run(out)
    assert len(run.metrics) == 2 and run.config["data"]["train"] == [files]
    assert all(0 <= em <= 1 for em in run.column("eval/heldout_em"))
    assert "probe/logp" not in run.metrics[0] and run.config["load"]["quantize"] == "nf4"
    whole = (out / "metrics.jsonl").read_text()
    assert main(["train", "--out", str(out), "--resume"]) == 0
    assert (out / "metrics.jsonl").read_text() == whole
    policy = policy_of(run, None)
    adapters = [p for name, p in policy.model.named_parameters() if "lora_B" in name]
    assert adapters and any(p.any() for p in adapters)


def test_a_letter_that_the_terminal_lacks_ends_no_command(tmp_path):
    log = tmp_path / "λ.jsonl"
    log.write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(30)))
    command = [sys.executable, "-m", "lldlib", "diagnose", str(log)]
    narrow = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, env=narrow, capture_output=True)
    assert done.returncode == 0 and b"?.jsonl" in done.stdout


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(30)))
    command = [sys.executable, "-m", "lldlib", "diagnose", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_script_is_written_over_no_file(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("important")
    assert main(["script", "trl-search", "--out", str(tmp_path / "notes.txt")]) == 2
    assert "exists" in error_of(capsys) and (tmp_path / "notes.txt").read_text() == "important"


def test_a_page_of_runs_needs_no_widgets():
    blocked = "import sys; sys.modules['ipywidgets'] = None; import lldlib.show.spiral"
    assert subprocess.run([sys.executable, "-c", blocked], check=False).returncode == 0
