"""Files that are far too large or deep: python data/trust/large.py [--bytes 1000000000]

Each reader of `strangers.py`, and the doctor, is given a line of a gigabyte, an object of a million
keys, a table of a million columns, and a million brackets. Each is read or refused by a line, in a
process of its own. Prints how, with the processor time and the memory above what a process has
that reads nothing.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from strangers import READERS, REFUSED

from lldlib.doctor.page import as_html, diagnose

MANY = 1_000_000


def gigabyte(size: int) -> Iterator[bytes]:
    """One line: an object with a text of so many bytes."""
    yield b'{"step": 0, "id": "'
    for _ in range(size // 1_000_000):
        yield b"a" * 1_000_000
    yield b'"}\n'


def keys(size: int) -> Iterator[bytes]:
    """An object of a million keys."""
    yield json.dumps({"step": 0} | {f"group/{n}": n for n in range(MANY)}).encode() + b"\n"


def columns(size: int) -> Iterator[bytes]:
    """A table of a million columns."""
    names = ",".join(f"c{n}" for n in range(MANY))
    row = ",".join("1" * MANY)
    yield f"step,{names}\n0,{row}\n1,{row}\n".encode()


def brackets(size: int) -> Iterator[bytes]:
    """A million brackets."""
    yield b'{"step": 0, "id": ' + b"[" * MANY + b"\n"


FILES = {
    "line of a gigabyte": ("jsonl", gigabyte),
    "object of a million keys": ("jsonl", keys),
    "table of a million columns": ("csv", columns),
    "a million brackets": ("jsonl", brackets),
}


def read(name: str, file: Path) -> None:
    """Read a file as one of the readers, or as the doctor with its page."""
    if name == "doctor":
        as_html(diagnose(file)[0])
    else:
        READERS[name].read(file)


def measured(work: Callable[..., None], *args: object) -> tuple[str, float, int]:
    """How it went in a process of its own, its processor seconds, and its largest memory in kB."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_report, args=(theirs, work, args))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return f"killed by {process.exitcode}", 0.0, 0
    finally:
        process.join()


def _report(pipe: multiprocessing.connection.Connection, work: Callable, args: tuple) -> None:
    before = time.process_time()
    try:
        work(*args)
        way = "read"
    except REFUSED as error:
        way = f"refused: {str(error)[-70:]}"
    except Exception as error:
        way = f"WRONG: {type(error).__name__}: {str(error)[:100]}"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send((way, time.process_time() - before, most))


def main() -> None:
    """Try each file with each reader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="of the long line")
    given = parser.parse_args()
    _, _, idle = measured(time.sleep, 0)
    for title, (end, parts) in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"file.{end}"
            with file.open("wb") as out:
                out.writelines(parts(given.bytes))
            for name in ("doctor", *READERS):
                way, seconds, most = measured(read, name, file)
                more = (most - idle) / 1e3
                print(f"{title}, {name}: {seconds:.1f} s, {more:.0f} MB: {way}", flush=True)


if __name__ == "__main__":
    main()
