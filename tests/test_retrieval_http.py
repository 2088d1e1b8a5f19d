"""The search client against services that fail, against ours, and inside rollouts."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from benchmark_files import passage_row, write_rows
from helpers import PLAIN, character_tokenizer, information, play
from hypothesis import given, settings
from hypothesis import strategies as st
from search_server import faulty

from lldlib.retrieval import BM25Retriever, Hit, Passage, Retriever, RetrieverError
from lldlib.retrieval import choose as choosing
from lldlib.retrieval import client as client_module
from lldlib.retrieval.choose import open_retriever
from lldlib.retrieval.client import HTTPRetriever, RetryConfig, read_answer
from lldlib.retrieval.passages import join_contents, read_corpus, split_contents
from lldlib.types import StopReason

LIMA = Passage("7", "in Peru", "Lima")
CALM = RetryConfig(timeout=60.0, attempts=3, backoff=0.5)
HASTY = RetryConfig(timeout=0.2, attempts=2, backoff=0.5)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def client(server, config: RetryConfig = CALM) -> tuple[HTTPRetriever, list[float]]:
    """A client that notes its pauses in place of making them."""
    pauses: list[float] = []
    return HTTPRetriever(server.url, config, pauses.append), pauses


def test_a_good_service_is_asked_once_by_the_protocol():
    with faulty("good") as server:
        asking, pauses = client(server)
        assert isinstance(asking, Retriever)
        assert asking.scored(["a", "b\ud800"], 3) == [[Hit(LIMA, 1.5)]] * 2
        assert asking.search([], 3) == [] and pauses == []
        sent = {"queries": ["a", "b\ufffd"], "topk": 3, "return_scores": True}
        assert server.requests == [sent]


@pytest.mark.parametrize("failure", ["500", "503", "429", "<html>", "[1]", '{"result": 3}', "cut"])
def test_a_passing_failure_is_retried_with_growing_pauses(failure):
    with faulty(failure, failure, "good") as server:
        asking, pauses = client(server)
        assert asking.search(["a"], 1) == [[LIMA]]
        assert pauses == [0.5, 1.0] and len(server.requests) == 3


@pytest.mark.parametrize("failure", ["500", "{", '{"result": []}', "cut", "[" * 100_000])
def test_a_lasting_failure_is_a_retriever_error_and_then_tried_once_a_search(failure):
    with faulty(failure) as server:
        asking, pauses = client(server)
        for requests in (3, 4, 5):
            with pytest.raises(RetrieverError, match="is down after"):
                asking.search(["a"], 1)
            assert len(server.requests) == requests
        assert pauses == [0.5, 1.0]
        server.script = ["good", "500"]
        server.requests.clear()
        assert asking.search(["a"], 1) == [[LIMA]]  # it is up again
        with pytest.raises(RetrieverError):
            asking.search(["a"], 1)
        assert len(server.requests) == 4  # so all attempts count again


def test_a_service_that_hangs_is_given_up():
    with faulty("hang") as server:
        asking, pauses = client(server, HASTY)
        with pytest.raises(RetrieverError, match="TimeoutError"):
            asking.search(["a"], 1)
        assert pauses == [0.5]


@pytest.mark.parametrize("kind", ["drip", "drip head"])
def test_a_service_that_answers_too_slowly_is_given_up(kind):
    """Each byte comes in time, and the whole does not."""
    with faulty(kind, "good") as server:
        with pytest.raises(RetrieverError, match=r"no whole answer within 0\.2 s"):
            HTTPRetriever(server.url, RetryConfig(0.2, 1, 0.5)).search(["a"], 1)
        assert client(server)[0].search(["a"], 1) == [[LIMA]]


def test_an_answer_without_end_is_not_held(monkeypatch):
    monkeypatch.setattr(client_module, "MOST", 5_000_000)
    with faulty("endless", "good") as server:
        asking, pauses = client(server)
        assert asking.search(["a"], 1) == [[LIMA]] and pauses == [0.5]


def test_what_a_service_says_is_a_line_of_printable_text_in_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            line, _ = listening.accept()
            with line:
                line.recv(65_536)
                line.sendall(b"\x1b[31m no HTTP \x85 at all \x07" + b"y" * 5000 + b"\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve"
        with pytest.raises(RetrieverError, match="no HTTP") as failure:
            HTTPRetriever(url, RetryConfig(5.0, 1, 0.0)).search(["a"], 1)
        thread.join()
    said = str(failure.value)
    assert said.isprintable() and len(said) < 400


def test_a_service_that_has_moved_is_named_and_not_followed():
    with faulty("302", "good") as server:
        with pytest.raises(RetrieverError, match=r"status 302 .*/retrieve: give that address"):
            client(server)[0].search(["a"], 1)
        assert len(server.requests) == 1


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://a/b", "http:///x", "127.0.0.1:80"])
def test_what_is_no_address_is_one_line(url):
    with pytest.raises(ValueError, match="is no address of a search service") as refusal:
        HTTPRetriever(url, CALM)
    assert "\n" not in str(refusal.value)


def test_no_service_at_all(monkeypatch):
    with faulty("good") as server:
        asking, pauses = client(server)
        url = server.url
    with pytest.raises(RetrieverError, match="refused"):
        asking.search(["a"], 1)
    assert pauses == [0.5, 1.0]
    monkeypatch.setattr(choosing, "RetryConfig", lambda: RetryConfig(60.0, 1, 0.5))
    with pytest.raises(ValueError, match="start it, or mend the address"):
        open_retriever(url, None, None)


@pytest.mark.parametrize("status", ["404", "422"])
def test_a_refusal_is_not_retried(status):
    with faulty(status) as server:
        asking, pauses = client(server)
        with pytest.raises(RetrieverError, match=f"refused the request: status {status}"):
            asking.search(["a"], 1)
        assert len(server.requests) == 1 and pauses == []


def test_more_hits_than_asked_for_are_cut():
    item = {"document": {"id": 1, "contents": "one line"}, "score": 2}
    with faulty(json.dumps({"result": [[item] * 5]})) as server:
        assert client(server)[0].search(["a"], 2) == [[Passage("1", "one line")] * 2]
        with pytest.raises(ValueError, match="k is 0"):
            client(server)[0].search(["a"], 0)


def test_documents_without_scores_are_read_too():
    data = json.dumps({"result": [[{"id": "7", "contents": '"Lima"\nin Peru'}], []]}).encode()
    assert read_answer(data, 2) == [[Hit(LIMA, 0.0)], []]


@pytest.mark.parametrize(
    "row", ["x", None, {}, {"document": 3}, {"contents": 3}, {"contents": "c", "score": "high"}]
)
def test_a_malformed_hit_is_nonsense(row):
    with pytest.raises(ValueError):
        read_answer(json.dumps({"result": [[row]]}).encode(), 1)


@settings(max_examples=100, deadline=None)
@given(st.text(), st.text())
def test_contents_keep_title_and_text(title, text):
    assert split_contents(join_contents(title, text)) == (" ".join(title.splitlines()), text)


@pytest.mark.parametrize(
    ("contents", "parts"),
    [("Lima\nin Peru", ("Lima", "in Peru")), ("in Peru", ("", "in Peru")), ("", ("", ""))],
)
def test_contents_of_other_services(contents, parts):
    assert split_contents(contents) == parts


def test_a_corpus_reads_contents_as_a_service_s_answer_is_read(tmp_path):
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": "7", "contents": '"Lima"\nin Peru'}, {"id": "8", "contents": "in Peru"}]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert list(read_corpus(path)) == [LIMA, Passage("8", "in Peru", "")]


FOUND = information("in Peru")
SCRIPTS = [
    [("a", "<answer>x</answer>")],
    [("a", "<search>q</search>"), ("e", FOUND), ("a", "<answer>x</answer>")],
    [
        ("a", "<search>q</search>"),
        ("e", FOUND),
        ("a", "<search>r</search>"),
        ("e", FOUND),
        ("a", "<answer>x</answer>"),
    ],
]


@pytest.mark.parametrize("failure", ["500", "nonsense", "cut", "hang"])
def test_no_rollout_is_lost_when_the_service_fails_in_mid_run(failure):
    with faulty("good", failure) as server:
        config = RetryConfig(timeout=5.0, attempts=1, backoff=0.5)
        asking, _ = client(server, config)
        episodes, _ = play(
            character_tokenizer(), SCRIPTS, retriever=asking, protocol=PLAIN, max_tokens=300
        )
        assert len(server.requests) == 2
    stops = [StopReason.ANSWER, StopReason.ANSWER, StopReason.TOOL_ERROR]
    assert [episode.stop for episode in episodes] == stops
    assert [episode.answer for episode in episodes] == ["x", "x", None]
    assert [episode.valid_searches for episode in episodes] == [0, 1, 1]


def test_a_failure_that_passes_costs_no_rollout():
    with faulty("500", "good", "nonsense", "good") as server:
        episodes, _ = play(
            character_tokenizer(),
            SCRIPTS,
            retriever=client(server)[0],
            protocol=PLAIN,
            max_tokens=300,
        )
    assert [episode.answer for episode in episodes] == ["x", "x", "x"]


PASSAGES = [
    Passage("1", "The capital of Peru", "Lima"),
    Passage("2", 'line one\nline two "quoted" </information>', 'The "White" City'),
    Passage("3", "Perú, a country", ""),
]


@contextmanager
def serving(retriever: BM25Retriever):
    """Our own service on a free port."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from lldlib.retrieval.serve import make_app

    server = uvicorn.Server(uvicorn.Config(make_app(retriever, 2), log_level="error"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def post(url: str, body: dict) -> tuple[int, dict]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_client_and_service_agree_with_the_retriever_itself():
    retriever = BM25Retriever(PASSAGES)
    with serving(retriever) as url:
        asking = open_retriever(url, None, None)
        queries = ["capital", "line city", "nothing known zzz", "perú", ""]
        assert asking.scored(queries, 3) == retriever.scored(queries, 3)
        assert asking.search(["line"], 1) == [[PASSAGES[1]]]

        plain = {"id": "1", "contents": '"Lima"\nThe capital of Peru'}
        assert post(url, {"queries": ["capital"]}) == (200, {"result": [[plain]]})
        status, answer = post(url, {"queries": ["capital"], "topk": 1, "return_scores": True})
        ((item,),) = answer["result"]
        assert status == 200 and item["document"] == plain and item["score"] > 0
        _, answer = post(url, {"queries": ["the a of in line capital city country"]})
        assert len(answer["result"][0]) == 2  # the server's own topk
        for wrong in ({}, {"queries": "capital"}, {"queries": ["a"], "topk": 0}, {"queries": [1]}):
            assert post(url, wrong)[0] == 422


def test_the_serve_command_says_where_it_listens_answers_and_stops(tmp_path):
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    path = write_rows(tmp_path / "c.jsonl", [passage_row("1", "The capital of Peru", "Lima")])
    command = [sys.executable, "-m", "lldlib", "serve", "--corpus", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serving http://127.0.0.1:")
            asking = HTTPRetriever(line.split()[1], CALM)
            assert asking.search(["peru"], 1) == [[Passage("1", "The capital of Peru", "Lima")]]
            process.send_signal(signal.SIGINT)
            assert process.wait(600) in (0, 130)
        finally:
            process.kill()
