"""Token view and explorers: what they show follows the controls; no kernel is needed here."""

import re

import pytest
import torch
from test_explore import case

from lldlib.doctor.live import uploaded
from lldlib.show.says import TokenView
from lldlib.show.widgets import GateExplorer, ProxyExplorer
from lldlib.types import TokenInfo

PNG = b"\x89PNG"
TOKENS = [
    TokenInfo("<think>", "action", logp=-0.5, change=0.1, gate_open=True),
    TokenInfo("is", "environment"),
    TokenInfo("Rome", "action", logp=-2.0, change=-0.25, protected=False),
]


def test_tokens_carry_their_numbers_and_colours():
    page = TokenView([("A = +1: <b>", TOKENS)], 300).value
    assert "&lt;think&gt;" in page and "A = +1: &lt;b&gt;" in page and "<b>" not in page
    mine = re.findall(r'<span class="t" tabindex="0" style="(.*?)">', page)
    assert len(mine) == 2 and page.count('class="e"') == 1
    assert "log-prob -0.500 nats\nchange +0.100 nats\nLLDS gate open" in page
    assert "log-prob -2.000 nats\nchange -0.250 nats\nLp-Reg: not protected" in page
    assert "--gate_open-bg:#56B4E9" in mine[0] and "--gate_open-bg:#FFFFFF" in mine[1]
    assert page.count('type="radio"') == 4 and page.count(" checked>") == 1
    assert "height: 300px" in page and "<script" not in page


def test_colours_of_which_nothing_is_known_are_left_out():
    page = TokenView([("", [TokenInfo("a", "action", logp=-1.0)])], 100).value
    assert page.count('type="radio"') == 1 and "Lp-Reg" not in page
    with pytest.raises(ValueError, match="no token has a value"):
        TokenView([("", [TokenInfo("a", "prompt")])], 100)


def test_two_views_do_not_share_their_buttons():
    pages = [TokenView([("", TOKENS)], 100).value for _ in range(2)]
    names = [set(re.findall(r'name="(\w+)"', page)) for page in pages]
    assert all(len(found) == 1 for found in names) and names[0] != names[1]


def test_gates_follow_the_sliders():
    explorer = GateExplorer(case([-0.3, 0.4, 0.0, -0.2]))
    assert explorer.values.gate_open[0].tolist() == [False, False, False, True]
    first, shown = explorer.values.loss, bytes(explorer.picture.value)
    assert list(explorer.changes) == [0, 1, 3]  # the environment's token has no slider
    explorer.changes[1].value = 0.1  # now action 1 falls by 0.2
    assert explorer.values.gate_open[0].tolist() == [True, True, False, True]
    assert explorer.values.loss > first and bytes(explorer.picture.value) != shown
    explorer.gate.value = "token"
    assert explorer.values.gate_open[0].tolist() == [True, False, False, True]
    explorer.coef.value = 0.0
    assert explorer.values.loss == 0


def test_the_proxy_follows_the_threshold():
    logits = {"sharp": torch.tensor([0.9, 0.09, 0.01]).log(), "flat": torch.zeros(3)}
    explorer = ProxyExplorer(["a", "b", "c"], logits)
    assert explorer.values.kept.tolist() == [True, True, False]  # 0.02 of 0.9
    explorer.threshold.value = 0.2
    assert explorer.values.kept.tolist() == [True, False, False]
    explorer.filtering.value = "fixed"
    assert explorer.values.kept.tolist() == [True, False, False]
    explorer.case.value = "flat"
    assert explorer.values.kept.all() and explorer.values.kl == pytest.approx(0, abs=1e-6)
    assert bytes(explorer.picture.value).startswith(PNG)


def test_an_upload_reads_alike_in_both_ipywidgets():
    """ipywidgets 7, which Colab has, gives a dict by name; 8 gives a tuple of dicts."""
    old = {"a.csv": {"metadata": {"name": "a.csv"}, "content": b"step\n1"}}
    new = ({"name": "a.csv", "content": memoryview(b"step\n1")},)
    assert uploaded(old) == uploaded(new) == [("a.csv", b"step\n1")]
