"""The spiral's page and the step inspector in JupyterLab, as a notebook shows them."""

import shutil

import nbformat
import pytest
from servers import WAIT, jupyterlab
from test_browser import open_lab

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
CELLS = (
    """
from lldlib.config import data_dir
from lldlib.runs.folder import Run
from lldlib.show.widgets import SpiralView
SpiralView([Run(data_dir() / f"atlas/demo/{arm}-seed0") for arm in ("grpo", "llds")], 700, True)
""",
    """
import tempfile
from pathlib import Path
from lldlib.recipes import train_config
from lldlib.show.inspector import StepInspector
from lldlib.train.dissect import dissect_update
from lldlib.train.run import TrainingRun
small = train_config("llds", 0, eval_every=0, probe_every=0, problems=4, updates_per_batch=4)
run = TrainingRun(small, Path(tempfile.mkdtemp()) / "run")
StepInspector(dissect_update(run.trainer, 3), height=260)
""",
)


def notebook() -> str:
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}))


def test_both_in_jupyterlab(tmp_path):
    from playwright.sync_api import sync_playwright

    (tmp_path / "lab").mkdir()
    with (
        jupyterlab(tmp_path / "lab", {"frames.ipynb": notebook()}) as server,
        sync_playwright() as playwright,
    ):
        sandbox = {"args": ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, **sandbox)
        page = browser.new_page(viewport={"width": 1366, "height": 900})
        page.set_default_timeout(1000 * WAIT)
        open_lab(page, f"{server.url}frames.ipynb")
        frame = page.frame_locator("iframe[title='the spiral']")
        frame.locator("#where").get_by_text("after 25 of 25 batches").wait_for()  # it has played
        assert frame.locator(".card").first.inner_text().count("no answer") == 1
        page.screenshot(path=tmp_path / "spiral.png")
        token = page.locator(".step-inspector .t").nth(2)
        token.scroll_into_view_if_needed()
        token.hover()
        token.locator(".tip").wait_for(state="visible")
        assert "gradient of the loss in the log-prob" in token.locator(".tip").inner_text()
        page.screenshot(path=tmp_path / "inspector.png")
        browser.close()
