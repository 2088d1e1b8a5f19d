"""The doctor's page on a telephone: nothing is wider than the screen; the narrow figure shows."""

import shutil

import pytest

from lldlib.doctor.page import diagnose_rows, write_pages

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
LONG = "rollout/" + "a_very_long_name_of_a_column_" * 5


def diagnosed(name):
    rows = [
        {
            "step": t,
            "reward": 0.2 + t / 60 + 0.02 * (t % 3) if t < 40 else 0.01 * (t % 2),
            "kl": 0.1 if t < 38 else 4.0,
            f"{LONG}_entropy": 1.0 + t % 3,
        }
        for t in range(60)
    ]
    return diagnose_rows(rows, name)


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize(("width", "figure"), [(400, 484), (1200, 1100)])
def test_a_page_fits_its_screen(tmp_path, runs, width, figure):
    from playwright.sync_api import sync_playwright

    page = write_pages([diagnosed(f"{LONG}{i}.log") for i in range(runs)], tmp_path)
    with sync_playwright() as playwright:
        sandbox = {"args": ["--no-sandbox", "--disable-gpu"]}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, **sandbox)
        opened = browser.new_page(viewport={"width": width, "height": 900})
        opened.goto(f"file://{page}")
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.locator("img").first.evaluate("e => e.naturalWidth") == figure
        opened.screenshot(path=tmp_path / "page.png", full_page=True)
        browser.close()
