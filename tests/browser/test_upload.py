"""A log is dropped into notebook 7 in a real browser, in JupyterLab and in Voila."""

import shutil

import nbformat
import pytest
from servers import ROOT, WAIT, jupyterlab, voila

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
(NOTEBOOK,) = (ROOT / "notebooks").glob("07_reading_*.ipynb")
SERVERS = {"jupyterlab": jupyterlab, "voila": voila}


def opening() -> str:
    """The cells of notebook 7 that make the field which takes a log, with what they need."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    named = ("from lldlib.course import *", "loss, reward = ", "upload_widget()")
    book.cells = [
        c for c in book.cells if c.cell_type == "code" and any(n in c.source for n in named)
    ]
    return nbformat.writes(book)


@pytest.fixture
def page():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = {"args": ["--no-sandbox", "--disable-gpu"]}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, **sandbox)
        opened = browser.new_page(viewport={"width": 1280, "height": 1400})
        opened.set_default_timeout(1000 * WAIT)
        yield opened
        browser.close()


DROP = """(text) => {
  const files = new DataTransfer();
  files.items.add(new File([text], "my run.log"));
  const box = document.querySelector(".lldlib-drop");
  const event = {bubbles: true, cancelable: true, dataTransfer: files};
  box.dispatchEvent(new DragEvent("drop", event));
}"""


@pytest.mark.parametrize("way", ["chosen", "dropped"])
@pytest.mark.parametrize("kind", SERVERS)
def test_a_log_that_is_chosen_or_dropped_shows_its_page(kind, way, page, tmp_path):
    log = tmp_path / "my run.log"
    scores = [0.2 + t / 60 + 0.02 * (t % 3) if t < 40 else 0.01 * (t % 2) for t in range(60)]
    lines = [f"step:{t} - critic/score/mean:{s} - actor/entropy:0.5" for t, s in enumerate(scores)]
    log.write_text("\n".join(lines) + "\n")
    home = tmp_path / "server"
    home.mkdir()
    with SERVERS[kind](home, {"07.ipynb": opening()}) as server:
        page.goto(f"{server.url}07.ipynb")
        if kind == "jupyterlab":
            page.locator(".jp-Notebook .jp-Cell").first.wait_for()
            page.evaluate("() => window.jupyterapp.restored")
            ready = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
            page.wait_for_function(f"() => {ready}?.connectionStatus == 'connected'")
            page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        page.locator(".jupyter-widgets.widget-upload").wait_for()
        if way == "chosen":
            with page.expect_file_chooser() as chooser:
                page.locator(".jupyter-widgets.widget-upload").click()
            chooser.value.set_files(log)
        else:
            page.wait_for_function("() => window.lldlibDrop")
            page.evaluate(DROP, log.read_text())
        inner = page.frame_locator("iframe[title=diagnosis]")
        inner.locator(".verdict").wait_for()
        assert "Collapsed at step 40" in inner.locator(".verdict").inner_text()
        assert inner.locator("img").evaluate("e => e.naturalWidth") > 300
        page.locator("iframe[title=diagnosis]").scroll_into_view_if_needed()
        page.screenshot(path=tmp_path / f"{kind}.png")
