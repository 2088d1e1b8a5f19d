"""The demo's recorded runs as a page that needs no kernel, and the front page's moving picture.

    python data/atlas/spiral.py

writes spiral.html and spiral.gif beside this file. The picture is the page itself, photographed
after every batch by Chromium, and made smaller by gifsicle without loss (apt-get install chromium
gifsicle); `--page` writes the page alone.
"""

import io
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from PIL import Image

from lldlib.runs.folder import Run
from lldlib.show.spiral import save_spiral

HERE = Path(__file__).parent
ARMS = ("grpo", "llds", "grpo_best_rate")
SIZE = {"width": 1000, "height": 960}  # pixels
FRAME, FIRST, LAST = 320, 1000, 2000  # milliseconds of a frame, of the first, of the last
SET = """batch => {
    const slider = document.getElementById("at");
    slider.value = batch;
    slider.dispatchEvent(new Event("input"));
}"""


def page() -> Path:
    """Write the page of the demo's three arms."""
    runs = [Run(HERE / "demo" / f"{arm}-seed0") for arm in ARMS]
    return save_spiral(runs, HERE / "spiral.html")


def frames(path: Path) -> list[Image.Image]:
    """The page after 0, 1, 2, ... batches."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_page(viewport=SIZE)
        opened.goto(f"file://{path.resolve()}")
        taken = []
        for batch in range(int(opened.locator("#at").get_attribute("max")) + 1):
            opened.evaluate(SET, batch)
            taken.append(Image.open(io.BytesIO(opened.screenshot())).convert("RGB"))
        browser.close()
    return taken


def save_gif(pictures: list[Image.Image], path: Path) -> None:
    """The last picture, which says how it ends, then all in their order.

    One palette for all, of their most frequent colours, so that nothing flickers.
    """
    counts = Counter()
    for picture in pictures:
        counts.update({colour: n for n, colour in picture.getcolors(1 << 24)})
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour, _ in counts.most_common(256) for part in colour])
    film = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
    times = [LAST, FIRST, *[FRAME] * (len(film) - 1)]
    film[-1].save(path, save_all=True, append_images=film, duration=times, loop=0, optimize=False)


if __name__ == "__main__":
    made = page()
    if "--page" not in sys.argv[1:]:
        save_gif(frames(made), HERE / "spiral.gif")
        subprocess.run(["gifsicle", "-O3", "--batch", HERE / "spiral.gif"], check=True)
