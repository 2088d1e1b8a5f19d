"""Training logs of any framework -> named columns with one value per row.

Read line by line: only the columns that `signals` knows (or that the caller maps) are kept, so a
log of any size fits. What is half-written, cut or no number is left out, never guessed.
"""

import csv
import gzip
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from lldlib.doctor.reading.binary import WANDB_HEAD, one_line, tensorboard, wandb
from lldlib.doctor.reading.console import console
from lldlib.doctor.reading.documents import (
    HEAD,
    LINE,
    delimiter,
    document,
    is_stream,
    json_lines,
    notebook,
    parsed,
    stream,
    table,
)
from lldlib.doctor.reading.kind import kind_of
from lldlib.doctor.reading.log import Columns, Log, Unreadable, number, printable
from lldlib.doctor.reading.signals import SIGNALS

__all__ = ["Log", "Unreadable", "count_in_file", "lines_of", "number", "read_file", "read_logs"]
LOGS = (
    *("*.log", "*.txt", "*.out", "*.csv", "*.tsv", "*.jsonl", "*.json", "*tfevents*", "*.gz"),
    *("*.wandb", "*.ipynb"),
)
OURS = ("sweep.json", "summary.json")  # beside run folders: a row a run, not a step
BROKEN = (OSError, EOFError, UnicodeError, csv.Error, gzip.zlib.error)


def read_logs(path: Path | str, mapping: Mapping[str, str] | None = None) -> list[Log]:
    """Every log of a file or a folder; `mapping` reads a column as another: {column: reward}.

    A folder gives one log a run in it: a run folder, a file, event files of one folder that go on
    with each other, or the last of a trainer's checkpoints. Raises Unreadable, in one line, where
    nothing can be read (what was looked for, and the columns that were seen) or where no log has a
    column that is mapped.
    """
    path = Path(path)
    if str(path) == "-" or (path.exists() and not (path.is_file() or path.is_dir())):
        raise Unreadable(f"{path}: a pipe cannot be read; write it to a file first")
    if not path.exists():
        raise Unreadable(f"{path}: no such file or folder")
    logs, said = [], []
    for files in [[path]] if path.is_file() else _runs(_files(path)):
        try:
            logs += read_file(files[0], mapping, files[1:])
        except Unreadable as error:
            if path.is_file():
                raise
            said.append(str(error))
    if not logs:
        tried = f"; {len(said)} files tried, the first: {said[0]}" if said else ""
        raise Unreadable(f"{path}: no training log in this folder{tried}")
    return logs


def read_file(
    path: Path, mapping: Mapping[str, str] | None = None, later: Sequence[Path] = ()
) -> list[Log]:
    """The logs of one file: one, but for a W&B chart export with several runs side by side.

    `later` are the event files after it in its folder, which may go on with its run. Raises
    Unreadable as `read_logs` does.
    """
    wanted = {column: _our_name(ours) for column, ours in (mapping or {}).items()}
    try:
        logs = [log.close() for log in _read(path, wanted, later)]
    except BROKEN as error:
        raise Unreadable(f"{path}: cannot be read ({one_line(error)})") from error
    for log in logs:
        log.path, log.name = log.path or path, printable(log.name)
    seen = {name: None for log in logs for name in log.seen}
    words = {name: None for log in logs for name in log.words if name not in seen}
    for column in wanted:
        if not any(column in log.mapped.values() for log in logs):
            no = "no number in the" if column in words else "no"
            raise Unreadable(f"{path}: {no} column {column!r} to map; {_columns(seen, words)}")
    kept = [log for log in logs if log.rows and kind_of(log).word != "none"]
    if not kept:
        looked = "a reward such as critic/score/mean, reward or reward/mean"
        raise Unreadable(
            f"{path}: no training log; looked for {looked}; {_columns(seen, words, True)}"
        )
    return kept


_IN_NAME = re.compile(rb"[\w/.-]")


def count_in_file(path: Path, column: str) -> int | None:
    """How often a text file names a column with a number behind it; None where that is unknown.

    Found in another way than rows are, so that rows which were never read show.
    """
    if "tfevents" in path.name or path.suffix in (".wandb", ".ipynb"):
        return None
    value = rb"\\?['\"]?(?:np\.\w+\()?(?:[-+.]*\d|nan|NaN|[-+]?[iI]nf)"
    named = re.compile(re.escape(column.encode()) + rb"\\?['\"]?\s*[:=]\s*" + value)
    try:
        with _open(path) as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                return None
            found = 0
            while lines := file.readlines(1 << 20):
                text = b"\n" + b"".join(lines)
                starts = (match.start() - 1 for match in named.finditer(text))
                found += sum(not _IN_NAME.match(text, at) for at in starts)
            return found or None
    except BROKEN:
        return None


def _our_name(ours: str) -> str:
    if ours in SIGNALS:
        return SIGNALS[ours].names[0]
    if ours in ("step", "heldout"):
        return {"step": "step", "heldout": "eval_reward"}[ours]
    known = ", ".join(["step", "heldout", *SIGNALS])
    raise ValueError(f"--map {ours}=...: no such signal; known are {known}")


def _columns(seen: Mapping[str, None], words: Mapping[str, None], hint: bool = False) -> str:
    if not seen and not words:
        return "found no rows"
    unread = f"columns without a number: {_few(words)}" if words else ""
    named = " (name yours with --map reward=COLUMN)" if hint else ""
    shown = "; ".join(filter(None, [f"its columns: {_few(seen)}" if seen else "", unread]))
    return f"found {shown}{named}"


def _few(names: Mapping[str, None]) -> str:
    return ", ".join(list(names)[:12]) + (", ..." if len(names) > 12 else "")


def _files(folder: Path) -> list[Path]:
    """The logs in a folder; of a run folder its metrics alone, of a checkpoint its state."""
    if (folder / "metrics.jsonl").is_file():
        return [folder / "metrics.jsonl"]
    if (folder / "trainer_state.json").is_file():
        return [folder / "trainer_state.json"]
    found = {file for pattern in LOGS for file in folder.glob(pattern) if file.is_file()}
    inner = [sub for sub in folder.iterdir() if sub.is_dir() and not sub.is_symlink()]
    if any((sub / "metrics.jsonl").is_file() for sub in inner):
        found -= {folder / name for name in OURS}
    last: list[Path] = []  # a checkpoint's state holds that of the ones before it
    for sub in sorted(filter(_checkpoint, inner), key=_checkpoint):
        last = _files(sub) or last
    deeper = [file for sub in sorted(inner) if not _checkpoint(sub) for file in _files(sub)]
    return sorted(found) + last + deeper


def _checkpoint(folder: Path) -> int:
    """The step of a trainer's checkpoint folder; 0 for another folder."""
    number = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(number[1]) if number and (folder / "trainer_state.json").is_file() else 0


def _runs(files: Sequence[Path]) -> list[list[Path]]:
    """The files that may hold one run: the event files of a folder, by time, else each alone."""
    together: dict[Path, list[tuple[int, Path]]] = {}
    for file in files:
        began = re.match(r"events\.out\.tfevents\.(\d+)\.", file.name)
        key = file.parent if began else file
        together.setdefault(key, []).append((int(began[1]) if began else 0, file))
    return [[file for _, file in sorted(group)] for group in together.values()]


# -- which format ----------------------------------------------------------------------------------


def _read(path: Path, wanted: Columns, later: Sequence[Path]) -> Iterable[Log]:
    with _open(path) as file:
        head = file.read(HEAD)
    if head.startswith(WANDB_HEAD) or path.suffix == ".wandb":
        return [wandb(path, wanted)]
    if b"brain.Event" in head[:64] or "tfevents" in path.name:
        return tensorboard([path, *later], wanted)
    text, start = _decoded(path, head)
    return _text(path, text, start, wanted)


def _decoded(path: Path, head: bytes) -> tuple[Iterable[str], str]:
    """The lines of a text file, and its first characters."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell's > writes
        text = io.TextIOWrapper(_open(path), "utf-16", errors="replace")
        return text, head.decode("utf-16", errors="replace")
    return _lines(_open(path)), head.decode("utf-8-sig", errors="replace")


def lines_of(path: Path) -> Iterator[str]:
    """The lines that a process printed, whatever holds them: plain, gzip, UTF-16, a notebook's log.

    Escape sequences are still in them. Raises Unreadable for a file that cannot be opened.
    """
    try:
        with _open(path) as file:
            lines, head = _decoded(path, file.read(HEAD))
        start = head.lstrip()
        if is_stream(start):
            lines = stream(lines)
        elif path.suffix == ".ipynb":
            lines = notebook(lines) or ()
        for line in lines:
            yield line.rstrip("\0\r\n")
    except BROKEN as error:
        raise Unreadable(f"{path}: cannot be read ({one_line(error)})") from error


def _text(path: Path, lines: Iterable[str], head: str, wanted: Columns) -> list[Log]:
    start = head.lstrip()
    if is_stream(start):
        log = console(path, stream(lines), wanted)
        log.format = f"notebook log (Kaggle), {log.format}"
        return [log]
    if path.suffix == ".ipynb":
        log = console(path, notebook(lines) or (), wanted)
        log.format = f"notebook, {log.format}"
        return [log]
    if start.startswith(("{", "[")):
        first = parsed(start.split("\n", 1)[0])
        several = "\n" in start.rstrip() or path.suffix == ".jsonl"  # one row so far
        if isinstance(first, dict) and several and "log_history" not in first:
            return [json_lines(path, lines, wanted)]
        if first is not None or start[1:].lstrip()[:1] in ('"', "{", "[", ""):
            return [document(path, lines, wanted)]
    mark = delimiter(head)
    if mark:
        return table(path, lines, mark, wanted)
    return [console(path, lines, wanted)]


def _open(path: Path) -> BinaryIO:
    file = path.open("rb")
    if file.read(2) == b"\x1f\x8b":
        file.close()
        return gzip.open(path, "rb")
    file.seek(0)
    return file


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines that end in \\n or \\r (a progress bar's).

    A last line without its end is half-written and ends in a mark that no number parses with.
    """
    with file:
        rest, first = b"", True
        while chunk := file.read(1 << 20):
            if first:
                chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
            *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in whole:
                if line:
                    yield line[:LINE].decode("utf-8", errors="replace")
            rest = rest[:LINE]
        if rest:
            yield rest.decode("utf-8", errors="replace") + "\0"
