"""The glossary page is up to date, and holds every logged key and every symbol in use."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from glossary_page import PAGE, SYMBOLS, glossary_page, letters_of

from lldlib.runs.glossary import GLOSSARY, describe

ROOT = Path(__file__).resolve().parent.parent
RUNS = sorted((ROOT / "data").rglob("metrics.jsonl"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)


def test_the_page_is_up_to_date():
    stale = "run 'python notebooks/glossary_page.py'"
    assert PAGE.read_text(encoding="utf-8") == glossary_page(), stale


def test_every_key_of_the_glossary_is_on_the_page():
    page = glossary_page()
    assert all(f"| `{key}` |" in page for key in GLOSSARY)
    assert page.count("\n## Keys: ") == len({key.partition("/")[0] for key in GLOSSARY})


def test_every_row_has_the_columns_of_its_table():
    bars = re.compile(r"(?<!\\)\|")
    for table in glossary_page().split("\n\n"):
        rows = [len(bars.findall(line)) for line in table.splitlines() if line.startswith("|")]
        assert len(set(rows)) <= 1, table[:200]


def test_every_key_that_a_recorded_run_logs_is_explained():
    assert RUNS
    for path in RUNS:
        with path.open(encoding="utf-8") as lines:
            for key in {key for line in lines for key in json.loads(line)}:
                assert describe(key).unit, f"{path}: {key}"


def test_letters_of_a_formula():
    formula = r"\pi_{old}(y_{i,t}) \ge \kappa \max_v \mathrm{clip}(r, 1 - \epsilon)\,\text{ or } H"
    assert letters_of(formula) == {r"\pi", "y", "i", "t", r"\kappa", "v", "r", r"\epsilon", "H"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_symbol_of_a_notebook_is_explained(path):
    known, used = {s.letter for s in SYMBOLS}, set()
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            found = FORMULA.findall(CODE.sub("", cell.source))
            used |= {letter for pair in found for letter in letters_of(pair[0] or pair[1])}
    assert used <= known, f"add to notebooks/glossary_page.py: {sorted(used - known)}"


def test_a_symbol_is_written_with_its_letter():
    for symbol in SYMBOLS:
        assert symbol.letter in letters_of(symbol.written) and symbol.meaning and symbol.shape
    lines = [(s.written, s.meaning) for s in SYMBOLS]
    assert len(set(lines)) == len(lines)
