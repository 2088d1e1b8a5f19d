"""Many training runs at once, one process and one thread each.

A folder that holds its whole run is left alone; an unfinished run goes on from its last checkpoint.
"""

import dataclasses
import logging
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from lldlib.config import TrainConfig, train_config_from
from lldlib.runs.folder import CONFIG, Run
from lldlib.train.run import TrainingRun

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cell:
    """One run that is wanted: its folder and its settings."""

    path: Path
    config: TrainConfig


def train_cells(
    cells: Sequence[Cell],
    jobs: int,
    *,
    keep_checkpoints: bool,
    on_batch: Callable[[Cell, int], None],
    on_end: Callable[[Cell, str | None], None],
) -> dict[Path, str]:
    """Train all cells, `jobs` at a time; returns what went wrong, by folder.

    One failure stops no other run. `on_batch` gets the number of batches done, `on_end` the error
    or None. On KeyboardInterrupt every run finishes its batch and writes a checkpoint; then it is
    raised again.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}: give at least 1")
    stop = multiprocessing.get_context("spawn").Event()
    waiting, failures = [], {}
    running: dict[Connection, tuple[Cell, BaseProcess]] = {}

    def end(cell: Cell, error: str | None) -> None:
        failures.update({cell.path: error} if error else {})
        on_end(cell, error)

    for cell in cells:
        try:
            if is_finished(cell):
                end(cell, None)
            else:
                waiting.append(cell)
        except ValueError as error:
            end(cell, str(error))
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                pipe, process = _start(cell, keep_checkpoints, stop)
                running[pipe] = cell, process
            for pipe in wait(list(running)):
                cell, process = running[pipe]
                message = _receive(pipe, process)
                if isinstance(message, int):
                    on_batch(cell, message)
                else:
                    del running[pipe]
                    end(cell, message or None)
    except KeyboardInterrupt:
        logger.warning("stopping: every run finishes its batch and writes a checkpoint")
        stop.set()
        for _, process in running.values():
            process.join()
        raise
    return failures


def train_with_bar(
    cells: Sequence[Cell],
    jobs: int,
    *,
    keep_checkpoints: bool,
    on_end: Callable[[Cell, str | None], None] | None = None,
) -> dict[Path, str]:
    """`train_cells` with one progress bar over the batches of all cells."""
    done: dict[Path, int] = {}
    with tqdm(total=sum(cell.config.steps for cell in cells), unit="batch") as bar:

        def on_batch(cell: Cell, batches: int) -> None:
            done[cell.path] = batches
            bar.update(sum(done.values()) - bar.n)

        def ended(cell: Cell, error: str | None) -> None:
            on_batch(cell, cell.config.steps)
            bar.set_postfix_str(f"{cell.path.name} {'failed' if error else 'is whole'}")
            if on_end is not None:
                on_end(cell, error)

        return train_cells(
            cells, jobs, keep_checkpoints=keep_checkpoints, on_batch=on_batch, on_end=ended
        )


def is_finished(cell: Cell) -> bool:
    """Whether the folder holds the whole run; ValueError if it holds a run of other settings."""
    if not (cell.path / CONFIG).is_file():
        return False
    run = Run(cell.path)
    saved, wanted = _flat(train_config_from(run.config)), _flat(cell.config)
    if saved != wanted:
        unlike = (name for name in wanted if saved[name] != wanted[name])
        other = ", ".join(f"{name} {saved[name]}, not {wanted[name]}" for name in unlike)
        raise ValueError(f"its folder holds a run with {other}: use another --out, or delete it")
    return len(run.metrics) >= cell.config.steps


def train_cell(
    cell: Cell,
    *,
    keep_checkpoints: bool,
    report: Callable[[int], None],
    should_stop: Callable[[], bool],
) -> None:
    """Start or resume one run and go to its end, or to `should_stop`, where it writes a checkpoint.

    `report` gets the number of batches done after each. Without `keep_checkpoints` only the latest
    is kept, and none once the run is whole.
    """
    run = _open(cell)
    while run.trainer.step_index < cell.config.steps and not should_stop():
        run.step()
        if not keep_checkpoints:
            _prune(cell.path, keep=1)
        report(run.trainer.step_index)
    whole = run.trainer.step_index == cell.config.steps
    if not whole:
        run.checkpoint()
    run.writer.close()
    if not keep_checkpoints:
        _prune(cell.path, keep=0 if whole else 1)


def _open(cell: Cell) -> TrainingRun:
    """The cell's run, new or resumed."""
    if not (cell.path / CONFIG).is_file():
        return TrainingRun(cell.config, cell.path)
    run = Run(cell.path)
    if not run.checkpoints and not run.metrics:  # killed before it had done anything
        shutil.rmtree(cell.path)
        return TrainingRun(cell.config, cell.path)
    return TrainingRun(cell.config, cell.path, resume=True)


def _prune(path: Path, keep: int) -> None:
    """Delete all but the last `keep` checkpoints."""
    checkpoints = Run(path).checkpoints
    for _, folder in checkpoints[: len(checkpoints) - keep]:
        shutil.rmtree(folder)


def _start(cell: Cell, keep_checkpoints: bool, stop: Event) -> tuple[Connection, BaseProcess]:
    """A process that trains the cell, and the end of the pipe from which to read how it goes."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    arguments = (cell, keep_checkpoints, writer, stop)
    process = context.Process(target=_work, args=arguments, daemon=True)
    with _child_settings():
        process.start()
    writer.close()  # the child's copy is the only one left, so its death is seen here
    return reader, process


def _receive(pipe: Connection, process: BaseProcess) -> int | str:
    """The number of batches done, or the last word of a process: its error, "" for none."""
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        return f"its process died with exit code {process.exitcode}"


@contextmanager
def _child_settings() -> Iterator[None]:
    """What a process started here inherits: one thread, and Ctrl-C left to the parent."""
    threads, handler = os.environ.get("OMP_NUM_THREADS"), signal.getsignal(signal.SIGINT)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads


def _work(cell: Cell, keep_checkpoints: bool, pipe: Connection, stop: Event) -> None:
    """The life of a worker process; its last message is its error, "" for none."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    error = ""
    try:
        train_cell(
            cell, keep_checkpoints=keep_checkpoints, report=pipe.send, should_stop=stop.is_set
        )
    except BrokenPipeError:  # the parent is gone; the run can be resumed
        return
    except Exception as problem:
        logger.exception("%s failed", cell.path)
        error = f"{type(problem).__name__}: {problem}"
    pipe.send(error)


def _flat(config: TrainConfig) -> Mapping[str, Any]:
    """The settings by their bare names."""
    settings = dataclasses.asdict(config)
    nested = settings.pop("rollout") | settings.pop("loss")
    return settings | nested
