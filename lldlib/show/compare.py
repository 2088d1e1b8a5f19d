"""Figures that compare many run folders: sweeps, methods; and the report."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lldlib.files import write_json, write_whole
from lldlib.runs.folder import Run
from lldlib.runs.summary import arm_labels, summarise, summary_table, value_text
from lldlib.show.curves import collapse_figure, probe_figure
from lldlib.show.style import (
    COLOURS,
    SMALL,
    TEXT,
    WIDTH,
    label_ends,
    save,
    style,
)

SHARES = ("peak_reward", "end_reward", "heldout_em", "collapsed")  # between 0 and 1
WORDS = {
    "lr": "learning rate",
    "updates_per_batch": "updates per batch",
    "peak_reward": "peak reward",
    "end_reward": "end reward",
    "collapsed_at": "collapsed at",
    "collapsed": "share of seeds that collapsed",
    "heldout_em": "held-out EM",
    "seconds_per_batch": "seconds per batch",
}
NO_NAME = r"[^\w=,-]+"  # what of a method does not go into a file's name
MAX_ARMS = 4  # whose curves one figure of a report can hold

Row = Mapping[str, Any]


def sweep_heatmap(rows: Sequence[Row], x: str, y: str, value: str) -> Axes:
    """The phase diagram: mean of `value` over the runs of each (x, y), with the number of runs."""
    known = pd.DataFrame(rows, columns=[x, y, value]).dropna(subset=value)
    if known.empty:
        raise ValueError(f"no row has a {value!r}: there is nothing to draw")
    cells = known.astype({value: float}).groupby([y, x])[value].agg(["mean", "size"])
    grid = cells["mean"].unstack()
    ys, xs = list(grid.index), list(grid.columns)
    size = (max(4.0, 1.5 + 1.0 * len(xs)), max(2.6, 1.2 + 0.7 * len(ys)))
    ax = Figure(figsize=size, layout="constrained").subplots()
    limits = {"vmin": 0, "vmax": 1} if value in SHARES else {}
    image = ax.imshow(grid, cmap="cividis", origin="lower", aspect="auto", **limits)
    for (b, a), mean, count in cells.itertuples():
        ink = "black" if image.norm(mean) > 0.5 else "white"
        text = f"{mean:.2f}\nn={count}"
        ax.text(xs.index(a), ys.index(b), text, ha="center", va="center", color=ink, fontsize=SMALL)
    ax.set_xticks(range(len(xs)), [value_text(a) for a in xs])
    ax.set_yticks(range(len(ys)), [value_text(b) for b in ys])
    style(ax, WORDS.get(x, x), WORDS.get(y, y)).grid(visible=False)
    bar = ax.figure.colorbar(image)
    bar.set_label(WORDS.get(value, value), fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    return ax


def lambda_figure(rows: Sequence[Row]) -> Figure:
    """Peak (dashed) and end reward against LLDS's lambda; a cross is a run that collapsed."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    ax = figure.subplots()
    means = pd.DataFrame(rows).groupby("llds_coef")[["peak_reward", "end_reward"]].mean()
    weights = list(means.index)
    for key, line, colour in (("peak_reward", "--", COLOURS[4]), ("end_reward", "-", COLOURS[1])):
        ax.plot(means[key].to_numpy(), line, color=colour, linewidth=2, label=WORDS[key])
    for row in rows:
        place = weights.index(row["llds_coef"])
        marker = "x" if row["collapsed_at"] is not None else "o"
        ax.plot(place, row["end_reward"], marker, color=COLOURS[1], markersize=6)
    ax.set_xticks(range(len(weights)), [value_text(w) for w in weights])
    ax.set(xlim=(-0.2, len(weights) - 0.8), ylim=(-0.04, 1))  # room for a whole cross at 0
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


# the files of a report
REPORT = (
    *("table.md", "summary.json", "collapse.png", "probe.png", "methods.png", "lambda.png"),
    "sweep_*.png",
)


def write_report(run_paths: Sequence[Path | str], out: Path | str) -> list[Path]:
    """Write table.md, summary.json and the figures these runs allow to `out`; returns the files.

    Curves show every arm, or of more than 4 the first and the one with the highest end reward.

    Raises ValueError without runs, FileNotFoundError for a folder that is no run.
    """
    if not run_paths:
        raise ValueError("no run folders given: name at least one")
    runs = [Run(path) for path in run_paths]
    arms, rows = defaultdict(list), []
    for label, run in zip(arm_labels(runs), runs, strict=True):
        arms[label].append(run)
        rows.append(summarise(run) | {"arm": label})
    out = Path(out)
    table, summary = out / "table.md", out / "summary.json"
    write_whole(table, summary_table(rows))
    write_json(summary, rows)
    drawn = _figures(arms, rows)
    return [table, summary, *(save(figure, out / f"{n}.png") for n, figure in drawn.items())]


def _figures(arms: dict[str, list[Run]], rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """The figures for which the runs hold enough."""
    finished = [row for row in rows if row["end_reward"] is not None]
    shown = _shown(arms, finished)
    drawn = {"collapse": collapse_figure(shown)}
    probed = {arm: runs[0] for arm, runs in shown.items() if runs[0].series("probe/logp")[0]}
    if probed:
        drawn["probe"] = probe_figure(probed)
    if len(arms) > 1 and finished:
        drawn["methods"] = methods_figure(finished)
    weighed = [row for row in finished if row["method"] in ("grpo", "llds")]
    if len({row["llds_coef"] for row in weighed}) > 1:
        drawn["lambda"] = lambda_figure(weighed)
    for method in sorted({row["method"] for row in finished}):
        swept = [row for row in finished if row["method"] == method]
        if all(len({row[key] for row in swept}) > 1 for key in ("lr", "updates_per_batch")):
            ax = sweep_heatmap(swept, "lr", "updates_per_batch", "end_reward")
            drawn[f"sweep_{re.sub(NO_NAME, '_', method)}"] = ax.figure
    return drawn


def _shown(arms: dict[str, list[Run]], rows: list[dict[str, Any]]) -> dict[str, list[Run]]:
    """The arms whose curves are drawn."""
    if len(arms) <= MAX_ARMS:
        return arms
    first, *others = arms
    ends = {arm: [row["end_reward"] for row in rows if row["arm"] == arm] for arm in others}
    best = max(others, key=lambda arm: fmean(ends[arm]) if ends[arm] else -math.inf)
    return {arm: arms[arm] for arm in (first, best)}
