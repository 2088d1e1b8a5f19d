"""Search services that fail on purpose, over loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FaultyServer(ThreadingHTTPServer):
    """Meets request number n by `script[n]`, and every later one by the last of the script.

    "good" finds one passage per query; a status code, "hang", "cut" (dies within its answer),
    "drip" and "drip head" (a byte now and then, in its answer or its header), "endless" and any
    other text, sent as it is, are failures. Status 302 sends to the server itself.
    """

    daemon_threads = True

    def __init__(self, script: list[str]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.requests, self.release = script, [], threading.Event()

    @property
    def url(self) -> str:
        """The address that a client wants."""
        return f"http://127.0.0.1:{self.server_address[1]}/retrieve"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        served, script = self.server.requests, self.server.script
        served.append(json.loads(body))
        kind = script[min(len(served), len(script)) - 1]
        if kind == "hang":
            self.server.release.wait(60)
        elif kind in ("drip", "drip head", "endless"):
            self._go_on(kind)
        elif kind == "302":
            self.send_response(302)
            self.send_header("Location", self.server.url)
            self.end_headers()
        elif kind.isdigit():
            self.send_error(int(kind))
        else:
            answer = good_answer(served[-1]) if kind == "good" else kind
            self._send(answer.encode(), cut=kind == "cut")

    def _go_on(self, kind: str) -> None:
        head = "HTTP/1.1 200 OK\r\n" if kind == "drip head" else "HTTP/1.1 200 OK\r\n\r\n"
        self.wfile.write(head.encode())
        piece, pause = (b" " * 1_000_000, 0) if kind == "endless" else (b"X", 0.02)
        with suppress(OSError):  # until the client has had enough
            while not self.server.release.wait(pause):
                self.wfile.write(piece)

    def _send(self, answer: bytes, cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1000 if cut else len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


def good_answer(request: dict) -> str:
    """One passage for each query."""
    found = [{"document": {"id": "7", "contents": '"Lima"\nin Peru'}, "score": 1.5}]
    return json.dumps({"result": [found for _ in request["queries"]]})


@contextmanager
def faulty(*script: str) -> Iterator[FaultyServer]:
    """A running server; stopped and released at the end."""
    server = FaultyServer(list(script))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
