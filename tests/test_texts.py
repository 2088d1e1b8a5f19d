"""What the texts name is there: modules, functions, files, targets of make, commands and flags."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from lldlib import cli

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md")]
TEXTS = [*PAGES, ROOT / "data/world/README.md", ROOT / "notebooks/GLOSSARY.md", *NOTEBOOKS]
NAME = re.compile(r"\blldlib(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^from (lldlib[\w.]*) import ([\w, ]+)", re.MULTILINE)
FILE = re.compile(r"(?<![\w/.])(?:lldlib|data|notebooks|tests)/[\w./=,-]*\w")
LINK = re.compile(r"\]\(([^)#:]+)\)")
MAKE = re.compile(r"(?:`|^)make ([a-z-]+)", re.MULTILINE)
COMMAND = re.compile(r"python -m lldlib ([a-z]+)([^`|#\n]*)")
NEW = ("lldlib/losses/nll.py", "lldlib.losses.nll")  # what CONTRIBUTING's recipe makes

by_text = pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def text_of(path: Path) -> str:
    """A page, or a notebook's markdown, with continued lines joined."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return text.replace("\\\n", " ")


@cache
def defined(file: Path) -> set[str]:
    """Names at a module's top level, imported ones too."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names


def resolves(dotted: str) -> bool:
    """Whether a folder, a file, or a name in one is called so; nothing is imported."""
    here, parts = ROOT, dotted.split(".")
    while parts and (here / parts[0]).is_dir():
        here /= parts.pop(0)
    file = here / "__init__.py"
    if parts and (here / f"{parts[0]}.py").is_file():
        file = here / f"{parts.pop(0)}.py"
    return not parts or parts[0] in defined(file)


@by_text
def test_names_and_files_exist(path):
    text = text_of(path)
    names = set(NAME.findall(text))
    for module, imported in IMPORT.findall(text):
        names |= {f"{module}.{name.strip()}" for name in imported.split(",")}
    lost = {name for name in names if not resolves(name)}
    lost |= {name for name in FILE.findall(text) if not (ROOT / name).exists()}
    lost |= {link for link in LINK.findall(text) if not (path.parent / link).exists()}
    assert {name for name in lost if not name.startswith(NEW)} == set()


def test_recorded_runs_that_the_log_names_exist():
    named = re.findall(r"`((?:runs|results)/[\w./=,-]+)`", text_of(ROOT / "data/README.md"))
    assert named
    assert [name for name in named if not (ROOT / "data" / name).exists()] == []


def test_targets_of_make_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {name for path in TEXTS for name in MAKE.findall(text_of(path))} <= set(targets)


def test_commands_and_their_flags_exist(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    flags: dict[str, set[str]] = {}
    for path in TEXTS:
        for name, rest in COMMAND.findall(text_of(path)):
            flags.setdefault(name, set()).update(re.findall(r"(?<!\S)--[a-z][\w.-]*", rest))
    assert {"train", "sft", "evaluate", "fit"} <= flags.keys()
    for name, used in flags.items():
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        known = set(re.findall(r"--[a-z][\w.-]*", capsys.readouterr().out))
        assert used - known == set(), name


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("lldlib.losses", True),
        ("lldlib.losses.llds_penalty", True),
        ("lldlib.adapters.verl.LLDSPolicyLossConfig", True),
        ("lldlib.runs.phases.PhaseRule", True),
        ("lldlib.runs.phases.no_such_rule", False),
        ("lldlib.figures", False),
    ],
)
def test_the_check_itself(name, there):
    assert resolves(name) == there
