"""Training logs of any framework -> named columns with one value a row.

Read line by line: only the columns that `signals` knows (or that the caller maps) are kept, so a
log of any size fits. What is half-written, cut or no number is left out, never guessed.
"""

import csv
import gzip
import io
import json
import math
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from lldlib.doctor.signals import GUESSED, SIGNALS, read_name

NAN = float("nan")
Row = dict[str, float | int]
HEAD = 65_536  # bytes at the start of a file by which its format is told
LINE = 4_000_000  # bytes of a line that are read; what follows in that line is not
WANDB_CUT = 4_095  # W&B's output.log cuts its lines at 4,096 characters: the last number is half
NAMES = 400  # column names that are remembered for a message
LOGS = ("*.log", "*.txt", "*.out", "*.csv", "*.tsv", "*.jsonl", "*.json", "*tfevents*", "*.gz")


class Unreadable(ValueError):
    """No rows were found; the message is one line that says what was looked for."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))  # a broken name may hold any kind of line end


@dataclass
class Log:
    """What a file holds: columns of one length; NaN is no value, inf one that is not finite."""

    name: str
    format: str
    columns: dict[str, array] = field(default_factory=dict)
    rows: int = 0
    seen: dict[str, None] = field(default_factory=dict)  # every column's name, kept or not
    notes: list[str] = field(default_factory=list)

    def add(self, row: Mapping[str, float | int], wanted: Mapping[str, str]) -> None:
        """Append a row; a column that begins late is filled up with NaN."""
        kept = False
        for name, value in row.items():
            ours = wanted.get(name, name)
            if name in wanted:
                self.seen[name] = None
            column = self.columns.get(ours)
            if column is None:
                if len(self.seen) < NAMES:
                    self.seen[name] = None
                if not read_name(ours):
                    continue
                column = self.columns[ours] = array("d")
            column.extend([NAN] * (self.rows - len(column)))
            if len(column) == self.rows:
                column.append(value if value == value else math.inf)  # a NaN that was logged
            kept = True
        self.rows += kept

    def close(self) -> "Log":
        """Bring all columns to one length."""
        for column in self.columns.values():
            column.extend([NAN] * (self.rows - len(column)))
        return self


def read_logs(path: Path | str, mapping: Mapping[str, str] | None = None) -> list[Log]:
    """Every log of a file or a folder; `mapping` reads a column as another: {column: reward}.

    A folder gives one log a run folder or file in it. Raises Unreadable, in one line, where nothing
    can be read: what was looked for, and the columns that were seen.
    """
    path = Path(path)
    if not path.exists():
        raise Unreadable(f"{path}: no such file or folder")
    if path.is_file():
        return read_file(path, mapping)
    logs, said = [], []
    for file in _files(path):
        try:
            logs += read_file(file, mapping)
        except Unreadable as error:
            said.append(str(error))
    if not logs:
        tried = f"; {len(said)} files tried, the first: {said[0]}" if said else ""
        raise Unreadable(f"{path}: no training log in this folder{tried}")
    return logs


def read_file(path: Path, mapping: Mapping[str, str] | None = None) -> list[Log]:
    """The logs of one file: one, but for a W&B chart export with several runs side by side.

    Raises Unreadable as `read_logs` does.
    """
    wanted = {column: _our_name(ours) for column, ours in (mapping or {}).items()}
    try:
        logs = [log.close() for log in _read(path, wanted)]
    except (OSError, EOFError, UnicodeError, csv.Error, gzip.zlib.error) as error:
        raise Unreadable(f"{path}: cannot be read ({_one_line(error)})") from error
    logs = [log for log in logs if log.rows and any(read_name(c).signals for c in log.columns)]
    seen = dict.fromkeys(name for log in logs for name in log.seen)
    for column in wanted if logs else ():
        if column not in seen:
            raise Unreadable(f"{path}: no column {column!r}, which --map names; {_columns(seen)}")
    if not logs:
        raise Unreadable(_nothing(path, wanted))
    return logs


def _our_name(ours: str) -> str:
    if ours in SIGNALS:
        return SIGNALS[ours].names[0]
    if ours in ("step", "heldout"):
        return {"step": "step", "heldout": "eval_reward"}[ours]
    known = ", ".join(["step", "heldout", *SIGNALS])
    raise ValueError(f"--map {ours}=...: no such signal; known are {known}")


def _nothing(path: Path, wanted: Mapping[str, str]) -> str:
    seen: dict[str, None] = {}
    try:
        for log in _read(path, wanted):
            seen |= log.seen
    except (OSError, EOFError, UnicodeError, csv.Error, gzip.zlib.error):
        pass
    looked = "a reward such as critic/score/mean, reward or reward/mean"
    found = f"{_columns(seen)} (name yours with --map reward=COLUMN)" if seen else "no rows"
    return f"{path}: no training log that is known here; looked for {looked}; found {found}"


def _columns(seen: Collection[str]) -> str:
    names = list(seen)
    return f"its columns: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def _files(folder: Path) -> list[Path]:
    """The logs in a folder; of a run folder its metrics alone, of a checkpoint its state."""
    if (folder / "metrics.jsonl").is_file():
        return [folder / "metrics.jsonl"]
    if (folder / "trainer_state.json").is_file():
        return [folder / "trainer_state.json"]
    found = {file for pattern in LOGS for file in folder.glob(pattern) if file.is_file()}
    inner = [sub for sub in folder.iterdir() if sub.is_dir() and not sub.is_symlink()]
    deeper = [file for sub in sorted(inner) for file in _files(sub)]
    return sorted(found) + deeper


# -- which format ----------------------------------------------------------------------------------


def _read(path: Path, wanted: Mapping[str, str]) -> Iterable[Log]:
    with _open(path) as file:
        head = file.read(HEAD)
    if b"brain.Event" in head[:64] or "tfevents" in path.name:
        return [_tensorboard(path, wanted)]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell's > writes
        text = io.TextIOWrapper(_open(path), "utf-16", errors="replace")
        return _text(path, text, head.decode("utf-16", errors="replace"), wanted)
    return _text(path, _lines(_open(path)), head.decode("utf-8-sig", errors="replace"), wanted)


def _text(path: Path, lines: Iterable[str], head: str, wanted: Mapping[str, str]) -> list[Log]:
    start = head.lstrip()
    if start.startswith(("{", "[")):
        first = _object(start.split("\n", 1)[0])
        several = "\n" in start.rstrip() or path.suffix == ".jsonl"  # one row so far
        if isinstance(first, dict) and several and "log_history" not in first:
            return [_json_lines(path, lines, wanted)]
        if first is not None or start[1:].lstrip()[:1] in ('"', "{", "[", ""):
            return [_document(path, lines, wanted)]
    delimiter = _delimiter(head)
    if delimiter:
        return _table(path, lines, delimiter, wanted)
    return [_console(path, lines, wanted)]


def _open(path: Path) -> BinaryIO:
    file = path.open("rb")
    if file.read(2) == b"\x1f\x8b":
        file.close()
        return gzip.open(path, "rb")
    file.seek(0)
    return file


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines that end in \\n or \\r (a progress bar's), without control codes of a terminal.

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


def _delimiter(head: str) -> str | None:
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
        cells = [cell for row in rows for cell in row]
        numbers = sum(number(cell) is not None or not cell.strip() for cell in cells)
        alike = rows and {len(row) for row in rows[:-1] or rows} == {len(header)}
        if alike and numbers > len(cells) / 2:
            return mark
    return None


# -- numbers ---------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WRAPPED = re.compile(r"(?:np\.\w+|tensor|array|Decimal|float)\((.*?)(?:,\s*(?:device|dtype).*)?\)")
_SPECIAL = {"nan": NAN, "inf": math.inf, "-inf": -math.inf, "infinity": math.inf}


def number(text: object) -> float | int | None:
    """The number that a field holds, or None: `np.float64(0.5)`, `12.5%`, `nan`, `"0.5"`, `2/9`."""
    if isinstance(text, bool) or text is None:
        return None
    if isinstance(text, (int, float)):
        return _float(text)
    if not isinstance(text, str):
        return None
    bare = text.strip().strip("'\"")
    wrapped = _WRAPPED.fullmatch(bare)
    bare = wrapped[1] if wrapped else bare
    if _NUMBER.fullmatch(bare):
        return _float(bare)
    if bare.lower() in _SPECIAL or bare.lower().lstrip("+") in _SPECIAL:
        return _SPECIAL[bare.lower().lstrip("+")]
    if bare.endswith("%") and _NUMBER.fullmatch(bare[:-1].strip()):
        return _float(bare[:-1]) / 100
    head, slash, tail = bare.partition("/")
    return _float(head) if slash and head.isdigit() and tail.isdigit() else None


def _float(value: str | float | int) -> float:
    try:
        return float(value)
    except (OverflowError, ValueError):
        return NAN


def _numbers(row: Mapping[object, object]) -> Row:
    """The numbers of a row; one level of nesting is written group/name."""
    flat: dict[str, object] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{inner}": v for inner, v in value.items()}
        else:
            flat[str(name)] = value
    found = {name: number(value) for name, value in flat.items()}
    return {
        name: value * read_name(name).scale for name, value in found.items() if value is not None
    }


# -- JSON and tables -------------------------------------------------------------------------------


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_lines(path: Path, lines: Iterable[str], wanted: Mapping[str, str]) -> Log:
    log = Log(path.name, "JSON lines")
    if path.name == "metrics.jsonl" and (path.parent / "config.json").is_file():
        log.name, log.format = path.parent.name, "lldlib run folder"
    elif path.name == "wandb-history.jsonl":
        log.format = "W&B history"
    broken = 0
    for line in lines:
        row = _object(line.rstrip("\0"))
        broken += row is None and bool(line.strip()) and not line.endswith("\0")
        if isinstance(row, dict) and "train_runtime" not in row:
            log.add(_numbers(row), wanted)
    if broken:
        log.notes.append(f"{broken} broken line{'s' if broken > 1 else ''} left out")
    return log


_FLAT = re.compile(r"\{[^{}]*\}")


def _document(path: Path, lines: Iterable[str], wanted: Mapping[str, str]) -> Log:
    """One JSON document; a broken one gives the objects in it that are whole."""
    text = "\n".join(islice(lines, 5_000_000)).rstrip("\0")
    whole = _object(text)
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
        rows = inner or columns
    else:
        rows = (_object(found[0]) for found in _FLAT.finditer(text))
        log.format = "TRL trainer_state.json" if '"log_history"' in text else "JSON"
        log.notes.append("the JSON is cut or broken: only its whole objects were read")
    for row in rows:
        if isinstance(row, dict) and "train_runtime" not in row:
            log.add(_numbers(row), wanted)
    return log


def _table(path: Path, lines: Iterable[str], mark: str, wanted: Mapping[str, str]) -> list[Log]:
    """A CSV: one log, or one a run where W&B's chart export has several side by side."""
    csv.field_size_limit(LINE)
    rows = csv.reader(lines, delimiter=mark)
    header = next(rows, [])
    wandb = any(name.strip() in ("_step", "_runtime", "_timestamp") for name in header)
    runs, which = {}, []
    for name in header:
        run, dash, key = name.rpartition(" - ")
        skip = key.endswith(("__MIN", "__MAX"))
        which.append(None if skip else (run if dash else "", key if dash else name))
        if dash and not skip:
            runs[run] = Log(f"{path.name}: {run}", "W&B chart export (CSV)")
    form = "W&B export (CSV)" if wandb else "CSV"
    runs = runs or {"": Log(path.name, form)}
    for row in rows:
        if len(row) != len(header) or row[-1].endswith("\0"):
            continue  # a last line that is cut, or one from something else
        for run, log in runs.items():
            cells = [(w[1], f) for w, f in zip(which, row, strict=True) if w and w[0] in ("", run)]
            log.add(_numbers(dict(cells)), wanted)
    return list(runs.values())


# -- consoles --------------------------------------------------------------------------------------

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_RAY = re.compile(r"^\s*\([\w.:<>-]+(?: pid=\d+)?(?:, ip=[\d.]+)?\)\s?(?:\[repeated[^\]]*\])?\s*")
_VERL = re.compile(r"(?:^|[\s(])(?:step|global_step)\s*:\s*(\d+)(?=\s*(?:- |$|\0))")
_QUOTED = re.compile(
    r"""['"]([^'"]{1,120})['"]\s*:\s*((?:np\.\w+\()?['"]?[-+]?"""
    r"""(?:[\d.]+(?:[eE][-+]?\d+)?%?(?:/\d+)?|nan|NaN|inf|Infinity)['"]?\)?)\s*(?=[,}])"""
)
_LOOSE = re.compile(
    r"([A-Za-z_][\w/.@-]*(?: [a-z_]+)?)\s*[:=]\s*"
    r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?%?(?:/\d+)?|nan|inf))(?=[\s,;|)\]]|$)"
)


@dataclass
class _Seen:
    """What the lines of a console log gave so far, by the way they are written."""

    verl: Log
    trl: Log
    loose: Log
    pending: Row = field(default_factory=dict)  # a verl step that may go on in the next line
    step: float | None = None  # the last step named in a loose line
    brace: str = ""  # a dict that is printed over several lines
    text: bool = False  # Ray prefixes or ANSI were seen


def _console(path: Path, lines: Iterable[str], wanted: Mapping[str, str]) -> Log:
    """A console log: verl's `step:N - key:value`, TRL's dicts, or any `key: value` pairs."""
    seen = _Seen(
        Log(path.name, "verl console log"),
        Log(path.name, "TRL console log"),
        Log(path.name, "console log with key: value pairs"),
    )
    for raw in lines:
        cut = raw.endswith("\0") or WANDB_CUT <= len(raw) <= WANDB_CUT + 2
        line = _ANSI.sub("", raw.rstrip("\0")) if "\x1b" in raw else raw.rstrip("\0")
        line = _RAY.sub("", line) if line.lstrip().startswith("(") else line
        _take(seen, line, cut, wanted)
    if seen.pending:
        seen.verl.add(seen.pending, wanted)
    logs = (seen.verl, seen.trl, seen.loose)
    best = max(logs[:2], key=_rewards)
    best = best if _rewards(best) else max(logs, key=_rewards)
    for log in logs:
        best.seen |= log.seen
    return best


def _rewards(log: Log) -> int:
    """Rows with a reward."""
    log.close()
    columns = [
        c for n, c in log.columns.items() if any(s == "reward" for s, _ in read_name(n).signals)
    ]
    return max((sum(v == v for v in c) for c in columns), default=0)


def _take(seen: _Seen, line: str, cut: bool, wanted: Mapping[str, str]) -> None:
    found = _VERL.search(line) if "step" in line and ":" in line else None
    if found and " - " in line:
        if seen.pending:
            seen.verl.add(seen.pending, wanted)
        seen.pending = {"step": float(found[1])} | _pairs(line[found.end(1) :], cut, seen, wanted)
    elif seen.pending and line.lstrip().startswith("- ") and ":" in line:  # metrics over more lines
        seen.pending |= _pairs(" " + line.lstrip(), cut, seen, wanted)
    elif seen.brace or "{" in line:
        _dict(seen, line, wanted)
    elif not seen.verl.rows and ("=" in line or ":" in line):
        _loose(seen, line, cut, wanted)


def _pairs(text: str, cut: bool, seen: _Seen, wanted: Mapping[str, str]) -> Row:
    """`- key:value` pairs that are wanted; the last of a line that was cut is half a number."""
    row, names = {}, seen.verl.seen
    for part in text.split(" - ")[: -1 if cut else None]:
        name, colon, value = part.strip().rpartition(":")
        if not colon:
            continue
        if len(names) < NAMES:
            names[name] = None
        if name in wanted or read_name(name):
            known = number(value)
            if known is not None:
                row[name] = known * read_name(name).scale
    return row


def _dict(seen: _Seen, line: str, wanted: Mapping[str, str]) -> None:
    """TRL's `{'loss': 0.1, ...}`, on one line or on several."""
    text = seen.brace + line
    for found in _FLAT.finditer(text):
        pairs = dict(_QUOTED.findall(found[0]))
        if pairs and "train_runtime" not in pairs:
            seen.trl.add(_numbers(pairs), wanted)
    rest = text[text.rfind("{") :] if text.rfind("{") > text.rfind("}") else ""
    opened = rest[:2] in ("{'", '{"') or rest.strip() == "{"
    seen.brace = rest + " " if opened and len(rest) < 20_000 else ""


def _loose(seen: _Seen, line: str, cut: bool, wanted: Mapping[str, str]) -> None:
    """`step 10 | reward=0.3, kl: 0.01`; a line without a step belongs to the last one named."""
    if cut or len(line) > 5_000:
        return
    row = {name: number(value) for name, value in _LOOSE.findall(line)}
    row = {name: value for name, value in row.items() if value is not None and read_name(name)}
    step = re.search(r"\b(?:step|iter(?:ation)?|batch|update)\s*[#:=]?\s*\[?(\d+)", line, re.I)
    if step:
        row["step"] = seen.step = float(step[1])
    elif row and seen.step is not None:
        row["step"] = seen.step
    if any(read_name(name).signals for name in row):
        seen.loose.add(row, wanted)


# -- TensorBoard -----------------------------------------------------------------------------------


def _tensorboard(path: Path, wanted: Mapping[str, str]) -> Log:
    """The scalars of an event file, one row a step; a damaged end is left out."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError as error:
        raise Unreadable(f"{path}: to read TensorBoard files: pip install tensorboard") from error
    log, rows = Log(path.name, "TensorBoard event file"), {}
    for step, name, value in _events(EventFileLoader(str(path)), log):
        rows.setdefault(step, {})[name] = value
    for step in sorted(rows):
        log.add({"step": float(step)} | rows[step], wanted)
    return log


def _events(loader, log: Log) -> Iterator[tuple[int, str, float]]:
    from google.protobuf.message import DecodeError

    try:
        for event in loader.Load():
            for value in event.summary.value:
                scalar = _scalar(value)
                if scalar is not None:
                    yield event.step, value.tag, scalar
    except (DecodeError, ValueError, OverflowError, EOFError, OSError) as error:
        log.notes.append(f"the event file is damaged: read up to there ({_one_line(error)})")


def _scalar(value) -> float | None:
    if value.HasField("simple_value"):
        return float(value.simple_value)
    tensor = value.tensor
    if value.HasField("tensor") and not tensor.tensor_shape.dim:
        numbers = [*tensor.float_val, *tensor.double_val]
        return float(numbers[0]) if len(numbers) == 1 else None
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
