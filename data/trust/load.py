"""A search service under load: python data/trust/load.py --minutes 10 [--clients 64] [--seed 0]

`lldlib serve` runs as a process of its own over passages that are made from a seed. Each passage
holds one word that no other has, so the first hit of a query with that word is known. Every client
asks one query after another. Prints how long the answers took, how many a second came, what went
wrong, and the memory of the service before and after.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lldlib.retrieval import RetrieverError
from lldlib.retrieval.client import HTTPRetriever, RetryConfig

PASSAGES = 30_956  # as many as the corpus of the recorded benchmarks
ONCE = RetryConfig(timeout=60.0, attempts=1)


class Asked(NamedTuple):
    """One query: how long its answer took, and what was wrong with it ("": nothing)."""

    seconds: float
    wrong: str


def texts(count: int, seed: int) -> list[str]:
    """Passages of 20 to 120 words, frequent and rare ones; only the n-th holds "id<n>x"."""
    rng, known = random.Random(seed), [f"w{number}" for number in range(20_000)]
    shares = [1 / (rank + 1) for rank in range(len(known))]
    return [
        " ".join([*rng.choices(known, shares, k=rng.randint(20, 120)), f"id{number}x"])
        for number in range(count)
    ]


def ask(url: str, passages: Sequence[str], rng: random.Random) -> Asked:
    """One query with the word of one passage and some of its others."""
    number = rng.randrange(len(passages))
    query = " ".join([f"id{number}x", *rng.sample(passages[number].split(), 5)])
    start, wrong = time.monotonic(), ""
    try:
        (hits,) = HTTPRetriever(url, ONCE).scored([query], 3)
        if not hits or hits[0].passage.text != passages[number]:
            wrong = "another passage"
    except RetrieverError as error:
        wrong = str(error)
    return Asked(time.monotonic() - start, wrong)


def load(
    url: str, passages: Sequence[str], clients: int, seed: int, more: Callable[[int], bool]
) -> list[Asked]:
    """The queries of all clients, each of which asks while `more(queries that it has asked)`."""
    found: list[list[Asked]] = [[] for _ in range(clients)]

    def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while more(len(found[number])):
            found[number].append(ask(url, passages, rng))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for each in found for one in each]


def memory(process: int) -> float:
    """Megabytes that a process holds now."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    """Serve, ask, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--passages", type=int, default=PASSAGES)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    passages = texts(given.passages, given.seed)
    with tempfile.TemporaryDirectory(prefix="load") as folder:
        corpus = Path(folder, "corpus.jsonl")
        rows = ({"id": str(n), "title": "", "text": text} for n, text in enumerate(passages))
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = [sys.executable, "-m", "lldlib", "serve", "--corpus", str(corpus)]
        words += ["--index", str(Path(folder, "index")), "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            url = server.stdout.readline().split()[1]
            ask(url, passages, random.Random(given.seed))
            before, start = memory(server.pid), time.monotonic()
            end = start + 60 * given.minutes
            found = load(
                url, passages, given.clients, given.seed, lambda done: time.monotonic() < end
            )
            took, after = time.monotonic() - start, memory(server.pid)
            server.terminate()
    wrong = [one.wrong for one in found if one.wrong]
    shares = np.percentile([one.seconds for one in found], [50, 90, 99, 100])
    print(*wrong[:5], sep="\n", end="\n" * bool(wrong))
    print(f"{len(found)} queries in {took:.0f} s, {len(found) / took:.1f} a second")
    print("seconds, p50 p90 p99 max:", *(f"{share:.2f}" for share in shares))
    print(f"{len(wrong)} wrong; memory {before:.0f} MB before, {after:.0f} MB after")
    print(f"load of the machine: {os.getloadavg()}")


if __name__ == "__main__":
    main()
