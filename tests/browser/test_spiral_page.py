"""The spiral's page in a real browser: from a file, without network, by mouse and by keyboard.

Screenshots lie in pytest's temporary folder (`--basetemp` says where).
"""

import shutil

import pytest
from recorded import ASKED, made, record, turn

from lldlib.runs.folder import Run, RunWriter
from lldlib.show.spiral import save_spiral
from lldlib.show.widgets import SpiralView

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
ANSWERS = "() => [...document.querySelectorAll('#board td')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = {"args": ["--no-sandbox", "--disable-gpu"]}
        opened = playwright.chromium.launch(executable_path=CHROMIUM, **sandbox)
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page that notes what goes wrong in it, and what it asks the network for."""
    opened = browser.new_page(viewport={"width": 1366, "height": 768})
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda request: opened.asked.append(request.url))
    yield opened
    opened.close()


@pytest.fixture
def runs(tmp_path) -> list[Run]:
    """One that ends wrong, one that ends right."""
    died = made(tmp_path / "died", last={"where ?": "Oslo"})
    return [died, made(tmp_path / "lived", "llds")]


def at(page) -> str:
    return page.locator("#where").inner_text()


@pytest.mark.parametrize("width", [400, 1366])
def test_it_fits_its_screen_and_asks_for_nothing(page, runs, tmp_path, width):
    page.set_viewport_size({"width": width, "height": 768})
    file = save_spiral(runs, tmp_path / "spiral.html")
    page.goto(f"file://{file}")
    page.locator("#cards .t").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.asked == [f"file://{file}"] and page.said == []
    assert page.locator("#panels svg[role=img]").count() == 4
    assert page.locator("#bar .strip svg").count() == 2
    page.screenshot(path=tmp_path / f"spiral_{width}.png", full_page=True)


def test_the_keyboard_moves_it_and_the_answers_follow(page, runs, tmp_path):
    page.goto(f"file://{save_spiral(runs, tmp_path / 'spiral.html')}")
    assert at(page) == "after 0 of 3 batches"
    assert page.evaluate(ANSWERS) == ["✓ right: Rome"] * 2 + ["✓ right: Ada"] * 2
    page.keyboard.press("ArrowRight")
    assert at(page) == "after 1 of 3 batches"
    page.keyboard.press("End")
    assert page.evaluate(ANSWERS)[:2] == ["✗ wrong: Oslo", "✓ right: Rome"]
    assert page.locator("#cards .t").all_inner_texts()[1] == "Oslo"
    page.keyboard.press("ArrowLeft")
    page.locator("#at").focus()
    page.keyboard.press("ArrowLeft")  # of the slider itself
    assert at(page) == "after 1 of 3 batches"
    assert "GRPO reward 0.40" in page.locator("#at").get_attribute("aria-valuetext")
    page.locator("#question0").focus()
    page.keyboard.press("ArrowDown")  # of the choice among questions: the cursor stays
    assert at(page) == "after 1 of 3 batches"
    assert page.locator("#asked").inner_text() == "who ?"
    assert page.locator("#cards .t").all_inner_texts()[1] == "Ada"
    assert page.evaluate("document.activeElement.id") == "question1"


def test_an_arm_is_switched_off_and_on(page, runs, tmp_path):
    page.goto(f"file://{save_spiral(runs, tmp_path / 'spiral.html')}")
    lines = "document.querySelector('#panels svg[role=img]').querySelectorAll('path').length"
    assert page.evaluate(lines) == 4  # of each arm what is past, and what is to come
    page.get_by_role("checkbox", name="GRPO", exact=True).uncheck()
    assert page.evaluate(lines) == 2 and page.locator(".card").count() == 1
    assert len(page.evaluate(ANSWERS)) == 2
    page.get_by_role("checkbox", name="GRPO", exact=True).check()
    assert page.evaluate(lines) == 4 and page.locator(".card").count() == 2


def test_it_plays_to_the_end(page, runs, tmp_path):
    page.goto(f"file://{save_spiral(runs, tmp_path / 'spiral.html')}")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").click()
    page.locator("#where", has_text="after 3 of 3 batches").wait_for()
    page.get_by_role("button", name="Play").wait_for()
    page.goto(f"file://{save_spiral(runs, tmp_path / 'other.html', play=True)}")
    page.locator("#where", has_text="after 3 of 3 batches").wait_for()


def test_words_of_others_stay_words(page, tmp_path, monkeypatch):
    monkeypatch.setitem(ASKED, EVIL, EVIL)
    run = made(tmp_path / "run")
    writer = RunWriter(run.path)
    said = turn("action", f"<answer> {EVIL} </answer>", -0.1)
    writer.question(3, record("who ?", EVIL, turn("environment", EVIL), said))
    writer.close()
    page.goto(f"file://{save_spiral([run], tmp_path / 'spiral.html')}")
    page.keyboard.press("End")
    page.locator("#question2").check()
    assert EVIL in page.locator("#board").inner_text()
    page.locator("#question1").check()
    assert page.evaluate("window.evil") is None and page.locator("img").count() == 0
    assert page.said == []
    assert page.locator("script").count() == 2


def test_without_recorded_answers_it_shows_rollouts(page, tmp_path):
    run = made(tmp_path / "run", asked=False, logged=1)
    page.goto(f"file://{save_spiral([run], tmp_path / 'spiral.html')}")
    page.keyboard.press("ArrowRight")
    card = page.locator(".card").inner_text()
    assert "train with --questions-every 1" in card and "sampled in batch 1: in training ?" in card
    assert page.locator("#board table").count() == 0 and page.said == []
    assert page.locator(".card").bounding_box()["x"] < 20  # no empty place beside it


def test_it_works_in_a_notebook_s_frame(page, runs):
    page.set_content(SpiralView(runs, height=500, play=True).value)
    frame = page.frame_locator("iframe")
    frame.locator("#where").get_by_text("after 3 of 3 batches").wait_for()
    assert frame.locator(".card").count() == 2
    assert page.said == []
