"""A search service that breaks in every way: python data/trust/service.py --count 10000 [--seed 0]

A server over loopback meets each search with a fault, and its second attempt with the fault or with
the right answer. Each search must give the passage of its own query, or a RetrieverError of one
line. Prints what was tried, how it went, and the largest memory of the process.
"""

import argparse
import gzip
import json
import random
import resource
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import cache

from lldlib.retrieval import RetrieverError
from lldlib.retrieval.client import HTTPRetriever, RetryConfig

CONFIG = RetryConfig(timeout=0.3, attempts=2, backoff=0.0)
QUERIES = 3  # of a search
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


def right(queries: list[str]) -> dict:
    """A passage for each query that names it."""
    rows = [[{"document": {"id": q, "contents": f'"{q}"\nof {q}'}, "score": 1.0}] for q in queries]
    return {"result": rows}


def reply(body: bytes, status: str = "200 OK", length: int | None = None, more: str = "") -> bytes:
    """An answer of HTTP; `length` is what its header promises, the body's own if left out."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{more}\r\n".encode() + body


@cache
def bomb() -> bytes:
    """A hundred megabytes in a tenth of one."""
    return gzip.compress(b" " * 100_000_000)


def wrong_shapes(queries: list[str]) -> list[object]:
    """Answers that are JSON and not of the protocol."""
    rows = right(queries)["result"]
    document = {"id": "x", "contents": "wrong"}
    return [
        *(None, [], 7, "wrong", {}, {"results": rows}, {"result": None}, {"result": rows[0]}),
        *({"result": rows[1:]}, {"result": [*rows, rows[0]]}, {"result": dict(enumerate(rows))}),
        *({"result": [[None]] * QUERIES}, {"result": [["wrong"]] * QUERIES}),
        {"result": [[{"document": {"id": "x"}}]] * QUERIES},
        {"result": [[{"document": {"contents": ["wrong"]}}]] * QUERIES},
        {"result": [[{"document": document, "score": "high"}]] * QUERIES},
        {"result": [[{"document": document, "score": [1]}]] * QUERIES},
    ]


FAULTS = (
    *("close", "reset", "half", "hang", "drip", "drip head", "short", "long", "html", "empty"),
    *("gzip", "bomb", "redirect", "status", "shape", "latin", "utf-16 half", "chunks", "head"),
    *("noise", "deep", "endless", "number", "many"),
)


def act(kind: str, rng: random.Random, line: socket.socket, queries: list[str]) -> None:
    """Meet a request with a fault; "many" and "good" are right answers."""
    good = json.dumps(right(queries)).encode()
    half = good[: rng.randrange(1, len(good))]
    if kind == "reset":
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    elif kind == "half":
        line.sendall(reply(good)[: rng.randrange(1, len(reply(good)))])
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    elif kind in ("hang", "drip", "drip head", "endless"):
        go_on(kind, line)
    elif kind != "close":
        line.sendall(answer(kind, rng, queries, good, half))


def answer(kind: str, rng: random.Random, queries: list[str], good: bytes, half: bytes) -> bytes:
    """The bytes of an answer that is sent at once."""
    code = rng.choice(("301 Moved", "302 Found", "303 See Other", "307 T", "308 P"))
    status = rng.choice(("500 E", "503 E", "404 N", "422 N", "429 T", "204 No Content", "206 P"))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    many = right(queries)["result"]
    return {
        "good": lambda: reply(good),
        "short": lambda: reply(good, length=len(half)),
        "long": lambda: reply(good, length=len(good) + rng.randrange(1, 10**9)),
        "html": lambda: reply(b"<html><body>wrong</body></html>"),
        "empty": lambda: reply(b""),
        "gzip": lambda: reply(gzip.compress(good), more="Content-Encoding: gzip\r\n"),
        "bomb": lambda: reply(bomb(), more="Content-Encoding: gzip\r\n"),
        "redirect": lambda: reply(good, code, more="Location: http://127.0.0.1:9/other\r\n"),
        "status": lambda: reply(good, status),
        "shape": lambda: reply(json.dumps(rng.choice(wrong_shapes(queries))).encode()),
        "latin": lambda: reply(good.replace(b"of ", b"of \xff\xfe")),
        "utf-16 half": lambda: reply(good.decode().encode("utf-16")[: rng.randrange(1, 40)]),
        "chunks": lambda: chunked + b"ffff\r\n" + half,
        "head": lambda: b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n" + good,
        "noise": lambda: rng.randbytes(rng.randrange(1, 2000)),
        "deep": lambda: reply(b"[" * 100_000),
        "number": lambda: reply(b'{"result": ' + b"9" * 100_000 + b"}"),
        "many": lambda: reply(json.dumps({"result": [row * 50 for row in many]}).encode()),
    }[kind]()


def go_on(kind: str, line: socket.socket) -> None:
    """Send nothing, a byte now and then, or without end, until the client has had enough."""
    head = b"HTTP/1.1 200 OK\r\n" + (b"" if kind == "drip head" else b"\r\n")
    line.settimeout(0.02)
    if kind != "hang":
        line.sendall(head)
    piece = b" " * 1_000_000 if kind == "endless" else b"X"
    end = time.monotonic() + 5 * CONFIG.timeout
    while time.monotonic() < end:
        if kind == "hang":
            with suppress(TimeoutError):
                if not line.recv(1):
                    return
        elif kind == "endless":
            line.settimeout(1.0)
            line.sendall(piece)
        else:
            line.sendall(piece)
            time.sleep(0.02)


def serve(listening: socket.socket, plan: dict[str, list[str]], seed: int) -> None:
    """Answer one request a connection, by what is planned for its first query."""

    def one(line: socket.socket) -> None:
        with line, suppress(OSError):
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += (more := line.recv(65_536))
                if not more:  # the client has given up
                    return
            head, _, body = asked.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(body) < size:
                body += line.recv(65_536)
            queries = json.loads(body)["queries"]
            kinds = plan[queries[0]]
            kind = kinds.pop(0)
            act(kind, random.Random(f"{seed} {queries[0]} {len(kinds)}"), line, queries)

    while True:
        try:
            line, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=one, args=(line,), daemon=True).start()


@contextmanager
def service(plan: dict[str, list[str]], seed: int):
    """The address of a running service."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=serve, args=(listening, plan, seed), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve"
    finally:
        listening.close()


def trial(count: int, seed: int) -> tuple[Counter, list[str]]:
    """So many searches: (fault, how it went) counted, and what was wrong."""
    rng, plan, ways, wrong = random.Random(seed), {}, Counter(), []
    with service(plan, seed) as url:
        client = HTTPRetriever(url, CONFIG, lambda seconds: None)
        for number in range(count):
            queries = [f"q{number}-{k}" for k in range(QUERIES)]
            kind = rng.choice(FAULTS)
            passes = rng.random() < 0.5
            plan[queries[0]] = [kind, "good" if passes else kind]
            client._down = False  # each search has its attempts, whatever the one before met
            try:
                found = client.search(queries, 2)
            except RetrieverError as error:
                ways[kind, "error"] += 1
                if "\n" in str(error):
                    wrong.append(f"search {number}, {kind}: an error of several lines: {error}")
                # on a busy machine a right answer, too, can come too late
                late = "no whole answer" in str(error) or "timed out" in str(error)
                if passes and kind not in ("redirect", "status") and not late:
                    wrong.append(f"search {number}, {kind}: the second attempt was not made")
                continue
            ways[kind, "found"] += 1
            texts = [[passage.text for passage in row] for row in found]
            sizes = (1, 2) if kind == "many" else (1,)
            if texts not in [[[f"of {query}"] * size for query in queries] for size in sizes]:
                wrong.append(f"search {number}, {kind}: found {texts}")
            if not passes and kind != "many":
                wrong.append(f"search {number}, {kind}: a fault that was taken for an answer")
    return ways, wrong


def main() -> None:
    """Search, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start = time.monotonic()
    ways, wrong = trial(given.count, given.seed)
    print("\n".join(wrong[:20]))
    for kind in FAULTS:
        print(f"{kind}: {ways[kind, 'found']} found, {ways[kind, 'error']} errors")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    took = time.monotonic() - start
    print(f"{given.count} searches, {len(wrong)} wrong, {took:.0f} s, {memory:.0f} MB at most")


if __name__ == "__main__":
    main()
