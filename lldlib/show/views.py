"""The lab's three views: its curves, all arms compared, and the branches of a rescue."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from matplotlib.figure import Figure

from lldlib.runs.fate import Fate, fate_of
from lldlib.runs.folder import Run
from lldlib.show.controls import DPI, png
from lldlib.show.says import said_html
from lldlib.show.steered import curves_text, lab_figure
from lldlib.show.style import WIDTH, colours

View = Literal["Curves", "Compare", "Rescue"]
VIEWS: tuple[View, ...] = get_args(View)
NARROWEST, WIDEST = 2.8, 11.0  # inches
STEP = 40  # pixels; a window that changes by less keeps its picture


@dataclass(frozen=True)
class Asked:
    """What the page asks to see."""

    view: View
    chosen: str  # the run whose words are shown
    width: int  # pixels that the page has; 0: not known


@dataclass(frozen=True)
class Shown:
    """What a view shows, and what was asked for."""

    asked: Asked
    picture: bytes
    alt: str
    height: int  # of the picture, pixels
    table: str
    words: str


def draw(
    asked: Asked, runs: Mapping[str, Run], rescued: Mapping[str, Run], ghost: Run | None
) -> Shown:
    """Read the run folders, and make what was asked for."""
    drawn = rescued if asked.view == "Rescue" else runs
    behind = None if asked.view == "Rescue" else ghost
    figure = lab_figure(drawn, ghost=behind, width=inches(asked.width))
    table = words = ""
    if asked.view == "Rescue" and not rescued:
        table = "<p>Choose a run and a checkpoint, then press <b>Rescue it</b>.</p>"
    elif asked.view != "Curves":
        table = fates_html({name: fate_of(run) for name, run in drawn.items()})
    if asked.view == "Curves" and asked.chosen in runs:
        words = said_html(asked.chosen, runs[asked.chosen])
    alt = curves_text(drawn)
    return Shown(asked, png(figure), alt, _pixels(figure), table, words)


def inches(width: int) -> float:
    """How wide a figure is drawn for so many pixels; 0: not known."""
    if not width:
        return WIDTH
    return min(max(width // STEP * STEP / DPI, NARROWEST), WIDEST)


def fates_html(fates: Mapping[str, Fate]) -> str:
    """A table of how runs ended, and of who lives."""
    heads = ("run", "batches", "reward at the start", "best", "at its end", "who lives")
    painted = colours(list(fates))
    rows = []
    for name, fate in fates.items():
        numbers = ["-" if n is None else f"{n:.2f}" for n in (fate.start, fate.best, fate.end)]
        cells = [str(fate.batches), *numbers, f"<b>{fate.verdict}</b>"]
        ink = f'<th scope="row" style="color:{painted[name]}">{html.escape(name)}</th>'
        rows.append(f"<tr>{ink}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'<table class="lab-fates"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        "<p>A run lives if its last three batches earn at least what its first two did, and it is "
        "in no collapse (its mean of ten batches under 0.3 of the best one).</p>"
    )


def _pixels(figure: Figure) -> int:
    return round(figure.get_figheight() * DPI)
