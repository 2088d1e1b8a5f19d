"""Tables and JSON: lines, documents, CSV, and what a notebook printed, which a console reads."""

import csv
import html
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from lldlib.doctor.reading.log import (
    Columns,
    Log,
    is_settings,
    is_summary,
    number,
    numbers,
)
from lldlib.doctor.reading.signals import GUESSED, read_name

HEAD = 65_536  # bytes at the start of a file by which its format is told
LINE = 4_000_000  # bytes of a line that are read; what follows in that line is not

_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+(?:[eE][-+]?\d+)?%?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?%?")
_FLAT = re.compile(r"\{[^{}]*\}")


def parsed(text: str) -> object:
    """What a JSON text holds, None where it is broken."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _take(log: Log, row: object, wanted: Columns) -> None:
    """One row of a log, unless it is its settings or its summary."""
    if not isinstance(row, dict):
        return
    if is_settings(row):
        log.refused["settings"] += 1
    elif is_summary(row):
        log.refused["a summary at the end"] += 1
        log.latest = numbers(row)
    else:
        log.add(numbers(row, log), wanted)


def json_lines(path: Path, lines: Iterable[str], wanted: Columns) -> Log:
    """One object a line."""
    log = Log(path.name, "JSON lines")
    if path.name == "metrics.jsonl" and (path.parent / "config.json").is_file():
        log.name, log.format = path.parent.name, "lldlib run folder"
    elif path.name == "wandb-history.jsonl":
        log.format = "W&B history"
    broken = 0
    for line in lines:
        row = parsed(line.rstrip("\0"))
        broken += row is None and bool(line.strip()) and not line.endswith("\0")
        _take(log, row, wanted)
    if broken:
        log.notes.append(f"{broken} broken line{'s' if broken > 1 else ''} left out")
    return log


def document(path: Path, lines: Iterable[str], wanted: Columns) -> Log:
    """One JSON document; a broken one gives the objects in it that are whole."""
    text = "\n".join(islice(lines, 5_000_000)).rstrip("\0")
    whole = parsed(text)
    log = Log(path.name, "JSON")
    rows: Iterable[object] = ()
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        log.format, rows = "TRL trainer_state.json", whole["log_history"]
        log.name = path.parent.name if path.name == "trainer_state.json" else path.name
    elif isinstance(whole, list):
        rows = whole
    elif isinstance(whole, dict):
        lists = {k: v for k, v in whole.items() if isinstance(v, list)}
        inner = next((v for v in lists.values() if v and isinstance(v[0], dict)), None)
        columns = [dict(zip(lists, values, strict=False)) for values in zip(*lists.values())]  # noqa: B905
        rows = inner or columns or [whole]
    else:
        rows = (parsed(found[0]) for found in _FLAT.finditer(text))
        log.format = "TRL trainer_state.json" if '"log_history"' in text else "JSON"
        log.notes.append("the JSON is cut or broken: only its whole objects were read")
    for row in rows:
        _take(log, row, wanted)
    return log


# -- notebooks -------------------------------------------------------------------------------------


def is_stream(head: str) -> bool:
    """Whether a file is Kaggle's log of a notebook: a list of pieces of what was printed."""
    return head[:1] == "[" and '"stream_name"' in head[:2000] and '"data"' in head


def stream(lines: Iterable[str]) -> Iterator[str]:
    """The printed lines of Kaggle's log; the pieces of one stream are joined."""
    rest: dict[str, str] = {}
    for line in lines:
        piece = parsed(line.rstrip("\0").strip().lstrip("[,").rstrip("],").rstrip())
        if not isinstance(piece, dict) or not isinstance(piece.get("data"), str):
            continue
        name = str(piece.get("stream_name"))
        text = rest.get(name, "") + piece["data"]
        *whole, rest[name] = re.split(r"[\r\n]+", text[-LINE:])
        yield from (line for line in whole if line)
    yield from (line for line in rest.values() if line)


_CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.S)


def notebook(lines: Iterable[str]) -> list[str] | None:
    """The printed lines of a notebook's cells; the trainer's HTML table gives a line a row."""
    book = parsed("\n".join(islice(lines, 5_000_000)).rstrip("\0"))
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        return None
    said: list[str] = []
    for output in (o for c in cells if isinstance(c, dict) for o in c.get("outputs") or ()):
        if not isinstance(output, dict):
            continue
        data = output.get("data") if isinstance(output.get("data"), dict) else {}
        said += re.split(r"[\r\n]+", _joined(output.get("text")))
        said += _table_lines(_joined(data.get("text/html")))
        said += [line for line in output.get("traceback") or () if isinstance(line, str)]
    return [line for line in said if line.strip()]


def _joined(text: object) -> str:
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


def _table_lines(text: str) -> list[str]:
    rows = [_CELL.findall(row) for row in re.split(r"<tr[^>]*>", text)]
    rows = [[html.unescape(re.sub(r"<[^>]+>", "", c)).strip() for c in row] for row in rows if row]
    if len(rows) < 2 or "Step" not in rows[0]:
        return []
    head = [re.sub(r" ?(/) ?| ", lambda m: m[1] or "_", name).lower() for name in rows[0]]
    return [str(dict(zip(head, row, strict=False))) for row in rows[1:]]


# -- tables ----------------------------------------------------------------------------------------


def delimiter(head: str) -> str | None:
    """The delimiter of a table, if the first lines are one: a header and rows as wide."""
    lines = [line for line in head.splitlines()[:4] if line.strip()]
    for mark in (",", "\t", ";"):
        header, *rows = csv.reader(lines, delimiter=mark) if lines else [[]]
        known = any(rank < GUESSED for name in header for _, rank in read_name(name).signals)
        if any("{" in name for name in header):
            continue  # a line of a console, with commas
        words = sum(bool(name.strip()) and number(name) is None for name in header)
        if len(header) < 2 or words <= len(header) / 2:
            continue
        if known and (not rows or len(rows[0]) == len(header) or len(head) >= HEAD):
            return mark
        cells = [_cell(cell, mark) for row in rows for cell in row]
        figures = sum(number(cell) is not None or not cell.strip() for cell in cells)
        alike = rows and {len(row) for row in rows[:-1] or rows} == {len(header)}
        if alike and figures > len(cells) / 2:
            return mark
    return None


def _cell(text: str, mark: str) -> str:
    """A cell with a point in its number: a table with semicolons may have decimal commas."""
    if mark == ";" and _DECIMAL_COMMA.fullmatch(text.strip()):
        return text.replace(".", "").replace(",", ".")
    return text


def _without_thousands(row: list[str]) -> list[str]:
    """The cells of a row, those like 1,475 without commas where a point marks its decimals."""
    if not any("." in cell and number(cell.replace(",", "")) is not None for cell in row):
        return row
    return [c.replace(",", "") if _THOUSANDS.fullmatch(c.strip()) else c for c in row]


def table(path: Path, lines: Iterable[str], mark: str, wanted: Columns) -> list[Log]:
    """A CSV: one log, or one per run where W&B's chart export has several side by side."""
    csv.field_size_limit(LINE)
    rows = csv.reader(lines, delimiter=mark)
    header = next(rows, [])
    wandb = any(name.strip() in ("_step", "_runtime", "_timestamp") for name in header)
    runs: dict[str, Log] = {}
    which: list[tuple[str, str] | None] = []
    for name in header:
        run, dash, key = name.rpartition(" - ")
        skip = key.endswith(("__MIN", "__MAX"))
        which.append(None if skip else (run if dash else "", key if dash else name))
        if dash and not skip:
            runs[run] = Log(f"{path.name}: {run}", "W&B chart export (CSV)")
    form = "W&B export (CSV)" if wandb else "CSV"
    runs = runs or {"": Log(path.name, form)}
    before, known = "", ""  # the last column's cell in the row before, and its latest number
    for row in rows:
        row = _without_thousands(row)
        if len(row) != len(header):
            continue  # a last line that is cut, or one from something else
        if row[-1].endswith("\0"):  # a last line without its end: its last number may be cut
            row[-1] = row[-1].rstrip("\0")
            if len(row[-1]) < len(known if row[-1] else before):
                continue
        before, known = row[-1], row[-1] or known
        for run, log in runs.items():
            cells = [(w[1], f) for w, f in zip(which, row, strict=True) if w and w[0] in ("", run)]
            log.add(numbers({k: _cell(v, mark) for k, v in cells if v}, log), wanted)
    return list(runs.values())
