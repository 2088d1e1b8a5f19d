"""Mutated cuts of real logs: each must be read, or refused in one line.

    python data/doctor/fuzz.py FOLDER [--count 1000] [--seed 0] [--minutes 20]

A cut is 20 to 60 KB of one log; then bits are flipped, lines cut, doubled or swapped, and encodings
broken. Prints every other exception with the seed that makes it, and how many cuts went each way.
"""

import argparse
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lldlib.doctor.page import as_html, as_markdown, as_object, as_text, diagnose
from lldlib.doctor.readers import Unreadable

CUT = (20_000, 60_000)  # bytes


def main() -> None:
    """Fuzz, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0)
    given = parser.parse_args()
    files = [f for f in sorted(given.folder.iterdir()) if f.suffix != ".md" and f.is_file()]
    ways, start, done = Counter(), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.count):
            ways[one(files, seed, Path(folder))] += 1
            done += 1
            if time.monotonic() - start > 60 * given.minutes:
                break
    took = time.monotonic() - start
    print(f"{done} cuts in {took:.0f} s, {done / took:.0f} a second: {dict(ways)}")


def one(files: list[Path], seed: int, folder: Path) -> str:
    """Mutate one cut and diagnose it: `read`, `refused`, or `FAILED` with its traceback."""
    chance = random.Random(seed)
    file = chance.choice(files)
    target = folder / f"cut{'' if file.suffix.startswith('.0') else file.suffix}"
    target.write_bytes(mutated(cut(file, chance), chance))
    try:
        for found in diagnose(target):
            as_text(found), as_markdown(found), as_object(found)
            if seed % 500 == 0:
                as_html(found)
    except Unreadable as error:
        if "\n" in str(error):
            print(f"seed {seed}, {file.name}: more than one line: {error}")
            return "FAILED"
        return "refused"
    except Exception:
        print(f"seed {seed}, {file.name}:\n{traceback.format_exc()}", flush=True)
        return "FAILED"
    return "read"


def cut(file: Path, chance: random.Random) -> bytes:
    """20 to 60 KB of a file, from its start or from anywhere."""
    size = file.stat().st_size
    length = min(chance.randint(*CUT), size)
    begin = 0 if chance.random() < 0.5 else chance.randint(0, size - length)
    with file.open("rb") as opened:
        head = b"" if begin == 0 or chance.random() < 0.5 else opened.readline()[:20_000]
        opened.seek(begin)
        return head + opened.read(length)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to three mutations."""
    for _ in range(chance.randint(1, 3)):
        data = chance.choice(MUTATIONS)(data, chance)
    return data


def _flip(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 200) if out else 0):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def _cut_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 20)):
        i = chance.randrange(len(lines))
        lines[i] = lines[i][: chance.randint(0, len(lines[i]))]
    return b"\n".join(lines)


def _swap(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 20)):
        i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines + lines[: chance.randint(0, len(lines))])


def _encode(data: bytes, chance: random.Random) -> bytes:
    text = data.decode("latin-1")
    kind = chance.choice(("utf-16", "utf-16-be", "utf-32", "cp1252", "utf-8"))
    return text.encode(kind, errors="replace")


def _junk(data: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.randbytes(chance.randint(1, 2000)) + data[at:]


def _numbers(data: bytes, chance: random.Random) -> bytes:
    odd = (
        b"nan",
        b"inf",
        b"-inf",
        b"1e999",
        b"-1e308",
        b"",
        b"1e-320",
        b"True",
        b"null",
        b"9" * 400,
    )
    parts = data.split(b"0.")
    for _ in range(chance.randint(1, 50)):
        i = chance.randrange(len(parts))
        parts[i] += chance.choice(odd)
    return b"0.".join(parts)


def _none(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _cut_lines,
    _swap,
    _encode,
    _junk,
    _numbers,
    _none,
)

if __name__ == "__main__":
    main()
