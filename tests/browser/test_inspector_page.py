"""The step inspector in a real browser: by mouse and by keyboard, wide and narrow."""

import shutil

import pytest

from lldlib.config import LossConfig
from lldlib.show.inspector import StepInspector
from lldlib.train.dissect import Dissected, DissectedUpdate
from lldlib.types import TokenInfo, TokenStep

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def token(text: str, gradient: float) -> TokenStep:
    terms = (("policy", gradient),)
    shares = {"policy_share": 0.1, "llds_share": 0.2}
    numbers = {"logp": -1.0, "now": -1.1, "advantage": 1.0, "change": 0.02, "gate_open": False}
    return TokenStep(text, "action", gradient=gradient, gradients=terms, **numbers, **shares)


def made() -> str:
    """A page with one update of a few trajectories, one of whose words is not meant well."""
    words = [token("<b>Rome</b>", -0.25), *(token(f"word{n}", 0.125) for n in range(60))]
    rows = [
        Dissected(f"question {n} ?", 1.0, 1.0, [TokenInfo("found", "environment"), *words])
        for n in range(4)
    ]
    update = DissectedUpdate(3, 5, LossConfig(kl_coef=0.0), rows)
    frame = (
        '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    )
    return frame + StepInspector(update, height=260).value


@pytest.mark.parametrize("width", [400, 1366])
def test_the_token_under_the_mouse_or_the_focus_is_written_out(tmp_path, width):
    from playwright.sync_api import sync_playwright

    (tmp_path / "page.html").write_text(made(), encoding="utf-8")
    with sync_playwright() as playwright:
        sandbox = {"args": ["--no-sandbox", "--disable-gpu"]}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, **sandbox)
        page = browser.new_page(viewport={"width": width, "height": 768})
        page.goto(f"file://{tmp_path / 'page.html'}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        tips = page.locator(".tip:visible")
        assert tips.count() == 0 and page.locator(".hint").is_visible()
        page.locator(".t").first.hover()
        assert "= -0.25: makes it likelier" in tips.inner_text() and tips.count() == 1
        frame, tip = page.locator(".step-inspector").bounding_box(), tips.bounding_box()
        assert tip["x"] >= frame["x"] and tip["x"] + tip["width"] <= frame["x"] + frame["width"]
        assert tips.evaluate("e => e.scrollHeight <= e.clientHeight")  # nothing is cut off
        assert page.locator("b").count() == 0  # a token's text is text
        page.screenshot(path=tmp_path / f"inspector_{width}.png")
        page.mouse.move(0, 760)
        page.locator(".t").nth(200).focus()  # scrolled to, and its box is in the same place
        assert "= +0.125: makes it less likely" in tips.inner_text()
        assert tips.bounding_box() == tip
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.firstChild.textContent") == "word17"
        paint = "e => getComputedStyle(e).backgroundColor"
        before = page.locator(".t").first.evaluate(paint)
        page.get_by_text("LLDS gate", exact=True).click()
        assert page.locator(".t").first.evaluate(paint) != before
        browser.close()
