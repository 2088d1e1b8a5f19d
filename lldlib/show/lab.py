"""The live lab: steer a run that is going, rewind it, branch it, and watch two side by side.

Training, and drawing its curves, happen in one worker thread, batch by batch; the kernel's own
thread only shows what is new, so cells can be run meanwhile. What the lab does to a run passes
through that one thread too, so it always falls between two batches.
"""

import asyncio
import html
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ipywidgets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from lldlib.config import TrainConfig
from lldlib.runs.folder import Run
from lldlib.runs.phases import Phase, alarm_of, phases_of
from lldlib.runs.summary import flat, value_text
from lldlib.show.controls import KNOBS, Knobs, control, labelled, picture, png, row
from lldlib.show.curves import metric_panel
from lldlib.show.style import (
    BATCH,
    SHADES,
    SMALL,
    TEXT,
    WIDTH,
    colours,
    label_ends,
    stretches,
    told_text,
)

HEIGHT = 560  # pixels of the curves
NOW = "now"
PING, UNHEARD = 20.0, 6  # seconds between two pings of the page; so many without an answer: gone
LEAST = 0.1  # height of a panel, so that the difference of two batches does not fill it
PANELS = {  # logged key: axis label
    "reward/mean": "mean\nreward",
    "probe/content": "probe\n(nats/token)",
    "policy/entropy": "entropy\n(nats/token)",
    "grad/norm": "gradient\nnorm",
}
DOTTED, DASHED = (0, (1, 1)), (0, (4, 2))
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}

logger = logging.getLogger(__name__)


@runtime_checkable
class RunControl(Protocol):
    """What the lab needs of a run; `lldlib.train.run.TrainingRun` is one."""

    out: Path  # its run folder
    config: TrainConfig  # of the next batch

    @property
    def next_batch(self) -> int:
        """The number of the batch that the next step trains."""

    def step(self) -> dict[str, float]:
        """Train one batch and log it."""

    def turn(self, **knobs: Any) -> None:
        """Change settings between two steps."""

    def checkpoint(self) -> None:
        """Write a checkpoint from which the next batch continues."""

    def rewind(self, step: int) -> None:
        """Go back to a checkpoint, dropping what was logged after it."""

    def branch(self, source: Run, step: int, out: Path) -> "RunControl":
        """A new run that shares the source's history before batch `step`."""


class LiveLab(ipywidgets.VBox):
    """Play, pause, step, rewind and branch a run, and turn its knobs between two batches.

    The first run is A; a branch is B, and a new branch takes the old one's place (its folder, a
    sibling of A's, stays). Whichever run is behind goes first, so that both come to move side by
    side. Every button has a method of its name, which waits until it is done.

    What a control asks for is done before another may ask, and for the run that was chosen then:
    meanwhile the others are grey, and a click that was on its way to them is dropped. Once a page
    has shown the lab, it pauses when no page answers any more.
    """

    def __init__(self, run: RunControl):
        self.runs: dict[str, RunControl] = {"A": run}
        self.playing = self._training = False  # asked to go on; a batch of that is going
        self._doing = ""  # what a control asked for and is not done
        self._heard, self._unheard, self._pinged = False, 0, 0.0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="live-lab")
        self._task: asyncio.Task | None = None
        self._build()
        super().__init__([self.bar, self.knobs, self.status, self.curves, self.pulse])
        self._show(self._worker.submit(self._draw).result())
        self._show_chosen()

    # -- what a reader or a cell may ask for -------------------------------------------------------

    def step(self, batches: int = 1) -> None:
        """Train that many batches; an Interrupt ends it after the batch that is going."""
        for _ in range(batches):
            self._show(self._worker.submit(self._tick).result())

    def turn(self, **knobs: Any) -> None:
        """Turn knobs of the chosen run: fields of TrainConfig."""
        self._wait(self._turn, self.chosen.value, knobs)

    def rewind(self, step: int) -> None:
        """Take the chosen run back to its checkpoint at batch `step`."""
        self._wait(self._rewind, self.chosen.value, step)

    def branch(self, step: int | None = None) -> None:
        """Branch the chosen run off its checkpoint at batch `step`, or off where it stands."""
        self._wait(self._branch, self.chosen.value, step)
        self.chosen.value = "B"

    def play(self) -> None:
        """Go on, batch after batch, while the kernel stays free; needs a running event loop."""
        if not self.playing:
            self.playing = True
            if self._task is None or self._task.done():  # else a batch is still going
                self._task = asyncio.get_running_loop().create_task(self._play())

    def pause(self) -> None:
        """Stop after the batch that is going."""
        self.playing = False
        self._show_state()

    # -- in the worker thread ----------------------------------------------------------------------

    def _tick(self) -> bytes:
        """One batch of every run that is furthest behind, and the new curves."""
        first = min(run.next_batch for run in self.runs.values())
        for run in self.runs.values():
            if run.next_batch == first and first < run.config.steps:
                run.step()
        return self._draw()

    def _draw(self) -> bytes:
        return png(lab_figure({name: Run(run.out) for name, run in self.runs.items()}))

    def _turn(self, name: str, knobs: dict[str, Any]) -> bytes:
        run = self.runs[name]
        if replace(run.config, **knobs) != run.config:
            run.turn(**knobs)
        return self._draw()

    def _rewind(self, name: str, step: int) -> bytes:
        self.runs[name].rewind(step)
        return self._draw()

    def _branch(self, name: str, step: int | None) -> bytes:
        source = self.runs[name]
        if step is None:
            source.checkpoint()
            step = source.next_batch
        folder, number = source.out.parent, 1
        while (out := folder / f"{self.runs['A'].out.name}-branch{number}").exists():
            number += 1
        self.runs = self.runs | {"B": source.branch(Run(source.out), step, out)}
        return self._draw()

    # -- in the kernel's thread --------------------------------------------------------------------

    async def _play(self) -> None:
        """Batch after batch until paused, unseen, at the end of every run, or interrupted."""
        loop, finished, problem = asyncio.get_running_loop(), False, None
        self._training = True
        self._show_state()
        try:
            while self.playing and not finished:
                self._catch_interrupts(loop)
                self._ping()
                self._show(await loop.run_in_executor(self._worker, self._tick))
                finished = all(run.next_batch >= run.config.steps for run in self.runs.values())
        except Exception as error:
            logger.exception("the run stopped")
            problem = f"Stopped: {type(error).__name__}: {error}"
        self.playing = self._training = False
        self._show_state()
        if problem:
            self._set_status(html.escape(problem))

    def _catch_interrupts(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the kernel's Interrupt pause the lab while no cell runs.

        A running cell has Python's own handler, so that Interrupt ends the cell as ever; between
        cells the kernel ignores the signal, and only that is replaced.
        """
        idle = threading.current_thread() is threading.main_thread()
        if idle and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(self.pause))

    def _ping(self) -> None:
        """Ask the pages that show the lab for a sign, and pause where none answers any more.

        A Play widget that starts to play counts up at once, which no closed page does.
        """
        if time.monotonic() - self._pinged < PING:
            return
        self._pinged = time.monotonic()
        self._unheard += 1
        if self._heard and self._unheard > UNHEARD:
            logger.warning("no page shows the lab any more: it pauses after this batch")
            self._heard, self.playing = False, False
        self.pulse.playing = False
        self.pulse.playing = True

    def _answered(self) -> None:
        self._heard, self._unheard = True, 0

    def _wait(self, work: Callable[..., bytes], *args: Any) -> None:
        self._show(self._worker.submit(work, *args).result())
        self._show_chosen()

    def _submit(
        self, doing: str, work: Callable[..., bytes], *args: Any, after: str | None = None
    ) -> None:
        """Let the worker do something between two batches, without waiting for it."""
        if self._doing:  # a click that was on its way when the controls went grey
            return
        self._doing = doing
        self._show_state()
        asyncio.get_running_loop().create_task(self._finish(work, args, after))

    async def _finish(self, work: Callable[..., bytes], args: tuple, after: str | None) -> None:
        loop, problem = asyncio.get_running_loop(), None
        try:
            self._show(await loop.run_in_executor(self._worker, work, *args))
        except (ValueError, OSError) as error:
            problem = str(error)
        except Exception as error:
            logger.exception("%s failed", self._doing)
            problem = f"{type(error).__name__}: {error}"
        self._doing = ""
        self._show_chosen()  # also what a dropped click has moved
        if after is not None and problem is None:
            self.chosen.value = after
        self._show_state()
        if problem is not None:
            self._set_status(html.escape(problem))

    # -- the controls ------------------------------------------------------------------------------

    def _build(self) -> None:
        def button(label: str, tip: str, icon: str, act: Callable[[], None]) -> ipywidgets.Button:
            layout = ipywidgets.Layout(width="92px")
            made = ipywidgets.Button(description=label, tooltip=tip, icon=icon, layout=layout)
            made.on_click(lambda _: act())
            return made

        self.play_button = button("Play", "go on, or pause", "play", self._on_play)
        self.step_button = button(
            "Step", "one batch", "step-forward", lambda: self._submit("a batch", self._tick)
        )
        self.chosen = ipywidgets.ToggleButtons(options=["A"], tooltips=["the run that is steered"])
        self.chosen.style.button_width = "36px"
        self.chosen.observe(lambda _: self._show_chosen(), "value")
        self.checkpoints = control(
            ipywidgets.Dropdown, "checkpoint at batch", "where to rewind or branch", 230
        )
        self.rewind_button = button(
            "Rewind",
            "back to that checkpoint; what came after it is dropped",
            "undo",
            self._on_rewind,
        )
        self.branch_button = button(
            "Branch", "a second run, B, from that checkpoint", "code-fork", self._on_branch
        )
        self.bar = row(
            [
                self.play_button,
                self.step_button,
                labelled("run", self.chosen),
                self.checkpoints,
                self.rewind_button,
                self.branch_button,
            ]
        )
        self.knobs = Knobs(self._on_knob)
        self.status = ipywidgets.HTML(layout=ipywidgets.Layout(height="28px"))
        self.curves = picture(HEIGHT)
        hidden = ipywidgets.Layout(display="none")
        self.pulse = ipywidgets.Play(max=2**31, interval=10**9, layout=hidden)
        self.pulse.observe(lambda _: self._answered(), "value")
        buttons = (self.step_button, self.rewind_button, self.branch_button)
        self._waiting = (*buttons, self.chosen, self.checkpoints, *self.knobs.parts.values())

    def _on_play(self) -> None:
        if self.playing:
            self.pause()
        else:
            self.play()

    def _on_rewind(self) -> None:
        if self.checkpoints.value == NOW:
            self._set_status("Choose an earlier checkpoint to rewind to.")
        else:
            name, step = self.chosen.value, self.checkpoints.value
            self._submit(f"rewinding {name}", self._rewind, name, step)

    def _on_branch(self) -> None:
        name = self.chosen.value
        step = None if self.checkpoints.value == NOW else self.checkpoints.value
        self._submit(f"branching {name}", self._branch, name, step, after="B")

    def _on_knob(self, knobs: dict[str, Any]) -> None:
        name = self.chosen.value
        self._submit(f"turning a knob of {name}", self._turn, name, knobs)

    def _show_state(self) -> None:
        self.play_button.description = "Pause" if self.playing else "Play"
        self.play_button.icon = "pause" if self.playing else "play"
        # pausing is possible at any time; going on only when nothing is under way
        self.play_button.disabled = not self.playing and bool(self._doing or self._training)
        for part in self._waiting:
            part.disabled = bool(self._doing)
        self._report()

    def _show_chosen(self) -> None:
        """Let the controls show the chosen run, which a branch may have added."""
        if list(self.chosen.options) != list(self.runs):
            kept = self.chosen.value
            self.chosen.options = list(self.runs)
            self.chosen.value = kept
        self.knobs.show(self.runs[self.chosen.value].config)
        self._offer_checkpoints()

    def _offer_checkpoints(self) -> None:
        run = self.runs[self.chosen.value]
        have = [step for step, _ in Run(run.out).checkpoints]
        options = [(NOW, NOW), *((str(step), step) for step in reversed(have))]
        if list(self.checkpoints.options) != options:
            kept = self.checkpoints.value
            self.checkpoints.options = options
            self.checkpoints.value = kept if kept in have else NOW

    def _show(self, curves: bytes) -> None:
        self.curves.value = curves
        self._offer_checkpoints()
        self._report()

    def _report(self) -> None:
        """Where each run stands, in the line above the curves."""
        parts = []
        for name, run in self.runs.items():
            rewards = Run(run.out).series("reward/mean")[1]
            reward = f", reward {rewards[-1]:.2f}" if rewards else ""
            parts.append(f"{name}: {run.next_batch} of {run.config.steps} batches{reward}")
        self._set_status(f"{self._state} | {' | '.join(parts)}")

    @property
    def _state(self) -> str:
        if self._doing:
            when = "after the batch that is going" if self._training else "working"
            return f"{when}: {self._doing} ..."
        if self.playing:
            return "playing"
        return "finishing this batch ..." if self._training else "paused"

    def _set_status(self, text: str) -> None:
        self.status.value = f'<span class="lab-status" role="status">{text}</span>'


# -- its curves -----------------------------------------------------------------------------------


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
        else:
            not_too_close(ax)
        if any(line.get_label() in runs for line in ax.lines):
            label_ends(ax)
        if not any(run.metrics for run in runs.values()):
            ax.texts[0].set_text("no batch yet")
            ax.set_yticks([])
    phases = {name: phases_of(run) for name, run in runs.items()}
    panels[-1].set_xlabel(f"{BATCH}   ({told_text(phases)})", fontsize=TEXT)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    # beyond the last batch there is nothing to see
    panels[-1].set_xlim(0, max([len(run.metrics) for run in runs.values()] + [10]))
    for ax, (name, colour) in zip(axes, colours(list(runs)).items(), strict=False):
        marks(ax, panels, runs[name], phases[name].labels, name, colour)
    return figure


def not_too_close(ax: Axes) -> Axes:
    """Let a panel span at least LEAST, around its middle."""
    low, high = ax.get_ylim()
    short = max(0.0, LEAST - (high - low)) / 2
    ax.set_ylim(low - short, high + short)
    return ax


def whole_decades(ax: Axes) -> Axes:
    """Let a log axis run from one power of ten to another, so that both are labelled.

    A line of it has to have a value over 0.
    """
    values = [y for line in ax.lines for y in line.get_ydata() if y > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    ax.set_ylim(10**low, 10 ** max(high, low + 1))
    ax.yaxis.set_minor_formatter(NullFormatter())
    return ax


def marks(
    strip: Axes,
    panels: Sequence[Axes],
    run: Run,
    phases: Sequence[Phase],
    name: str,
    colour: str,
) -> Axes:
    """A run's phases, knobs and alarm on its strip; knobs and alarm as lines on the panels."""
    strip.set_yticks([])
    strip.set_ylim(0, 2)
    strip.spines[:].set_visible(False)
    strip.tick_params(bottom=False)
    label = {"rotation": 0, "ha": "right", "va": "center", "fontsize": TEXT, "color": colour}
    strip.set_ylabel(name, **label)
    end = strip.get_xlim()[1]
    for phase, start, length in stretches(phases):
        strip.axvspan(start, start + length, 0, 0.5, color=SHADES[phase], linewidth=0)
        if length >= 0.12 * end:
            middle = start + length / 2
            strip.text(middle, 0.45, phase, ha="center", va="center", fontsize=SMALL, color="0.25")
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
