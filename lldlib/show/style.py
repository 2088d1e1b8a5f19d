"""The one look of all figures: colours, sizes, axes, names of lines, phases.

Nothing touches pyplot or global settings; in a notebook `%matplotlib inline` shows a Figure.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.files import write_whole
from lldlib.runs.folder import Run
from lldlib.runs.phases import Phase, Phases

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ARM_COLOURS = {"GRPO": COLOURS[0], "GRPO + LLDS": COLOURS[1], "GRPO, cooler": COLOURS[2]} | {
    "LLDS": COLOURS[1],
    "nothing changed": COLOURS[0],  # in a rescue
    "LLDS on": COLOURS[1],
    "a fifth of the rate": COLOURS[2],
}
SHADES: dict[Phase, str] = {
    "steady": "#f7f7f7",
    "learning": "#d9f0e4",
    "stagnation": "#fdf3c9",
    "decay": "#f9d5a7",
    "collapse": "#cccccc",
}
WIDTH, DPI, SMALL, TEXT = 8.5, 130, 9, 10  # inches, dots per inch, points, points
BATCH = "batch"

Arms = Mapping[str, Sequence[Run]]


def style(ax: Axes, xlabel: str, ylabel: str) -> Axes:
    """The one look of all figures: light grid, two spines, readable text."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=SMALL)
    ax.set_xlabel(xlabel, fontsize=TEXT)
    ax.set_ylabel(ylabel, fontsize=TEXT)
    return ax


def colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per name, its own for a name of ARM_COLOURS.

    Raises ValueError if there are more names than colours.
    """
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} arms but only {len(COLOURS)} colours: draw fewer at once")
    own = {name: ARM_COLOURS[name] for name in names if name in ARM_COLOURS}
    free = [colour for colour in COLOURS if colour not in own.values()]
    if own:  # what has no colour of its own takes no arm's while there are others
        free.sort(key=lambda colour: colour in ARM_COLOURS.values())
    rest = iter(free)
    return {name: own.get(name) or next(rest) for name in names}


def label_ends(ax: Axes) -> Axes:
    """Write each labelled line's name where its numbers end, so that no two names touch."""
    lines = [line for line in ax.lines if not line.get_label().startswith("_")]
    ax.get_ylim()  # settles the limits before heights are read off
    to_axes = ax.transData - ax.transAxes
    known = {line: [p for p in line.get_xydata() if math.isfinite(p[1])] for line in lines}
    # a line that ends off the axis is named at the axis's end
    heights = {k: min(max(to_axes.transform(v[-1])[1], 0), 1) for k, v in known.items() if v}
    inches = ax.get_position().height * ax.figure.get_figheight()
    gap, height = 1.1 * SMALL / 72 / inches, -math.inf
    for line in sorted(heights, key=heights.__getitem__):
        height = max(heights[line], height + gap)
        place = {"transform": ax.transAxes, "va": "center", "fontsize": SMALL}
        ax.text(1.01, height, line.get_label(), color=line.get_color(), **place)
    return ax


def stretches(phases: Sequence[Phase]) -> list[tuple[Phase, int, int]]:
    """(phase, first batch, number of batches) of each stretch of one phase, in order."""
    found = [list(group) for _, group in groupby(enumerate(phases), key=lambda pair: pair[1])]
    return [(group[0][1], group[0][0], len(group)) for group in found]


def mark_phases(ax: Axes, phases: Phases, rung: int | None, *, names: bool) -> Axes:
    """Shade the phases, name the longest stretch of each, mark the alarm.

    How the phases were told is for the figure to say: see `told_text`.
    """
    top = {"transform": ax.get_xaxis_transform(), "fontsize": SMALL, "ha": "center", "va": "bottom"}
    letter = (ax.get_xlim()[1] - ax.get_xlim()[0]) / 90  # about the width of one, in batches
    found, free = stretches(phases.labels), -math.inf
    longest = {phase: max(n for p, _, n in found if p == phase) for phase in set(phases.labels)}
    for phase, start, length in found:
        ax.axvspan(start, start + length, color=SHADES[phase], linewidth=0, zorder=0)
        middle, half = start + length / 2, letter * (len(phase) + 1) / 2
        # a name that would touch the last one is left out
        if names and length == longest[phase] and middle - half > free:
            ax.text(middle, 1.01, phase, color="0.35", **top)
            free = middle + half
    if rung is not None:
        ax.axvline(rung, color="black", linestyle=(0, (1, 1)), linewidth=1.2)
        if names:
            ax.text(rung, 1.09, "alarm", **top)
    return ax


def told_text(phases: Mapping[str, Phases]) -> str:
    """How the phases of some runs, given by name, were told, in words for a label."""
    if len(told := {each.told for each in phases.values()}) == 1:
        return f"phases {told.pop()}"
    return "phases: " + ", ".join(f"{name} {each.told}" for name, each in phases.items())


def save(figure: Figure, path: Path | str) -> Path:
    """Write a PNG, making its folder."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, facecolor="white")
    write_whole(path, drawn.getvalue())
    return Path(path)
