"""A search service over HTTP, by the protocol of Search-R1's retrieval server.

POST {"queries": [...], "topk": k, "return_scores": true} gives {"result": [[{"document": {"id",
"contents"}, "score"}, ...], ...]}, one list per query. The first line of `contents` is the title in
quotes, the rest is the text.
"""

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from lldlib.files import clean, load_json, one_line
from lldlib.retrieval.passages import (
    Hit,
    Passage,
    RetrieverError,
    ScoredRetriever,
    check_k,
    split_contents,
)

logger = logging.getLogger(__name__)
TRY_LATER = (408, 425, 429)  # of the status codes below 500, those that may pass
MOST = 64_000_000  # bytes of an answer
KINDS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class Refused(Exception):
    """The service answered with a status that is no answer."""

    def __init__(self, status: int, reason: str, location: str | None):
        moved = f", which sends to {location}: give that address" if location else ""
        super().__init__(f"status {status} {reason}{moved}")
        self.status = status


@dataclass(frozen=True)
class RetryConfig:
    """How long a search service is waited for."""

    timeout: float = 30.0  # seconds for one request, from connecting to the last byte
    attempts: int = 4  # requests before the service counts as down
    backoff: float = 0.5  # seconds before the second attempt; doubled before each further one


class HTTPRetriever(ScoredRetriever):
    """A client of a `/retrieve` service.

    Once a search has failed for good, each further one makes a single attempt until one succeeds,
    so that a service that hangs does not hold up every search of a run for all its attempts.
    """

    def __init__(
        self, url: str, config: RetryConfig, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """`url` is the whole address, such as http://127.0.0.1:8000/retrieve.

        It is asked directly, not through a proxy; ValueError for what is no such address.
        """
        self.url, self.config, self._sleep = url, config, sleep
        self._place = urlsplit(url)
        if self._place.scheme not in KINDS or not self._place.hostname:
            raise ValueError(
                f"{url} is no address of a search service: give one such as "
                "http://127.0.0.1:8000/retrieve"
            )
        self._down = False

    def scored(self, queries: list[str], k: int) -> list[list[Hit]]:
        """At most `k` passages for each query and their scores (0: none given), as the service has.

        Raises RetrieverError where no attempt gives a usable answer, or the service refuses the
        request as wrong (a 4xx status); ValueError for k < 1.
        """
        check_k(k)
        if not queries:
            return []
        asked = {"queries": list(map(clean, queries)), "topk": k, "return_scores": True}
        body = json.dumps(asked).encode()
        attempts = 1 if self._down else self.config.attempts
        for attempt in range(attempts):
            if attempt:
                self._sleep(self.config.backoff * 2 ** (attempt - 1))
            try:
                found = read_answer(self._post(body), len(queries))
            except Refused as error:
                reason = one_line(str(error))
                if error.status < 500 and error.status not in TRY_LATER:
                    raise RetrieverError(f"{self.url} refused the request: {reason}") from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = one_line(f"{type(error).__name__}: {error}")
            else:
                self._down = False
                return [hits[:k] for hits in found]
            logger.info("%s, attempt %d: %s", self.url, attempt + 1, reason)
        self._down = True
        raise RetrieverError(f"{self.url} is down after {attempts} attempts ({reason})")

    def _post(self, body: bytes) -> bytes:
        place, timeout = self._place, self.config.timeout
        connection = KINDS[place.scheme](place.hostname, place.port, timeout=timeout)
        late = threading.Event()
        try:
            connection.connect()
            line = connection.sock  # the connection forgets it when it hands it to the answer

            def give_up() -> None:
                late.set()
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

            # the socket's own time-out starts anew with every byte of a slow answer
            timer = threading.Timer(timeout, give_up)
            timer.daemon = True
            timer.start()
            try:
                data = self._ask(connection, body)
            finally:
                timer.cancel()
        except (OSError, http.client.HTTPException):
            if not late.is_set():
                raise
        finally:
            connection.close()
        if late.is_set():
            raise TimeoutError(f"no whole answer within {timeout} s")
        return data

    def _ask(self, connection: http.client.HTTPConnection, body: bytes) -> bytes:
        path = self._place.path or "/"
        target = f"{path}?{self._place.query}" if self._place.query else path
        connection.request("POST", target, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Refused(response.status, response.reason, response.getheader("Location"))
        data = response.read(MOST + 1)
        if len(data) > MOST:
            raise ValueError(f"an answer of over {MOST / 1e6:g} MB")
        if response.length:  # what its header promised and did not come
            raise http.client.IncompleteRead(data[:0], response.length)
        return data


def read_answer(data: bytes, queries: int) -> list[list[Hit]]:
    """The hits in a service's answer; ValueError where it is not of the protocol's shape."""
    answer = load_json(data)
    rows = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("the answer has no list of lists under 'result'")
    if len(rows) != queries:
        raise ValueError(f"{len(rows)} results for {queries} queries")
    return [[_hit(item) for item in row] for row in rows]


def _hit(item: object) -> Hit:
    """A hit from {"document": {...}, "score": x}, or from the document alone."""
    document = item.get("document", item) if isinstance(item, dict) else None
    contents = document.get("contents") if isinstance(document, dict) else None
    if not isinstance(contents, str):
        raise ValueError("a result without text under 'contents'")
    score = item.get("score", 0.0)
    if not isinstance(score, (int, float)):
        raise ValueError(f"a result whose score is {score!r}")
    title, text = split_contents(contents)
    return Hit(Passage(str(document.get("id", "")), text, title), float(score))
