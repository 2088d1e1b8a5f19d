"""The lab and every widget in a real browser: JupyterLab and Voila, driven as a reader would.

Every step waits for what it needs, on the page or in the run folder, and never for time to pass.
The lab's batches are small: what is tested is the steering, not the training.
Screenshots lie in pytest's temporary folder (`--basetemp` says where).
"""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from servers import WAIT, jupyterlab, voila

from lldlib.recipes import train_config
from lldlib.runs.folder import Run

CHROMIUM = shutil.which("chromium")
SKIP = "the widgets' browser tests need Chromium: apt-get install chromium"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=SKIP)

STEERED = (Path(__file__).parent / "steered.py").read_text(encoding="utf-8")
GALLERY = (Path(__file__).parent / "gallery.py").read_text(encoding="utf-8")
KERNEL = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
CLIPPED = """() => [...document.querySelectorAll(
    '.widget-label, .widget-readout, .widget-button, .widget-toggle-button, .widget-html-content')]
    .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent)"""
DRAWN = """least => {
    const all = [...document.querySelectorAll('img.widget-image')];
    return all.length >= least && all.every(e => e.complete && e.naturalWidth)}"""
SQUEEZED = """() => [...document.querySelectorAll('img.widget-image')]
    .filter(e => e.clientWidth < 300 || e.clientHeight < 150).length"""
WIDTHS = (1280, 1024)  # pixels of the window


def notebook(cells: str) -> str:
    """A notebook of these cells."""
    made = [nbformat.v4.new_code_cell(source) for source in cells.split("# %%\n")[1:]]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel}))


def command(page, name: str) -> None:
    """Run what an item of JupyterLab's menus runs; opening menus while it starts is a race."""
    page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)


def open_lab(page, url: str) -> None:
    page.goto(f"{url}?reset")  # or the tabs of the last test come back, and one of them is run
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.evaluate("() => window.jupyterapp.restored")
    # the page calls a kernel idle before it is connected, and what is run then is lost
    until(page, f"() => {KERNEL}?.connectionStatus == 'connected' && {KERNEL}.status == 'idle'")
    command(page, "notebook:run-all-cells")


def until(page, script: str, value: object = None) -> None:
    """Wait until a piece of JavaScript is true."""
    page.wait_for_function(script, arg=value, timeout=1000 * WAIT)


def reaches(page, pattern: str, at_least: int = 0) -> None:
    """Wait until the lab's status line has `pattern`, and the number it captures is that high."""
    script = """([pattern, least]) => {
        const found = document.querySelector('.lab-status')?.textContent.match(pattern);
        return found && (found.length < 2 || Number(found[1]) >= least)}"""
    until(page, script, [pattern, at_least])


def curve(page) -> str:
    return page.locator("img.widget-image").first.get_attribute("src")


def button(page, name: str):
    return page.locator(".widget-button").filter(has_text=re.compile(rf"^\s*{name}\s*$")).first


def toggle(page, name: str):
    pattern = re.compile(rf"^\s*{re.escape(name)}\s*$")
    return page.locator(".widget-toggle-button").filter(has_text=pattern).first


def dropdown(page, label: str):
    labelled = page.locator(".widget-dropdown").filter(has=page.get_by_text(label, exact=True))
    return labelled.first.locator("select")


def assert_tidy(page, pictures: int) -> None:
    """The pictures are there in full, and no label is cut off, also in a narrow window."""
    for width in WIDTHS[::-1]:
        page.set_viewport_size({"width": width, "height": 1000})
        page.evaluate("() => document.fonts.ready")
        until(page, DRAWN, pictures)
        assert page.evaluate(CLIPPED) == [], f"cut off in a window {width} wide"
        assert page.evaluate(SQUEEZED) == 0


def hover(page, shots: Path) -> None:
    """Hovering and the choice of colours answer; the kernel has no part in it."""
    view = page.locator(".token-view").first
    token = view.locator(".t").nth(3)
    token.scroll_into_view_if_needed()
    page.mouse.move(0, 0)
    assert not token.locator(".tip").is_visible()
    token.hover()
    token.locator(".tip").wait_for(state="visible")
    assert "log-prob -" in token.locator(".tip").inner_text()
    view.screenshot(path=shots / "tokens.png")
    paint = "e => getComputedStyle(e).backgroundColor"
    before = token.evaluate(paint)
    view.get_by_text("Lp-Reg", exact=True).click()
    assert view.locator(".legend:visible").count() == 1
    assert token.evaluate(paint) != before
    view.locator(".t").nth(5).focus()
    view.locator(".t").nth(5).locator(".tip").wait_for(state="visible")
    view.screenshot(path=shots / "tokens_lp_reg.png")


def turned(page, folder: Callable[[], Path]) -> dict:
    """The one turn of a knob, once it is in the run folder."""
    deadline = time.monotonic() + WAIT
    while not (knobs := [e for e in Run(folder()).events if e["kind"] == "knob"]):
        assert time.monotonic() < deadline, "the knob was never turned"
        page.wait_for_timeout(100)  # milliseconds, in which the page goes on
    (knob,) = knobs
    return knob


def steer(page, folder: Callable[[], Path], shots: Path) -> None:
    """Play, turn LLDS on, pause, branch, rewind: each shows, and is in the run folder."""
    button(page, "Play").click()
    reaches(page, r"^playing \| GRPO: (\d+) of", 1)
    before = curve(page)
    dropdown(page, "method of GRPO").select_option("llds")
    knob = turned(page, folder)
    # it was turned between two batches, whichever were going when the click arrived
    assert knob["step"] >= 1
    preset = train_config("llds", 0, policy="half_taught").loss
    assert knob["loss"]["llds_coef"] == preset.llds_coef
    reaches(page, r"GRPO: (\d+) of", knob["step"] + 1)
    assert curve(page) != before
    button(page, "Pause").click()
    reaches(page, "^paused")
    page.screenshot(path=shots / "played.png")
    dropdown(page, "checkpoint at batch").select_option(str(knob["step"]))
    button(page, "Branch").click()
    reaches(page, rf"\| B: {knob['step']} of")
    chosen = page.locator(".widget-toggle-button.mod-active").filter(has_text=re.compile("^B$"))
    chosen.wait_for()
    button(page, "Step").click()
    reaches(page, r"\| B: (\d+) of", knob["step"] + 1)
    page.screenshot(path=shots / "branched.png")
    toggle(page, "GRPO").click()
    dropdown(page, "checkpoint at batch").select_option("0")
    button(page, "Rewind").click()
    reaches(page, r"^paused \| GRPO: 0 of")
    assert Run(folder()).metrics == []
    branch = Run(folder().with_name(f"{folder().name}-branch1"))
    assert [row["step"] for row in branch.metrics] == list(range(knob["step"] + 1))


def use_the_kernel(page) -> None:
    """While the lab plays, a cell runs; then Interrupt stops the play."""
    button(page, "Play").click()
    reaches(page, r"^playing \| GRPO: (\d+) of", 1)
    cell = page.locator(".jp-CodeCell").filter(has_text="busy = ").first
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    until(
        page,
        "([e, old]) => /\\d/.test(e.textContent) && e.textContent.trim() != old.trim()",
        [prompt.element_handle(), before],
    )
    assert page.locator(".lab-status").first.inner_text().startswith("playing")
    command(page, "notebook:interrupt-kernel")
    reaches(page, "^paused")


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright  # here, so that without it the tests skip

    with sync_playwright() as playwright:
        # without a GPU its emulation would take most of the processor
        args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        given = {"executable_path": CHROMIUM, "args": args, "timeout": 1000 * WAIT}
        opened = playwright.chromium.launch(**given)
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page of its own."""
    opened = browser.new_page(viewport={"width": WIDTHS[0], "height": 1000})
    opened.set_default_timeout(1000 * WAIT)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def lab_server(tmp_path_factory):
    """JupyterLab with the lab's notebook and one of every explorer."""
    notebooks = {"lab.ipynb": notebook(STEERED), "gallery.ipynb": notebook(GALLERY)}
    with jupyterlab(tmp_path_factory.mktemp("jupyterlab"), notebooks) as server:
        yield server


@pytest.fixture
def shots(tmp_path) -> Path:
    (tmp_path / "shots").mkdir()
    return tmp_path / "shots"


def lab_folder(scratch: Path) -> Path:
    """The run folder of the lab that a kernel of this server has made."""
    (folder,) = scratch.glob("lab-*/lab")
    return folder


def opened(page) -> None:
    """The model is there: the lab may be steered."""
    page.locator(".live-lab img.widget-image").first.wait_for()
    reaches(page, "^paused")


def predict(page, shots: Path) -> None:
    """A curve is drawn with the mouse, then one sees what happened; a choice is a commitment."""
    box = page.locator(".draw-prediction").first
    box.scroll_into_view_if_needed()
    show = box.get_by_text("Show what happened")
    assert show.is_disabled() and box.locator(".happened").count() == 0
    axis = box.locator("svg").bounding_box()
    left, top = axis["x"], axis["y"]
    page.mouse.move(left + 80, top + 200)
    page.mouse.down()
    for share in (0.3, 0.6, 0.9):
        page.mouse.move(left + share * axis["width"], top + 60, steps=4)
    page.mouse.up()
    assert box.locator("path.drawn").count() == 1
    show.click()
    box.locator("path.happened").wait_for()
    assert re.search("On average your curve is 0[.][0-9]+ away", box.inner_text())
    assert show.is_disabled()
    box.screenshot(path=shots / "drawn.png")
    asked = page.locator(".widget-vbox").filter(has_text="In which batch do the rewards").last
    commit = asked.get_by_role("button")
    assert commit.is_disabled()
    asked.get_by_label("40").check()
    commit.click()
    asked.get_by_text("You said 40. It is 41.").wait_for()
    asked.screenshot(path=shots / "predicted.png")


def draw_by_keyboard(page) -> None:
    """The same from the keyboard: a slider per quarter of the run."""
    box = page.locator(".draw-prediction").last
    box.locator("summary").focus()
    page.keyboard.press("Enter")
    slider = box.get_by_label("mean reward at batch 24")
    slider.focus()
    page.keyboard.press("End")
    assert box.locator("path.drawn").count() == 1
    box.get_by_text("Show what happened").focus()
    page.keyboard.press("Enter")
    box.locator("path.happened").wait_for()
    assert "where you drew 1.00" in box.inner_text()


def draw_by_finger(page) -> None:
    """The same with a finger: it draws a falling line, and the page does not move under it."""
    box = page.locator(".draw-prediction").last
    box.scroll_into_view_if_needed()
    axis, before = box.locator("svg").bounding_box(), page.evaluate("scrollY")
    finger = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": axis["x"] + x, "y": axis["y"] + y} for x, y in points]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    touch("touchStart", (80, 40))
    for part in range(1, 11):
        touch("touchMove", (80 + part * (axis["width"] - 100) / 10, 40 + 15 * part))
    touch("touchEnd")
    box.locator("path.drawn").wait_for()
    heights = re.findall(r"[ML][0-9.]+ ([0-9.]+)", box.locator("path.drawn").get_attribute("d"))
    assert len(heights) > 10 and heights == sorted(heights, key=float)
    assert page.evaluate("scrollY") == before
    box.get_by_text("Show what happened").click()
    box.locator("path.happened").wait_for()


def rescue(page, folder: Path, shots: Path) -> None:
    """Four branches side by side, then who lives."""
    page.get_by_role("spinbutton", name="for so many batches").first.fill("1")
    page.keyboard.press("Tab")
    button(page, "Rescue it").click()
    reaches(page, "^working: rescuing GRPO")
    assert button(page, "Branch").is_disabled() and button(page, "Step").is_disabled()
    reaches(page, "^paused")
    table = page.locator(".lab-fates").first
    assert table.locator("tbody tr").count() == 4
    assert "a fifth of the rate" in table.inner_text()
    found = [Run(folder.with_name(f"lab-rescue{n}")) for n in (1, 2, 3, 4)]
    assert len({len(run.metrics) for run in found}) == 1
    page.screenshot(path=shots / "rescued.png")
    toggle(page, "Compare").click()
    page.locator(".lab-fates").first.get_by_text("GRPO + LLDS").wait_for()
    page.screenshot(path=shots / "compared.png")
    toggle(page, "Curves").click()
    page.locator(".lab-says").first.wait_for()


def stays_in_view(page, shots: Path) -> None:
    """Scrolled by half of the lab, its buttons are where they were: at the top."""
    page.set_viewport_size({"width": 1366, "height": 768})
    lab = page.locator(".live-lab").first
    lab.evaluate("e => e.scrollIntoView()")
    top = button(page, "Play").bounding_box()["y"]
    scroll = """e => { let box = e;
        while (box && box.scrollHeight <= box.clientHeight + 1) box = box.parentElement;
        box.scrollTop += 300; }"""
    lab.locator("..").evaluate(scroll)
    until(page, "() => document.querySelector('.live-lab').getBoundingClientRect().top < -100")
    assert abs(button(page, "Play").bounding_box()["y"] - top) < 30
    page.screenshot(path=shots / "sticky.png")


def test_the_lab_in_jupyterlab(page, lab_server, shots):
    open_lab(page, lab_server.url + "lab.ipynb")
    page.locator(".token-view").first.wait_for()
    opened(page)
    button(page, "Play").scroll_into_view_if_needed()
    assert_tidy(page, pictures=2)
    assert all(image.get_attribute("alt") for image in page.locator("img.widget-image").all())
    page.screenshot(path=shots / "lab.png")
    steer(page, lambda: lab_folder(lab_server.scratch), shots)
    assert_tidy(page, pictures=2)
    rescue(page, lab_folder(lab_server.scratch), shots)
    stays_in_view(page, shots)
    use_the_kernel(page)
    run = Run(lab_folder(lab_server.scratch))
    assert [row["step"] for row in run.metrics] == list(range(len(run.metrics)))
    hover(page, shots)
    predict(page, shots)
    draw_by_keyboard(page)


def test_the_lab_in_voila(page, tmp_path, shots):
    """And on a telephone: nothing is wider than the screen, and one can still steer."""
    with voila(tmp_path, {"lab.ipynb": notebook(STEERED)}) as server:
        page.goto(server.url + "lab.ipynb")
        opened(page)
        assert_tidy(page, pictures=2)
        page.screenshot(path=shots / "voila.png", full_page=True)
        steer(page, lambda: lab_folder(server.scratch), shots)
        hover(page, shots)
        predict(page, shots)
        page.set_viewport_size({"width": 400, "height": 800})
        until(page, "() => document.querySelector('.live-lab img').naturalWidth < 400")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.locator(".live-lab").first.screenshot(path=shots / "narrow.png")
        draw_by_finger(page)
        button(page, "Step").click()
        reaches(page, "^paused .* GRPO: 1 of")


def test_the_explorers_in_jupyterlab(page, lab_server, shots):
    """Every explorer: nothing is clipped, and the keyboard moves it."""
    open_lab(page, lab_server.url + "gallery.ipynb")
    assert_tidy(page, pictures=2)
    parts = page.locator(".jp-CodeCell .jp-OutputArea-output > .widget-vbox")
    for width in WIDTHS[::-1]:
        page.set_viewport_size({"width": width, "height": 1000})
        for place, name in enumerate(("gate", "proxy")):
            parts.nth(place).scroll_into_view_if_needed()
            parts.nth(place).screenshot(path=shots / f"{name}_{width}.png")
    handle = page.locator(".noUi-handle").nth(1)  # λ, which the loss follows
    before = curve(page)
    handle.focus()
    page.keyboard.press("ArrowLeft")
    moved = "old => document.querySelector('img.widget-image').getAttribute('src') != old"
    until(page, moved, before)
    assert_tidy(page, pictures=2)
