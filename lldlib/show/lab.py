"""The live lab: steer a run that is going, rewind it, branch it, and watch two side by side.

Training, and drawing its curves, happen in one worker thread, batch by batch; the kernel's own
thread only shows what is new, so cells can be run meanwhile. What the lab does to a run passes
through that one thread too, so it always falls between two batches.
"""

import asyncio
import html
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ipywidgets

from lldlib.config import TrainConfig
from lldlib.runs.folder import Run
from lldlib.show.controls import control, labelled, picture, png, row
from lldlib.show.knobs import Knobs
from lldlib.show.lab_figure import lab_figure

HEIGHT = 560  # pixels of the curves
NOW = "now"

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
    """

    def __init__(self, run: RunControl):
        self.runs: dict[str, RunControl] = {"A": run}
        self.playing = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="live-lab")
        self._task: asyncio.Task | None = None
        self._build()
        super().__init__([self.bar, self.knobs, self.status, self.curves])
        self._show(self._worker.submit(self._draw).result())
        self._aim()

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
            self._task = asyncio.get_running_loop().create_task(self._play())

    def pause(self) -> None:
        """Stop after the batch that is going."""
        self.playing = False

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
        """Batch after batch until paused, at the end of every run, or interrupted."""
        loop, finished, problem = asyncio.get_running_loop(), False, None
        self._dress()
        try:
            while self.playing and not finished:
                self._catch_interrupts()
                self._show(await loop.run_in_executor(self._worker, self._tick))
                finished = all(run.next_batch >= run.config.steps for run in self.runs.values())
        except Exception as error:
            logger.exception("the run stopped")
            problem = f"Stopped: {type(error).__name__}: {error}"
        self.playing = False
        self._dress()
        if problem:
            self._say(html.escape(problem))

    def _catch_interrupts(self) -> None:
        """Make the kernel's Interrupt pause the lab while no cell runs.

        A running cell has Python's own handler, so that Interrupt ends the cell as ever; between
        cells the kernel ignores the signal, and only that is replaced.
        """
        idle = threading.current_thread() is threading.main_thread()
        if idle and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, lambda *_: self.pause())

    def _wait(self, work: Callable[..., bytes], *args: Any) -> None:
        self._show(self._worker.submit(work, *args).result())
        self._aim()

    def _ask(self, work: Callable[..., bytes], *args: Any, after: str | None = None) -> None:
        """Let the worker do something between two batches, without waiting for it."""
        asyncio.get_running_loop().create_task(self._answer(work, args, after))

    async def _answer(self, work: Callable[..., bytes], args: tuple, after: str | None) -> None:
        self._say("after the batch that is going ..." if self.playing else "working ...")
        loop = asyncio.get_running_loop()
        try:
            self._show(await loop.run_in_executor(self._worker, work, *args))
        except (ValueError, OSError) as error:
            self._aim()
            self._say(html.escape(str(error)))
            return
        self._aim()
        if after is not None:
            self.chosen.value = after

    # -- the controls ------------------------------------------------------------------------------

    def _build(self) -> None:
        def button(label: str, tip: str, icon: str, act: Callable[[], None]) -> ipywidgets.Button:
            layout = ipywidgets.Layout(width="92px")
            made = ipywidgets.Button(description=label, tooltip=tip, icon=icon, layout=layout)
            made.on_click(lambda _: act())
            return made

        self.play_button = button("Play", "go on, or pause", "play", self._toggle)
        self.step_button = button(
            "Step", "one batch", "step-forward", lambda: self._ask(self._tick)
        )
        self.chosen = ipywidgets.ToggleButtons(options=["A"], tooltips=["the run that is steered"])
        self.chosen.style.button_width = "36px"
        self.chosen.observe(lambda _: self._aim(), "value")
        self.checkpoints = control(
            ipywidgets.Dropdown, "checkpoint at batch", "where to rewind or branch", 230
        )
        self.rewind_button = button(
            "Rewind", "back to that checkpoint; what came after it is dropped", "undo", self._back
        )
        self.branch_button = button(
            "Branch", "a second run, B, from that checkpoint", "code-fork", self._fork
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
        self.knobs = Knobs(lambda knobs: self._ask(self._turn, self.chosen.value, knobs))
        self.status = ipywidgets.HTML(layout=ipywidgets.Layout(height="28px"))
        self.curves = picture(HEIGHT)

    def _toggle(self) -> None:
        if self.playing:
            self.pause()
        else:
            self.play()

    def _back(self) -> None:
        if self.checkpoints.value == NOW:
            self._say("Choose an earlier checkpoint to rewind to.")
        else:
            self._ask(self._rewind, self.chosen.value, self.checkpoints.value)

    def _fork(self) -> None:
        step = None if self.checkpoints.value == NOW else self.checkpoints.value
        self._ask(self._branch, self.chosen.value, step, after="B")

    def _dress(self) -> None:
        self.play_button.description = "Pause" if self.playing else "Play"
        self.play_button.icon = "pause" if self.playing else "play"
        self._report()

    def _aim(self) -> None:
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
        state = "playing" if self.playing else "paused"
        self._say(f"{state} | {' | '.join(parts)}")

    def _say(self, text: str) -> None:
        self.status.value = f'<span class="lab-status" role="status">{text}</span>'
