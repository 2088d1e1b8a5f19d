"""How recorded runs ended, side by side, and whether the alarm saw it coming.

Tables and figures of these pages and of the notebooks. "Collapse" here is the batch at which it
could be known (`Collapse.known`), as on all pages recorded before there was a batch of its
beginning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lldlib.runs.folder import Run
from lldlib.runs.phases import AlarmRule, Series, alarm, alarm_of, collapse_batch, phases_of
from lldlib.show.style import (
    BATCH,
    SHADES,
    SMALL,
    WIDTH,
    Arms,
    colours,
    label_ends,
    stretches,
    style,
    told_text,
)

REWARD = "reward/mean"
NAN = float("nan")


@dataclass(frozen=True)
class AlarmReport:
    """How an alarm did on recorded runs; a lead is collapse batch - alarm batch."""

    rung: tuple[int | None, ...]  # per run, the batch at which the alarm rang
    leads: tuple[int, ...]  # per warned collapse, in batches, the shortest first
    misses: int  # runs that collapsed with no alarm before it
    false_alarms: int  # runs with an alarm that never collapsed
    collapses: int  # runs that collapsed
    survivors: int  # runs that did not

    @property
    def median_lead(self) -> float:
        """The median lead in batches; nan if no collapse was warned of."""
        return float(median(self.leads)) if self.leads else NAN

    @property
    def worst_lead(self) -> float:
        """The shortest lead in batches; nan if no collapse was warned of."""
        return float(self.leads[0]) if self.leads else NAN


def alarm_report(
    runs: Sequence[tuple[Series, Mapping[str, Series]]], rule: AlarmRule
) -> AlarmReport:
    """How `rule` would have done on recorded runs, each its rewards and the series of `alarm`.

    An alarm at or after the collapse is a miss; one in a run that never collapses is false.
    """
    rung = tuple(alarm(series, rule) for _, series in runs)
    ends = [collapse_batch(rewards) for rewards, _ in runs]
    pairs = list(zip(rung, ends, strict=True))
    leads = sorted(e - r for r, e in pairs if r is not None and e is not None and r < e)
    collapses = sum(e is not None for e in ends)
    return AlarmReport(
        rung=rung,
        leads=tuple(leads),
        misses=collapses - len(leads),
        false_alarms=sum(r is not None and e is None for r, e in pairs),
        collapses=collapses,
        survivors=len(ends) - collapses,
    )


def phase_strips(runs: Mapping[str, Run]) -> Figure:
    """A row per run: the phase of every batch, the alarm, and where a collapse could be known."""
    figure = Figure(figsize=(WIDTH, 1.1 + 0.26 * len(runs)), layout="constrained")
    ax = figure.subplots()
    phases = {name: phases_of(run) for name, run in runs.items()}
    for place, (name, run) in enumerate(runs.items()):
        for phase, start, length in stretches(phases[name].labels):
            ax.barh(place, length, left=start, height=0.8, color=SHADES[phase])
        for batch, marker in ((alarm_of(run), "v"), (collapse_batch(run.column(REWARD)), "X")):
            if batch is not None:
                ax.plot(batch, place, marker, color="black", markersize=6, markeredgecolor="white")
    style(ax, f"{BATCH}   ({told_text(phases)})", "").grid(visible=False)
    ax.set_yticks(range(len(runs)), list(runs))
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.margins(x=0.01)
    handles = [Patch(facecolor=c, edgecolor="0.6", label=phase) for phase, c in SHADES.items()]
    for marker, label in (("v", "alarm"), ("X", "collapse known")):
        handles.append(
            Line2D([], [], color="black", marker=marker, linestyle="", markersize=6, label=label)
        )
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 7}
    ax.legend(handles=handles, fontsize=SMALL, frameon=False, **place)
    return figure


def survival_figure(arms: Arms) -> Figure:
    """The share of each arm's seeds whose collapse could not be known so far."""
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
