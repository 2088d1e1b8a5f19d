"""Binary logs: TensorBoard's event files and W&B's own, each by its maker's reader."""

import json
from collections.abc import Iterator
from pathlib import Path

from lldlib.doctor.reading.log import Columns, Log, Unreadable, number, printable

WANDB_HEAD = b":W&B"  # the first bytes of run-*.wandb


def one_line(error: BaseException) -> str:
    """What an exception says, in one short line."""
    return printable(str(error))[:200] or type(error).__name__


def tensorboard(path: Path, wanted: Columns) -> Log:
    """The scalars of an event file, one row a step; a damaged end is left out."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError as error:
        raise Unreadable(f"{path}: to read TensorBoard files: pip install tensorboard") from error
    log = Log(path.name, "TensorBoard event file")
    rows: dict[int, dict[str, float]] = {}
    for step, time, name, value in _events(EventFileLoader(str(path)), log):
        row = rows.setdefault(step, {})
        row[name] = value
        row.setdefault("_timestamp", time)
    for step in sorted(rows):
        log.add({"step": float(step)} | rows[step], wanted)
    return log


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
