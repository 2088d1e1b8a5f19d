"""The run folder: written line by line while training, read by every figure, report and widget.

- `config.json`        the settings of the run
- `metrics.jsonl`      one object per rollout batch: an integer "step" and flat numbers "group/name"
                       (null: measured, and not finite)
- `rollouts.jsonl`     sampled episodes, each with its "step"
- `questions.jsonl`    greedy answers to the same few held-out questions; here "step" is the number
                       of batches trained so far: 0 is the start
- `events.jsonl`       what happened: "step", "kind" and free fields
- `checkpoints/step_000123/`  `tensors.safetensors` and `state.json`: batch 123 is the next one
"""

import json
import logging
import math
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lldlib.files import LINE, lines_of, load_json, refuse_foreign, write_json, write_whole, writing

try:
    import fcntl
except ImportError:  # Windows, where two writers are not told apart
    fcntl = None

log = logging.getLogger(__name__)
T = TypeVar("T")

KEYS = 10_000  # of a row of metrics, at most: a run logs some 100
LARGEST = 1e100  # of a metric: training in float32 makes none over 3.4e38
CONFIG, METRICS, ROLLOUTS, EVENTS = "config.json", "metrics.jsonl", "rollouts.jsonl", "events.jsonl"
QUESTIONS = "questions.jsonl"
LOGS = (METRICS, ROLLOUTS, EVENTS, QUESTIONS)
CHECKPOINTS, TENSORS, STATE = "checkpoints", "tensors.safetensors", "state.json"
_STEP_FOLDER = re.compile(r"step_(\d{6,})(\.tmp|\.old|\.gone)?")  # with an end: not whole


def refuse_run(path: Path) -> None:
    """FileExistsError if a folder holds a run, ValueError if it holds anything else."""
    if any((path / name).exists() for name in (CONFIG, *LOGS, CHECKPOINTS)):
        raise FileExistsError(f"{path} already holds a run: use --resume, or another --out")
    refuse_foreign(path, "this run")


class Held:
    """A folder held for one writer, of all processes, until `close` or the end of the process.

    Raises BlockingIOError where another writer holds it. The lock is the system's, on the folder
    itself, so that no crash leaves one behind.
    """

    def __init__(self, path: Path):
        number = os.open(path, os.O_RDONLY) if fcntl else None
        self.close = weakref.finalize(self, os.close, number) if fcntl else lambda: None
        try:
            if fcntl:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise BlockingIOError(
                f"{path} is in use by another run: wait until that ends, or use another --out"
            ) from None
        except OSError as error:  # some file systems of networks have no locks
            log.warning("%s cannot be locked (%s): let no other run write there", path, error)

    @contextmanager
    def freed_by_errors(self) -> Iterator["Held"]:
        """In this context an error lets the folder go; a notebook keeps what an error came from."""
        try:
            yield self
        except BaseException:
            self.close()
            raise


class RunWriter:
    """The writing side of a run folder; lines are written at once, a kill loses one at most.

    Raises BlockingIOError where another writer, here or in another process, has the folder.
    """

    def __init__(self, path: Path, held: Held | None = None):
        self.path = path
        self._held = held or Held(path)
        with self._held.freed_by_errors(), writing(path):
            self._files = {name: (path / name).open("ab", buffering=0) for name in LOGS}

    @classmethod
    def create(cls, path: Path | str, config: Mapping[str, Any]) -> "RunWriter":
        """Start a run in `path`, an empty folder or none.

        Raises FileExistsError if the folder holds a run, ValueError if it holds anything else.
        """
        path = Path(path)
        refuse_run(path)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        with Held(path).freed_by_errors() as held:
            refuse_run(path)  # another may have begun and ended a run meanwhile
            write_json(path / CONFIG, config)
            return cls(path, held)

    @classmethod
    def resume(cls, path: Path | str, step: int, held: Held | None = None) -> "RunWriter":
        """Go on with a run whose next batch is `step`: its log lines and later ones are dropped.

        Checkpoints later than `step` go too, since the batches behind them are computed again; they
        go first, so that a kill in between leaves none whose batches are not logged. `held`: the
        caller holds the folder already. Raises FileNotFoundError if `path` holds no run, ValueError
        for a broken line.
        """
        run = Run(path)
        with (held or Held(run.path)).freed_by_errors() as held:
            lines = {name: _read_lines(run.path / name) for name in LOGS}
            with writing(run.path):
                _drop_checkpoints(run.path / CHECKPOINTS, step)
            for name in LOGS:
                kept = [line for line, row in lines[name] if _within(name, row, step)]
                write_whole(run.path / name, "".join(line + "\n" for line in kept))
            return cls(run.path, held)

    def metrics(
        self, step: int, row: Mapping[str, float | int | Tensor | None]
    ) -> dict[str, float | int | None]:
        """Log one batch; floats keep 6 significant digits.

        None and nan, for what was not measured, are left out; what is infinite is written as null.
        Returns what was logged. Raises ValueError for a key that is not "group/name".
        """
        for key in row:
            if key.count("/") != 1:
                raise ValueError(f"metric key {key!r} is not of the form 'group/name'")
        logged = as_logged(row)
        self._line(METRICS, {"step": step} | logged)
        return logged

    def event(self, step: int, kind: str, **fields: Any) -> None:
        """Log that something happened at batch `step`."""
        self._line(EVENTS, {"step": step, "kind": kind} | _tidy(fields))

    def rollout(self, step: int, record: Mapping[str, Any]) -> None:
        """Log one sampled episode of batch `step`."""
        self._line(ROLLOUTS, {"step": step} | _tidy(record))

    def question(self, step: int, record: Mapping[str, Any]) -> None:
        """Log the answer to one of the fixed questions after `step` batches."""
        self._line(QUESTIONS, {"step": step} | _tidy(record))

    def checkpoint(
        self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        """Write the checkpoint from which batch `step` is next; it exists whole or not at all.

        `state` is kept as JSON, floats exactly. Returns the checkpoint's folder.
        """
        final = self.path / CHECKPOINTS / f"step_{step:06d}"
        fresh, stale = final.with_name(f"{final.name}.tmp"), final.with_name(f"{final.name}.old")
        shutil.rmtree(fresh, ignore_errors=True)
        if final.exists():  # else a kill left the old one in its place
            shutil.rmtree(stale, ignore_errors=True)
        # a copy, because safetensors refuses tied weights and strided views
        layout = torch.contiguous_format
        copies = {k: v.detach().cpu().clone(memory_format=layout) for k, v in tensors.items()}
        with writing(final):
            try:
                fresh.mkdir(parents=True)
                save_file(copies, fresh / TENSORS)
                (fresh / STATE).write_text(json.dumps(state), encoding="utf-8")
                shutil.copymode(fresh / STATE, fresh / TENSORS)  # safetensors' is the owner's alone
            except (OSError, SafetensorError) as error:
                shutil.rmtree(fresh, ignore_errors=True)
                raise OSError(str(error)) from error
            if final.exists():  # a folder cannot replace a folder that is not empty
                os.replace(final, stale)
            os.replace(fresh, final)
        shutil.rmtree(stale, ignore_errors=True)
        return final

    def close(self) -> None:
        """Close the log files, and leave the folder to other writers."""
        for file in self._files.values():
            file.close()
        self._held.close()

    def _line(self, name: str, row: Mapping[str, Any]) -> None:
        file, path = self._files[name], self.path / name
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        end = file.tell()
        with writing(path):
            try:
                if (written := file.write(line)) < len(line):  # the disk is full: this says so
                    file.write(line[written:])
            except OSError:
                with suppress(OSError):  # nothing half-written stays
                    file.truncate(end)
                raise


class Run:
    """The reading side of a run folder, live or recorded.

    The metrics are read once: make a new Run for every look at a run that is going. With `batches`
    only the logs of the first so many batches are seen, as if the run ended there.

    Raises FileNotFoundError if `path` is missing or holds no run. Reading raises ValueError, naming
    file and line, for a broken line; a half-written last line is ignored.
    """

    def __init__(self, path: Path | str, batches: int | None = None):
        self.path, self.batches = Path(path), batches
        if not self.path.is_dir():
            raise FileNotFoundError(f"no run folder at {self.path}: check the path, or train first")
        if not (self.path / CONFIG).is_file():
            raise FileNotFoundError(f"{self.path} is no run folder: it has no {CONFIG}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The settings that the run started with."""
        try:
            with (self.path / CONFIG).open("rb") as file:
                config = load_json(file.read(LINE))
        except ValueError as error:
            raise ValueError(f"{self.path / CONFIG} is not valid JSON: {error}") from None
        if not isinstance(config, dict):
            raise ValueError(f"{self.path / CONFIG} holds no settings: it is no JSON object")
        return config

    def settings(self, before: int | None = None) -> dict[str, Any]:
        """The settings as they stand after all knobs, or stood after those before a batch."""
        settings = self.config
        for event in self.events:
            if event["kind"] == "knob" and (before is None or event["step"] < before):
                settings |= {k: v for k, v in event.items() if k not in ("step", "kind")}
        return settings

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per rollout batch: numbers, or None for one that was not finite."""
        rows = self._rows(METRICS)
        for row in rows:
            if len(row) > KEYS:
                raise ValueError(f"{self.path / METRICS}, step {row['step']}: over {KEYS:,} keys")
            for key, value in row.items():
                number = value is None or isinstance(value, (int, float))
                if not number or (value is not None and abs(value) > LARGEST):
                    raise ValueError(
                        f"{self.path / METRICS}, step {row['step']}: {key[:80]!r} is no number, or "
                        f"one over {LARGEST:g}; remove it"
                    )
        return rows

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        rows = self._rows(EVENTS)
        for row in rows:
            if not isinstance(row.get("kind"), str):
                raise ValueError(f"{self.path / EVENTS}, step {row['step']}: no kind; remove it")
        return rows

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """The sampled episodes; what an engine did not record of one is empty."""
        return self._episodes(ROLLOUTS)

    @property
    def questions(self) -> list[dict[str, Any]]:
        """The answers to the fixed questions, in order; "step" 0 is before the first batch."""
        return self._episodes(QUESTIONS)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The metrics as a table: index "step", a column per key, nan where none was logged."""
        keys = dict.fromkeys(("step", *(key for row in self.metrics for key in row)))
        rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in self.metrics]
        return pd.DataFrame(rows, columns=list(keys)).set_index("step")

    def series(self, key: str) -> tuple[list[int], list[float | int]]:
        """The steps that logged `key` and its values there; both empty if none did."""
        if key not in self.frame:
            return [], []
        known = self.frame[key].dropna()
        return known.index.tolist(), known.tolist()

    def column(self, key: str) -> list[float | int | None]:
        """One value per batch, None where `key` was not logged: what `phases` reads."""
        if key not in self.frame:
            return [None] * len(self.frame)
        return [None if value != value else value for value in self.frame[key].tolist()]

    @property
    def checkpoints(self) -> list[tuple[int, Path]]:
        """The whole checkpoints as (next batch, folder), in order; broken ones are skipped."""
        places = {}
        for folder in (self.path / CHECKPOINTS).glob("step_*"):
            match = _STEP_FOLDER.fullmatch(folder.name)
            if match and match[2] in (None, ".old"):
                places[int(match[1])] = folder.with_suffix("")
        found = []
        for step, folder in sorted(places.items()):
            whole = _standing(folder)
            if whole is not None:
                found.append((step, whole))
            elif folder.exists():  # else it was removed meanwhile
                log.warning("skipping the half-written checkpoint %s", folder)
        return found

    def resumes_at(self) -> int | None:
        """The batch at which the run goes on: its latest checkpoint up to which the log is whole.

        None for a run that was killed before it had done anything. Raises FileNotFoundError where
        batches are logged or checkpoints are there, but none that the log reaches.
        """
        logged = [row["step"] for row in self.metrics]
        whole = next((i for i, step in enumerate(logged) if i != step), len(logged))
        steps = [step for step, _ in self.checkpoints]
        if not steps and not logged:
            return None
        if not steps:
            raise FileNotFoundError(f"{self.path} holds no checkpoint")
        if steps[0] > whole:
            raise FileNotFoundError(
                f"{self.path / METRICS} lacks batch {whole}, and the first checkpoint is that of "
                f"batch {steps[0]}: start a new run"
            )
        return max(step for step in steps if step <= whole)

    def load_checkpoint(self, step: int | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors (on the CPU) and state of the checkpoint at `step`; None takes the latest.

        Raises FileNotFoundError if there is no such checkpoint.
        """

        def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
            return load_file(folder / TENSORS), load_json((folder / STATE).read_bytes())

        return self.read_checkpoint(step, load)

    def read_checkpoint(self, step: int | None, read: Callable[[Path], T]) -> T:
        """What `read` makes of a checkpoint's folder; again where a writer replaced it meanwhile.

        So tensors and state are of one writing. Raises FileNotFoundError as `load_checkpoint` does.
        """
        while True:
            checkpoints = dict(self.checkpoints)
            if not checkpoints:
                raise FileNotFoundError(f"{self.path} holds no checkpoint")
            chosen = max(checkpoints) if step is None else step
            if chosen not in checkpoints:
                steps = ", ".join(map(str, checkpoints))
                raise FileNotFoundError(f"{self.path} has no checkpoint {chosen}, only {steps}")
            folder = checkpoints[chosen]
            before = _stamp(folder)
            try:
                found = read(folder)
            except OSError:
                if _stamp(folder) == before:
                    raise
                continue
            if before is not None and _stamp(folder) == before:
                return found

    def _episodes(self, name: str) -> list[dict[str, Any]]:
        rows = [{"answers": [], "answer": None, "stop": ""} | row for row in self._rows(name)]
        for row in rows:
            if wrong := _misshapen(row):
                raise ValueError(
                    f"{self.path / name}, step {row['step']}: {wrong} of an episode is of another "
                    "kind; remove the line"
                )
        return rows

    def _rows(self, name: str) -> list[dict[str, Any]]:
        rows = [row for _, row in _read_lines(self.path / name)]
        if self.batches is None:
            return rows
        return [row for row in rows if _within(name, row, self.batches)]


def _misshapen(row: Mapping[str, Any]) -> str | None:
    """The part of an episode's record that is missing or of another kind; None: all are well."""
    if not isinstance(row["answers"], list) or not all(isinstance(a, str) for a in row["answers"]):
        return "answers"
    if not isinstance(row["answer"], str | None):
        return "answer"
    for name in ("question", "stop"):
        if not isinstance(row.get(name), str):
            return name
    turns = row.get("turns")
    if row.get("reward") is None or not _is_number(row["reward"]):
        return "reward"
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return "turns"
    for turn in turns:
        texts = isinstance(turn.get("role"), str) and isinstance(turn.get("text"), str)
        logp = turn.get("logp")
        if not texts or not isinstance(logp, list) or not all(map(_is_number, logp)):
            return "a turn"
    return None


def _is_number(value: Any) -> bool:
    """Whether it is a number of a log, or None."""
    return value is None or (isinstance(value, (int, float)) and abs(value) <= LARGEST)


def _within(name: str, row: Mapping[str, Any], batches: int) -> bool:
    """Whether a line belongs to the first so many batches, or to the policy that they made."""
    return row["step"] < batches or (name == QUESTIONS and row["step"] == batches)


def _read_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The raw lines and their objects; a last line without a newline counts only if whole."""
    if not path.exists():
        return []
    rows = []
    with path.open("rb") as file:
        for number, line in enumerate(lines_of(file, path), start=1):
            row = _parse(line)
            if row is not None:
                rows.append((line.removesuffix(b"\n").decode(errors="replace"), row))
            elif line.endswith(b"\n"):
                raise ValueError(f"{path}, line {number}: no JSON object with a 'step'; remove it")
    return rows


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = load_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _drop_checkpoints(folder: Path, step: int) -> None:
    """Remove the checkpoints after `step`, the last one first, and what kills left of others."""
    found = [(_STEP_FOLDER.fullmatch(path.name), path) for path in folder.glob("step_*")]
    ours = [(int(match[1]), match[2] or "", path) for match, path in found if match]
    # what was left goes before the checkpoint itself, so that it never stands in for that
    for number, end, path in sorted(ours, reverse=True):
        whole = path.with_suffix("")
        if number <= step and end == ".old" and not whole.exists():
            os.replace(path, whole)  # a kill kept the new one from its place
        elif number > step or end:
            remove_checkpoint(path)


def remove_checkpoint(folder: Path) -> None:
    """Remove it; it is renamed first, so that an interrupt leaves no half of a checkpoint."""
    gone = folder.with_suffix(".gone")
    if folder != gone:
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Another one for every writing of a checkpoint; None where there is none."""
    with suppress(FileNotFoundError):
        told = (folder / TENSORS).stat()
        return told.st_ino, told.st_mtime_ns
    return None


def _standing(folder: Path) -> Path | None:
    """Where the checkpoint lies whole: a writer that replaces it may do so at this moment."""
    old = folder.with_suffix(".old")
    if _is_whole(folder):
        return folder
    if not folder.exists() and _is_whole(old):
        return old
    return folder if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    try:
        load_json((folder / STATE).read_bytes())
        with safe_open(folder / TENSORS, framework="pt"):  # checks the file's length
            return True
    except PermissionError:
        raise
    except (OSError, ValueError, SafetensorError):
        return False


def as_logged(row: Mapping[str, float | int | Tensor | None]) -> dict[str, float | int | None]:
    """The metrics of a batch as a log holds them; see `RunWriter.metrics`."""
    return {k: _number(v) for k, v in row.items() if v is not None and not math.isnan(v)}


def _number(value: float | int | Tensor) -> int | float | None:
    if isinstance(value, int):
        return int(value)
    return float(f"{float(value):.6g}") if math.isfinite(value) else None


def _tidy(value: Any) -> Any:
    """The value with its floats shortened and non-finite ones as None, which JSON can hold."""
    if isinstance(value, Mapping):
        return {key: _tidy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tidy(item) for item in value]
    return _number(value) if isinstance(value, float) else value
