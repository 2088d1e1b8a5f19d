"""The figures of a page: one run's curves, and the rewards of several runs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.doctor.judging.statistics import trailing, window_size
from lldlib.doctor.pages.diagnosis import Diagnosis
from lldlib.doctor.pages.words import names_of
from lldlib.doctor.reading.series import LoggedRun
from lldlib.doctor.reading.signals import SIGNALS

COLOURS = {  # told apart by readers who see no red and green, and by the line styles beside them
    "healthy": "#0b5fa5",
    "stagnating": "#5c6773",
    "degrading": "#b35c00",
    "collapsed": "#5b0f1c",
    "unknown": "#5c6773",
}
STYLES = {
    "healthy": "-",
    "stagnating": ":",
    "degrading": "--",
    "collapsed": "-.",
    "unknown": ":",
}
PANELS = ("reward", "entropy", "grad_norm", "length", "kl", "likelihood")
WIDE, NARROW = 10.0, 4.4  # inches; the narrow one is for a telephone
MOST_RUNS, NAMED = 60, 6  # lines in the figure that compares runs; so few are named in it
NAME_POINTS = 7  # size of those names


def figure(found: Diagnosis, narrow: bool = False) -> Figure:
    """Reward, entropy, gradient norm, length, KL and likelihood, as far as the log has them.

    A broken line and a light shade begin at the first warning, a solid line and a darker one at
    the fall. `narrow` puts the curves below each other.
    """
    run = found.run
    shown = [name for name in PANELS if _series(run, name) is not None]
    columns = 2 if len(shown) > 1 and not narrow else 1
    rows = (len(shown) + columns - 1) // columns
    size = (NARROW, 0.5 + 1.9 * rows) if narrow else (WIDE, 0.6 + 2.3 * rows)
    drawn = Figure(figsize=size, layout="constrained")
    axes = np.atleast_1d(drawn.subplots(rows, columns, sharex=True)).ravel()
    for ax, name in zip(axes, shown, strict=False):
        _draw(ax, found, name)
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    for ax in axes[max(len(shown) - columns, 0) : len(shown)]:
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("step" if run.stepped else "row")
    return drawn


def _series(run: LoggedRun, name: str) -> tuple[str, np.ndarray] | None:
    for key in ("probe", "likelihood") if name == "likelihood" else (name,):
        values = run.signals.get(key)
        if values is not None and np.isfinite(values).any():
            return key, np.where(np.isfinite(values), values, np.nan)
    return None


def _draw(ax: Axes, found: Diagnosis, name: str) -> None:
    run = found.run
    key, values = _series(run, name)
    known = np.isfinite(values)
    ax.plot(run.steps[known], values[known], color="#9aa5b1", linewidth=0.8)
    width = max(3, int(known.sum()) // 30)
    fall = len(values) if found.judged.row is None else found.judged.row
    for part, label in ((slice(None, fall), f"mean of {width} rows"), (slice(fall, None), None)):
        kept = known[part]  # the mean starts anew at the fall: it must not smear it
        mean = trailing(values[part][kept], width)
        ax.plot(run.steps[part][kept], mean, color="#1f3a5f", linewidth=1.8, label=label)
    small = ax.figure.get_figwidth() < WIDE
    title = f"{SIGNALS[key].title}   ({_short(run.columns[key], 28 if small else 60)})"
    ax.set_title(title, loc="left", fontsize=8 if small else 10, parse_math=False)
    if name == "reward":
        held = np.isfinite(run.heldout)
        if held.any():
            ax.plot(
                run.steps[held], run.heldout[held], "o-", ms=4, color="#b35c00", label="held out"
            )
        ax.legend(fontsize=8, frameon=False, loc="best")
    if name in ("grad_norm", "kl", "entropy") and (values[known] > 0).all():
        high, low = np.quantile(values[known], 0.999), np.median(values[known])
        if high > 30 * low:
            ax.set_yscale("log")
    _shade(ax, found, name == "reward")
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(x=0.01)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _shade(ax: Axes, found: Diagnosis, words: bool) -> None:
    run, fall = found.run, found.judged.row
    end = float(run.steps[-1])
    at = None if fall is None else float(run.steps[fall])
    if found.warned is not None:
        ax.axvspan(found.warned, end if at is None else at, color="#f5c542", alpha=0.22, lw=0)
        ax.axvline(found.warned, color="#b38600", linestyle="--", linewidth=1.2)
        if words:
            _word(ax, found.warned, f"first warning {found.warned:g}", "#8a6700", 0.97)
    if at is not None:
        ax.axvspan(at, end, color="#b3261e", alpha=0.13, lw=0)
        ax.axvline(at, color="#b3261e", linewidth=1.2)
        if words:
            what = "collapsed" if found.judged.verdict == "collapsed" else "falls from"
            _word(ax, at, f"{what} {at:g}", "#8c1d18", 0.85)


def _word(ax: Axes, x: float, text: str, colour: str, height: float) -> None:
    low, high = ax.get_xlim()
    right = x > (low + high) / 2
    ax.annotate(
        text,
        (x, height),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if right else 4, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        fontsize=9,
        color=colour,
        fontweight="bold",
        parse_math=False,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
    )


def runs_figure(all_found: Sequence[Diagnosis], narrow: bool = False) -> Figure:
    """The rewards of several runs, each in the colour and the line style of its verdict."""
    drawn = Figure(figsize=(NARROW if narrow else WIDE, 3.4), layout="constrained")
    ax, ends, told = drawn.subplots(), [], set()
    for name, found in list(zip(names_of(all_found), all_found, strict=True))[:MOST_RUNS]:
        rows = found.run.scored
        if len(rows) and found.run.kind.word == "rl":
            scores = found.run.signals["reward"][rows]
            mean = trailing(scores, window_size(len(scores)))
            verdict = found.judged.verdict
            line = {"color": COLOURS[verdict], "linestyle": STYLES[verdict], "linewidth": 1.6}
            label = None if verdict in told else verdict
            told.add(verdict)
            ax.plot(found.run.steps[rows], mean, label=label, **line)
            ends.append((name[:30], found.run.steps[rows[-1]], mean[-1]))
    if told:
        ax.legend(fontsize=8, frameon=False, loc="best")
    if len(all_found) <= NAMED and not narrow:
        _name_ends(ax, ends)
    ax.set_xlabel("step")
    ax.set_ylabel("reward, trailing mean")
    ax.spines[["top", "right"]].set_visible(False)
    return drawn


def _name_ends(ax: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Write each (name, x, y) right of the axes, in the order of y, so that no two names touch."""
    if not ends:
        return
    ax.get_ylim()  # settles the limits before heights are read off
    to_axes = ax.transData - ax.transAxes
    heights = np.array([to_axes.transform((x, y))[1] for _, x, y in ends])
    gap = 1.4 * NAME_POINTS / 72 / (ax.get_position().height * ax.figure.get_figheight())
    order, below = np.argsort(heights, kind="stable"), gap * np.arange(len(ends))
    places = np.maximum.accumulate(heights[order] - below) + below
    places = np.minimum(places, 1 - below[::-1])  # the highest stays inside
    for place, (name, x, y) in zip(places, (ends[i] for i in order), strict=True):
        ax.annotate(
            name,
            (x, y),
            xytext=(1.02, place),
            textcoords="axes fraction",
            va="center",
            fontsize=NAME_POINTS,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),  # to the left of the name
                "color": "#9aa5b1",
                "linewidth": 0.5,
            },
        )
