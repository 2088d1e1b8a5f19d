"""`lldlib script`: what it writes runs as it stands, on the CPU, with a tiny model."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from helpers import world
from small_tokenizers import qwen2

from lldlib.cli import main
from lldlib.retrieval.passages import join_contents
from lldlib.runs.folder import Run
from lldlib.world.atlas import WorldQuestion

ROOT = Path(__file__).resolve().parents[2]


def written(name: str, folder: Path) -> Path:
    """The script as the command writes it."""
    assert main(["script", name, "--out", str(folder / "train.py")]) == 0
    return folder / "train.py"


def loaded(script: Path) -> ModuleType:
    """The script as it stands, as a module of this process.

    Python's import would take two texts of one length and second for the same.
    """
    made = ModuleType("made")
    made.__file__ = str(script)
    exec(compile(script.read_text(encoding="utf-8"), script, "exec"), vars(made))
    return made


def one_hop() -> list[WorldQuestion]:
    """Eight questions of one fact each."""
    return world().questions("train", (1,))[::40][:8]


def files(folder: Path) -> dict[str, str]:
    """The tiny searcher, questions and the facts that answer them, by the flags that name them."""
    questions = [
        {"id": q.id, "question": q.text, "golden_answers": list(q.answers)} for q in one_hop()
    ]
    asked = {"-".join(reversed(q.id.split("/"))) for q in one_hop()}
    facts = [p for p in world().passages("train") if p.id in asked]
    passages = [{"id": p.id, "contents": join_contents(p.title, p.text)} for p in facts]
    for name, rows in (("train", questions), ("corpus", passages)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    given = {name: str(folder / f"{name}.jsonl") for name in ("train", "corpus")}
    return given | {"model": str(ROOT / "data" / "tiny"), "out": str(folder / "out")}


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
    small = {"batches": 2, "rows": 10, "steps_per_batch": 4, "max_tokens": 160}
    done = run(written("trl-search", tmp_path), **files(tmp_path), **small, lr=1e-3)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = Run(tmp_path / "out" / "run").metrics
    assert [row["step"] for row in rows] == [0, 1]
    assert {"reward/mean", "displacement/all_token"} <= set(rows[1])
    wanted = ("reward/mixed_groups", "grad/norm", "llds/value")
    assert all(row[name] > 0 for row in rows for name in wanted)  # it learned, and LLDS held
    assert (tmp_path / "out" / "policy" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["trl", "verl"])
def test_its_flags_reach_the_settings(name, tmp_path, monkeypatch):
    """The paper's LLDS and rate without a flag, and with flags those of our own study."""
    pytest.importorskip(name, reason=f"needs the extra '{name}': run make test-adapters")
    made = loaded(written(f"{name}-search", tmp_path))
    where = [f"--{flag}={tmp_path / flag}" for flag in ("model", "train", "corpus", "out")]
    ours = ["--llds-coef=0.5", "--llds-preserve=positive", "--lr=1e-5"]
    ours += ["--batches=60"]
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
    ends = {"trl": ("max_steps", 600), "verl": ("trainer.total_training_steps", 60)}
    assert told[ends[name][0]] == ends[name][1]


def test_passes_of_an_update_change_neither_updates_nor_rollout_batches(tmp_path, monkeypatch):
    """k = 2 with half the rows: the same 80 rollouts and 10 updates a batch, 200 batches."""
    pytest.importorskip("trl", reason="needs the extra 'trl': run make test-adapters")
    script = written("trl-search", tmp_path)
    text = script.read_text(encoding="utf-8")
    assert text.count("k = 1  #") == 1
    where = [f"--{flag}={tmp_path / flag}" for flag in ("model", "train", "corpus", "out")]
    for k, rows in ((1, 8), (2, 4)):
        script.write_text(text.replace("k = 1  #", f"k = {k}  #"), encoding="utf-8")
        made = loaded(script)
        monkeypatch.setattr(sys, "argv", ["train.py", *where, f"--rows={rows}"])
        monkeypatch.setattr(made, "LLDGRPOConfig", dict)
        told = made.settings(made.arguments())
        passes = told["steps_per_generation"]
        assert told["gradient_accumulation_steps"] == k and passes / k == 10
        assert told["per_device_train_batch_size"] * passes == 80
        assert [told[f"{what}_steps"] for what in ("max", "logging", "save")] == [2000, 10, 100]


def test_the_script_for_verl_stands_as_far_as_there_is_no_gpu(tmp_path):
    """As a user starts it, its settings pass verl's own check, and its loss is computed."""
    pytest.importorskip("verl", reason="needs the extra 'verl': run make test-adapters")
    done = run(written("verl-search", tmp_path), **files(tmp_path), check=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "settings are whole" in done.stdout and "LLDS 0.286" in done.stdout  # 4 of 7 tokens, .5
    lacks = importlib.util.find_spec("transfer_queue") is None  # verl's trainer imports it
    assert ("lacks TransferQueue: pip install 'verl[vllm]==0.9.1'" in done.stdout) == lacks


def test_verl_finds_the_questions_the_reward_and_the_tool(tmp_path, monkeypatch):
    """All that a training reads, up to the command that would start Ray."""
    pytest.importorskip("verl", reason="needs the extra 'verl': run make test-adapters")
    from hydra import compose, initialize_config_module
    from verl.tools.function_tool import load_function_tools_from_path
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.import_utils import load_extern_object

    script, given, started = written("verl-search", tmp_path), files(tmp_path), []
    made = loaded(script)
    end = SimpleNamespace(returncode=0)
    monkeypatch.setattr(made.subprocess, "run", lambda command: started.append(command) or end)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEARCH_CORPUS", given["corpus"])
    flags = [f"--{name}={value}" for name, value in given.items()]
    more = ["data.filter_overlong_prompts=True", "trainer.total_epochs=3"]
    ours = ["--llds-coef=0.5", "--llds-preserve=positive"]
    monkeypatch.setattr(sys, "argv", ["train.py", *flags, *ours, *more])
    with pytest.raises(SystemExit, match="0"):
        made.main()
    (command,) = started
    assert command[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"] and command[-2:] == more
    made.check(command[3:])
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=command[3:])
    assert (config.trainer.total_training_steps, config.trainer.save_freq) == (500, 25)
    questions = RLHFDataset(config.data.train_files, qwen2(), config.data)
    assert [schema["function"]["name"] for schema in questions.tool_schemas] == ["search"]
    asked = [row["raw_prompt"][0]["content"].rpartition("Question: ")[2] for row in questions]
    assert asked == [question.text for question in one_hop()]
    chosen = config.reward.custom_reward_function
    score = load_extern_object(chosen.path, chosen.name)
    truth = questions[0]["reward_model"]["ground_truth"]
    right = f"<answer>no</answer> then <answer> {json.loads(truth)[0]} </answer>"
    assert [score("", said, truth) for said in (right, json.loads(truth)[0])] == [1.0, 0.0]
    (tool,) = load_function_tools_from_path(config.data.function_tool_path)
    found = tool.fn("What is the capital of Afghanistan ?").splitlines()
    assert len(found) == 3 and found[0].startswith("Doc 1(Title: Afghanistan) The ")
