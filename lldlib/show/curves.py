"""Figures of run folders: every panel draws on the Axes it is given and returns it.

Nothing touches pyplot or global settings; in a notebook `%matplotlib inline` shows a Figure.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lldlib.runs.folder import Run
from lldlib.runs.phases import Phase, alarm_of, phases_of

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHADES = {"stagnation": "#f5f5f5", "decay": "#e9e9e9", "collapse": "#d9d9d9"}
WIDTH, DPI, SMALL, TEXT = 8.5, 130, 9, 10  # inches, dots per inch, points, points
SMOOTHING = 5  # rollout batches in the moving average of a bold line
BATCH, ACTION = "rollout batch", re.compile(r"probe/action_\d+")
SHARES = ("peak_reward", "end_reward", "heldout_em", "collapsed")  # between 0 and 1

WORDS = {
    "lr": "learning rate",
    "updates_per_batch": "updates per batch",
    "peak_reward": "peak reward",
    "end_reward": "end reward",
    "collapsed_at": "batch of collapse",
    "collapsed": "share of seeds that collapsed",
    "heldout_em": "held-out EM",
    "seconds_per_batch": "seconds per batch",
}

Arms = Mapping[str, Sequence[Run]]
Row = Mapping[str, Any]


def style(ax: Axes, xlabel: str, ylabel: str) -> Axes:
    """The one look of all figures: light grid, two spines, readable text."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=SMALL)
    ax.set_xlabel(xlabel, fontsize=TEXT)
    ax.set_ylabel(ylabel, fontsize=TEXT)
    return ax


def tick(value: float | int) -> str:
    """A setting as one writes it: 10, 0.2, 3e-4."""
    if value and abs(value) < 1e-3:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    return f"{value:g}"


def colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per name; raises ValueError if there are more names than colours."""
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} arms but only {len(COLOURS)} colours: draw fewer at once")
    return dict(zip(names, COLOURS, strict=False))


def metric_panel(ax: Axes, arms: Arms, key: str, ylabel: str, *, seeds: bool, line: str) -> Axes:
    """One metric over rollout batches: thin lines per seed (if `seeds`), bold mean over the seeds.

    The bold line is a centred moving average over 5 batches, of logarithms on a log axis: set the
    scale of `ax` first. A metric that no run logged is named in the panel.
    """
    log = ax.get_yscale() == "log"
    for name, colour in colours(list(arms)).items():
        for run in arms[name] if seeds else ():
            ax.plot(*run.series(key), color=colour, linewidth=0.7, alpha=0.35)
        steps, values = _mean_curve(arms[name], key, log=log)
        if steps:
            ax.plot(steps, values, color=colour, linestyle=line, linewidth=2, label=name)
    if not any(len(line.get_xdata()) for line in ax.lines):
        ax.text(0.5, 0.5, f"{key} was not logged", transform=ax.transAxes, ha="center", color="0.4")
    ax.margins(x=0.01)
    return style(ax, "", ylabel)


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


def mark_phases(ax: Axes, phases: Sequence[Phase], rung: int | None, *, names: bool) -> Axes:
    """Shade the phases (one per batch), name the longest stretch of each, mark the alarm."""
    top = {"transform": ax.get_xaxis_transform(), "fontsize": SMALL, "ha": "center", "va": "bottom"}
    letter = (ax.get_xlim()[1] - ax.get_xlim()[0]) / 90  # about the width of one, in batches
    stretches = [(phase, len(list(group))) for phase, group in groupby(phases)]
    longest = {phase: max(n for p, n in stretches if p == phase) for phase in set(phases)}
    start, free = 0, -math.inf
    for phase, length in stretches:
        ax.axvspan(start, start + length, color=SHADES[phase], linewidth=0, zorder=0)
        middle, half = start + length / 2, letter * (len(phase) + 1) / 2
        # a name that would touch the last one is left out
        if names and length == longest[phase] and middle - half > free:
            ax.text(middle, 1.01, phase, color="0.35", **top)
            free = middle + half
        start += length
    if rung is not None:
        ax.axvline(rung, color="black", linestyle=(0, (1, 1)), linewidth=1.2)
        if names:
            ax.text(rung, 1.09, "alarm", **top)
    return ax


def collapse_figure(arms: Arms) -> Figure:
    """Reward, likelihood, entropy and gradient norm of each arm over shared rollout batches.

    The shades and the alarm are those of the first run of the first arm. Raises ValueError for an
    arm without runs.
    """
    if not arms or not all(arms.values()):
        raise ValueError("no runs to draw: give every arm at least one run folder")
    first = next(iter(arms.values()))[0]
    phases, rung = phases_of(first), alarm_of(first)
    figure = Figure(figsize=(WIDTH, 9), layout="constrained")
    reward, likelihood, entropy, gradient = figure.subplots(4, 1, sharex=True)
    gradient.set_yscale("log")
    bold = {"seeds": True, "line": "-"}
    metric_panel(reward, arms, "reward/mean", "mean reward", **bold)
    likelihood_panel(likelihood, arms)
    metric_panel(entropy, arms, "policy/entropy", "entropy\n(nats per token)", **bold)
    metric_panel(gradient, arms, "grad/norm", "gradient norm\nbefore clipping", **bold)
    gradient.set_xlabel(BATCH, fontsize=TEXT)
    story = f"shades and alarm: {next(iter(arms))}, seed {first.config['seed']}"
    key = f"thin: one seed; bold: mean of the seeds, moving average of 5 batches; {story}"
    figure.supxlabel(key, fontsize=SMALL, color="0.35")
    for ax in (reward, likelihood, entropy, gradient):
        mark_phases(ax, phases, rung, names=ax is reward)
    for ax in (reward, entropy, gradient):
        label_ends(ax)
    return figure


def likelihood_panel(ax: Axes, arms: Arms) -> Axes:
    """Mean log-prob of correct (solid), incorrect (dashed) and fixed probe (dotted) responses."""
    kinds = {
        "likelihood/correct": ("-", "correct"),
        "likelihood/incorrect": ("--", "incorrect"),
        "probe/logp": (":", "fixed probe"),
    }
    for key, (line, _) in kinds.items():
        metric_panel(ax, arms, key, "log-prob\n(nats per token)", seeds=False, line=line)
    handles = [
        Line2D([], [], color="0.3", linestyle=line, label=kind) for line, kind in kinds.values()
    ]
    place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    ax.legend(handles=handles, fontsize=SMALL, frameon=False, handlelength=1.8, **place)
    return ax


def probe_figure(runs: Mapping[str, Run]) -> Figure:
    """The fixed probe set, a column per run: wording and content above, each action below."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    panels = figure.subplots(2, len(runs), sharex="col", sharey="row", squeeze=False)
    unit = "log-prob (nats per token)"
    for column, (name, run) in enumerate(runs.items()):
        found = sorted({key for row in run.metrics for key in row if ACTION.fullmatch(key)})
        parts = {"probe/free": "wording", "probe/content": "content"}
        actions = {key: key.removeprefix("probe/").replace("_", " ") for key in found}
        for ax, names in zip(panels[:, column], (parts, actions), strict=True):
            for colour, (key, label) in zip(COLOURS[1:], names.items(), strict=False):
                steps, values = _mean_curve([run], key, log=False)
                if steps:
                    ax.plot(steps, values, color=colour, linewidth=2, label=label)
            style(ax, BATCH if names is actions else "", unit if column == 0 else "")
            label_ends(ax)
        panels[0, column].set_title(name, fontsize=TEXT)
    return figure


def sweep_heatmap(rows: Sequence[Row], x: str, y: str, value: str) -> Axes:
    """The phase diagram: mean of `value` over the runs of each (x, y), with the number of runs."""
    cells = defaultdict(list)
    for row in rows:
        if row[value] is not None:
            cells[row[x], row[y]].append(float(row[value]))
    if not cells:
        raise ValueError(f"no row has a {value!r}: there is nothing to draw")
    xs, ys = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    grid = [[fmean(cells[a, b]) if (a, b) in cells else math.nan for a in xs] for b in ys]
    size = (max(4.0, 1.5 + 1.0 * len(xs)), max(2.6, 1.2 + 0.7 * len(ys)))
    ax = Figure(figsize=size, layout="constrained").subplots()
    limits = {"vmin": 0, "vmax": 1} if value in SHARES else {}
    image = ax.imshow(grid, cmap="cividis", origin="lower", aspect="auto", **limits)
    for (a, b), values in cells.items():
        mean = fmean(values)
        ink = "black" if image.norm(mean) > 0.5 else "white"
        text = f"{mean:.2f}\nn={len(values)}"
        ax.text(xs.index(a), ys.index(b), text, ha="center", va="center", color=ink, fontsize=SMALL)
    ax.set_xticks(range(len(xs)), [tick(a) for a in xs])
    ax.set_yticks(range(len(ys)), [tick(b) for b in ys])
    style(ax, WORDS.get(x, x), WORDS.get(y, y)).grid(visible=False)
    bar = ax.figure.colorbar(image)
    bar.set_label(WORDS.get(value, value), fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    return ax


def lambda_figure(rows: Sequence[Row]) -> Figure:
    """Peak (dashed) and end reward against LLDS's lambda; a cross is a run that collapsed."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    ax = figure.subplots()
    weights = sorted({row["llds_coef"] for row in rows})
    places = {weight: place for place, weight in enumerate(weights)}
    for key, line, colour in (("peak_reward", "--", COLOURS[4]), ("end_reward", "-", COLOURS[1])):
        means = [fmean(row[key] for row in rows if row["llds_coef"] == w) for w in weights]
        ax.plot(range(len(weights)), means, line, color=colour, linewidth=2, label=WORDS[key])
    for row in rows:
        marker = "x" if row["collapsed_at"] is not None else "o"
        ax.plot(places[row["llds_coef"]], row["end_reward"], marker, color=COLOURS[1], markersize=6)
    ax.set_xticks(range(len(weights)), [tick(w) for w in weights])
    ax.set_ylim(0, 1)
    label_ends(style(ax, "LLDS weight λ   (x collapsed, o alive)", "mean reward of 10 batches"))
    return figure


def methods_figure(rows: Sequence[Row]) -> Figure:
    """Small multiples with a line per arm: a dot per seed, a bar at their mean, collapsed runs."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    figure = Figure(figsize=(WIDTH, 1.4 + 0.42 * len(arms)), layout="constrained")
    beside = {"va": "center", "fontsize": SMALL, "color": "0.35"}
    columns = ("peak_reward", "end_reward", "collapsed_at", "heldout_em", "seconds_per_batch")
    for ax, key in zip(figure.subplots(1, len(columns), sharey=True), columns, strict=True):
        found = [row[key] for row in rows if row[key] is not None]
        for place, arm in enumerate(arms):
            values = [row[key] for row in rows if row["arm"] == arm and row[key] is not None]
            ax.plot(values, [place] * len(values), "o", color=COLOURS[1], alpha=0.5, markersize=5)
            if values:
                ax.plot([fmean(values)], [place], "|", color="black", markersize=14)
            if key == "collapsed_at":
                share = f"{len(values)}/{sum(row['arm'] == arm for row in rows)}"
                ax.text(1.02, place, share, transform=ax.get_yaxis_transform(), **beside)
        ax.set_xlim(0, 1 if key in SHARES else 1.15 * max(found, default=1))
        ax.xaxis.set_major_locator(MaxNLocator(3))
        style(ax, WORDS[key], "")
        ax.set_yticks(range(len(arms)), arms)
        ax.set_ylim(len(arms) - 0.5, -0.5)
    return figure


def save(figure: Figure, path: Path | str) -> Path:
    """Write a PNG, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, facecolor="white")
    return path


def _mean_curve(runs: Sequence[Run], key: str, *, log: bool) -> tuple[list[int], list[float]]:
    """The mean over the runs as far as all of them go, then a centred moving average over 5."""
    inward, outward = (math.log, math.exp) if log else (float, float)
    by_step, tables = defaultdict(list), [run.metrics for run in runs]
    for row in (row for table in tables for row in table):
        if key in row and (row[key] > 0 or not log):
            by_step[row["step"]].append(inward(row[key]))
    # beyond the end of the shortest run the mean would jump to the seeds that are left
    last = min((table[-1]["step"] for table in tables if table), default=-1)
    steps = sorted(step for step in by_step if step <= last)
    means, half = [fmean(by_step[step]) for step in steps], SMOOTHING // 2
    smooth = [fmean(means[max(0, i - half) : i + half + 1]) for i in range(len(means))]
    return steps, [outward(value) for value in smooth]
