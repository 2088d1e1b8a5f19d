"""Many training runs at once, one process, one thread and one folder each; and grids of them.

A folder that holds a finished run is skipped; an unfinished run goes on from its last checkpoint.
"""

import dataclasses
import itertools
import logging
import multiprocessing
import os
import re
import signal
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from lldlib.config import (
    DataConfig,
    LossConfig,
    RolloutConfig,
    TrainConfig,
    train_config_from,
    unknown,
)
from lldlib.files import write_json, writing
from lldlib.losses.objective import REGULARIZERS
from lldlib.policy.load import check_name
from lldlib.recipes import METHODS, built_in, method, train_config
from lldlib.runs.folder import CONFIG, Held, Run, remove_checkpoint
from lldlib.runs.summary import flat, summarise
from lldlib.train.run import TrainingRun, status

SUMMARY = "sweep.json"
# terms that are methods by themselves: their settings mean nothing to a method without the term
OWN = tuple(term for term in REGULARIZERS if term.name in METHODS)
_KINDS = {  # what a value may be, by type
    int: "a whole number",
    float: "a number",
    str: "a name",
    bool: "true or false",
    types.NoneType: "none",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cell:
    """One run that is wanted: its folder and its settings."""

    path: Path
    config: TrainConfig


# -- the engine ------------------------------------------------------------------------------------


def train_cells(
    cells: Sequence[Cell],
    jobs: int,
    *,
    keep_checkpoints: bool,
    on_batch: Callable[[Cell, int, str], None],
    on_end: Callable[[Cell, str | None], None],
) -> dict[Path, str]:
    """Train all cells, `jobs` at a time; returns what went wrong, by folder.

    Raises ValueError for settings without a meaning, or no policy, before anything is started.
    After that one failure stops no other run. `on_batch` gets the number of batches done and a line
    on where the run stands, `on_end` the error or None. On KeyboardInterrupt every run finishes its
    batch and writes a checkpoint; then it is raised again.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}: give at least 1")
    check_cells(cells)
    context = multiprocessing.get_context("spawn")
    stop, waiting, running, failures = context.Event(), [], {}, {}  # running: by the pipe's end

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
                reader, process = _start(context, cell, keep_checkpoints, stop)
                running[reader] = cell, process
            for reader in wait(list(running)):
                cell, process = running[reader]
                try:
                    message = reader.recv()
                except EOFError:
                    process.join()
                    message = f"its process died with exit code {process.exitcode}"
                if isinstance(message, tuple):
                    on_batch(cell, *message)
                else:
                    del running[reader]
                    end(cell, message)
    except KeyboardInterrupt:
        logger.warning("stopping: every run finishes its batch and writes a checkpoint")
        stop.set()
        for _, process in running.values():
            process.join()
        raise
    return failures


def _start(
    context: SpawnContext, cell: Cell, keep_checkpoints: bool, stop: Event
) -> tuple[Connection, SpawnProcess]:
    """A process that trains the cell, and the pipe's end at which its messages come."""
    reader, writer = context.Pipe(duplex=False)
    arguments = (cell, keep_checkpoints, writer, stop)
    process = context.Process(target=_work, args=arguments, daemon=True)
    with _child_settings():
        process.start()
    writer.close()  # the child's copy is the only one left, so its death is seen at the other end
    return reader, process


def check_cells(cells: Sequence[Cell]) -> None:
    """ValueError for settings without a meaning, and for a policy that cannot be."""
    for cell in cells:
        cell.config.check()
        check_name(cell.config.policy)


def train_with_bar(
    cells: Sequence[Cell],
    jobs: int,
    *,
    keep_checkpoints: bool,
    on_end: Callable[[Cell, str | None], None] = lambda cell, error: None,
) -> dict[Path, str]:
    """`train_cells` with one progress bar over the batches of all cells."""
    done: dict[Path, int] = {}
    with tqdm(total=sum(cell.config.steps for cell in cells), unit="batch") as bar:

        def on_batch(cell: Cell, batches: int, line: str = "") -> None:
            done[cell.path] = batches
            bar.update(sum(done.values()) - bar.n)

        def ended(cell: Cell, error: str | None) -> None:
            if error is None:
                on_batch(cell, cell.config.steps)
            else:  # what it had left to do is not done
                bar.total -= cell.config.steps - done.get(cell.path, 0)
            bar.set_postfix_str(f"{cell.path.name} {'failed' if error else 'is finished'}")
            on_end(cell, error)

        return train_cells(
            cells, jobs, keep_checkpoints=keep_checkpoints, on_batch=on_batch, on_end=ended
        )


def is_finished(cell: Cell) -> bool:
    """Whether the folder holds the whole run; ValueError if it holds a run of other settings."""
    if not (cell.path / CONFIG).is_file():
        return False
    run = Run(cell.path)
    configs = (train_config_from(run.config), cell.config)
    saved, wanted = (flat(dataclasses.asdict(config)) for config in configs)
    if saved != wanted:
        unlike = (name for name in wanted if saved[name] != wanted[name])
        other = ", ".join(f"{name} {saved[name]}, not {wanted[name]}" for name in unlike)
        raise ValueError(f"its folder holds a run with {other}: use another --out, or delete it")
    return len(run.metrics) >= cell.config.steps


def train_cell(
    cell: Cell,
    *,
    keep_checkpoints: bool,
    report: Callable[[tuple[int, str]], None],
    should_stop: Callable[[], bool],
) -> None:
    """Start or resume one run and go to its end, or to `should_stop`, where it writes a checkpoint.

    `report` gets, after each batch, the number of batches done and where the run stands. Without
    `keep_checkpoints` only the latest is kept, and none once the run is finished.
    """
    resume = (cell.path / CONFIG).is_file()
    run = TrainingRun(cell.config, cell.path, resume=resume)
    while run.next_batch < cell.config.steps and not should_stop():
        row = run.step()
        if not keep_checkpoints:
            _prune(cell.path, keep=1)
        report((run.next_batch, status(row, run.monitor.phase)))
    finished = run.next_batch == cell.config.steps
    if not finished:
        run.checkpoint()
    run.writer.close()
    if not keep_checkpoints:
        _prune(cell.path, keep=0 if finished else 1)


def _prune(path: Path, keep: int) -> None:
    """Delete all but the last `keep` checkpoints."""
    checkpoints = Run(path).checkpoints
    for _, folder in checkpoints[: len(checkpoints) - keep]:
        remove_checkpoint(folder)


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
    """The life of a worker process; its last message is its error or None."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    error = None
    try:
        train_cell(
            cell, keep_checkpoints=keep_checkpoints, report=pipe.send, should_stop=stop.is_set
        )
    except BrokenPipeError:  # the parent is gone; the run can be resumed
        return
    except (ValueError, OSError) as problem:
        error = " ".join(str(problem).split())
    except Exception as problem:
        logger.exception("%s failed", cell.path)
        error = f"{type(problem).__name__}: {problem}"
    pipe.send(error)


# -- grids -----------------------------------------------------------------------------------------


def sweep(grid: Mapping[str, Sequence[Any]], out: Path, jobs: int) -> dict[Path, str]:
    """Train every cell of the grid in its own folder of `out`; returns what went wrong, by folder.

    `out`/sweep.json has a row for every finished run in `out`, also those of earlier grids: `cell`,
    the folder's name, and `summarise`. It is written anew after each run. Raises BlockingIOError
    where another sweep writes there.
    """
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with closing(Held(out)):
        return _sweep(grid, out, jobs)


def _sweep(grid: Mapping[str, Sequence[Any]], out: Path, jobs: int) -> dict[Path, str]:
    rows = {path: _row(path) for path in sorted(out.glob("*")) if _is_whole(path)}

    def on_end(cell: Cell, error: str | None) -> None:
        if error is None:
            rows[cell.path] = _row(cell.path)
        write_json(out / SUMMARY, [rows[path] for path in sorted(rows)])

    return train_with_bar(grid_cells(grid, out), jobs, keep_checkpoints=False, on_end=on_end)


def _is_whole(path: Path) -> bool:
    return (path / CONFIG).is_file() and len(Run(path).metrics) >= Run(path).config["steps"]


def _row(path: Path) -> dict[str, Any]:
    return {"cell": path.name} | summarise(Run(path))


def parse_grid(items: Sequence[str]) -> dict[str, list[Any]]:
    """From ["method=grpo,llds", "lr=2e-4,4e-4"] to the values of each setting.

    Raises ValueError, naming the item, for one that is not NAME=VALUE,VALUE, a name twice, an
    unknown name, or a value of the wrong kind.
    """
    configs = (TrainConfig, RolloutConfig, LossConfig, DataConfig)
    hints = {name: kind for c in configs for name, kind in typing.get_type_hints(c).items()}
    grid: dict[str, list[Any]] = {}
    for item in items:
        name, equals, values = item.partition("=")
        if not equals or not values:
            raise ValueError(f"grid item {item!r} is not of the form name=value,value")
        if name in grid:
            raise ValueError(f"the grid names {name} twice: list all its values in one item")
        if name not in hints:
            raise ValueError(unknown("setting of the grid", name, hints))
        hint = hints[name]
        kinds = typing.get_args(hint) or (hint,)
        one = typing.get_origin(hint) is not tuple
        if not (one and all(isinstance(kind, str) or kind in _KINDS for kind in kinds)):
            raise ValueError(f"the grid cannot vary {name!r}: use a field of config.py, one value")
        grid[name] = list(dict.fromkeys(_value(name, text, kinds) for text in values.split(",")))
    return grid


def _value(name: str, text: str, kinds: Sequence[Any]) -> Any:
    """The text as the first of `kinds`, types or literal texts, that it can be."""
    words = {"none": None, "true": True, "false": False}
    for kind in kinds:
        if kind == text:
            return text
        if kind in (bool, types.NoneType):
            if text in words and isinstance(words[text], kind):
                return words[text]
        elif kind in _KINDS:
            try:
                return kind(text)
            except ValueError:
                pass
    raise ValueError(f"{name}={text}: use {', '.join(_KINDS.get(k, k) for k in kinds)}")


def grid_cells(grid: Mapping[str, Sequence[Any]], out: Path) -> list[Cell]:
    """A cell per combination; combinations that come to the same run make one.

    A setting whose name begins with that of a term, such as llds_gate, is left out for a method
    without the term, so that GRPO stays GRPO; but a term that is no method can be added to any.
    Raises ValueError if the grid lacks method or seed, or no method has the term of a setting.
    """
    for name in ("method", "seed"):
        if name not in grid:
            raise ValueError(f"the grid names no {name}: add {name}=...")
    names, cells, used = _ordered(grid), {}, set()
    for values in itertools.product(*(grid[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        kept = {k: v for k, v in chosen.items() if applies(k, method(chosen["method"]))}
        used |= kept.keys()
        path = out / cell_name(kept)
        recipe = built_in(kept.get("policy", TrainConfig.policy), kept.get("world"))
        cells[path] = Cell(path, train_config(**kept, recipe=recipe))
    if idle := [name for name in names if name not in used]:
        raise ValueError(
            f"no method of the grid has {', '.join(idle)}: add one that has, or drop it"
        )
    return list(cells.values())


def cell_name(settings: Mapping[str, Any]) -> str:
    """The folder of a cell, such as "method=llds,lr=0.0004,seed=1"; the keys' order is fixed."""
    parts = (f"{name}={_text(settings[name])}" for name in _ordered(settings))
    return re.sub(r"[^\w.,=+-]", "-", ",".join(parts))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _ordered(names: Mapping[str, Any]) -> list[str]:
    """Method first, seed last, the rest by name."""
    return sorted(names, key=lambda name: (name == "seed", name != "method", name))


def applies(name: str, loss: LossConfig) -> bool:
    """Whether a setting means anything beside these: its term is on, or may be added to any."""
    if name == "llds_preserve" and (loss.sapo_coef or loss.old_kl_coef):
        return True
    return all(term.weight(loss) for term in OWN if name.startswith(f"{term.name}_"))
