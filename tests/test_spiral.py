"""The spiral as a page: what is in it, by hand; what cannot get into it; the command."""

import base64
import hashlib
import html
import json
import re

import pytest
from PIL import Image
from recorded import ASKED, made, record, turn

from lldlib.cli import main
from lldlib.config import data_dir
from lldlib.runs.folder import Run
from lldlib.show import spiral
from lldlib.show.colouring import LOGP, paint
from lldlib.show.spiral import save_spiral, spiral_page
from lldlib.show.widgets import SpiralView
from lldlib.types import TokenInfo

EVIL = "</script><script>alert(1)</script><!-- {{DATA}} & \"'"


def data(page: str) -> dict:
    return json.loads(page.rpartition('id="data">')[2].partition("</script>")[0])


def test_what_is_in_the_page(tmp_path):
    runs = [made(tmp_path / "a", last={"where ?": "Oslo"}), made(tmp_path / "b", "llds")]
    found = data(spiral_page(runs))
    assert found["last"] == 3 and found["play"] is False
    assert found["questions"] == [
        {"text": "where ?", "answers": ["Rome"]},
        {"text": "who ?", "answers": ["Ada"]},
    ]
    one, other = found["arms"]
    assert one["values"] == {
        "reward/mean": [0.5, 0.4, 0.3],
        "probe/logp": [-0.6, -1.6, -2.6],
        "policy/entropy": [0.7] * 3,
        "grad/norm": [2.0] * 3,
    }
    assert one["steps"] == [0, 1, 2, 3] and one["kind"] == "questions"
    where, who = one["answers"]["3"]
    # log-probs in hundredths of a nat
    assert where["turns"] == [[1, "<answer> Oslo </answer>", [-50, -12, 0]]]
    assert (where["reward"], who["reward"]) == (0.0, 1.0)
    assert other["answers"]["3"][0]["reward"] == 1.0
    assert one["phases"][0][1] == 0 and sum(length for *_, length in one["phases"]) == 3


def test_axes_hold_every_run_and_the_reward_goes_from_0_to_1(tmp_path):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", batches=5)]
    reward, likelihood, entropy, norm = data(spiral_page(runs))["panels"]
    assert (reward["low"], reward["high"]) == (0, 1)
    assert likelihood["key"] == "probe/logp" and likelihood["low"] <= -4.6
    assert (likelihood["high"], entropy["low"]) == (0, 0)
    assert (norm["log"], norm["low"], norm["high"]) == (True, 1, 10)


def test_the_colours_are_those_of_tokens_elsewhere(tmp_path):
    palette = data(spiral_page([made(tmp_path / "a")]))["palette"]
    assert len(palette) == 101
    for place, logp in ((0, -9.0), (0, -5.0), (40, -3.0), (100, 0.0)):
        assert tuple(palette[place]) == paint(TokenInfo("", "action", logp), LOGP)


def test_an_arm_has_its_own_colour_wherever_it_stands(tmp_path):
    runs = [
        made(tmp_path / "a", lr=2e-4),
        made(tmp_path / "b", "llds"),
        made(tmp_path / "c", "nthr"),
        made(tmp_path / "d"),
        made(tmp_path / "e", seed=1),
    ]
    arms = data(spiral_page(runs))["arms"]
    assert [(arm["name"], arm["colour"]) for arm in arms] == [
        ("GRPO, cooler", "#009E73"),
        ("GRPO + LLDS", "#0072B2"),
        ("nthr", "#CC79A7"),
        ("GRPO, lr=0.001, seed 0", "#D55E00"),
        ("GRPO, lr=0.001, seed 1", "#E69F00"),
    ]
    assert len({arm["dash"] for arm in arms}) == 5
    with pytest.raises(ValueError, match="8 runs but only 7 colours: show fewer at once"):
        spiral_page(runs[:1] * 8)


@pytest.mark.parametrize("lost", ["seed", "lr"])
def test_settings_without_a_seed_or_a_rate_make_a_page(tmp_path, lost):
    run = made(tmp_path, "grpo")
    settings = json.loads((run.path / "config.json").read_text())
    del settings[lost]
    (run.path / "config.json").write_text(json.dumps(settings))
    [arm] = data(spiral_page([Run(run.path)]))["arms"]
    assert arm["name"] == "GRPO"


def test_the_first_question_is_one_where_the_arms_end_differently(tmp_path):
    right, late = made(tmp_path / "a"), made(tmp_path / "b", last={"who ?": "Eve"})
    both = made(tmp_path / "c", last={"where ?": "Oslo", "who ?": "Eve"})
    assert data(spiral_page([right, late]))["shown"] == 1
    assert data(spiral_page([right, late, both]))["shown"] == 0
    assert data(spiral_page([late, late]))["shown"] == 0  # none differs: the first


def test_nothing_of_a_run_becomes_script(tmp_path, monkeypatch):
    monkeypatch.setitem(ASKED, EVIL, EVIL)
    page = spiral_page([made(tmp_path / "a", method="grpo")])
    assert page.count("</script>") == 2 and "alert(1)</script>" not in page
    found = data(page)
    assert EVIL in [question["text"] for question in found["questions"]]
    assert found["arms"][0]["answers"]["0"][2]["answer"] == EVIL
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page
    assert not re.search(r"(src|href)=|@import|url\(http|innerHTML|eval\(", page)


def test_a_run_without_recorded_answers_shows_rollouts_or_says_what_is_missing(tmp_path):
    rolled, bare = made(tmp_path / "a", asked=False, logged=2), made(tmp_path / "b", asked=False)
    one, other = data(spiral_page([rolled, bare]))["arms"]
    assert one["kind"] == "rollouts" and [len(one["answers"][s]) for s in "012"] == [2, 2, 2]
    assert one["note"].startswith("No answers to fixed questions: train with --questions-every 1")
    assert other["answers"] == {} and other["note"].endswith("--rollouts-logged was 0.")
    assert data(spiral_page([rolled]))["questions"] == []
    with pytest.raises(ValueError, match="no runs to show"):
        spiral_page([])
    with pytest.raises(ValueError, match="has no batch yet: train it first"):
        spiral_page([made(tmp_path / "c", batches=0, steps=3)])


def test_a_page_keeps_its_size(tmp_path, monkeypatch):
    run = made(tmp_path / "a", batches=9)
    whole = spiral_page([run])
    assert data(whole)["arms"][0]["steps"] == list(range(10))
    monkeypatch.setattr(spiral, "LIMIT", len(whole.encode()) - 800)
    found = data(spiral_page([run]))
    assert found["arms"][0]["steps"] == [0, 2, 4, 6, 8, 9]
    assert found["arms"][0]["answers"].keys() == set("024689")
    assert found["notes"].endswith("Answers are those of every 2 batches.")
    assert len(spiral_page([run]).encode()) <= len(whole.encode()) - 800


def test_the_widget_is_the_page_in_a_frame(tmp_path):
    run = made(tmp_path / "a")
    view = SpiralView([run], height=500, play=True)
    inner = view.value.partition('srcdoc="')[2].partition('"></iframe>')[0]
    assert html.unescape(inner) == spiral_page([run], play=True)
    assert 'sandbox="allow-scripts"' in view.value and "height: 500px" in view.value
    assert '"' not in inner and data(html.unescape(inner))["play"] is True


def test_the_command(tmp_path, capsys):
    made(tmp_path / "a"), made(tmp_path / "b", "llds")
    out = tmp_path / "page" / "spiral.html"
    for more in ([], ["--play"]):  # its own page is taken again
        paths = [str(tmp_path / name) for name in "ab"]
        assert main(["explore", *paths, "--out", str(out), *more]) == 0
        assert capsys.readouterr().out == f"page: {out}\n"
    assert data(out.read_text())["play"] is True
    (tmp_path / "notes.txt").write_text("mine")
    for arguments, said in (
        (["explore", str(tmp_path / "a"), "--out", str(tmp_path / "notes.txt")], "is no page of"),
        (["explore", str(tmp_path / "a"), "--out", str(tmp_path)], "is a folder: name a file"),
        (["explore", str(tmp_path / "no"), "--out", str(out)], "no run folder at"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_tokens_that_are_no_words_have_one_colour_a_turn(tmp_path):
    """The page averages where a turn has another number of words than of log-probs."""
    whole = record("where ?", "Rome", turn("prompt", "where ?"), turn("action", "Rome", -0.1, -0.3))
    assert spiral._packed(whole)["turns"] == [[1, "Rome", [-10, -30]]]
    lost = record("where ?", None, turn("action", "a b", None, -1.0))
    assert spiral._packed(lost)["turns"] == [[1, "a b", [None, -100]]]


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    run = made(tmp_path / "a")
    path = save_spiral([run], tmp_path / "x.html")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no runs"):
        save_spiral([], path)
    assert path.read_bytes() == before


def test_the_recorded_page_and_picture_are_those_of_the_recorded_runs():
    """Made anew by data/atlas/spiral.py wherever the page or the runs change."""
    atlas = data_dir() / "atlas"
    arms = ("grpo", "llds", "grpo_best_rate")
    runs = [Run(atlas / "demo" / f"{arm}-seed0") for arm in arms]
    assert (atlas / "spiral.html").read_text(encoding="utf-8") == spiral_page(runs)
    with Image.open(atlas / "spiral.gif") as picture:
        assert picture.n_frames == 27  # the end, the start, and after each of 25 batches
    assert (atlas / "spiral.gif").stat().st_size <= 1e6


def test_the_demo_records_its_questions():
    for run in map(Run, sorted((data_dir() / "atlas/demo").iterdir())):
        assert [row["step"] for row in run.questions] == [n for n in range(26) for _ in range(6)]
        assert run.config["questions_every"] == 1 and len(run.metrics) == 25
