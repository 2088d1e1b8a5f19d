"""Figures of the live lab: runs that share a past, their knobs, and the point of no return."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from lldlib.runs.folder import Run
from lldlib.runs.phases import alarm_of, phases_of
from lldlib.show.curves import (
    BATCH,
    COLOURS,
    SHADES,
    SMALL,
    TEXT,
    WIDTH,
    colours,
    label_ends,
    metric_panel,
    style,
    tick,
)

PANELS = {  # logged key: axis label
    "reward/mean": "mean\nreward",
    "probe/content": "probe\n(nats/token)",
    "policy/entropy": "entropy\n(nats/token)",
    "grad/norm": "gradient\nnorm",
}
KNOBS = {  # what the lab's knobs are called on paper
    "method": "",
    "lr": "lr ",
    "updates_per_batch": "updates ",
    "llds_coef": "λ ",
    "llds_gate": "gate ",
    "llds_answer": "MA ",
    "lp_reg_coef": "β ",
}
DOTTED, DASHED = (0, (1, 1)), (0, (4, 2))
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}


def knob_changes(run: Run) -> list[tuple[int, str]]:
    """(batch, what was turned) of each knob event, as short text such as "λ 0.5, lr 1e-4"."""
    settings, changes = flat(run.config), []
    for event in run.events:
        if event["kind"] == "knob":
            new = settings | flat({k: v for k, v in event.items() if k not in ("step", "kind")})
            turned = [name for name in KNOBS if new[name] != settings[name]]
            others = sum(v != settings[k] for k, v in new.items() if k not in KNOBS)
            # the preset's name stands for its other settings
            rest = [f"{others} more"] if others and "method" not in turned else []
            text = ", ".join([KNOBS[name] + value_text(new[name]) for name in turned] + rest)
            changes.append((event["step"], text))
            settings = new
    return changes


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of `loss` and `rollout` beside them."""
    out = {}
    for key, value in config.items():
        out |= flat(value) if isinstance(value, Mapping) else {key: value}
    return out


def value_text(value: Any) -> str:
    """A setting as one writes it."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return tick(value) if is_number else str(value)


def lab_figure(runs: Mapping[str, Run]) -> Figure:
    """Runs side by side: a strip of phases, knobs and the alarm each; then four shared curves."""
    height = 4.4 + 0.45 * len(runs)  # inches
    figure = Figure(figsize=(WIDTH, height))
    # fixed margins: a solved layout would take as long as the drawing, and this one is drawn live
    room = {"left": 0.13, "right": 0.9, "top": 1 - 0.15 / height, "bottom": 0.5 / height}
    ratios = [0.42] * len(runs) + [1.2, 1, 1, 1]
    grid = room | {"height_ratios": ratios, "hspace": 0.15}
    axes = list(figure.subplots(len(ratios), 1, sharex=True, gridspec_kw=grid))
    panels = axes[len(runs) :]
    arms = {name: [run] for name, run in runs.items()}
    positive = any(value > 0 for run in runs.values() for value in run.series("grad/norm")[1])
    panels[-1].set_yscale("log" if positive else "linear")  # a log axis has no place for a 0
    for ax, (key, ylabel) in zip(panels, PANELS.items(), strict=True):
        metric_panel(ax, arms, key, ylabel, seeds=True, line="-")
        ax.yaxis.label.set_fontsize(SMALL)
        if ax is panels[-1]:  # before names are put where the lines end
            whole_decades(ax) if positive else ax.set_ylim(0, 1)
        if any(line.get_label() in runs for line in ax.lines):
            label_ends(ax)
        if not any(run.metrics for run in runs.values()):
            ax.texts[0].set_text("no batch yet")
            ax.set_yticks([])
    panels[-1].set_xlabel(BATCH, fontsize=TEXT)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    # beyond the last batch there is nothing to see
    panels[-1].set_xlim(0, max([len(run.metrics) for run in runs.values()] + [10]))
    for ax, (name, colour) in zip(axes, colours(list(runs)).items(), strict=False):
        marks(ax, panels, runs[name], name, colour)
    return figure


def whole_decades(ax: Axes) -> Axes:
    """Let a log axis run from one power of ten to another, so that both are labelled.

    A line of it has to have a value over 0.
    """
    values = [y for line in ax.lines for y in line.get_ydata() if y > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    ax.set_ylim(10**low, 10 ** max(high, low + 1))
    ax.yaxis.set_minor_formatter(NullFormatter())
    return ax


def marks(strip: Axes, panels: Sequence[Axes], run: Run, name: str, colour: str) -> Axes:
    """A run's phases, knobs and alarm on its strip; knobs and alarm as lines on the panels."""
    strip.set_yticks([])
    strip.set_ylim(0, 2)
    strip.spines[:].set_visible(False)
    strip.tick_params(bottom=False)
    label = {"rotation": 0, "ha": "right", "va": "center", "fontsize": TEXT, "color": colour}
    strip.set_ylabel(name, **label)
    start, end = 0, strip.get_xlim()[1]
    for phase, group in groupby(phases_of(run)):
        length = len(list(group))
        strip.axvspan(start, start + length, 0, 0.5, color=SHADES[phase], linewidth=0)
        if length >= 0.12 * end:
            middle = start + length / 2
            strip.text(middle, 0.45, phase, ha="center", va="center", fontsize=SMALL, color="0.25")
        start += length
    letter, free = end / 88, 0.0  # about the width of one, in batches; where the last text ended
    for batch, text, line in _happenings(run):
        width = letter * (len(text) + 1)
        at = min(max(batch, free), end - width)
        if at >= free:  # a text that would touch the last one is left out; its line stays
            strip.text(at, 1.05, text, fontsize=SMALL, color=colour, va="bottom", bbox=HALO)
            free = at + width
        strip.axvline(batch, 0.5, color=colour, linestyle=line, linewidth=1.1)
        for ax in panels:
            ax.axvline(batch, color=colour, linestyle=line, linewidth=1.1)
    return strip


def _happenings(run: Run) -> list[tuple[int, str, tuple]]:
    """What is marked on a strip, in order: batch, text and style of line."""
    rung = alarm_of(run)
    found = [(batch, f"▾ {text}", DASHED) for batch, text in knob_changes(run)]
    return sorted(found + ([(rung, "! alarm", DOTTED)] if rung is not None else []))


def no_return_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Each seed on a line: the batches at which LLDS was switched on, and what became of the run.

    `rows` are those of `no_return`. Blue dot: the branch lived; orange cross: it collapsed.
    """
    seeds = sorted({row["seed"] for row in rows})
    figure = Figure(figsize=(WIDTH, 1.5 + 0.42 * len(seeds)), layout="constrained")
    ax = figure.subplots()
    for place, seed in enumerate(seeds):
        mine = [row for row in rows if row["seed"] == seed]
        for row in mine:
            marker, colour = ("o", COLOURS[1]) if row["lived"] else ("X", COLOURS[0])
            ax.plot(row["branched_at"], place, marker, color=colour, markersize=8)
        known = mine[0]
        ax.plot(known["collapsed_at_alone"], place, "|", color="black", markersize=22)
        if known["alarm_at_alone"] is not None:
            ax.plot(known["alarm_at_alone"], place, "|", color="0.55", markersize=22)
    style(ax, "batch at which LLDS was switched on", "")
    ax.set_yticks(range(len(seeds)), [f"seed {seed}" for seed in seeds])
    ax.set_ylim(len(seeds) - 0.4, -0.6)
    ax.set_xlim(left=-3)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    kinds = [
        ("o", COLOURS[1], "lived"),
        ("X", COLOURS[0], "collapsed"),
        ("|", "0.55", "alarm, run left alone"),
        ("|", "black", "collapse, run left alone"),
    ]
    handles = [
        Line2D([], [], marker=m, color=c, linestyle="", markersize=9, label=text)
        for m, c, text in kinds
    ]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 4}
    ax.legend(handles=handles, fontsize=SMALL, frameon=False, **place)
    return figure
