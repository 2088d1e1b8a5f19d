"""CONTRIBUTING's recipes of a new term and a new world, carried out on a copy of the package."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEP = re.compile(r"`(lldlib/[\w/]+\.py)`[^\n]*:\n\n```(python|diff)\n(.*?)```", re.DOTALL)
SMALL = {"problems": 4, "group_size": 4, "updates_per_batch": 2, "eval_every": 0, "probe_every": 0}
PROBE = """
import json, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from lldlib.config import LossConfig
from lldlib.recipes import WORLD, train_config
from lldlib.runs.glossary import describe
from lldlib.show.controls import KNOBS, Knobs
from lldlib.train.run import TrainingRun
from lldlib.train.sweep import grid_cells, parse_grid

out, overrides = Path(sys.argv[1]), json.loads(sys.argv[2])
told = {"rows": {}}
for coef in [0.0, 0.5] if hasattr(LossConfig, "nll_coef") else [None]:
    weight = {} if coef is None else {"nll_coef": coef}
    config = train_config("grpo", 0, recipe=WORLD, **overrides, **weight)
    row = TrainingRun(config, out / str(coef)).step()
    told["rows"][str(coef)] = {k: v for k, v in row.items() if not k.startswith("time/")}
told["described"] = {key: describe(key).name for row in told["rows"].values() for key in row}
knobs = Knobs("A", lambda turned: None).parts
told["knobs"] = {k: part.description.removesuffix(" of A") for k, part in knobs.items()}
told["strip"] = KNOBS
try:
    grid = parse_grid(["method=grpo,llds", "seed=0", "nll_coef=0,0.5"])
    told["cells"] = [cell.config.loss.nll_coef for cell in grid_cells(grid, out)]
except ValueError as error:
    told["cells"] = str(error)
print(json.dumps(told))
"""


ECHO = """
import json, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from lldlib.config import DataConfig, LossConfig, RolloutConfig, TrainConfig
from lldlib.policy.load import Policy, save_policy, tiny_model, word_tokenizer
from lldlib.train.run import TrainingRun

out = Path(sys.argv[1])
tokenizer = word_tokenizer(["red", "green", "blue", "black", "white", "grey", ":"])
model = tiny_model(len(tokenizer), width=32, layers=2, heads=4, seed=0)
save_policy(Policy(model, tokenizer), out / "start")
config = TrainConfig(
    steps=25, updates_per_batch=2, lr=3e-3, eval_every=25, probe_every=0, checkpoint_every=0,
    policy=str(out / "start"), data=DataConfig(world="echo"), loss=LossConfig(kl_coef=0.0),
    rollout=RolloutConfig(problems=4, group_size=16, max_searches=0, max_tokens=5),
)
try:
    run = TrainingRun(config, out / "run")
except ValueError as error:
    print(json.dumps(str(error)))
    raise SystemExit
told = {"batches": []}
for batch in (0, 1):
    _, episodes = run.trainer.step()
    told["batches"].append([
        {
            "question": e.question.text,
            "prompt": tokenizer.decode(e.turns[0].tokens),
            "said": tokenizer.decode(e.turns[1].tokens).removesuffix("<eos>").split(),
            "reward": e.reward,
            "group": e.group,
        }
        for e in episodes
    ])
metrics = TrainingRun(config, out / "whole").run().metrics
told["rewards"] = [row["reward/mean"] for row in metrics]
told["scores"] = sorted(key for key in metrics[-1] if key.startswith("eval/"))
print(json.dumps(told))
"""


def steps(heading: str) -> list[tuple[str, str, str]]:
    """(file, kind of block, block) of one section of the page, in order."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = [part for part in page.split("\n## ") if part.startswith(heading)]
    return STEP.findall(section)


def carry_out(heading: str, where: Path, *, back: bool = False) -> set[str]:
    """Add what the section adds, or take it out; returns the files touched."""
    for name, kind, block in steps(heading):
        file = where / name
        if kind == "python":
            file.unlink() if back else file.write_text(block, encoding="utf-8")
            continue
        for hunk in block.split("\n\n"):
            lines = hunk.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
            new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
            if back:
                old, new = new, old
            text = file.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{name} has not this place once:\n{old}"
            file.write_text(text.replace(old, new), encoding="utf-8")
    return {name for name, *_ in steps(heading)}


def sources(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text("utf-8") for p in folder.rglob("*.py")}


def ask(where: Path, out: Path, probe: str = PROBE) -> dict | str:
    """What the package in `where` says of itself; no one else's import path is in the way."""
    command = [sys.executable, "-c", probe, str(out), json.dumps(SMALL)]
    ran = subprocess.run(command, cwd=where, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def check_style(where: Path, room: str) -> None:
    for command in (["check", "--select=E,F,I", "--ignore=F722,F821"], ["format", "--check"]):
        check = [sys.executable, "-m", "ruff", *command, "--line-length=100", room]
        subprocess.run(check, cwd=where, check=True)


@pytest.fixture
def copy(tmp_path) -> Path:
    where = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lldlib", where / "lldlib", ignore=ignored)
    (where / "data").symlink_to(ROOT / "data")
    return where


@pytest.mark.long
def test_a_new_term_is_three_files_and_leaves_no_trace(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(copy))
    before = ask(copy, tmp_path / "before")
    assert "unknown setting of the grid 'nll_coef'" in before["cells"]

    assert len(carry_out("A new regularizer", copy)) == 3
    check_style(copy, "lldlib/losses")

    after = ask(copy, tmp_path / "after")
    off, on = after["rows"]["0.0"], after["rows"]["0.5"]
    assert off == before["rows"]["None"]  # at weight 0, bit for bit
    assert on["grad/norm"] != off["grad/norm"] and on["nll/value"] > 0  # the trainer adds and logs
    assert after["described"]["nll/value"] == "NLL"
    assert after["cells"] == [0.0, 0.5] * 2  # the sweep has it for every method
    assert after["knobs"] == before["knobs"] | {"nll_coef": "NLL α"}
    assert after["strip"] == before["strip"] | {"nll_coef": "α "}

    carry_out("A new regularizer", copy, back=True)
    assert sources(copy / "lldlib") == sources(ROOT / "lldlib")


@pytest.mark.long
def test_a_new_world_is_one_file_and_one_line(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(copy))
    before = ask(copy, tmp_path / "before", ECHO)
    assert before.startswith("unknown world 'echo': use one of atlas, shuffled, sparks")

    assert len(carry_out("A new world", copy)) == 2
    check_style(copy, "lldlib/world")
    told = ask(copy, tmp_path / "after", ECHO)
    first, second = told["batches"]
    assert {e["question"] for e in first} != {e["question"] for e in second}  # other words
    for episodes in told["batches"]:
        assert [e["group"] for e in episodes] == [n for n in range(4) for _ in range(16)]
        for e in episodes:
            word = e["question"]
            assert e["prompt"] == f"{word} :"
            assert e["reward"] == (1.0 if e["said"] == [word] else 0.25 * (word in e["said"]))
    rewards = told["rewards"]
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5]) > 0  # it learns
    assert told["scores"] == ["eval/heldout_em", "eval/heldout_em_greedy"]

    carry_out("A new world", copy, back=True)
    assert sources(copy / "lldlib") == sources(ROOT / "lldlib")
