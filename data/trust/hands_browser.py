"""The lab under hands in a browser: python data/trust/hands_browser.py --count 200 [--seed 0]

As `hands.py`, with a JupyterLab, Chromium, and runs that train, in the smallest batches. A click
may reach the kernel when the lab is busy already, and is then dropped; what was clicked while the
lab was quiet must come. Pages are loaded again, cells run beside, the kernel is interrupted.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Error, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/browser")]

from hands import Twins, Wish, compare, judge  # noqa: E402
from servers import jupyterlab  # noqa: E402

from lldlib.config import LossConfig  # noqa: E402
from lldlib.recipes import train_config  # noqa: E402
from lldlib.train.live import OFTEN  # noqa: E402

STUCK = 120  # seconds
QUICK = {"steps": 8, "problems": 1, "group_size": 2, "updates_per_batch": 2, "probe_every": 0}
SETTINGS = {**OFTEN, **QUICK, "policy": "sparks", "warmup_batches": 0}
ARMS = {"GRPO": "grpo", "GRPO + LLDS": "llds"}
OPEN, SHOW, STEP = 1, 2, 3  # places of the cells
CELLS = f"""
import dataclasses, json, sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from hands import record
from lldlib.show.lab import LiveLab
from lldlib.train.live import live
folder, number = Path(tempfile.mkdtemp(prefix="hands-")), 0
# %%
out = folder / f"{{number:04d}}"
journal, number = out.with_suffix(".jsonl").open("w", buffering=1), number + 1
arms = dict(list({ARMS!r}.items())[: 1 + number % 2])
lab = LiveLab({{name: live(m, 0, out / m, **{SETTINGS!r}) for name, m in arms.items()}})
lab.bar.batches.value = 1
def write(entry, journal=journal):
    journal.write(json.dumps(entry, default=dataclasses.asdict) + "\\n")
record(lab.steering, write)
# %%
lab
# %%
lab.step(1)
"""
ACTS = {
    **{"Play": 6, "Step": 3, "Rewind": 3, "Branch": 3, "Rescue it": 2, "knob": 6, "choose": 3},
    **{"point": 4, "view": 1, "interrupt": 2, "cell": 2, "reload": 1, "settle": 6},
}
STATE = """() => {
    const box = document.querySelector('.live-lab'), text = e => e.textContent.trim();
    if (!box) return null;
    const all = kind => [...box.querySelectorAll(kind)];
    const menu = all('.widget-dropdown').find(e => text(e).startsWith('checkpoint'));
    const down = all('.widget-toggle-button.mod-active').map(text);
    return {status: text(box.querySelector('.lab-status')), down,
        buttons: Object.fromEntries(all('.widget-button').map(e => [text(e), !e.disabled])),
        toggles: all('.widget-toggle-button').map(text),
        points: [...menu.querySelectorAll('option')].map(text),
        point: menu.querySelector('select').selectedOptions[0]?.textContent,
        grey: all('button, select').filter(e => e.disabled).length}}"""
CLICK = """([kind, name]) => {
    const found = [...document.querySelectorAll('.live-lab ' + kind)]
        .find(e => e.textContent.trim() == name);
    if (!found || found.disabled) return false;
    found.click();
    return true}"""
CHOOSE = """([label, value]) => {
    const menu = [...document.querySelectorAll('.live-lab .widget-dropdown')]
        .find(e => e.textContent.trim().startsWith(label))?.querySelector('select');
    const option = [...(menu?.options ?? [])].find(e => e.textContent.trim() == value);
    if (!option || menu.disabled || menu.selectedOptions[0] == option) return false;
    menu.value = option.value;
    menu.dispatchEvent(new Event('change', {bubbles: true}));
    return true}"""
SLIDE = """([label, key]) => {
    const slider = [...document.querySelectorAll('.live-lab .widget-inline-hbox')]
        .find(e => e.textContent.trim().startsWith(label))?.querySelector('.noUi-handle');
    const off = slider?.closest('[disabled]') || slider?.getAttribute('disabled');
    if (!slider || off) return false;
    slider.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    return true}"""
RUN = """place => {
    const book = window.jupyterapp.shell.currentWidget;
    book.content.activeCellIndex = place;
    window.jupyterapp.commands.execute('notebook:run-cell');}"""
KERNEL = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
CONNECTED = f"() => {KERNEL}?.connectionStatus == 'connected' && {KERNEL}.status == 'idle'"
COMMAND = "async name => { await window.jupyterapp.commands.execute(name); }"
QUIET = """() => { const s = document.querySelector('.live-lab .lab-status')?.textContent ?? '';
    return s.startsWith('paused') &&
        ![...document.querySelectorAll('.live-lab button')].some(e => e.disabled)}"""


class Reader:
    """Somebody before the page."""

    def __init__(self, page: Page, url: str, rng: random.Random):
        self.page, self.url, self.rng = page, url, rng
        self.wishes: list[Wish] = []
        self.done: Counter[str] = Counter()
        self.quiet = False  # nothing is under way, so that no click may be dropped

    def load(self) -> None:
        """Load the page, and wait for its kernel."""
        self.page.goto(self.url)
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        self.page.evaluate("() => window.jupyterapp.restored")
        self.page.wait_for_function(CONNECTED)

    def open(self) -> None:
        """A lab of its own for this sequence."""
        self.page.evaluate(RUN, OPEN)
        self.page.wait_for_function(CONNECTED)
        self.show()
        self.settle()

    def show(self) -> None:
        """Run the cell that shows the lab."""
        self.page.evaluate("() => document.querySelector('.live-lab')?.classList.add('gone')")
        self.page.evaluate(RUN, SHOW)
        self.page.wait_for_function("() => document.querySelector('.live-lab:not(.gone)')")

    def settle(self) -> None:
        """Wait until the lab has nothing to do; playwright's TimeoutError where it is stuck."""
        self.page.wait_for_function(CONNECTED)
        self.page.wait_for_function(QUIET)
        self.quiet = True

    @property
    def state(self) -> dict[str, Any]:
        """What the page shows."""
        return self.page.evaluate(STATE)

    def act(self) -> None:
        """One act; then it waits a little, or not."""
        (name,) = self.rng.choices(list(ACTS), list(ACTS.values()))
        self.done[name] += 1
        state = self.state
        chosen = next(name for name in state["down"] if name in (*ARMS, "B"))
        quiet, self.quiet = self.quiet, name in ("settle", "point", "choose", "view") and self.quiet
        if name in ("Step", "Rewind", "Branch", "Rescue it"):
            point = None if state["point"] == "now" else int(state["point"])
            clicked = self.page.evaluate(CLICK, [".widget-button", name])
            act = name.split()[0].lower()
            if clicked and act != "step" and (act, point) != ("rewind", None):
                self.wishes.append(Wish(act, chosen, point, maybe=not quiet))
        elif name == "knob":
            self._knob(chosen, quiet)
        else:
            getattr(self, f"_{name.lower()}")(state)
        self.page.wait_for_timeout(self.rng.choice([0, 0, 30, 300, 1500]))

    def _play(self, state: dict[str, Any]) -> None:
        name = next(name for name in ("Play", "Pause") if name in state["buttons"])
        self.page.evaluate(CLICK, [".widget-button", name])

    def _knob(self, chosen: str, quiet: bool) -> None:
        field = self.rng.choice(["method", "lr", "llds_coef"])
        if field == "method":
            value = self.rng.choice(["grpo", "llds"])
            turned = self.page.evaluate(CHOOSE, [f"method of {chosen}", value])
        else:
            label = {"lr": "lr of ", "llds_coef": "LLDS λ of "}[field] + chosen
            key, value = self.rng.choice(["ArrowLeft", "ArrowRight"]), None
            turned = self.page.evaluate(SLIDE, [label, key])
        if turned:  # a slider at its end stays there
            maybe = not quiet or value is None
            self.wishes.append(Wish("turn", chosen, None, field, value, maybe=maybe))

    def _choose(self, state: dict[str, Any]) -> None:
        name = self.rng.choice([name for name in state["toggles"] if name in (*ARMS, "B")])
        self.page.evaluate(CLICK, [".widget-toggle-button", name])
        self.page.wait_for_timeout(200)

    def _point(self, state: dict[str, Any]) -> None:
        point = self.rng.choice(state["points"])
        self.page.evaluate(CHOOSE, ["checkpoint", point])

    def _view(self, state: dict[str, Any]) -> None:
        name = self.rng.choice(["Curves", "Compare", "Rescue"])
        self.page.evaluate(CLICK, [".widget-toggle-button", name])

    def _interrupt(self, state: dict[str, Any]) -> None:
        self.page.evaluate(COMMAND, "notebook:interrupt-kernel")

    def _cell(self, state: dict[str, Any]) -> None:
        self.page.evaluate(RUN, STEP)

    def _reload(self, state: dict[str, Any]) -> None:
        self.load()
        self.show()

    def _settle(self, state: dict[str, Any]) -> None:
        if "Pause" in state["buttons"] and self.rng.random() < 0.5:
            self.page.evaluate(CLICK, [".widget-button", "Pause"])
        self.settle()


def sequence(reader: Reader, folder: Path, number: int) -> list[str]:
    """One sequence: what is wrong."""
    try:
        reader.open()
        for _ in range(reader.rng.randint(4, 12)):
            reader.act()
        if "Pause" in reader.state["buttons"]:
            reader.page.evaluate(CLICK, [".widget-button", "Pause"])
        reader.settle()
        reader.page.wait_for_timeout(1000)  # the last click may be on its way still
        reader.settle()
        (scratch,) = folder.glob("hands-*")
        before = len(_lines(scratch / f"{number:04d}.jsonl"))
        reader.page.evaluate(CLICK, [".widget-button", "Step"])
        _until_ticked(reader.page, scratch / f"{number:04d}.jsonl", before)
        reader.page.wait_for_timeout(500)  # what the kernel has done comes to the page later
        reader.settle()
        status = reader.state["status"]
    except Error as error:
        told = reader.page.evaluate(STATE) or {}
        return [f"stuck: {error.message.splitlines()[0]}; {told.get('status')}, {told.get('grey')}"]
    journal = [_entry(json.loads(line)) for line in _lines(scratch / f"{number:04d}.jsonl")]
    arms = dict(list(ARMS.items())[: 1 + (number + 1) % 2])
    twins = Twins({n: (m, train_config(m, 0, **SETTINGS)) for n, m in arms.items()})
    wrong = compare(journal, reader.wishes, twins)
    wrong += judge(scratch / f"{number:04d}", twins, trained=True)
    if not journal or journal[-1]["act"] != "tick":
        wrong.append("the lab does not step any more")
    for name, run in twins.names.items():
        twin = twins.folders[run]
        if f"{name}: {len(twin.batches)} of {twin.config.steps}" not in status:
            wrong.append(f"{name} has {len(twin.batches)} batches, and shown is {status}")
    return wrong


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _until_ticked(page: Page, file: Path, before: int) -> None:
    """Until a batch is in the journal's new lines; the end says where none ever comes."""
    end = time.monotonic() + STUCK
    while time.monotonic() < end:
        if any(json.loads(line)["act"] == "tick" for line in _lines(file)[before:]):
            return
        page.wait_for_timeout(50)


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    knobs = entry.get("knobs", {})
    if "loss" in knobs:
        knobs["loss"] = LossConfig(**knobs["loss"])
    return entry


def main() -> None:
    """Try, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="sequences")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS.strip().split("# %%\n")]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    total, faults = Counter(), 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        notebooks = {"hands.ipynb": nbformat.writes(book)}
        args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        with jupyterlab(Path(folder), notebooks) as server:
            page = chromium.new_page(viewport={"width": 1280, "height": 1000})
            page.on("dialog", lambda dialog: dialog.accept())
            page.set_default_timeout(1000 * STUCK)
            Reader(page, server.url + "hands.ipynb", random.Random(0)).load()
            page.evaluate(RUN, 0)
            page.wait_for_function(CONNECTED)
            for number in range(given.count):
                started = time.monotonic()
                rng = random.Random(given.seed + number)
                reader = Reader(page, server.url + "hands.ipynb", rng)
                wrong = sequence(reader, server.scratch, number)
                total, faults = total + reader.done, faults + len(wrong)
                seconds = time.monotonic() - started
                print(
                    f"seed {given.seed + number}: {wrong or 'well'} ({seconds:.0f} s)", flush=True
                )
        chromium.close()
    print(f"{given.count} sequences, {faults} faults; {dict(total.most_common())}")


if __name__ == "__main__":
    main()
