"""Imports point down the rooms, functions stay short, the library never prints."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lldlib"
MAX_FUNCTION = 60  # lines

ROOMS = {  # each room or file of the top level, lowest floor first: what it may import but itself
    "files": set(),
    "types": {"files"},
    "config": set(),
    "seeds": set(),
    "recipes": {"config"},
    "losses": {"config"},
    "retrieval": {"files"},
    "world": {"files", "types", "config", "seeds", "retrieval"},
    "runs": {"files", "types", "config", "losses"},
    "policy": {"files", "types", "config", "losses"},
    "rollout": {"files", "types", "config", "retrieval", "world", "policy"},
    "evaluate": {"files", "types", "config", "retrieval", "world", "runs", "policy", "rollout"},
    "train": {
        *("files", "types", "config", "seeds", "recipes", "losses", "retrieval", "world", "runs"),
        *("policy", "rollout", "evaluate"),
    },
    "show": {"files", "types", "config", "recipes", "losses", "runs"},
    "doctor": {"files", "types", "config", "runs"},
    "adapters": {"files", "types", "config", "losses", "retrieval", "world", "runs", "rollout"},
}
TOP = {"__init__", "__main__", "cli", "course", "hints"}  # may import every room
TENSORS = {"torch", "jaxtyping"}  # all that losses may take from outside the standard library
IO_AND_CHANCE = {"os", "io", "pathlib", "shutil", "json", "socket", "subprocess", "random", "time"}
PRINTS = {"lldlib/cli.py"}

FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file: Path) -> str:
    """The room: `lldlib/losses/llds.py` is in "losses"."""
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


def wrong_imports(room: str, source: ast.AST) -> list[str]:
    """The rooms that `room` may not import, or that do not exist."""
    inner = [name.split(".")[1] for name in imports(source) if name.startswith("lldlib.")]
    allowed = ROOMS.keys() | TOP if room in TOP else ROOMS[room] | {room}
    return [name for name in inner if name not in allowed]


def test_the_house_has_a_few_rooms():
    """A room has as many files as it has jobs; a limit there would put two jobs into one file."""
    assert len({name_of(file) for file in FILES if file.parent != PACKAGE}) <= 11
    assert len({name_of(file) for file in FILES if file.parent == PACKAGE} - TOP) <= 5
    assert {name_of(file) for file in FILES} <= ROOMS.keys() | TOP


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room).is_dir()])
def test_a_room_says_what_it_may_import(room):
    told = ast.get_docstring(tree(PACKAGE / room / "__init__.py"))
    _, named = " ".join(told.split()).rstrip(".").split("May import: ")
    assert set(named.split(", ")) == ROOMS[room]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file):
    assert wrong_imports(name_of(file), tree(file)) == []


@pytest.mark.parametrize(
    ("room", "line", "wrong"),
    [
        ("losses", "from lldlib.policy.score import score", ["policy"]),
        ("show", "from lldlib import train", ["train"]),
        ("show", "from lldlib.runs.folder import Run", []),
        ("adapters", "import lldlib.losses.llds", []),
        ("adapters", "from lldlib.train.trainer import Trainer", ["train"]),
        ("runs", "def f():\n    from lldlib.rollout.loop import Rollout", ["rollout"]),
        ("train", "from lldlib.show.curves import save", ["show"]),
        ("train", "from lldlib.nowhere import x", ["nowhere"]),
        ("cli", "from lldlib.show.curves import save", []),
    ],
)
def test_the_check_itself(room, line, wrong):
    assert wrong_imports(room, ast.parse(line)) == wrong


@pytest.mark.parametrize(
    "file",
    sorted((PACKAGE / "losses").glob("*.py")),
    ids=lambda file: str(file.relative_to(PACKAGE)),
)
def test_losses_are_pure(file):
    """No model, no I/O, no randomness: a loss sees tensors only."""
    names = {name.split(".")[0] for name in imports(tree(file))}
    outside = names - sys.stdlib_module_names - TENSORS - {"lldlib"}
    assert not outside and not names & IO_AND_CHANCE
    calls = {n.func.id for n in ast.walk(tree(file)) if is_call(n)}
    assert "open" not in calls


@pytest.mark.parametrize("file", FILES + TESTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_functions_are_short(file):
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
