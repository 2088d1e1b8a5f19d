"""The live lab: steer runs that are going, rewind, branch and rescue them, and compare.

Training happens in one worker thread, batch by batch; the kernel's own thread only shows what is
new, so cells can be run meanwhile. What the lab does to a run passes through that one thread too,
so it always falls between two batches.

What is done to runs is in `steering`, the controls are in `bar`, and what is seen is in `views`:
curves (`steered`), words (`says`), and who lives.
"""

import asyncio
import html
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import ipywidgets

from lldlib.runs.folder import Run
from lldlib.show.bar import NOW, Bar
from lldlib.show.controls import picture, with_picture
from lldlib.show.steering import BRANCH, FIRST, Opener, RunControl, Steering
from lldlib.show.views import Asked, Shown, draw

HEIGHT = 364  # pixels of the curves of one run
PING, UNHEARD = 20.0, 6  # seconds between two pings of the page; so many without an answer: gone
BATCHES = 8  # how long the branches of a rescue go on

logger = logging.getLogger(__name__)
# labs that have trained beside cells, each with the event loop that its pause belongs to
LABS: WeakKeyDictionary["LiveLab", asyncio.AbstractEventLoop] = WeakKeyDictionary()


class LiveLab(ipywidgets.VBox):
    """Play, pause, step, rewind, branch and rescue runs, and turn their knobs between two batches.

    `runs` maps the name of an arm to its run; a single run is called A. A branch is B, and a new
    branch takes the old one's place (its folder, a sibling of its source's, stays). Whichever run
    is behind goes first, so that all move side by side. A run may be a function that makes it: then
    the lab shows the `ghost`, a recorded run, while the model loads. Every button has a method of
    its name, which waits until it is done.

    What a control asks for is done before another may ask, and for the run that is named on it:
    meanwhile the others are grey, and a click that was on its way to them is dropped. Once a page
    has shown the lab, it pauses when no page answers any more.
    """

    def __init__(
        self,
        runs: RunControl | Opener | Mapping[str, RunControl | Opener],
        *,
        ghost: Run | None = None,
    ):
        named = runs if isinstance(runs, Mapping) else {FIRST: runs}
        self.steering, self.ghost = Steering(named), ghost
        self.playing = self._training = False  # asked to go on; a batch of that is going
        self._doing = ""  # what a control asked for and is not done
        self._problem = ""  # why the last one failed
        self._rescuing = self._stopped = False
        self._heard, self._unheard, self._pinged = False, 0, 0.0
        self._worker = _one_thread("live-lab")
        self._drawer = _one_thread("live-lab-picture")
        self._task: asyncio.Task | None = None  # of the play
        self._beside: set[asyncio.Task] = set()
        self._build(list(named))
        self._show(self._draw(self._asked))
        if self.steering.opened:
            self._show_chosen()
        else:
            self._load()

    @property
    def runs(self) -> dict[str, RunControl]:
        """The runs that it steers, by name."""
        return self.steering.runs

    @property
    def rescued(self) -> dict[str, RunControl]:
        """The branches of the last rescue, by remedy."""
        return self.steering.rescued

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return with_picture(super()._repr_mimebundle_(**kwargs), self.curves.value)

    # -- what a reader or a cell may ask for -------------------------------------------------------

    def step(self, batches: int = 1) -> None:
        """Train that many batches; an Interrupt ends it after the batch that is going."""
        for _ in range(batches):
            self._wait(self.steering.tick)

    def turn(self, **knobs: Any) -> None:
        """Turn knobs of the chosen run: fields of TrainConfig, and of its loss."""
        self._wait(self.steering.turn, self.chosen.value, knobs)

    def rewind(self, step: int) -> None:
        """Take the chosen run back to its checkpoint at batch `step`."""
        self._wait(self.steering.rewind, self.chosen.value, step)

    def branch(self, step: int | None = None) -> None:
        """Branch the chosen run off its checkpoint at batch `step`, or off where it stands."""
        self._wait(self.steering.branch, self.chosen.value, step)
        self.chosen.value = BRANCH

    def rescue(self, step: int | None = None, batches: int = BATCHES) -> None:
        """Branch the chosen run at batch `step` for each remedy, and train the branches on.

        See `lldlib.show.steering.remedies`; the branches are in `rescued`.
        """
        self.pause()
        self.view.value = "Rescue"
        self._wait(self.steering.rescue, self.chosen.value, step, batches)

    def play(self) -> None:
        """Go on, batch after batch, while the kernel stays free; needs a running event loop."""
        if not self.playing:
            self.playing, self._problem = True, ""
            if self._task is None or self._task.done():  # else a batch is still going
                self._task = asyncio.get_running_loop().create_task(self._play())

    def pause(self) -> None:
        """Stop after the batch that is going."""
        self.playing, self._stopped = False, True
        self._show_state()

    # -- in the worker thread ----------------------------------------------------------------------

    def _advance(self, job: "Job") -> Shown:
        """A job's next part, and what there is to see after it."""
        job.advance()
        return self._draw(self._asked)

    def _draw(self, asked: Asked) -> Shown:
        runs, rescued = (
            {name: Run(run.out) for name, run in some.items()} for some in (self.runs, self.rescued)
        )
        return draw(asked, runs, rescued, self.ghost)

    # -- in the kernel's thread --------------------------------------------------------------------

    def _load(self) -> None:
        """Make the runs that are not there yet; at once where no event loop is running."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._wait(self.steering.open)
        else:
            self._submit("loading the model", self.steering.open)

    async def _play(self) -> None:
        """Batch after batch until paused, unseen, at the end of every run, or interrupted."""
        loop, finished, problem = asyncio.get_running_loop(), False, None
        self._training = True
        self._show_state()
        try:
            while self.playing and not finished:
                self._catch_interrupts(loop)
                self._ping()
                tick = Job(self.steering.tick)
                self._show(await loop.run_in_executor(self._worker, self._advance, tick))
                finished = self.steering.finished
        except Exception as error:
            logger.exception("the run stopped")
            problem = f"Stopped: {type(error).__name__}: {error}"
        self.playing = self._training = False
        self._show_state()
        if problem:
            self._tell(problem)

    def _catch_interrupts(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the kernel's Interrupt pause this lab, and every other that is going.

        A running cell has Python's own handler, so that Interrupt ends the cell as ever; between
        cells the kernel ignores the signal, and only that is replaced.
        """
        LABS[self] = loop
        idle = threading.current_thread() is threading.main_thread()
        if idle and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, _pause_all)

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
            self._heard = False
            self.pause()
        self.pulse.playing = False
        self.pulse.playing = True

    def _answered(self) -> None:
        self._heard, self._unheard = True, 0

    def _wait(self, work: Callable[..., Any], *args: Any) -> None:
        self._problem = ""
        self._worker.submit(self.steering.open).result()
        job = Job(work, *args)
        while not job.done:
            going = self._worker.submit(self._advance, job)
            try:
                self._show(going.result())
            except KeyboardInterrupt:
                self._show_later(going)
                raise
        self._show_chosen()

    def _show_later(self, going: Future) -> None:
        """Show what an interrupted cell has begun, once it is done; without a page not at all."""
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            for show in (self._show_chosen, self._show_state):
                going.add_done_callback(lambda _, show=show: loop.call_soon_threadsafe(show))

    def _submit(
        self, doing: str, work: Callable[..., Any], *args: Any, after: str | None = None
    ) -> None:
        """Let the worker do something between two batches, without waiting for it."""
        if self._doing:  # a click that was on its way when the controls went grey
            return
        self._doing, self._stopped, self._problem = doing, False, ""
        self._show_state()
        self._begin(self._finish(Job(work, *args), after))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something happen beside; the loop itself would forget it."""
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _finish(self, job: "Job", after: str | None) -> None:
        loop, problem = asyncio.get_running_loop(), None
        try:
            while not job.done and not (job.begun and self._stopped):
                self._catch_interrupts(loop)
                self._ping()
                self._show(await loop.run_in_executor(self._worker, self._advance, job))
        except (ValueError, OSError) as error:
            problem = str(error)
        except Exception as error:
            logger.exception("%s failed", self._doing)
            problem = f"{type(error).__name__}: {error}"
        self._doing, self._rescuing = "", False
        self._show_chosen()  # also what a dropped click has moved
        if after is not None and problem is None:
            self.chosen.value = after
        self._show_state()
        if problem is not None:
            self._tell(problem)

    # -- the controls ------------------------------------------------------------------------------

    def _build(self, names: list[str]) -> None:
        self.bar = Bar(names, BATCHES, self._on_knob)
        acts = {
            "play": self._on_play,
            "step": lambda: self._submit("a batch", self.steering.tick),
            "rewind": self._on_rewind,
            "branch": self._on_branch,
            "rescue": self._on_rescue,
        }
        for name, act in acts.items():
            self.bar.buttons[name].on_click(lambda _, act=act: act())
        self.chosen, self.view = self.bar.chosen, self.bar.view
        self.checkpoints, self.status = self.bar.checkpoints, self.bar.status
        self.curves = picture(HEIGHT, "curves of the lab")
        self.table, self.words = ipywidgets.HTML(), ipywidgets.HTML()
        hidden = ipywidgets.Layout(display="none")
        self.pulse = ipywidgets.Play(max=2**31, interval=10**9, layout=hidden)
        self.pulse.observe(lambda _: self._answered(), "value")
        self.chosen.observe(lambda _: self._on_chosen(), "value")
        self.view.observe(lambda _: self._redraw(), "value")
        self.curves.observe(lambda _: self._redraw(), "width")
        super().__init__([self.bar, self.table, self.curves, self.words, self.pulse])
        self.add_class("live-lab")

    @property
    def knobs(self) -> ipywidgets.Widget:
        """The knobs of the chosen run."""
        return self.bar.knobs[self.chosen.value]

    def _on_play(self) -> None:
        if self.playing or self._rescuing:
            self.pause()
        else:
            self.play()

    def _on_rewind(self) -> None:
        if self.checkpoints.value == NOW:
            self._tell("Choose an earlier checkpoint to rewind to.")
        else:
            name, step = self.chosen.value, self.checkpoints.value
            self._submit(f"rewinding {name}", self.steering.rewind, name, step)

    def _on_branch(self) -> None:
        name = self.chosen.value
        self._submit(f"branching {name}", self.steering.branch, name, self.bar.point, after=BRANCH)

    def _on_rescue(self) -> None:
        if self._doing:
            return
        self.pause()  # the branches go on, the runs wait
        name, batches = self.chosen.value, self.bar.batches.value
        self._rescuing = True
        self._submit(f"rescuing {name}", self.steering.rescue, name, self.bar.point, batches)
        self.view.value = "Rescue"

    def _on_knob(self, name: str, knobs: dict[str, Any]) -> None:
        self._submit(f"turning a knob of {name}", self.steering.turn, name, knobs)

    def _on_chosen(self) -> None:
        self._show_chosen()
        self._redraw()

    def _show_state(self) -> None:
        going = self.playing or self._rescuing
        self.bar.show_state(
            going=going,
            # pausing is possible at any time; going on only when nothing is under way
            locked=not going and bool(self._doing or self._training),
            busy=bool(self._doing),
        )
        self._report()

    def _show_chosen(self) -> None:
        """Let the controls show the chosen run, which a branch may have added."""
        self.bar.offer(self.runs)

    @property
    def _asked(self) -> Asked:
        return Asked(self.view.value, self.chosen.value, self.curves.width)

    def _redraw(self) -> None:
        """Show another view, run or width, also while a batch is going."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._show(self._draw(self._asked))
        else:
            self._begin(self._draw_beside(loop, self._asked))

    async def _draw_beside(self, loop: asyncio.AbstractEventLoop, asked: Asked) -> None:
        if asked == self._asked:  # else the next one is on its way
            self._show(await loop.run_in_executor(self._drawer, self._draw, asked))

    def _show(self, shown: Shown) -> None:
        if shown.asked == self._asked:
            self.curves.alt, self.curves.height = shown.alt, shown.height
            self.curves.value = shown.picture
            self.table.value, self.words.value = shown.table, shown.words
        self.bar.offer_checkpoints(self.runs)
        self._report()

    def _report(self) -> None:
        """Where each run stands, in the line above the curves."""
        parts = []
        for name, run in (self.rescued if self._rescuing else self.runs).items():
            rewards = Run(run.out).series("reward/mean")[1]
            reward = f", reward {rewards[-1]:.2f}" if rewards else ""
            parts.append(f"{name}: {run.next_batch} of {run.config.steps} batches{reward}")
        said = " | ".join([self._state, *(html.escape(part) for part in parts)])
        if self._problem:
            said += f" | <b>{html.escape(self._problem)}</b>"
        self.status.value = f'<span class="lab-status" role="status">{said}</span>'

    @property
    def _state(self) -> str:
        if self._doing:
            when = "after the batch that is going" if self._training else "working"
            return html.escape(f"{when}: {self._doing} ...")
        if self.playing:
            return "playing"
        return "finishing this batch ..." if self._training else "paused"

    def _tell(self, problem: str) -> None:
        """Say what went wrong behind where each run stands, until something else is asked for."""
        self._problem = problem
        self._report()


def _one_thread(name: str) -> ThreadPoolExecutor:
    """One worker thread, started at once.

    An interrupt while the executor starts its thread would make it forget that thread and start a
    second one, and two acts on one run would meet.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    pool.submit(int).result()
    return pool


def _pause_all(*_: Any) -> None:
    """The handler of an Interrupt between cells."""
    for lab, loop in list(LABS.items()):
        if (lab.playing or lab._doing) and not loop.is_closed():
            loop.call_soon_threadsafe(lab.pause)


class Job:
    """What was asked for, in parts between which the page may show where it stands; often one.

    `work` does all, or gives an iterator whose every step is a part.
    """

    def __init__(self, work: Callable[..., Iterator[None] | None], *args: Any):
        self._work, self._args = work, args
        self._rest: Iterator[None] = iter(())
        self.begun = self.done = False

    def advance(self) -> None:
        """Do the next part."""
        if not self.begun:
            self.begun, self._rest = True, self._work(*self._args) or self._rest
        self.done = next(self._rest, self) is self
