"""What the live lab does to its runs: train, turn, rewind, branch, rescue. No widget is here.

The lab calls all of it in one worker thread, so it always falls between two batches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lldlib.config import TrainConfig
from lldlib.recipes import built_in
from lldlib.runs.folder import Run

FIRST, BRANCH = "A", "B"  # what a run without a name is called, and a branch
UNCHANGED = "nothing changed"
FEWER = 4  # "more rows": as many times fewer updates of as many times more rows
COOLER = 5  # a fifth of the learning rate


@runtime_checkable
class RunControl(Protocol):
    """What the lab needs of a run; `lldlib.train.run.TrainingRun` is one."""

    out: Path  # its run folder
    config: TrainConfig  # of the next batch

    @property
    def next_batch(self) -> int:
        """The number of the batch that the next step trains."""

    @property
    def points(self) -> list[int]:
        """The batches at which it can be rewound or branched, in order."""

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


Opener = Callable[[], RunControl]  # makes a run when it is first needed


def remedies(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """What may rescue a run, by name: the settings to turn; first the control that turns none.

    A remedy that would change nothing, as LLDS in a run that has it, is left out.
    """
    loss = built_in(config.policy, config.data.world).loss_of("llds")
    terms = {name: getattr(loss, name) for name in vars(loss) if name.startswith("llds_")}
    found = {
        "LLDS on": {"method": "llds", "loss": replace(config.loss, **terms)},
        "a fifth of the rate": {"lr": config.lr / COOLER},
        "more rows per update": {"updates_per_batch": max(1, config.updates_per_batch // FEWER)},
    }
    if config.loss.llds_coef:
        del found["LLDS on"]
    helps = {name: knobs for name, knobs in found.items() if replace(config, **knobs) != config}
    return {UNCHANGED: {}} | helps


class Steering:
    """Runs under their names, of which a branch may be one, and the branches of the last rescue."""

    def __init__(self, runs: Mapping[str, RunControl | Opener]):
        self._waiting = {n: run for n, run in runs.items() if not isinstance(run, RunControl)}
        self.runs = {n: run for n, run in runs.items() if isinstance(run, RunControl)}
        self._order = list(runs)
        self.rescued: dict[str, RunControl] = {}

    @property
    def opened(self) -> bool:
        """Whether every run is there."""
        return not self._waiting

    def open(self) -> None:
        """Make the runs that are not yet there, which loads their models."""
        if not self._waiting:
            return
        every = self.runs | {name: make() for name, make in self._waiting.items()}
        self._waiting = {}
        self.runs = {name: every[name] for name in self._order}

    @property
    def finished(self) -> bool:
        """Whether no run has a batch to go."""
        return all(run.next_batch >= run.config.steps for run in self.runs.values())

    def tick(self) -> None:
        """One batch of every run that is furthest behind, so that all move side by side."""
        train_hindmost(self.runs)

    def turn(self, name: str, knobs: dict[str, Any]) -> None:
        """Turn knobs of a run: fields of TrainConfig, and of its loss."""
        run = self.runs[name]
        of_loss = {k: v for k, v in knobs.items() if hasattr(run.config.loss, k)}
        if of_loss:  # of the loss as it now stands, which the page may not yet have seen
            others = {k: v for k, v in knobs.items() if k not in of_loss}
            knobs = {"loss": replace(run.config.loss, **of_loss)} | others
        if replace(run.config, **knobs) != run.config:
            run.turn(**knobs)

    def rewind(self, name: str, step: int) -> None:
        """Take a run back to its checkpoint at batch `step`."""
        self.runs[name].rewind(step)

    def branch(self, name: str, step: int | None) -> None:
        """A branch of a run off batch `step` (None: where it stands) becomes the run BRANCH."""
        source, step = self._source(name, step)
        branch = source.branch(Run(source.out), step, self._folder(source, "branch"))
        self.runs = self.runs | {BRANCH: branch}

    def rescue(self, name: str, step: int | None, batches: int) -> Iterator[None]:
        """Branch a run once for each remedy, then train the branches `batches` on, side by side.

        It pauses after each branch and each round of batches.
        """
        if batches < 1:
            raise ValueError(f"batches is {batches}: give at least 1")
        source, step = self._source(name, step)
        self.rescued = {}
        # the settings are those at the checkpoint, which the first branch has
        planned = {UNCHANGED: {}}
        while planned:
            remedy = next(iter(planned))
            branch = source.branch(Run(source.out), step, self._folder(source, "rescue"))
            planned = planned if self.rescued else remedies(branch.config)
            branch.turn(steps=step + batches, **planned.pop(remedy))
            self.rescued = self.rescued | {remedy: branch}
            yield
        for _ in range(batches):
            train_hindmost(self.rescued)
            yield

    def _source(self, name: str, step: int | None) -> tuple[RunControl, int]:
        source = self.runs[name]
        if step is None:
            source.checkpoint()
            step = source.next_batch
        return source, step

    def _folder(self, source: RunControl, kind: str) -> Path:
        """A new folder beside the run's, such as run-branch1."""
        number = 1
        while (out := source.out.with_name(f"{source.out.name}-{kind}{number}")).exists():
            number += 1
        return out


def train_hindmost(runs: Mapping[str, RunControl]) -> None:
    """One batch of every run that is furthest behind of those not at their end."""
    going = [run for run in runs.values() if run.next_batch < run.config.steps]
    first = min((run.next_batch for run in going), default=0)
    for run in going:
        if run.next_batch == first:
            run.step()
