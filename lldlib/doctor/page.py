"""Diagnose a log, and write its pages: what a caller of the doctor needs."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np

from lldlib.doctor.answers import answers_beside
from lldlib.doctor.completions import NoAnswers
from lldlib.doctor.pages.diagnosis import Diagnosis, diagnose_run
from lldlib.doctor.pages.figure import figure, runs_figure
from lldlib.doctor.pages.html import as_html, several_html
from lldlib.doctor.pages.words import (
    as_markdown,
    as_object,
    as_text,
    names_of,
    sections,
    side_by_side,
    table_text,
)
from lldlib.doctor.readers import count_in_file, read_logs
from lldlib.doctor.reading.log import Log
from lldlib.doctor.reading.series import run_of
from lldlib.files import write_whole

__all__ = [
    "Diagnosis",
    "as_html",
    "as_markdown",
    "as_object",
    "as_text",
    "diagnose",
    "diagnose_rows",
    "diagnose_run",
    "figure",
    "runs_figure",
    "sections",
    "several_html",
    "side_by_side",
    "table_text",
    "write_pages",
]


def diagnose(
    path: Path | str, mapping: Mapping[str, str] | None = None, answers: Path | str | None = None
) -> list[Diagnosis]:
    """Read a file or folder and diagnose every run in it; `mapping` is {column: our signal}.

    Of a single run its answers are judged as well: those in `answers`, or those beside the log.
    Raises `readers.Unreadable` with one line where nothing can be read, NoAnswers where `answers`
    cannot.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a log may hold 1e300; its page says so
        found = [_diagnosed(log) for log in read_logs(path, mapping)]
    if len(found) == 1:
        return [replace(found[0], answers=answers_beside(path, answers))]
    if answers is not None:
        raise NoAnswers(f"{path} holds {len(found)} runs: --answers belongs to one")
    return found


def _diagnosed(log: Log) -> Diagnosis:
    run = run_of(log)
    reward = run.columns.get("reward")
    if reward is not None and log.path is not None and run.kind.word == "rl":
        run.in_file = count_in_file(log.path, reward)
    return diagnose_run(run)


def diagnose_rows(rows: Sequence[Mapping[str, float | int]], name: str = "live") -> Diagnosis:
    """Diagnose rows that were never in a file: one mapping of logged names to numbers a step."""
    log = Log(name, "live")
    for row in rows:
        log.add(row, {})
    return diagnose_run(run_of(log.close()))


def write_pages(all_found: Sequence[Diagnosis], folder: Path) -> Path:
    """Write a page, a figure and an object for each run, and a page on all; returns the first page.

    Files: `index.html`, and for several runs NAME.html, NAME.png and NAME.json each.
    """
    stems = _stems(names_of(all_found))
    if len(all_found) == 1:
        stems = ["index"]
    for found, stem in zip(all_found, stems, strict=True):
        write_whole(folder / f"{stem}.html", as_html(found))
        if len(found.run.scored) and found.run.kind.word == "rl":
            drawn = BytesIO()
            figure(found).savefig(drawn, format="png", dpi=130)
            write_whole(folder / f"{'figure' if stem == 'index' else stem}.png", drawn.getvalue())
        text = json.dumps(as_object(found), indent=1, ensure_ascii=False)
        write_whole(folder / f"{stem}.json", text + "\n")
    if len(all_found) > 1:
        page = several_html(all_found, [f"{stem}.html" for stem in stems])
        write_whole(folder / "index.html", page)
    return folder / "index.html"


def _stems(names: Sequence[str]) -> list[str]:
    """File names, each once."""
    clean = [re.sub(r"[^\w.=,-]+", "_", name)[:80] or "run" for name in names]
    return [
        stem if clean.index(stem) == i and stem != "index" else f"{stem}_{i + 1}"
        for i, stem in enumerate(clean)
    ]
