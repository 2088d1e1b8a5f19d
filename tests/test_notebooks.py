"""The notebooks: their structure, their exercises, and a run of each from top to bottom."""

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
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "LLDLIB_FAST": "1",  # live training of a few batches
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}
COLLAPSED = re.compile(r"<details>(.*?)</details>", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
ASSIGNMENT = re.compile(r"`(\w+ = [^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@cache
def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def cells(path: Path, kind: str, tag: str | None = None) -> list[nbformat.NotebookNode]:
    """The cells of one kind, in order; with `tag`, those that carry it."""
    found = [cell for cell in read(path).cells if cell.cell_type == kind]
    return [c for c in found if tag is None or tag in c.metadata.get("tags", [])]


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
    long = [c.source for c in cells(path, "code") if len(statements(c.source)) > MAX_LINES]
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
    """Each stub leaves the run alone and says that it is open, and has a collapsed solution."""
    stubs = cells(path, "code", "exercise")
    assert len(stubs) == len(solutions(path)) >= 2
    for stub in stubs:
        assert shown(stub).startswith("Not filled in yet")


@every_notebook
def test_it_runs_and_its_solutions_pass(path):
    book = nbformat.read(path, as_version=4)
    stubs, timer = cells(path, "code", "exercise"), "import time; print(time.process_time())"
    sources = [filled(s.source, t) for s, t in zip(stubs, solutions(path), strict=True)]
    extra = [nbformat.v4.new_code_cell(source) for source in (timer, *sources)]
    book.cells += extra
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(book, timeout=CELL_SECONDS, kernel_name="python3", resources=where)
    client.execute(env=os.environ | ENVIRONMENT)
    assert float(shown(extra[0])) <= CPU_SECONDS
    for cell in extra[1:]:
        assert shown(cell).startswith(("Right", "Yes")), f"{shown(cell)} for {cell.source}"
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert [o.text for o in outputs if o.get("name") == "stderr"] == []


def solutions(path: Path) -> list[str]:
    """The collapsed solutions, in order: a block of Python, or `name = value` in the text."""
    texts = [text for c in cells(path, "markdown") for text in COLLAPSED.findall(c.source)]
    found = [BLOCK.search(text) or ASSIGNMENT.search(text) for text in texts]
    assert all(found), "a solution holds a Python block or `name = value`"
    return [match[1] for match in found]


def filled(stub: str, solution: str) -> str:
    """The exercise's cell with the solution in place of what is to be filled in."""
    if "def " in solution:
        return f"{solution}\n{stub.splitlines()[-1]}"
    name = solution.split(" = ")[0]
    changed = re.sub(rf"^{name} = None.*$", solution, stub, flags=re.MULTILINE)
    assert changed != stub, f"the stub has no line '{name} = None'"
    return changed


def statements(source: str) -> list[str]:
    """The lines of a cell that import nothing."""
    return [line for line in source.splitlines() if not line.startswith(("import ", "from "))]


def shown(cell: nbformat.NotebookNode) -> str:
    """What the cell printed, and its last value."""
    return "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)
