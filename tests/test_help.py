"""What the command line says: every flag explains itself, near names, hints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lldlib.cli import commands, main

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = list(commands([]))
# words with which a text begins that only the field's own name would complete
CLINGING = {
    *("of", "for", "to", "in", "on", "at", "as", "by", "with", "without", "from", "or", "and"),
    *("such", "same", "its", "their", "it", "they"),
}


def flags(text: str) -> dict[str, str]:
    """Every flag of a help text and what is said of it, the default left out."""
    found, name = {}, None
    for line in text.splitlines():
        line = line.strip().strip("│|").strip()
        if match := re.match(r"(--[a-z][\w.-]*)", line):
            name = match[1]
            _, *said = re.split(r"\s{2,}", line, maxsplit=1)
            found[name] = " ".join(said)
        elif not line or line[0] in "╭╰─+-":
            name = None
        elif name is not None:
            found[name] += f" {line}"
    return {k: re.sub(r"\((default|required).*", "", v).strip() for k, v in found.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_explains_itself(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    found = flags(capsys.readouterr().out)
    assert found
    for flag, said in found.items():
        words = said.split()
        assert len(words) >= 3, f"{flag}: {said!r}"
        assert words[0].lower().strip(",") not in CLINGING, f"{flag}: {said!r}"
        assert said.count("(") == said.count(")") and said.count('"') % 2 == 0, f"{flag}: {said!r}"


def test_the_check_itself():
    text = """
│ --llds-target {None}|FLOAT
│       (default: None)
│ --betas FLOAT FLOAT  AdamW (default: 0.9 0.999)
│ --seed INT
│       of questions and
│       order (default: 0)
╰────
"""
    assert flags(text) == {
        "--llds-target": "",
        "--betas": "AdamW",
        "--seed": "of questions and order",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "unknown command 'trian': did you mean train?"),
        (["nothing"], "unknown command 'nothing': use one of demo, train, evaluate"),
        (["train", "--method", "lds"], "unknown method 'lds': did you mean llds or llds_ma?"),
        (
            ["train", "--policy", "half_taugt"],
            "unknown policy 'half_taugt': did you mean half_taught?",
        ),
        (["train", "--policy", "some/where/else"], "unknown policy 'some/where/else': use one of"),
        (["evaluate", "--policy", "spraks"], "unknown policy 'spraks': did you mean sparks?"),
        (["fit", "--gpu", "8", "--policy", "tinny"], "unknown policy 'tinny': did you mean tiny?"),
        (["demo", "--policy", "tinny"], "unknown policy 'tinny': did you mean tiny?"),
        (
            ["sweep", "--grid", "method=grpo", "seed=0", "policy=nosuch", "--out", "s"],
            "unknown policy 'nosuch': use one of tiny, half_taught",
        ),
        (
            ["sweep", "--grid", "method=lds", "seed=0", "--out", "s"],
            "unknown method 'lds': did you",
        ),
    ],
)
def test_a_wrong_name_is_seen_here_and_the_near_one_named(
    arguments, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "transformers.utils.hub.cached_file", lambda *a, **k: pytest.fail("the hub")
    )
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--lr", "inf"], "lr is inf: use a finite number over 0"),
        (["train", "--lr", "0"], "lr is 0.0: use"),
        (["train", "--steps", "0"], "steps is 0: use a whole number of 1 or more"),
        (["train", "--steps", "-3"], "steps is -3: use"),
        (["train", "--loss.llds-coef", "nan"], "loss.llds_coef is nan: use"),
        (["demo", "--steps", "0"], "steps is 0: use"),
        (["demo", "--jobs", "0"], "jobs is 0: use"),
        (["demo", "--seeds"], "no seeds: give at least one"),
        (["sweep", "--grid", "method=grpo", "seed=0", "lr=inf", "--out", "s"], "lr is inf: use"),
        (["sweep", "--grid", "method=grpo", "seed=0", "--jobs", "0", "--out", "s"], "jobs is 0"),
        (["sft", "--files", "x", "--lr", "inf"], "lr is inf: use"),
        (["warmstart", "--batch", "0"], "batch is 0: use"),
        (["fit", "--policy", "tiny", "--gpu", "-1"], "gpu is -1.0: use a finite number over 0"),
        (["fit", "--policy", "tiny", "--gpu", "8", "--rows", "0"], "rows is 0: use"),
        (["serve", "--corpus", "x", "--port", "-1"], "port is -1: use"),
        (["serve", "--corpus", "x", "--topk", "0"], "topk is 0: use"),
        (["diagnose", "x", "--follow", "--seconds", "0"], "seconds is 0.0: use"),
        (
            ["evaluate", "--policy", "tiny", "--benchmarks", "x", "--out", "y", "--rows", "0"],
            "rows is 0: use",
        ),
        (["train", "--resume"], "no run folder at runs/train"),
    ],
)
def test_a_setting_without_a_meaning_is_one_line_before_anything_is_written(
    arguments, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a command: demo, train, evaluate"),
        (["--hlep"], "unknown flag --hlep: did you mean --help?; see python -m lldlib --help"),
        (["train", "--stepz", "3"], "unknown flag --stepz: did you mean --steps?; see python -m"),
        (["train", "--lora-rank=3"], "unknown flag --lora-rank: did you mean --load.lora-rank?"),
        (["train", "--zzzz"], "unknown flag --zzzz; see python -m lldlib train --help"),
        (["train", "--steps", "abc"], "Error parsing --steps: invalid literal"),
        (["train", "--method"], "Missing value for argument '--method'"),
        (["train", "extra"], "Unrecognized options: extra; see"),
        (["train", "--loss.llds_gate", "tokn"], "invalid choice 'tokn' for argument"),
        (["report", "x"], "Missing from lldlib report: --out PATH"),
        (["script", "foo"], "Expected one of ('trl-search', 'verl-search'); see"),
    ],
)
@pytest.mark.parametrize(("columns", "utf8"), [("40", True), ("200", False)])
def test_a_wrong_flag_is_one_line_that_names_the_near_ones(
    arguments, said, columns, utf8, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("tyro._fmtlib._FORCE_UTF8_BOXES", utf8, raising=False)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_wrong_flags_and_values_are_seen_before_pytorch_is_loaded(tmp_path):
    code = (
        "import sys; from lldlib.cli import main\n"
        "for line in sys.argv[1:]: assert main(line.split()) == 2\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    lines = [
        *("train --stepz 3", "train --steps -3", "demo --jobs 0", "sft --files x --lr inf"),
        *("warmstart --batch 0", "fit --policy tiny --gpu -1", "sweep --grid x --out s --jobs 0"),
        "evaluate --policy tiny --benchmarks x --out y --rows 0",
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, *lines], cwd=tmp_path, env=env)
    assert done.returncode == 0


def test_make_lab_opens_the_first_notebook_also_for_root():
    command = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True)
    assert "-m jupyterlab" in command.stdout
    notebook = command.stdout.split("/lab/tree/")[1].split()[
        0
    ]  # the address that the server prints
    assert notebook.startswith("notebooks/01") and (ROOT / notebook).is_file()
    assert ("--allow-root" in command.stdout) is (os.getuid() == 0)


def test_a_mapped_column_has_to_be_there(tmp_path, capsys):
    """Without it the verdict would come from another column."""
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {i}, "reward": 0.5, "mine": 1}}\n' for i in range(30)))
    assert main(["diagnose", str(log), "--map", "reward=nosuch"]) == 2
    error = capsys.readouterr().err
    assert "no column 'nosuch' to map; found its columns: step, reward, mine" in error
    assert error.count("\n") == 1
    assert main(["diagnose", str(log), "--map", "reward=mine"]) == 0
    assert main(["diagnose", "--map", "reward=mine", str(log)]) == 0
