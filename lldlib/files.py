"""Files of every kind: JSON lines, others' text, writing whole or not at all, Markdown tables."""

import errno
import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from io import BufferedIOBase, TextIOWrapper
from pathlib import Path
from typing import Any

LINE = 64_000_000  # bytes of a line, at most; the longest of a question set is some 100,000
_NO_CHARACTER = re.compile("[\ud800-\udfff\0]")
# what looking at a folder leaves in it: macOS, Windows, Jupyter
LEFT_BY_VIEWERS = (".DS_Store", "._*", "Thumbs.db", "desktop.ini", ".ipynb_checkpoints")
UNFINISHED = ".lldlib.tmp"  # end of the name of a file that is being written


def clean(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which no file or tokenizer takes, and for NUL."""
    return text if text.isascii() and "\0" not in text else _NO_CHARACTER.sub("\ufffd", text)


def one_line(text: str, most: int = 200) -> str:
    """Text of others for an error or a terminal: a line of printable characters, cut at `most`."""
    line = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return line if len(line) <= most else f"{line[:most]} ..."


def shown(text: str) -> str:
    """Text of others for a terminal: line ends stay, what else does not print is a space."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def lines_of(file: BufferedIOBase, name: Path | str) -> Iterator[bytes]:
    """The lines of an open file, with their ends; ValueError for one that is over LINE long."""
    for number, line in enumerate(iter(lambda: file.readline(LINE + 1), b""), start=1):
        if len(line) > LINE:
            raise ValueError(f"{name}:{number}: a line of over {LINE:,} bytes; break it up")
        yield line


class Foreign(str):
    """Cleaned text that neither the policy nor this project wrote: questions, passages, answers.

    `rollout.loop.TokenText.encode` lets no special token come out of it.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> "Foreign":
        return super().__new__(cls, clean(text))


def missing(path: Path) -> str:
    """What is wrong with a path that is no file."""
    if path.is_dir():
        return f"{path} is a folder: give a file"
    return f"{path}: no such file; check the path"


def read_jsonl(path: Path | str) -> Iterator[tuple[str, dict]]:
    """Yield ("file:line", object) for every non-empty line.

    Raises FileNotFoundError for a missing file, and ValueError for a line that is not a JSON
    object (naming file and line) or for a damaged gzip file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(missing(path))
    with reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as lines:
        for number, line in enumerate(lines_of(lines, path), start=1):
            where = f"{path}:{number}"
            if line.strip():
                yield where, _object(line, where)


def open_text(path: Path | str) -> TextIOWrapper:
    """A text file (UTF-8, a byte-order mark is skipped), unpacked where its name ends in .gz."""
    path = Path(path)
    return (gzip.open if path.suffix == ".gz" else open)(
        path, "rt", encoding="utf-8-sig", newline=""
    )


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """In this context what a damaged file raises names the file, in one line."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error}); fetch it again, or convert it") from error


def load_json(data: bytes | str) -> Any:
    """The value of a JSON text; ValueError too where it is nested deeper than can be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(line: bytes, where: str) -> dict:
    try:
        row = load_json(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error}); want one object a line") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: want a JSON object, got {type(row).__name__}")
    return row


def text_field(row: dict, name: str, where: str) -> str:
    """The text under `name`; ValueError naming the line where it is missing or not text."""
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{where}: field '{name}' is missing or not text")
    return value


def write_whole(path: Path | str, content: str | bytes) -> None:
    """Write a text (as UTF-8) or bytes so that a kill leaves the old file or the new one."""
    path = Path(path)
    fresh = path.with_name(f"{path.name}{UNFINISHED}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        os.replace(fresh, path)


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """In this context an OSError says in one line what cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            f"cannot write {path} ({reason}): make room, or use another folder"
        ) from error


def claim(folder: Path | str, command: str, *made: str) -> None:
    """Make a folder for what a command writes, where there is none.

    `made` are patterns of the names that the command gives. ValueError for a folder that holds
    anything else, OSError for one that cannot be written.
    """
    folder = Path(folder)
    refuse_foreign(folder, command, *made)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def refuse_foreign(folder: Path, command: str, *made: str) -> None:
    """ValueError, naming one, where the folder holds anything but what the command makes.

    What a kill left of a file that was being written does not count.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder")
    held = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
    held = [name for name in held if not any(fnmatchcase(name, p) for p in LEFT_BY_VIEWERS)]
    for name in held:
        if not any(fnmatchcase(name, pattern) for pattern in (*made, f"*{UNFINISHED}")):
            raise ValueError(
                f"{folder} holds {name}, which {command} did not make: name a new folder, or move "
                "that away"
            )


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to fill, which then takes its place; none stays after an error.

    `path` must not exist by then, or be empty: FileExistsError where another came first.
    """
    if path.resolve() == Path.cwd():
        raise ValueError(f"{path} is the folder that you are in, which nothing can replace")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        fresh.chmod(0o777 & ~_umask())
        yield fresh
        if fresh.exists():
            _take_place(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _take_place(fresh: Path, path: Path) -> None:
    try:
        if os.name == "nt" and path.is_dir():  # Windows replaces no folder, not even an empty one
            path.rmdir()
        os.replace(fresh, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise FileExistsError(f"{path} exists: another made it meanwhile, so use another") from None


@contextmanager
def remade_folder(folder: Path, command: str, mark: str, *made: str) -> Iterator[Path]:
    """`new_folder` in the place of one that the command made before, of which no file stays.

    `mark` is the name of a file that is in each folder that it makes, `made` are patterns of the
    others' names. ValueError for a folder that holds anything else, before anything is made.
    """

    def refuse() -> None:
        files = (mark, *made) if (folder / mark).is_file() else ()  # else a name proves nothing
        refuse_foreign(folder, command, *files)
        for inner in (path for path in folder.glob("*") if path.is_dir()):
            raise ValueError(f"{folder} holds the folder {inner.name}: name a new folder")

    folder = folder.resolve()
    refuse()
    with new_folder(folder) as fresh:
        yield fresh
        refuse()  # it may have got something meanwhile
        # the mark goes last, so that after a kill the rest is still known as made here
        for old in sorted(folder.glob("*"), key=lambda path: path.name == mark):
            old.unlink()


def _umask() -> int:
    """The mask of a new file's rights, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def merge_jsonl(path: Path, new: Sequence[dict], name: Callable[[dict], Hashable]) -> list[dict]:
    """Add objects to a gzipped file of JSON lines; returns all that it then holds.

    Lines that it holds already under a `name` of a new one are replaced.
    """
    taken = {name(row) for row in new}
    held = [row for _, row in read_jsonl(path)] if path.exists() else []
    rows = [row for row in held if name(row) not in taken] + list(new)
    write_whole(path, gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return rows


def write_json(path: Path | str, value: Any) -> None:
    """`write_whole` of a value as JSON that people can read."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are Markdown already; without a newline at its end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
