"""Notebook 08 and every widget in a real browser: JupyterLab and Voila, driven as a reader would.

Every step waits for what it needs, on the page or in the run folder, and never for time to pass.
The notebook's batches are made small: what is tested is the steering, not the training.
Screenshots lie in pytest's temporary folder (`--basetemp` says where).
"""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from servers import ROOT, WAIT, jupyterlab, voila

from lldlib.recipes import train_config
from lldlib.runs.folder import Run

CHROMIUM = shutil.which("chromium")
SKIP = "the widgets' browser tests need Chromium: apt-get install chromium"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=SKIP)

(NOTEBOOK,) = (ROOT / "notebooks").glob("08_*.ipynb")
VOILA_TAGS = {"setup", "widget", "dissect"}  # enough of 08 for its widgets
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
SMALLER = {  # in 08: the seeds of its experiment, the run of the lab, the dissected batch
    "for seed in (0, 1, 2):": "for seed in (0,):",
    "eval_every=0)": "eval_every=0, steps=999, problems=4, updates_per_batch=4)",
    "warmup_batches=0)": "warmup_batches=0, problems=8, updates_per_batch=8)",
}


def notebook(tags: set[str] | None = None) -> str:
    """08 with small batches; with `tags`, only the cells that carry one of them."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    for old, new in SMALLER.items():
        (cell,) = [c for c in book.cells if c.cell_type == "code" and old in c.source]
        cell.source = cell.source.replace(old, new)
    if tags is not None:
        book.cells = [c for c in book.cells if tags & set(c.metadata.get("tags", []))]
        assert len(book.cells) >= 4
    return nbformat.writes(book)


def gallery() -> str:
    """A notebook of every explorer, one a cell."""
    cells = [nbformat.v4.new_code_cell(source) for source in GALLERY.split("# %%\n")[1:]]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}))


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


def dropdown(page, label: str):
    labelled = page.locator(".widget-dropdown").filter(has=page.get_by_text(label, exact=True))
    return labelled.locator("select")


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
    reaches(page, r"^playing \| A: (\d+) of", 1)
    before = curve(page)
    dropdown(page, "method").select_option("llds")
    knob = turned(page, folder)
    # it was turned between two batches, whichever were going when the click arrived
    assert knob["step"] >= 1
    preset = train_config("llds", 0, policy="half_taught").loss
    assert knob["loss"]["llds_coef"] == preset.llds_coef
    reaches(page, r"A: (\d+) of", knob["step"] + 1)
    assert curve(page) != before
    button(page, "Pause").click()
    reaches(page, "^paused")
    page.screenshot(path=shots / "played.png")
    dropdown(page, "checkpoint at batch").select_option(str(knob["step"]))
    button(page, "Branch").click()
    reaches(page, rf"\| B: {knob['step']} of")
    page.locator(".widget-toggle-button.mod-active").filter(has_text="B").wait_for()
    button(page, "Step").click()
    reaches(page, r"\| B: (\d+) of", knob["step"] + 1)
    page.screenshot(path=shots / "branched.png")
    page.locator(".widget-toggle-button").filter(has_text=re.compile("^A$")).click()
    dropdown(page, "checkpoint at batch").select_option("0")
    button(page, "Rewind").click()
    reaches(page, r"^paused \| A: 0 of")
    assert Run(folder()).metrics == []
    branch = Run(folder().with_name(f"{folder().name}-branch1"))
    assert [row["step"] for row in branch.metrics] == list(range(knob["step"] + 1))


def use_the_kernel(page) -> None:
    """While the lab plays, a cell runs; then Interrupt stops the play."""
    button(page, "Play").click()
    reaches(page, r"^playing \| A: (\d+) of", 1)
    cell = page.locator(".jp-CodeCell").filter(has_text="first_batch = None").first
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    until(
        page,
        "([e, old]) => /\\d/.test(e.textContent) && e.textContent.trim() != old.trim()",
        [prompt.element_handle(), before],
    )
    assert page.locator(".lab-status").inner_text().startswith("playing")
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
    """JupyterLab with notebook 08 and a notebook of every explorer."""
    notebooks = {NOTEBOOK.name: notebook(), "gallery.ipynb": gallery()}
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


def test_08_in_jupyterlab(page, lab_server, shots):
    open_lab(page, lab_server.url + NOTEBOOK.name)
    page.locator(".token-view").first.wait_for()
    button(page, "Play").scroll_into_view_if_needed()
    assert_tidy(page, pictures=1)
    page.screenshot(path=shots / "lab.png")
    steer(page, lambda: lab_folder(lab_server.scratch), shots)
    assert_tidy(page, pictures=1)
    use_the_kernel(page)
    run = Run(lab_folder(lab_server.scratch))
    assert [row["step"] for row in run.metrics] == list(range(len(run.metrics)))
    hover(page, shots)


def test_08_in_voila(page, tmp_path, shots):
    with voila(tmp_path, {NOTEBOOK.name: notebook(VOILA_TAGS)}) as server:
        page.goto(server.url + NOTEBOOK.name)
        button(page, "Play").wait_for()
        assert_tidy(page, pictures=1)
        page.screenshot(path=shots / "voila.png", full_page=True)
        steer(page, lambda: lab_folder(server.scratch), shots)
        hover(page, shots)


def test_the_explorers_in_jupyterlab(page, lab_server, shots):
    """Every explorer: nothing is clipped, and the keyboard moves it."""
    open_lab(page, lab_server.url + "gallery.ipynb")
    assert_tidy(page, pictures=5)  # the phase diagram has two
    parts = page.locator(".jp-CodeCell .jp-OutputArea-output > .widget-vbox")
    for width in WIDTHS[::-1]:
        page.set_viewport_size({"width": width, "height": 1000})
        for place, name in enumerate(("gate", "proxy", "phase_diagram", "post_mortem")):
            parts.nth(place).scroll_into_view_if_needed()
            parts.nth(place).screenshot(path=shots / f"{name}_{width}.png")
    handle = page.locator(".noUi-handle").nth(1)  # λ, which the loss follows
    before = curve(page)
    handle.focus()
    page.keyboard.press("ArrowLeft")
    moved = "old => document.querySelector('img.widget-image').getAttribute('src') != old"
    until(page, moved, before)
    assert_tidy(page, pictures=5)
