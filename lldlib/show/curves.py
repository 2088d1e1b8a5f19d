"""Figures of one run, or of arms of runs, over rollout batches.

Every panel draws on the Axes it is given and returns it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lldlib.runs.folder import Run
from lldlib.runs.phases import alarm_of, phases_of
from lldlib.show.style import (
    BATCH,
    COLOURS,
    SMALL,
    TEXT,
    WIDTH,
    Arms,
    colours,
    label_ends,
    mark_phases,
    style,
    told_text,
)

SMOOTHING = 5  # rollout batches in the moving average of a bold line
ACTION = re.compile(r"probe/action_\d+")


def metric_panel(ax: Axes, arms: Arms, key: str, ylabel: str, *, seeds: bool, line: str) -> Axes:
    """One metric over rollout batches: thin lines per seed (if `seeds`), bold mean over the seeds.

    The bold line is a centred moving average over 5 batches, of logarithms on a log axis: set the
    scale of `ax` first. A metric that no run logged is named in the panel.
    """
    log = ax.get_yscale() == "log"
    for name, colour in colours(list(arms)).items():
        for run in arms[name] if seeds else ():
            ax.plot(*_gaps(*run.series(key)), color=colour, linewidth=0.7, alpha=0.35)
        steps, values = _mean_curve(arms[name], key, log=log)
        if steps:
            ax.plot(steps, values, color=colour, linestyle=line, linewidth=2, label=name)
    if not any(len(line.get_xdata()) for line in ax.lines):
        ax.text(0.5, 0.5, f"{key} was not logged", transform=ax.transAxes, ha="center", color="0.4")
    ax.margins(x=0.01)
    return style(ax, "", ylabel)


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
    norms = [value for runs in arms.values() for r in runs for value in r.series("grad/norm")[1]]
    if not norms or any(value > 0 for value in norms):  # without a reward all may be 0
        gradient.set_yscale("log")
    bold = {"seeds": True, "line": "-"}
    metric_panel(reward, arms, "reward/mean", "mean reward", **bold)
    likelihood_panel(likelihood, arms)
    metric_panel(entropy, arms, "policy/entropy", "entropy\n(nats per token)", **bold)
    metric_panel(gradient, arms, "grad/norm", "gradient norm\nbefore clipping", **bold)
    gradient.set_xlabel(BATCH, fontsize=TEXT)
    who = f"{next(iter(arms))}, seed {first.config.get('seed', '?')}"
    story = f"alarm and {told_text({who: phases})}: {who}"
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
        found = sorted(key for key in run.frame if ACTION.fullmatch(key))
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


def _gaps(steps: Sequence[int], values: Sequence[float | int]) -> tuple[list[int], list[Any]]:
    """The same with nan after a value whose next comes later than is usual: no line spans a gap."""
    usual = np.median(np.diff(steps)) if len(steps) > 1 else 1
    points: list[tuple[int, float | int]] = []
    for step, value in zip(steps, values, strict=True):
        if points and step - points[-1][0] > usual:
            points.append((step, math.nan))
        points.append((step, value))
    return [step for step, _ in points], [value for _, value in points]


def _mean_curve(runs: Sequence[Run], key: str, *, log: bool) -> tuple[list[int], list[float]]:
    """The mean over the runs as far as all of them go, then a centred moving average over 5."""
    frames = [run.frame for run in runs if len(run.frame)]
    columns = [frame[key] for frame in frames if key in frame]
    if not columns:
        return [], []
    seeds = pd.concat(columns, axis=1, sort=True)
    seeds = np.log(seeds.where(seeds > 0)) if log else seeds
    # beyond the end of the shortest run the mean would jump to the seeds that are left
    last = min(frame.index[-1] for frame in frames)
    mean = seeds.mean(axis=1).loc[:last].dropna()
    smooth = mean.rolling(SMOOTHING, center=True, min_periods=1).mean()
    return smooth.index.tolist(), (np.exp(smooth) if log else smooth).tolist()
