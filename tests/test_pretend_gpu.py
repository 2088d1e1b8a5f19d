"""The whole loop on a pretend accelerator, which refuses what CUDA does; devices of factories."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lldlib.recipes import METHODS

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "lldlib"
PARTS = [
    *("run_resume_branch", "pieces", "lockstep", "adapters", "bfloat16", "supervised", "exam"),
    *("llama", "old_defect", "what_is_refused", "exact_kl", "recorded", "current_device"),
    *(f"method {name}" for name in METHODS),
]


@pytest.fixture(scope="module")
def errors(guesser, tmp_path_factory) -> dict[str, str | None]:
    """What went wrong in each part; the backend may be named once a process, so one runs all."""
    command = [sys.executable, TESTS / "pretend_parts.py", guesser, tmp_path_factory.mktemp("gpu")]
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {line["part"]: line["error"] for line in lines}
    assert found and done.returncode == 0, (list(found), done.stderr[-2000:])
    return found


@pytest.mark.long
def test_every_part_is_listed(errors):
    assert sorted(errors) == sorted(PARTS)


@pytest.mark.long
@pytest.mark.parametrize("name", PARTS)
def test_on_the_pretend_accelerator(errors, name):
    assert errors[name] is None, errors[name]


FACTORIES = set(
    "arange as_tensor empty eye from_numpy full linspace logspace normal ones rand randint randn"
    " randperm tensor zeros".split()
)
# factory calls that make a tensor of the CPU, by file and function, and why
ON_THE_CPU = {
    ("rollout/loop.py", "_run"): "uniform numbers are the same on every device; moved in blocks",
    ("rollout/batch.py", "collate"): "made of lists; the trainer moves the whole batch",
    ("policy/optimizer.py", "pack"): "a count in a checkpoint",
    ("train/trainer.py", "_update"): "the order of rows is the same on every device",
    ("train/trainer.py", "_trained_on"): "a control's draws are the same on every device",
    ("policy/memory.py", "_replace_weights"): "tensors without storage",
    ("policy/memory.py", "_step_peak"): "tensors without storage",
    ("policy/memory.py", "_head_peak"): "tensors without storage",
    ("adapters/watch.py", "read_spans"): "written into a tensor that has its place",
}


def bare_factories(source: ast.AST) -> list[tuple[str, int]]:
    """Functions and lines in which torch makes a tensor without being told where."""
    found = []
    for function in ast.walk(source):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for call in ast.walk(function):
                if is_bare(call):
                    found.append((function.name, call.lineno))
    return found


def is_bare(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    of_torch = isinstance(owner, ast.Name) and owner.id == "torch" and node.func.attr in FACTORIES
    return of_torch and "device" not in {keyword.arg for keyword in node.keywords}


def test_a_tensor_is_made_where_its_inputs_are():
    found = {
        (str(file.relative_to(PACKAGE)), name): line
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.name != "check_llds.py"  # small cases for anyone's function, on the CPU
        for name, line in bare_factories(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert {key: line for key, line in found.items() if key not in ON_THE_CPU} == {}
    assert ON_THE_CPU.keys() <= found.keys(), "no longer needed on the list"


def test_the_check_of_factories_itself():
    code = (
        "def f(x):\n    torch.zeros(3)\n    torch.zeros_like(x)\n    torch.ones(2, device=x.device)"
    )
    assert bare_factories(ast.parse(code)) == [("f", 2)]
    assert bare_factories(ast.parse("def g(x):\n    x.new_zeros(3)\n    np.zeros(3)")) == []
