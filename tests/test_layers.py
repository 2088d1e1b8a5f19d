"""Imports point down the layers, files and functions stay short, the library never prints."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lldlib"
MAX_FILE, MAX_FUNCTION = 300, 60  # lines

LAYERS = {  # every module, or the package it lies in
    "L0": ["__init__", "types", "config", "exam_config"],
    "L1": [
        "advantages",
        "diagnostics",
        "explore",
        "glossary",
        "losses",
        "methods",
        "objective",
        "onsets",
        "phases",
        "presets",
        "published",
        "rewards",
        "symbols",
    ],
    "L2": [
        "benchmarks",
        "demonstrations",
        "facts",
        "goldpaths",
        "maths",
        "protocol",
        "recombine",
        "retrieval",
        "runlog",
        "scores",
        "serve",
        "tasks",
        "world",
    ],
    "L3": [
        "batching",
        "decode",
        "fit",
        "kvcache",
        "lean",
        "listed",
        "nf4",
        "pieces",
        "policies",
        "rollout",
        "scoring",
    ],
    "L4": [
        "dissect",
        "evaluate",
        "exam",
        "heldout",
        "run",
        "setting",
        "sft",
        "sums",
        "train",
        "trainstate",
        "warmstart",
        "workers",
    ],
    "views": [
        "checks",
        "figures",
        "figures_explore",
        "figures_lab",
        "figures_runs",
        "figures_tokens",
        "glossary_page",
        "postmortem",
        "report",
        "tables",
        "widgets",
    ],
    "adapters": ["adapters"],
    "commands": ["__main__", "cli", "demo", "no_return", "sweep"],
}
MAY_IMPORT = {
    "L0": {"L0"},
    "L1": {"L0", "L1"},
    "L2": {"L0", "L1", "L2"},
    "L3": {"L0", "L1", "L2", "L3"},
    "L4": {"L0", "L1", "L2", "L3", "L4"},
    "views": {"L0", "L1", "L2", "views"},
    "adapters": {"L0", "L1", "L2", "adapters"},
    "commands": {"L0", "L1", "L2", "L3", "L4", "views", "commands"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
TENSORS = {"torch", "jaxtyping"}  # all that L1 may take from outside the standard library
IO_AND_CHANCE = {"os", "io", "pathlib", "shutil", "json", "socket", "subprocess", "random", "time"}
PRINTS = {f"lldlib/cli/{name}.py" for name in ("__init__", "lab", "models", "questions")}

FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file: Path) -> str:
    """`lldlib/losses/llds.py` is "losses"."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(source: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported anywhere in a file."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write the import in full"
            if node.module == "lldlib":
                yield from (f"lldlib.{alias.name}" for alias in node.names)
            else:
                yield node.module


def wrong_imports(module: str, source: ast.AST) -> list[str]:
    """The package's modules that `module` may not import, or that have no layer."""
    inner = [name.split(".")[1] for name in imports(source) if name.startswith("lldlib.")]
    allowed = MAY_IMPORT[LAYER_OF[module]]
    return [name for name in inner if LAYER_OF.get(name) not in allowed]


def test_every_module_has_a_layer():
    unmapped = {name_of(file) for file in FILES} - LAYER_OF.keys()
    assert not unmapped, f"enter {sorted(unmapped)} in LAYERS, where they belong"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file):
    assert wrong_imports(name_of(file), tree(file)) == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("losses", "from lldlib.scoring import score", ["scoring"]),
        ("figures", "from lldlib import train", ["train"]),
        ("figures", "from lldlib.runlog import Run", []),
        ("adapters", "import lldlib.losses.llds", []),
        ("adapters", "from lldlib.runlog import Run", []),
        ("adapters", "from lldlib.rollout import Rollout", ["rollout"]),
        ("report", "def f():\n    from lldlib.rollout import Rollout", ["rollout"]),
        ("train", "from lldlib.figures import save", ["figures"]),
        ("train", "from lldlib.nowhere import x", ["nowhere"]),
    ],
)
def test_the_check_itself(module, line, wrong):
    assert wrong_imports(module, ast.parse(line)) == wrong


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if LAYER_OF.get(name_of(file)) == "L1"],
    ids=lambda file: str(file.relative_to(PACKAGE)),
)
def test_l1_is_pure(file):
    """No model, no I/O, no randomness: a loss sees tensors only."""
    names = {name.split(".")[0] for name in imports(tree(file))}
    outside = names - sys.stdlib_module_names - TENSORS - {"lldlib"}
    assert not outside and not names & IO_AND_CHANCE
    calls = {n.func.id for n in ast.walk(tree(file)) if is_call(n)}
    assert "open" not in calls


@pytest.mark.parametrize("file", FILES + TESTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_FILE
    for node in ast.walk(tree(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_the_library_does_not_print(file):
    printing = {n.func.id for n in ast.walk(tree(file)) if is_call(n)} & {"print"}
    assert not printing or str(file.relative_to(ROOT)) in PRINTS


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_annotations_stay_objects(file):
    """`from __future__ import annotations` would switch the shape checks off."""
    assert "__future__" not in set(imports(tree(file)))


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
