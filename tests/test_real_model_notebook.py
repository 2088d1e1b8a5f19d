"""The page of real models explains every flag of the README's command, and no other."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import tyro

from lldlib.config import TrainConfig
from lldlib.recipes import train_config

ROOT = Path(__file__).resolve().parent.parent
FLAG = re.compile(r"--[a-z][a-z.-]*")


def table() -> list[str]:
    """The first cells of the table of flags."""
    text = (ROOT / "data/real_models.md").read_text(encoding="utf-8")
    lines = text.split("| flag | why |")[1].split("\n\n")[0].strip().splitlines()[1:]
    rows = [line for line in lines if line.startswith("| `--")]
    assert len(rows) > 10
    return [row.split("|")[1] for row in rows]


def test_every_flag_of_the_readme_is_explained():
    page = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"lldlib train [^\n`]*", page)
    (command,) = [line for line in commands if "--load.quantize" in line]
    asked = set(FLAG.findall(command))
    assert len(asked) > 10
    assert asked <= {flag for cell in table() for flag in FLAG.findall(cell)}


@pytest.mark.parametrize("cell", table())
def test_a_flag_that_is_explained_is_one_of_train(cell):
    words = shlex.split(" ".join(re.findall(r"`([^`]*)`", cell)))
    if words[1:2] and all(word.startswith("--") for word in words):
        words = [w for flag in words for w in (flag, "x.jsonl")]
    start = train_config("llds", 0, "runs/sft/policy")
    parse = partial(tyro.cli, TrainConfig, default=start, return_unknown_args=True)
    _, unknown = parse(args=words)
    assert unknown in ([], ["--out", "runs/llds"])
