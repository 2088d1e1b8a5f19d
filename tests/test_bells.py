"""Bells of the doctor's hooks: a function, a webhook on the loopback, trackio; none stops a run."""

import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest

from lldlib.cli import main
from lldlib.doctor.bells import trackio_alert, webhook
from lldlib.doctor.live import Watcher, follow, watch_tracking


def scores(rows: int = 60) -> list[float]:
    """A reward that rises to .9 and is gone from row 40 on."""
    chance = np.random.default_rng(0)
    clean = [0.2 + t / 60 if t < 40 else 0.0 for t in range(rows)]
    return [score + 0.02 * chance.standard_normal() for score in clean]


def train(**how) -> Watcher:
    watcher = Watcher(**how)
    for step, score in enumerate(scores()):
        watcher.row(step, {"reward": score, "entropy": 0.5})
    return watcher


@pytest.fixture
def address():
    """A server that keeps what is posted: its address, and the list."""
    got = []

    class Keep(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Keep)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_function_rings_once_for_each_thing_said():
    rung = []
    watcher = train(bells=[lambda found: rung.append(found.judged.verdict)])
    assert watcher.found.judged.verdict == "collapsed"
    assert rung.count("collapsed") == 1 and len(rung) <= len(watcher.said)
    quiet = []
    healthy = Watcher(bells=[quiet.append])
    for step in range(60):
        healthy.row(step, {"reward": 0.5 + 0.005 * step})
    assert quiet == []


def test_a_webhook_gets_one_post_of_the_diagnosis(address):
    url, got = address
    watcher = Watcher(name="mine", bells=[webhook(url, wait=True)])
    for step, score in enumerate(scores()):
        watcher.row(step, {"reward": score, "entropy": 0.5})
    kinds, told = zip(*got, strict=True)
    assert set(kinds) == {"application/json"}
    assert told[-1]["verdict"] == "collapsed" and told[-1]["name"] == "mine"
    assert told[-1]["text"].startswith("mine: step ") and "Collapsed" in told[-1]["text"]
    assert len(got) == len({json.dumps(one) for one in told})


@pytest.mark.parametrize("broken", ["http://127.0.0.1:9/", "status"])
def test_a_webhook_that_fails_stops_nothing(broken, address, caplog):
    url = address[0] + "/broken" if broken == "status" else broken
    with caplog.at_level(logging.WARNING):
        watcher = train(bells=[webhook(url, wait=True)])
    assert watcher.found.judged.verdict == "collapsed" and len(watcher.rows) == 60
    assert "the webhook was not reached" in caplog.text


def test_a_bell_that_raises_stops_nothing(caplog):
    def bad(found):
        raise RuntimeError("no")

    rung = []
    with caplog.at_level(logging.WARNING):
        train(bells=[bad, rung.append])
    assert rung and "a bell failed: RuntimeError: no" in caplog.text


def test_trackio_is_told(monkeypatch, caplog):
    told = []
    level = SimpleNamespace(ERROR="error", WARN="warn")
    fake = SimpleNamespace(AlertLevel=level, alert=lambda **how: told.append(how))
    monkeypatch.setitem(sys.modules, "trackio", fake)
    train(bells=[trackio_alert])
    assert told[-1]["title"] == "lldlib: collapsed" and told[-1]["level"] == "error"
    assert told[-1]["text"].startswith("step ")
    monkeypatch.setitem(sys.modules, "trackio", None)
    with caplog.at_level(logging.WARNING):
        assert train(bells=[trackio_alert]).found.judged.verdict == "collapsed"
    assert "a bell failed: ModuleNotFoundError" in caplog.text


def test_the_real_trackio_takes_the_alert(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    import inspect

    assert {"title", "text", "level"} <= set(inspect.signature(trackio.alert).parameters)
    assert {"WARN", "ERROR"} <= set(trackio.AlertLevel.__members__)


def test_hooks_take_bells():
    rung = []
    tracker = watch_tracking(SimpleNamespace(log=lambda data, step: None), bells=[rung.append])
    for step, score in enumerate(scores()):
        tracker.log({"critic/score/mean": score}, step)
    assert rung[-1].judged.verdict == "collapsed"


def test_a_followed_log_rings_once(tmp_path, address, monkeypatch, capsys):
    url, got = address
    file = tmp_path / "run.jsonl"
    rows = [json.dumps({"step": t, "reward": s}) + "\n" for t, s in enumerate(scores())]
    file.write_text("".join(rows[:30]))
    left = [rows[30:55], rows[55:], None]

    def grow(_):
        more = left.pop(0)
        if more is None:
            raise KeyboardInterrupt
        with file.open("a") as log:
            log.writelines(more)

    monkeypatch.setattr(
        "lldlib.doctor.live.follow", lambda path, **how: follow(path, sleep=grow, **how)
    )
    monkeypatch.setattr("lldlib.doctor.live.webhook", lambda url: webhook(url, wait=True))
    assert main(["diagnose", str(file), "--follow", "--webhook", url]) == 0
    assert "stopped watching" in capsys.readouterr().out
    assert [one["verdict"] for _, one in got].count("collapsed") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--webhook", "http://127.0.0.1:9/"], "--webhook belongs to --follow"),
        (["--follow", "--webhook", "ftp://x"], "want an address that begins with http"),
    ],
)
def test_a_wrong_address_is_one_line(flags, message, tmp_path, capsys):
    log = tmp_path / "run.jsonl"
    log.write_text('{"step": 1, "reward": 0.5}\n')
    assert main(["diagnose", str(log), *flags]) == 2
    assert message in capsys.readouterr().err
