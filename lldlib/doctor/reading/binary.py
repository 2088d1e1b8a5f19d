"""Binary logs: TensorBoard's event files and W&B's own, each by its maker's reader."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from lldlib.doctor.reading.log import Columns, Log, Row, Unreadable, number, printable

WANDB_HEAD = b":W&B"  # the first bytes of run-*.wandb


def one_line(error: BaseException) -> str:
    """What an exception says, in one short line."""
    return printable(str(error))[:200] or type(error).__name__


def tensorboard(paths: Sequence[Path], wanted: Columns) -> list[Log]:
    """The scalars of a folder's event files, one row a step; a damaged end is left out.

    A file that begins later than the run before it is that run gone on, and one with other scalars
    is a part of it, such as its evaluations; one that begins anew is a run of its own.
    """
    runs: list[tuple[Log, list[dict[int, Row]]]] = []
    for path in paths:
        log = Log(path.name, "TensorBoard event file", path=path)
        rows = _steps(path, log)
        if not runs:
            runs.append((log, [rows]))
            continue
        run, parts = runs[-1]
        apart = _tags(rows).isdisjoint(set().union(*map(_tags, parts)))
        if not apart and min(rows) <= min(parts[0]):
            runs.append((log, [rows]))
            continue
        if apart:
            begins = [(min(part, default=0), part) for part in reversed(parts)]
            for step, row in rows.items():
                part = next((part for begin, part in begins if begin <= step), parts[0])
                part[step] = row | part.get(step, {})
        else:
            parts.append(rows)
        run.path = path
        run.notes += [*log.notes, f"{path.name} is read as a part of this run"]
    for log, parts in runs:
        for rows in parts:
            for step in sorted(rows):
                log.add({"step": float(step)} | rows[step], wanted)
    return [log for log, _ in runs]


def _tags(rows: dict[int, Row]) -> set[str]:
    return {name for row in rows.values() for name in row} - {"_timestamp"}


def _steps(path: Path, log: Log) -> dict[int, Row]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError as error:
        raise Unreadable(f"{path}: to read TensorBoard files: pip install tensorboard") from error
    rows: dict[int, Row] = {}
    for step, time, name, value in _events(EventFileLoader(str(path)), log):
        row = rows.setdefault(step, {})
        row[name] = value
        row.setdefault("_timestamp", time)
    return rows


def _events(loader, log: Log) -> Iterator[tuple[int, float, str, float]]:
    from google.protobuf.message import DecodeError

    try:
        for event in loader.Load():
            for value in event.summary.value:
                scalar = _scalar(value)
                if scalar is not None:
                    yield event.step, event.wall_time, value.tag, scalar
    except (DecodeError, ValueError, OverflowError, EOFError, OSError) as error:
        log.notes.append(f"the event file is damaged: read up to there ({one_line(error)})")


def _scalar(value) -> float | None:
    if value.HasField("simple_value"):
        return float(value.simple_value)
    tensor = value.tensor
    if value.HasField("tensor") and not tensor.tensor_shape.dim:
        found = [*tensor.float_val, *tensor.double_val]
        return float(found[0]) if len(found) == 1 else None
    return None


def wandb(path: Path, wanted: Columns) -> Log:
    """The history in W&B's own file of a run, by wandb's reader where it is installed."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
        from wandb.sdk.internal.datastore import DataStore
    except ImportError as error:
        raise Unreadable(
            f"{path}: W&B's own file: pip install 'wandb<0.30' to read it, or export its history "
            "as CSV in W&B, or give the files/output.log beside it"
        ) from error
    log, store = Log(path.name, "W&B run file"), DataStore()
    try:
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                log.add(_history(record.history), wanted)
    except Exception as error:  # wandb's reader raises AssertionError, its parser DecodeError
        log.notes.append(f"the W&B file is damaged: read up to there ({one_line(error)})")
    return log


def _history(history) -> dict[str, float]:
    row = {}
    for item in history.item:
        name = item.key or "/".join(item.nested_key)
        try:
            value = number(json.loads(item.value_json))
        except ValueError:
            continue
        if value is not None:
            row[name] = value
    return row
