"""The curves of the live lab: runs side by side on fixed axes, before a recorded run, the ghost.

Every line shows each batch as it was measured: a mean over neighbours would let two branches part
before they do.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from lldlib.runs.fate import fate_of
from lldlib.runs.folder import Run
from lldlib.runs.phases import Phase, alarm_of, phases_of
from lldlib.runs.summary import LOGGING, flat, value_text
from lldlib.show.controls import KNOBS
from lldlib.show.style import (
    BATCH,
    SHADES,
    SMALL,
    WIDTH,
    colours,
    label_ends,
    stretches,
    style,
    told_text,
)

WIDE = 6.4  # inches from which the panels stand in two columns
LETTER = 0.072  # inches, of a small letter
DOTTED, DASHED = (0, (1, 1)), (0, (4, 2))
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
UNSEEN = (*KNOBS, *LOGGING, "steps")  # settings whose turn is named otherwise, or steers nothing
PALE = "0.78"  # of the ghost


@dataclass(frozen=True)
class Panel:
    """A logged key and its axis, which widens only where the numbers leave it."""

    key: str
    label: str
    low: float | int
    high: float | int
    log: bool = False

    def limits(self, values: Sequence[float | int]) -> tuple[float | int, float | int]:
        """The ends of the axis that hold these numbers too; of a log axis whole decades."""
        low, high = min([self.low, *values]), max([self.high, *values])
        if self.log:
            low = min([self.low, *(value for value in values if value > 0)])
            return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        room = 0.05 * (high - low)
        return low - room * (low < self.low), high + room * (high > self.high)


REWARD = Panel("reward/mean", "mean reward", 0, 1)
OTHERS = (
    Panel("probe/content", "probe\n(nats/token)", -3, 0),
    Panel("policy/entropy", "entropy\n(nats/token)", 0, 1.5),
    Panel("grad/norm", "gradient\nnorm", 0.01, 100, log=True),
)


def lab_figure(
    runs: Mapping[str, Run], *, ghost: Run | None = None, width: float | int = WIDTH
) -> Figure:
    """Runs side by side: a strip of phases, knobs and the alarm each, and four shared curves.

    The batches go to the end of the longest run as it is set. `width` is in inches: under WIDE all
    stand in one column. A gradient norm of 0, which a log axis has no place for, lies at its foot.
    """
    wide, painted = width >= WIDE, colours(list(runs))
    figure, strips, panels = _axes(list(runs), width, wide)
    end = max([10, *map(_last, runs.values()), *([_last(ghost)] if ghost else [])])
    phases = {name: phases_of(run) for name, run in runs.items()}
    for ax, panel in zip(panels, (REWARD, *OTHERS), strict=True):
        _draw(ax, panel, runs, ghost, painted)
        ax.set_xlim(0, end)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if wide:
        _name_ends(panels[0], runs, end)
    same = len({each.told for each in phases.values()}) == 1
    notes = [told_text(phases) if same else "phases"] if runs else []
    notes += ["grey: recorded"] if ghost else []
    foot = panels[0] if wide else panels[-1]
    foot.set_xlabel(f"{BATCH}{'   ' if wide else chr(10)}({'; '.join(notes)})", fontsize=SMALL)
    panels[-1].set_xlabel(panels[-1].get_xlabel() or BATCH, fontsize=SMALL)
    for ax in panels[1:-1] if wide else panels[:-1]:
        ax.tick_params(labelbottom=False)
    for strip, (name, run) in zip(strips, runs.items(), strict=True):
        strip.set_xlim(0, end)
        inches = strip.get_position().width * width
        marks(strip, panels, run, phases[name].labels, name, painted[name], inches)
    return figure


def curves_text(runs: Mapping[str, Run]) -> str:
    """What the curves say, for who cannot see them."""
    parts = []
    for name, run in runs.items():
        found = fate_of(run)
        if found.end is None:
            parts.append(f"{name}: no batch yet")
            continue
        phase = phases_of(run).labels[-1]
        parts.append(
            f"{name}: {found.batches} batches, mean reward {found.start:.2f} at the start, "
            f"{found.best:.2f} at its best, {found.end:.2f} now, phase {phase}"
        )
    return "Reward, likelihood of a fixed probe, entropy and gradient norm. " + ". ".join(parts)


def knob_changes(run: Run) -> list[tuple[int, str]]:
    """(batch, what was turned) of each knob event, as short text such as "λ 0.5, lr 1e-4"."""
    settings, changes = flat(run.config), []
    for event in run.events:
        if event["kind"] == "knob":
            new = settings | flat({k: v for k, v in event.items() if k not in ("step", "kind")})
            turned = [name for name in KNOBS if new.get(name) != settings.get(name)]
            others = sum(v != settings.get(k) for k, v in new.items() if k not in UNSEEN)
            # the preset's name stands for its other settings
            rest = [f"{others} more"] if others and "method" not in turned else []
            text = ", ".join([KNOBS[name] + value_text(new[name]) for name in turned] + rest)
            if text:  # a run that was only extended goes on as it was
                changes.append((event["step"], text))
            settings = new
    return changes


def marks(
    strip: Axes,
    panels: Sequence[Axes],
    run: Run,
    phases: Sequence[Phase],
    name: str,
    colour: str,
    inches: float,
) -> Axes:
    """A run's name, phases, knobs and alarm on its strip; knobs and alarm as lines on the panels.

    `inches` is how wide the strip is.
    """
    strip.set(yticks=(), ylim=(0, 2))
    strip.spines[:].set_visible(False)
    strip.tick_params(bottom=False, labelbottom=False)
    end = strip.get_xlim()[1]
    letter = end * LETTER / inches  # in batches
    for phase, start, length in stretches(phases):
        strip.axvspan(start, start + length, 0, 0.5, color=SHADES[phase], linewidth=0)
        if length >= letter * (len(phase) + 1):
            middle = start + length / 2
            strip.text(middle, 0.45, phase, ha="center", va="center", fontsize=SMALL, color="0.25")
    strip.text(0, 1.1, name, fontsize=SMALL, color=colour, va="bottom", weight="bold")
    free = 1.15 * letter * (len(name) + 2)  # where the last text ended
    for batch, text, line in _happenings(run):
        width = letter * (len(text) + 1)
        at = min(max(batch, free), end - width)
        if at >= free:  # a text that would touch the last one is left out; its line stays
            strip.text(at, 1.1, text, fontsize=SMALL, color=colour, va="bottom", bbox=HALO)
            free = at + width
        strip.axvline(batch, 0, 0.5, color=colour, linestyle=line, linewidth=1.1)
        for ax in panels:
            ax.axvline(batch, color=colour, linestyle=line, linewidth=1.1)
    return strip


def _axes(
    names: Sequence[str], width: float | int, wide: bool
) -> tuple[Figure, list[Axes], list[Axes]]:
    """A figure with a strip for each name, and the four panels; margins are fixed, in inches.

    A solved layout would take as long as the drawing, and this one is drawn live.
    """
    count, strip = len(names), 0.34
    if wide:
        height = 3.0 + strip * count
        labels = 0.25 + LETTER * max([4, *map(len, names)])
        figure = Figure(figsize=(width, height))
        low, top, left, right, gap = 0.5, height - 0.08, 0.62, width - 0.12, labels + 0.75
        middle = left + 0.58 * (right - left - gap)
        tall = (top - low) - strip * count
        strips = [
            _place(figure, left, top - strip * (i + 1), middle - left, strip) for i in range(count)
        ]
        panels = [_place(figure, left, low, middle - left, tall - 0.06)]
        each, space = (top - low) / 3, 0.16
        start = middle + gap
        for place in (2, 1, 0):
            box = (start, low + each * place, right - start, each - space * (place < 2))
            panels.append(_place(figure, *box))
    else:
        tall, space = (1.25, 0.95, 0.95, 0.95), 0.14
        height = 0.7 + sum(tall) + 3 * space + strip * count + 0.1
        figure = Figure(figsize=(width, height))
        left, right, top = 0.8, width - 0.12, height - 0.08
        strips = [
            _place(figure, left, top - strip * (i + 1), right - left, strip) for i in range(count)
        ]
        panels, foot = [], top - strip * count - 0.06
        for one in tall:
            foot -= one
            panels.append(_place(figure, left, foot, right - left, one))
            foot -= space
    for ax in [*strips, *panels]:
        ax.sharex(panels[0]) if ax is not panels[0] else None
    return figure, strips, panels


def _place(figure: Figure, left: float, low: float, width: float, height: float) -> Axes:
    """Axes at a place of the figure, in inches."""
    all_wide, all_high = figure.get_size_inches()
    return figure.add_axes((left / all_wide, low / all_high, width / all_wide, height / all_high))


def _draw(
    ax: Axes,
    panel: Panel,
    runs: Mapping[str, Run],
    ghost: Run | None,
    painted: Mapping[str, str],
) -> None:
    """One panel: the ghost, pale and broad, and a line a run with a dot where it stands."""
    style(ax, "", panel.label)
    ax.yaxis.label.set_fontsize(SMALL)
    shown = {name: run.series(panel.key) for name, run in runs.items()}
    pale = ghost.series(panel.key) if ghost else ([], [])
    low, high = panel.limits([v for _, values in [*shown.values(), pale] for v in values])
    if panel.log:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
        pale = pale[0], [max(value, low) for value in pale[1]]
    ax.set_ylim(low, high)
    ax.plot(*pale, color=PALE, linewidth=3, solid_capstyle="round")
    # the first run is drawn last: where a branch is still its copy, its own line is seen
    for name, (steps, values) in reversed(shown.items()):
        values = [max(value, low) for value in values] if panel.log else values
        ax.plot(steps, values, color=painted[name], linewidth=1.7, label=name if steps else "_")
        if steps:
            ax.plot(steps[-1], values[-1], "o", color=painted[name], markersize=4.5)
    if not any(steps for steps, _ in shown.values()) and not pale[0]:
        begun = any(run.metrics for run in runs.values())
        text = f"{panel.key} was not logged" if begun else "no batch yet"
        place = {"transform": ax.transAxes, "ha": "center", "va": "center"}
        ax.text(0.5, 0.5, text, fontsize=SMALL, color="0.4", **place)


def _name_ends(ax: Axes, runs: Mapping[str, Run], end: int) -> None:
    """Write the names of the lines where the foremost of them stands."""
    before = len(ax.texts)
    label_ends(ax)
    foremost = max((len(run.metrics) for run in runs.values()), default=0)
    for text in ax.texts[before:]:
        text.set_x(max(0, foremost - 1) / end + 0.015)
        text.set_bbox(HALO)


def _last(run: Run) -> int:
    """Where a run ends, or should end by its settings, in batches."""
    asked = [run.config.get("steps"), *(event.get("steps") for event in run.events)]
    return max(len(run.metrics), 0, *[steps for steps in asked if isinstance(steps, int)][-1:])


def _happenings(run: Run) -> list[tuple[int, str, tuple]]:
    """What is marked on a strip, in order: batch, text and style of line."""
    rung = alarm_of(run)
    found = [(batch, f"▾ {text}", DASHED) for batch, text in knob_changes(run)]
    return sorted(found + ([(rung, "! alarm", DOTTED)] if rung is not None else []))
