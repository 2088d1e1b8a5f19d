"""Runs for the live lab: one that is opened when it is needed, and one that only replays.

Loading a model takes seconds; both let the lab show its first picture before.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lldlib.config import TrainConfig, train_config_from
from lldlib.recipes import train_config
from lldlib.runs.folder import Run, RunWriter

if TYPE_CHECKING:
    from lldlib.train.run import TrainingRun

REWARD = "reward/mean"
OFTEN = {"checkpoint_every": 2, "eval_every": 0, "questions_every": 1}  # in the lab

logger = logging.getLogger(__name__)


def live(
    method: str, seed: int, out: Path | str, **overrides: object
) -> Callable[[], "TrainingRun"]:
    """A function that opens a new run in the folder `out`; settings are those of `train_config`.

    But for the `overrides` it writes a checkpoint every two batches, asks its fixed questions after
    each, and takes no exams.
    """
    config = train_config(method, seed, **OFTEN | overrides)
    return lambda: _training_run()(config, Path(out))


def _training_run() -> type["TrainingRun"]:
    from lldlib.train.run import TrainingRun  # brings transformers, which takes seconds

    return TrainingRun


class Replay:
    """A recorded run that is played again batch by batch; its branches train.

    It writes what was recorded into a new folder, so that the lab sees a run as any other. A branch
    starts from the recording's last checkpoint at or before its batch, or else from the first
    batch, and is trained up to there: on another machine that may round otherwise than the
    recording did. Raises ValueError for a run that was stopped, or steered.
    """

    def __init__(self, recorded: Run, out: Path | str):
        self.recorded, self.out = recorded, Path(out)
        self.config: TrainConfig = train_config_from(recorded.config)
        if len(recorded.metrics) < self.config.steps:
            raise ValueError(
                f"{recorded.path} has {len(recorded.metrics)} of {self.config.steps} batches: "
                "give a run that is finished"
            )
        if any(event["kind"] == "knob" for event in recorded.events):
            raise ValueError(f"a knob of {recorded.path} was turned: give a run left alone")
        self.next_batch = 0
        self._trained: list[Run] = []
        self.writer = RunWriter.create(self.out, recorded.config)
        self._ask()

    @property
    def points(self) -> list[int]:
        """Every batch up to here."""
        return list(range(self.next_batch + 1))

    def step(self) -> dict[str, Any]:
        """Write the next batch as it was recorded."""
        row = dict(self.recorded.metrics[self.next_batch])
        step, written = row.pop("step"), {k: math.inf if v is None else v for k, v in row.items()}
        self.writer.metrics(step, written)  # null again where it was null
        for record in _at(self.recorded.rollouts, self.next_batch):
            self.writer.rollout(self.next_batch, record)
        for event in _at(self.recorded.events, self.next_batch):
            if event["kind"] != "checkpoint":  # they stay where they were written
                self.writer.event(self.next_batch, **event)
        self.next_batch += 1
        self._ask()
        return row

    def turn(self, **knobs: Any) -> None:
        """A recording has no knobs: ValueError."""
        raise ValueError("a recorded run has no knobs: press Branch, and turn the knobs of B")

    def checkpoint(self) -> None:
        """There is nothing to keep: it can be branched at every batch."""

    def rewind(self, step: int) -> None:
        """Go back to before batch `step`."""
        if step not in self.points:
            raise ValueError(f"no batch {step} was played: give one of 0 to {self.next_batch}")
        self.writer.close()
        self.writer, self.next_batch = RunWriter.resume(self.out, step), step

    def branch(self, source: Run, step: int, out: Path) -> "TrainingRun":
        """A run that trains on from batch `step` of the recording, in the folder `out`."""
        if step not in self.points:
            raise ValueError(f"no batch {step} was played: give one of 0 to {self.next_batch}")
        return _training_run().branch(self._checkpointed(step), step, out, **OFTEN)

    def _checkpointed(self, step: int) -> Run:
        """A run with a checkpoint at this batch: the recording, or one trained up to there.

        What was trained is kept, so that the second branch off a batch costs nothing.
        """
        sources = [self.recorded, *self._trained]
        found = [
            (at, n) for n, run in enumerate(sources) for at, _ in run.checkpoints if at <= step
        ]
        at, number = max(found, default=(0, None))
        if found and at == step:
            return sources[number]
        out = self.out.with_name(f"{self.out.name}-trained{len(self._trained) + 1}")
        kept = OFTEN | {"checkpoint_every": 1}
        if found:
            run = _training_run().branch(sources[number], at, out, **kept)
        else:
            run = _training_run()(dataclasses.replace(self.config, **kept), out)
        while run.next_batch < step:
            run.step()
        run.writer.close()
        self._compare(Run(out))
        self._trained.append(Run(out))
        return self._trained[-1]

    def _compare(self, trained: Run) -> None:
        """Warn where what was trained is not what was recorded."""
        rows = zip(trained.column(REWARD), self.recorded.column(REWARD), strict=False)
        for batch, (here, there) in enumerate(rows):
            if here != there:
                logger.warning(
                    "%s does not repeat here: batch %d earns %.3f, recorded was %.3f (another "
                    "machine, or other questions); branches go on from what was trained here",
                    *(self.recorded.path, batch, here, there),
                )
                return

    def _ask(self) -> None:
        """Copy the answers of the policy as it stands now."""
        for record in _at(self.recorded.questions, self.next_batch):
            self.writer.question(self.next_batch, record)


def _at(rows: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """The rows of one batch, without its number."""
    return [{k: v for k, v in row.items() if k != "step"} for row in rows if row["step"] == step]
