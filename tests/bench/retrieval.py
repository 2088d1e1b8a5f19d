"""Queries a second and memory of each search back end, at 1 k, 31 k and 1 M passages.

Every cell is a fresh process. Passages and queries are the real benchmark files' (wiki_passages,
hotpotqa_dev). The million is not real: the 31 thousand are repeated under new ids with the words
of each text shuffled, so lengths and word frequencies stay, and the vocabulary does not grow.
Top 3, one query at a time, seconds of the process's CPU time. Memory: its peak less what it held
before the corpus; an index on disk is made by another process first. Over HTTP, client and service
share one process. Made ready: reading and indexing; from disk and over HTTP, opening the index.
"""

import json
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from itertools import cycle, islice
from pathlib import Path

from lldlib.retrieval import BM25Retriever, Retriever, load_corpus

from .timing import clock

BACKENDS = ("rank-bm25", "bm25s on disk", "HTTP to bm25s")
SIZES = {1_000: 300, 30_956: 100, 1_000_000: 20}  # passages: queries asked
QUICK_SIZES = {1_000: 100}
TOP_K = 3


def report(folder: Path, sizes: dict[int, int]) -> str:
    """The markdown table, or a line that says why there is none."""
    if not (folder / "wiki_passages.jsonl.gz").is_file():
        return "Not measured: set LLDLIB_BENCHMARKS to a folder with wiki_passages.jsonl.gz."
    lines = [
        "| back end | passages | made ready, s | queries a second | memory, MB |",
        "|---|---|---|---|---|",
    ]
    for size, queries in sizes.items():
        with tempfile.TemporaryDirectory() as scratch:
            corpus = Path(scratch, "corpus.jsonl")
            write_corpus(folder / "wiki_passages.jsonl.gz", size, corpus)
            _child("index", corpus, folder, 0)
            for backend in BACKENDS:
                cell = _child(backend, corpus, folder, queries)
                values = f"{cell['ready']:.1f} | {cell['rate']:.1f} | {cell['megabytes']:.0f}"
                lines.append(f"| {backend} | {size:,} | {values} |")
    return "\n".join([*lines, "", *__doc__.splitlines()[2:]])


def write_corpus(real: Path, size: int, path: Path) -> None:
    """The first `size` real passages; beyond them, repetitions with shuffled words and new ids."""
    passages, luck = load_corpus(real), random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number, one in enumerate(islice(cycle(passages), size)):
            words = one.text.split()
            if number >= len(passages):
                luck.shuffle(words)
            row = {"id": str(number), "title": one.title, "text": " ".join(words)}
            file.write(json.dumps(row) + "\n")


def _child(backend: str, corpus: Path, folder: Path, queries: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.retrieval", backend, str(corpus), str(folder)]
    done = subprocess.run([*command, str(queries)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _open(backend: str, corpus: Path) -> Retriever:
    from lldlib.retrieval.client import HTTPRetriever, RetryConfig
    from lldlib.retrieval.disk import open_index

    if backend == "rank-bm25":
        return BM25Retriever(load_corpus(corpus))
    index = open_index(corpus, corpus.with_suffix(".index"))
    if backend != "HTTP to bm25s":
        return index
    import uvicorn

    from lldlib.retrieval.serve import make_app

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(index, TOP_K), log_level="error"))
    serving = {"sockets": [listening]}
    threading.Thread(target=server.run, kwargs=serving, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve"
    return HTTPRetriever(url, RetryConfig(timeout=120.0))


def measure(backend: str, corpus: Path, folder: Path, queries: int) -> dict[str, float]:
    """One cell: seconds until ready, queries a second, megabytes."""
    from lldlib.world.benchmarks import load_questions

    questions = load_questions(folder / "hotpotqa_dev.jsonl")[: queries + 1]
    before = _peak()
    start = clock()
    retriever = _open(backend, corpus)
    ready = clock() - start
    rate = 0.0
    if queries:
        retriever.search([questions[-1].text], TOP_K)  # not counted: it warms up
        start = clock()
        for question in questions[:queries]:
            retriever.search([question.text], TOP_K)
        rate = queries / (clock() - start)
    return {"ready": ready, "rate": rate, "megabytes": _peak() - before}


def _peak() -> float:
    """The most memory that this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    name, corpus, folder, queries = sys.argv[1:]
    print(json.dumps(measure(name, Path(corpus), Path(folder), int(queries))))
