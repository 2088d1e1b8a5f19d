"""`lldlib script`: what it writes runs as it stands, on the CPU, with a tiny model."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import tiny_policy, world, world_questions

from lldlib.cli import main
from lldlib.policy.load import save_policy
from lldlib.runs.folder import Run

ROOT = Path(__file__).resolve().parents[2]


def written(name: str, folder: Path) -> Path:
    """The script as the command writes it."""
    assert main(["script", name, "--out", str(folder / "train.py")]) == 0
    return folder / "train.py"


def files(folder: Path) -> dict[str, str]:
    """A tiny policy, questions and a corpus, by the flags that name them."""
    save_policy(tiny_policy(3), folder / "policy")
    questions = [
        {"id": q.id, "question": q.text, "golden_answers": list(q.answers)}
        for q in world_questions(8)
    ]
    passages = [{"id": p.id, "contents": p.text} for p in world().passages("train")[:50]]
    for name, rows in (("train", questions), ("corpus", passages)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    given = {name: str(folder / f"{name}.jsonl") for name in ("train", "corpus")}
    return given | {"model": str(folder / "policy"), "out": str(folder / "out")}


def run(script: Path, **flags) -> subprocess.CompletedProcess:
    """In a process of its own, as a user starts it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return subprocess.run(
        command, cwd=script.parent, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", ["trl-search", "verl-search"])
def test_it_comes_out_whole_either_way(name, tmp_path, capsys):
    text = written(name, tmp_path).read_text(encoding="utf-8")
    assert main(["script", name]) == 0
    assert capsys.readouterr().out == text
    compile(text, name, "exec")
    ruff = [sys.executable, "-m", "ruff", "check", "--select=E,F,I,B", "--line-length=100"]
    subprocess.run([*ruff, str(tmp_path / "train.py")], check=True)


def test_the_script_for_trl_trains(tmp_path):
    pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
    small = {"batches": 2, "rows": 4, "steps_per_batch": 2, "rollouts": 4, "max_tokens": 40}
    small |= {"llds_coef": 0.5, "llds_preserve": "positive"}
    done = run(written("trl-search", tmp_path), **files(tmp_path), **small, lr=1e-3)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = Run(tmp_path / "out" / "run").metrics
    assert [row["step"] for row in rows] == [0, 1]
    assert {"llds/value", "reward/mean", "displacement/all_token"} <= set(rows[1])
    assert (tmp_path / "out" / "policy" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["trl", "verl"])
def test_its_flags_reach_the_settings(name, tmp_path, monkeypatch):
    """The paper's LLDS and rate without a flag, and with flags those of our own study."""
    pytest.importorskip(name, reason=f"needs the extra '{name}': run make test-adapters")
    spec = importlib.util.spec_from_file_location("made", written(f"{name}-search", tmp_path))
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    where = [f"--{flag}={tmp_path / flag}" for flag in ("model", "train", "corpus", "out")]
    ours = ["--llds-coef=0.5", "--llds-preserve=positive", "--lr=1e-5"]
    for more, wanted in (([], (0.2, "nonnegative", 1e-6)), (ours, (0.5, "positive", 1e-5))):
        monkeypatch.setattr(sys, "argv", ["train.py", *where, *more])
        if name == "trl":
            monkeypatch.setattr(made, "LLDGRPOConfig", dict)
            told, prefix, rate = made.settings(made.arguments()), "llds_", "learning_rate"
        else:
            actor = "actor_rollout_ref.actor"
            told, prefix = made.settings(made.arguments()[0]), f"+{actor}.policy_loss.llds_"
            rate = f"{actor}.optim.lr"
        assert (told[f"{prefix}coef"], told[f"{prefix}preserve"], told[rate]) == wanted


def test_the_script_for_verl_stands_as_far_as_there_is_no_gpu(tmp_path):
    """Its settings pass verl's own check, and its loss, reward, tool and rows are computed."""
    pytest.importorskip("verl", reason="needs the extra 'verl': run make test-adapters")
    script, given = written("verl-search", tmp_path), files(tmp_path)
    done = run(script, **given, check=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "settings are whole" in done.stdout and "LLDS 0.286" in done.stdout  # 4 of 7 tokens, .5
    done = run(script, **given, check=True, llds_coef=0.5, llds_preserve="positive")
    assert done.returncode == 0, done.stderr[-4000:]
    probe = f"""
import json, os, sys
sys.path.insert(0, {str(tmp_path)!r})
os.environ["SEARCH_CORPUS"] = {given["corpus"]!r}
import train
from pathlib import Path
from verl.tools.function_tool import load_function_tools_from_path
from verl.utils.import_utils import load_extern_object
score = load_extern_object(train.__file__, "score")
(tool,) = load_function_tools_from_path(train.__file__)
said = "<answer>no</answer> then <answer> Oslo </answer>"
print(json.dumps([score("", said, '["oslo"]'), score("", "Oslo", '["oslo"]')]))
print(json.dumps(tool.fn("capital")))
print(json.dumps(train.rows(Path({given["train"]!r}))[0]))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True)
    assert told.returncode == 0, told.stderr.decode()[-4000:]
    scores, found, row = map(json.loads, told.stdout.decode().splitlines()[-3:])
    assert scores == [1.0, 0.0]
    assert found.count("\n") == 2  # three passages
    assert row["prompt"][0]["content"].endswith(world_questions(1)[0].text)
