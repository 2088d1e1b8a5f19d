"""Figures that compare many run folders: phases, bands, survival, and runs without a name.

As in `curves`: nothing touches pyplot or global settings, colours are colour-blind safe.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lldlib.runs.folder import Run
from lldlib.runs.glossary import describe
from lldlib.runs.onsets import SPIRAL, BandRule, band_of, leaves
from lldlib.runs.phases import Phase, Series, alarm_of, collapse_batch, phases_of, trailing_mean
from lldlib.show.curves import (
    BATCH,
    COLOURS,
    SMALL,
    TEXT,
    WIDTH,
    Arms,
    colours,
    label_ends,
    style,
)

REWARD = "reward/mean"
PHASE_COLOURS: dict[Phase, str] = {
    "stagnation": "#d9d9d9",
    "decay": COLOURS[5],
    "collapse": COLOURS[0],
}


def phase_strips(runs: Mapping[str, Run]) -> Figure:
    """A row per run: the phase of every batch, the alarm, and the batch of collapse by the rule."""
    figure = Figure(figsize=(WIDTH, 1.1 + 0.26 * len(runs)), layout="constrained")
    ax = figure.subplots()
    for place, run in enumerate(runs.values()):
        start = 0
        for phase, stretch in groupby(phases_of(run)):
            length = len(list(stretch))
            ax.barh(place, length, left=start, height=0.8, color=PHASE_COLOURS[phase])
            start += length
        for batch, marker in ((alarm_of(run), "v"), (collapse_batch(run.column(REWARD)), "X")):
            if batch is not None:
                ax.plot(batch, place, marker, color="black", markersize=6, markeredgecolor="white")
    style(ax, BATCH, "").grid(visible=False)
    ax.set_yticks(range(len(runs)), list(runs))
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.margins(x=0.01)
    handles = [Patch(color=colour, label=phase) for phase, colour in PHASE_COLOURS.items()]
    for marker, label in (("v", "alarm"), ("X", "collapse rule")):
        handles.append(
            Line2D([], [], color="black", marker=marker, linestyle="", markersize=6, label=label)
        )
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": len(handles)}
    ax.legend(handles=handles, fontsize=SMALL, frameon=False, **place)
    return figure


def band_figure(lived: Sequence[Run], died: Mapping[str, Run], rule: BandRule) -> Figure:
    """The curves of the spiral: the band of the runs that lived, the others as lines over it.

    A dot is the batch at which a line leaves the band for `rule.hold` batches. Trailing means over
    `rule.window` batches. Raises ValueError for fewer than two runs in `lived`.
    """
    figure = Figure(figsize=(WIDTH, 7.4), layout="constrained")
    for ax, (key, side) in zip(figure.subplots(4, 1, sharex=True), SPIRAL.items(), strict=True):
        band = band_of([run.column(key) for run in lived], rule)
        metric = describe(key)
        if key == "grad/norm":
            ax.set_yscale("log")
        batches = range(len(band.low))
        ax.fill_between(batches, band.low, band.high, color="0.85", linewidth=0)
        for name, run in died.items():
            means = trailing_mean(run.column(key), rule.window)
            ax.plot(means, color=COLOURS[0], linewidth=0.9, alpha=0.7, label=f"_{name}")
            batch = leaves(run.column(key), band, side, rule)
            if batch is not None:
                ax.plot(batch, means[batch], "o", color="black", markersize=4, zorder=3)
        unit = "" if metric.unit in metric.name else f"\n({metric.unit})"
        style(ax, "", metric.name + unit)
        ax.margins(x=0.01)
    ax.set_xlabel(BATCH, fontsize=TEXT)
    handles = [
        Patch(color="0.85", label=f"range of the {len(lived)} runs that lived"),
        Line2D([], [], color=COLOURS[0], label=f"each of {len(died)} runs that collapsed"),
        Line2D([], [], color="black", marker="o", linestyle="", label="leaves the band"),
    ]
    figure.legend(
        handles=handles, fontsize=SMALL, frameon=False, loc="outside upper center", ncols=3
    )
    return figure


def survival_figure(arms: Arms) -> Figure:
    """The share of each arm's seeds that has not collapsed by the rule so far."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    ax = figure.subplots()
    for place, (name, colour) in enumerate(colours(list(arms)).items()):
        ends = [collapse_batch(run.column(REWARD)) for run in arms[name]]
        length = max(len(run.metrics) for run in arms[name])
        alive = [
            sum(end is None or end > batch for end in ends) / len(ends) for batch in range(length)
        ]
        # lines that lie on each other stay visible, a hundredth apart
        lifted = [share + 0.01 * place for share in alive]
        label = f"{name}, {len(ends)} seeds"
        ax.step(range(length), lifted, color=colour, linewidth=2, where="post", label=label)
    ax.set_ylim(-0.02, 1.1)
    ax.margins(x=0.01)
    return label_ends(style(ax, BATCH, "share of seeds\nnot collapsed so far")).figure


def unlabelled_figure(runs: Mapping[str, Run], keys: Sequence[str], batches: int) -> Figure:
    """Small multiples: a column per run under its given name, a row per metric, shared axes."""
    size = (WIDTH, 0.6 + 1.25 * len(keys))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(keys), len(runs), sharex=True, sharey="row", squeeze=False)
    for row, key in zip(panels, keys, strict=True):
        for ax, run in zip(row, runs.values(), strict=True):
            if key == "grad/norm":
                ax.set_yscale("log")
            values = _known(run.column(key)[:batches])
            ax.plot(*values, color="0.6", linewidth=0.7)
            ax.plot(trailing_mean(run.column(key)[:batches], 5), color=COLOURS[1], linewidth=1.6)
            style(ax, "", describe(key).name.replace(", ", ",\n") if ax is row[0] else "")
    for ax, name in zip(panels[0], runs, strict=True):
        ax.set_title(name, fontsize=TEXT)
    figure.supxlabel(BATCH, fontsize=TEXT)
    return figure


def _known(series: Series) -> tuple[list[int], list[float]]:
    """The batches where something was measured, and what."""
    pairs = [(t, value) for t, value in enumerate(series) if value is not None]
    return [t for t, _ in pairs], [value for _, value in pairs]
