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
INDEX = ROOT / "data/README.md"
STUDIES = sorted(p for p in INDEX.parent.rglob("*.md") if p.name != "table.md")  # index included
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "notebooks/GLOSSARY.md")]
TEXTS = [*PAGES, *STUDIES, *NOTEBOOKS]
NAME = re.compile(r"\blldlib(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^from (lldlib[\w.]*) import ([\w, ]+)", re.MULTILINE)
FILE = re.compile(r"(?<![\w/.])(?:lldlib|data|notebooks|tests)/[\w./=,-]*\w")
LINK = re.compile(r"\]\(([^)#:]+)\)")
MAKE = re.compile(r"(?:`|^)make ([a-z-]+)", re.MULTILINE)
COMMAND = re.compile(r"python -m lldlib ([a-z-]+)([^`|#\n]*)")
# what CONTRIBUTING's recipes make
NEW = ("lldlib/losses/nll.py", "lldlib.losses.nll", "lldlib/world/echo.py")

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


def test_the_index_of_data_is_short_and_links_every_page():
    assert len(text_of(INDEX).splitlines()) <= 40
    linked = {(INDEX.parent / link).resolve() for link in LINK.findall(text_of(INDEX))}
    assert {page for page in STUDIES if page not in linked} == {INDEX}


def test_every_folder_of_runs_is_named_on_a_page():
    told = "".join(text_of(page) for page in STUDIES)
    folders = [f"data/runs/{f.name}" for f in (ROOT / "data/runs").iterdir() if f.is_dir()]
    assert folders
    assert [name for name in folders if f"`{name}`" not in told] == []


def test_a_headline_that_a_link_names_exists():
    def anchors(page):
        titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}

    links = [
        (page, *found)
        for page in [*PAGES, *STUDIES]
        for found in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text_of(page))
    ]
    assert {bool(name) for _, name, _ in links} == {True, False}  # of other pages, of its own
    assert [x for x in links if x[2] not in anchors(x[0].parent / x[1] if x[1] else x[0])] == []


def test_pages_that_the_doctor_cites_exist():
    evidence = (ROOT / "lldlib/doctor/evidence.json").read_text(encoding="utf-8")
    cited = re.findall(r"data/[\w./-]*\w", evidence)
    assert cited
    assert [name for name in cited if not (ROOT / name).exists()] == []


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
