"""The notebooks: their structure, their exercises, and a run of each from top to bottom."""

import ast
import json
import os
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES, MAX_LINES, CELLS = 300_000, 15, range(20, 36)
# Of processor time, so that a busy machine fails no notebook; a hanging cell ends by the clock.
CPU_SECONDS, CELL_SECONDS = 90, 600
GLANCE = ("You will be able to", "Needs", "Run time", "Data")
SOLUTION = re.compile(r"<details>.*?```python\n(.*?)```.*?</details>", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@cache
def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def cells(path: Path, kind: str, tag: str | None = None) -> list[nbformat.NotebookNode]:
    """The cells of one kind, in order; with `tag`, those that carry it."""
    found = [cell for cell in read(path).cells if cell.cell_type == kind]
    return [c for c in found if tag is None or tag in c.metadata.get("tags", [])]


def plain_python(source: str) -> str:
    """The cell without its `%` lines."""
    return "\n".join(line for line in source.splitlines() if not line.startswith("%"))


def test_there_are_notebooks():
    assert NOTEBOOKS
    numbers = [path.stem[:2] for path in NOTEBOOKS]
    assert len(set(numbers)) == len(numbers)
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem) for path in NOTEBOOKS)


@every_notebook
def test_the_opening(path):
    """A title that is a claim, with the sentence to keep; then the table that tells what is due."""
    title, glance = (cell.source for cell in read(path).cells[:2])
    heading = re.match(rf"# {path.stem[:2]} · (.+)\n\n> ", title)
    assert heading and len(heading[1].split()) >= 5
    assert all(f"| {field} |" in glance for field in GLANCE)
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", glance), "say when the run time was measured"
    assert re.search(r"\d+ s\b|minute", glance), "say the measured run time"


@every_notebook
def test_the_size(path):
    assert path.stat().st_size <= MAX_BYTES
    assert len(read(path).cells) in CELLS
    long = [c.source for c in cells(path, "code") if len(c.source.splitlines()) > MAX_LINES]
    assert not long, f"over {MAX_LINES} lines: {long}"


@every_notebook
def test_nothing_is_installed(path):
    for cell in cells(path, "code"):
        assert not re.search(r"^\s*(!|%pip|%conda|%%)", cell.source, re.MULTILINE)


@every_notebook
def test_figures_are_committed_and_checks_made(path):
    assert cells(path, "code", "check")
    assert all("assert" in cell.source for cell in cells(path, "code", "check"))
    assert cells(path, "code", "figure")
    for cell in cells(path, "code", "figure"):
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        assert "image/png" in kinds, f"no figure in the outputs of: {cell.source[:80]}"


@every_notebook
def test_the_outputs_are_clean(path):
    assert "widgets" not in read(path).metadata
    for cell in cells(path, "code"):
        assert cell.execution_count is None
        assert set(cell.metadata) <= {"tags"}
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr"
            assert output.get("execution_count") is None
            assert not any("widget" in kind for kind in output.get("data", {}))
    # a committed machine path would show whose machine it was
    assert not re.search(r"/(home|tmp|root|Users)/", json.dumps(read(path)))


@every_notebook
def test_the_links_resolve(path):
    for cell in cells(path, "markdown"):
        for target in LINK.findall(cell.source):
            if not target.startswith(("http://", "https://", "#")):
                assert (path.parent / target.split("#")[0]).exists(), target


@every_notebook
def test_the_exercises(path):
    """A stub says that it is open, its collapsed solution passes, and every stub has one."""
    stubs = cells(path, "code", "exercise")
    solutions = SOLUTION.findall("\n".join(cell.source for cell in cells(path, "markdown")))
    assert len(stubs) == len(solutions) >= 2
    for stub, solution in zip(stubs, solutions, strict=True):
        assert verdict(stub.source).state == "open"
        calls = ast.parse(plain_python(stub.source)).body[-1]
        setup = [
            n for n in ast.parse(stub.source).body if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        filled = "\n".join([*map(ast.unparse, setup), solution, ast.unparse(calls)])
        found = verdict(filled)
        assert found.state == "right", found.message


def verdict(source: str):
    """What the check in the last line of an exercise's cell says."""
    *body, last = ast.parse(source).body
    while isinstance(last.value, ast.Call) and getattr(last.value.func, "id", "") == "print":
        last.value = last.value.args[0]
    names: dict[str, object] = {}
    exec("from lldlib import checks", names)
    exec(compile(ast.Module(body, []), "exercise", "exec"), names)
    return eval(compile(ast.Expression(last.value), "exercise", "eval"), names)


@every_notebook
def test_it_runs_top_to_bottom(path):
    book = nbformat.read(path, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell("import time; print(time.process_time())"))
    where = {"metadata": {"path": str(path.parent)}}
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    client = NotebookClient(book, timeout=CELL_SECONDS, kernel_name="python3", resources=where)
    client.execute(env=environment)
    assert float(book.cells[-1].outputs[0].text) <= CPU_SECONDS
    warned = [o.text for c in book.cells for o in c.get("outputs", []) if o.get("name") == "stderr"]
    assert not warned
