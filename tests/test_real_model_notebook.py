"""The page of real models explains every flag of the real run, and no other."""

import json
import re
from pathlib import Path
from string import Template

import pytest

from lldlib.cli import main

ROOT = Path(__file__).resolve().parent.parent
FLAG = re.compile(r"(?<!\S)--[a-z][a-z.-]*")
COMMANDS = ("prepare", "sft", "train", "evaluate")


def explained() -> dict[str, set[str]]:
    """The flags of the table, by command."""
    page = (ROOT / "data/real_models.md").read_text(encoding="utf-8")
    lines = page.split("| command | flag | why |")[1].split("\n\n")[0].strip().splitlines()[1:]
    found: dict[str, set[str]] = {name: set() for name in COMMANDS}
    for line in lines:
        commands, flags = line.split("|")[1:3]
        for name in commands.split(","):
            found[name.strip()] |= set(FLAG.findall(" ".join(re.findall("`([^`]*)`", flags))))
    return found


def printed(text: str) -> list[str]:
    """The commands of a page's block, its variables put in."""
    values: dict[str, str] = {}
    for name, value in re.findall(r'^([A-Z]+)="(.*)"$', text, re.MULTILINE):
        values[name] = Template(value).substitute(values)
    lines = re.findall(r"^lldlib (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    return [Template(line).substitute(values) for line in lines]


def readme() -> str:
    """The block of the README's section on a real model."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    return page.split("## A real model on one GPU")[1].split("```")[1]


def notebook() -> str:
    """The cell of notebook 9 that plans a night."""
    file = ROOT / "notebooks/09_a_real_model.ipynb"
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    (text,) = [t for t in map("".join, (c["source"] for c in cells)) if "lldlib prepare" in t]
    return text


def flags(text: str) -> dict[str, set[str]]:
    """The flags that a page's block gives to each command, those of step 4a's comment too."""
    found: dict[str, set[str]] = {name: set() for name in COMMANDS}
    for line in printed(text):
        name, _, rest = line.partition(" ")
        if name in found:  # fit is not: it has a table of cards
            found[name] |= set(FLAG.findall(rest.partition("#")[0]))
    for comment in re.findall("^# 4a (.*)$", text, re.MULTILINE):
        found["train"] |= set(FLAG.findall(comment))
    return found


@pytest.mark.parametrize("page", [readme, notebook])
def test_every_flag_of_the_real_run_is_explained(page):
    asked, told = flags(page()), explained()
    assert len(asked["train"]) > 10
    assert {name: lost for name in COMMANDS if (lost := asked[name] - told[name])} == {}


def test_no_other_flag_is_explained():
    asked, told = flags(notebook()), explained()
    assert {name: lost for name in COMMANDS if (lost := told[name] - asked[name])} == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_flag_that_is_explained_is_one_of_the_command(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    known = set(re.findall(r"--[a-z][\w.-]*", capsys.readouterr().out))
    assert explained()[name] - known == set()


def test_the_readme_s_run_has_the_notebook_s_values():
    """Both train with the same numbers, whatever the method and the folders."""
    values = []
    for page in (readme, notebook):
        (line, *_) = [line for line in printed(page()) if line.startswith("train ")]
        values.append(dict(re.findall(r"(--[a-z.-]+)(?: +([^\s-]\S*))?", line)))
    front, long = values
    own = {"--method", "--policy", "--out", "--checkpoint-every", "--dry-run"}
    assert {k: v for k, v in front.items() if k not in own} == {
        k: v for k, v in long.items() if k not in own
    }
