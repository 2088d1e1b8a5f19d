"""A log as it was read: columns of numbers, and what else is known of the file."""

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lldlib.doctor.reading.signals import read_name

NAN = float("nan")
NAMES = 400  # column names that are remembered for a message
MOST_NAMES = 20_000  # names whose meaning is remembered
BARE = ("logs", "metrics", "log", "data", "train", "stats", "values")  # nesting that says nothing
DEPTH = 4  # levels of nesting that are read
SETTINGS = re.compile(r"(?:args|config|cfg|hparams|hyper_?parameters|settings)/", re.I)
BOOLEANS = frozenset({"skipped", "skip"})  # of these true and false are read as NAME (true)

Row = dict[str, float | int]
Columns = Mapping[str, str]  # the log's name of a column -> one of our names for it


class Unreadable(ValueError):
    """No rows were found; the message is one line that says what was looked for."""

    def __init__(self, message: str):
        super().__init__(printable(message))  # a broken name may hold any kind of line end


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")


def plain(text: str) -> str:
    """The text without the escape sequences of a terminal."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def printable(text: str) -> str:
    """One line that is safe to print: no escape sequence, control character or line end."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    kept = (c if unicodedata.category(c)[0] != "C" else " " for c in plain(text))
    return " ".join("".join(kept).split())


@dataclass(frozen=True)
class Ending:
    """How the process ended, where the end of a console log tells it."""

    how: Literal["crash", "killed", "saving", "stopped"]  # saving: while a file was written
    says: str  # the last line of the error


@dataclass
class Log:
    """What a file holds: columns of one length; NaN is no value, inf one that is not finite."""

    name: str
    format: str
    columns: dict[str, array] = field(default_factory=dict)
    rows: int = 0
    seen: dict[str, None] = field(default_factory=dict)  # every column's name, kept or not
    words: dict[str, None] = field(default_factory=dict)  # columns that hold text
    notes: list[str] = field(default_factory=list)
    refused: Counter = field(default_factory=Counter)  # rows left out, by the reason
    mapped: dict[str, str] = field(default_factory=dict)  # our name -> the column given by --map
    ending: Ending | None = None
    path: Path | None = None
    latest: Row = field(default_factory=dict)  # the last summary row, such as TRL's train_runtime
    ours: dict[str, str | None] = field(default_factory=dict)  # a column's name -> its key, or None

    def add(self, row: Mapping[str, float | int], wanted: Columns) -> bool:
        """Append a row; a column that begins late is filled up with NaN. Whether it was kept."""
        kept = False
        for name, value in row.items():
            key = self.ours[name] if name in self.ours else self._key(name, wanted)
            if key is None:
                continue
            column = self.columns.setdefault(key, array("d"))
            if len(column) < self.rows:
                column.extend([NAN] * (self.rows - len(column)))
            if len(column) == self.rows:
                column.append(value if value == value else math.inf)  # a NaN that was logged
            kept = True
        self.rows += kept
        return kept

    def _key(self, name: str, wanted: Columns) -> str | None:
        """Under which name a column is kept; None for one that nothing reads."""
        clean = printable(name)
        self.saw(clean)
        ours = wanted.get(clean, wanted.get(name, clean))
        if ours != clean:
            self.mapped[ours] = clean
        key = ours if read_name(ours) else None
        if len(self.ours) < MOST_NAMES:
            self.ours[name] = key
        return key

    def saw(self, name: str, text: bool = False) -> None:
        """Remember that the file has a column of this name."""
        names = self.words if text else self.seen
        if len(names) < NAMES:
            names[printable(name)] = None

    def close(self) -> "Log":
        """Bring all columns to one length."""
        for column in self.columns.values():
            column.extend([NAN] * (self.rows - len(column)))
        return self

    def keep(self, rows: list[bool]) -> None:
        """Leave out the rows that are False."""
        self.close()
        for name, column in self.columns.items():
            kept = (v for v, k in zip(column, rows, strict=True) if k)
            self.columns[name] = array("d", kept)
        self.rows = sum(rows)


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
    if bare[-1:].isdigit() and bare[:1] in "+-.0123456789" and "_" not in bare:
        try:
            return float(bare)
        except ValueError:
            pass
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


def numbers(row: Mapping[object, object], log: Log | None = None) -> Row:
    """The numbers of a row; what is nested is written group/name.

    Settings are left out, and `log` is told the names of columns that hold text.
    """
    found: Row = {}
    for name, value in _flat(row):
        if isinstance(value, bool) and name in BOOLEANS:
            name, value = f"{name} (true)", float(value)
        known = number(value)
        if known is not None:
            found[name] = known * read_name(name).scale
        elif log is not None and isinstance(value, str):
            log.saw(name, text=True)
    return found | _share(found)


def _flat(row: Mapping[object, object], depth: int = DEPTH) -> list[tuple[str, object]]:
    flat: list[tuple[str, object]] = []
    for name, value in row.items():
        name = str(name)
        if isinstance(value, Mapping):
            lead = "" if name in BARE else f"{name}/"
            inner = _flat(value, depth - 1) if depth and not SETTINGS.fullmatch(f"{name}/") else []
            flat += [(f"{lead}{k}", v) for k, v in inner]
        elif isinstance(value, list) and value and isinstance(value[0], (str, Mapping)):
            flat.append((name, "text"))
        elif not SETTINGS.match(name):
            flat.append((name, value))
    return flat


def _share(row: Row) -> Row:
    """A mean reward where a row holds a sum of rewards and their number."""
    for name, value in row.items():
        if name.endswith("total_reward"):
            count = row.get(f"{name[: -len('total_reward')]}total_num")
            if count:
                return {"total_reward/total_num": value / count}
    return {}


def is_settings(row: Mapping[object, object]) -> bool:
    """Whether a row holds the run's configuration and nothing measured."""
    return str(row.get("type", "")).lower() in ("config", "args", "header", "meta", "hparams")


def is_summary(row: Mapping[object, object]) -> bool:
    """Whether a row sums the run up, as TRL's last one does."""
    return "train_runtime" in row
