"""The doctor while a run goes on: the command, a file that grows, and hooks for TRL and verl.

A hook judges what was logged so far every few steps; at the first warning or fall it writes the
page and says so once, through `logging`, with the page's path, and rings the bells it was given:
any function of a Diagnosis, `webhook(address)`, or `trackio_alert`. A bell never stops a training.
"""

import html
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lldlib.doctor.bells import Bell, ring, status_line, webhook
from lldlib.doctor.judge import ORDER, Verdict
from lldlib.doctor.page import (
    Diagnosis,
    as_html,
    as_markdown,
    as_object,
    as_text,
    diagnose,
    diagnose_rows,
    side_by_side,
    table_text,
    write_pages,
)
from lldlib.doctor.pages.drop import CLASS, SCRIPT
from lldlib.doctor.readers import Unreadable, number

log = logging.getLogger(__name__)
EVERY = 5  # rows between two judgements of a run that goes on
NOTHING_READ, FOUND = 2, 3  # exit statuses


def diagnose_command(
    logs: Sequence[Path],
    write: Callable[[str], Any],
    complain: Callable[[str], Any],
    out: Path | None = None,
    as_json: bool = False,
    markdown: bool = False,
    map_columns: Sequence[str] = (),
    fail_on: Verdict | None = None,
    follow: bool = False,
    seconds: float = 30.0,
    answers: Path | None = None,
    address: str | None = None,
) -> int:
    """Diagnose files and folders; returns the exit status.

    0 whatever the verdict; 2 if nothing could be read; 3 if a run is `fail_on` or worse. `write`
    takes the page, `complain` one line for each log that cannot be read. With `follow` the one log
    is read again every `seconds` until it is stopped, and the page is written when it changes; what
    is wrong is sent to the webhook at `address`. Raises ValueError without a log, for a mapping
    that is not SIGNAL=COLUMN, and for an address that is none or has no `follow`.
    """
    if not logs:
        raise ValueError("name at least one log or run folder, such as runs/demo")
    if answers is not None and len(logs) != 1:
        raise ValueError("--answers belongs to one log: give one")
    if address is not None and not follow:
        raise ValueError("--webhook belongs to --follow")
    mapping = parse_map(map_columns)
    if follow:
        bells = () if address is None else (webhook(address),)
        return _follow(
            logs, write, partial(diagnose, mapping=mapping, answers=answers), out, seconds, bells
        )
    found: list[Diagnosis] = []
    for path in logs:
        try:
            found += diagnose(path, mapping, answers)
        except Unreadable as error:
            complain(str(error))
    if not found:
        return NOTHING_READ
    if as_json:
        for one in found:
            write(json.dumps(as_object(one), ensure_ascii=False))
    else:
        write(_said(found, markdown))
    if out is not None:
        page = write_pages(found, Path(out))
        if not as_json:
            write(f"page: {page}")
    worst = max(ORDER.index(one.judged.verdict) for one in found)
    return FOUND if fail_on is not None and worst >= ORDER.index(fail_on) else 0


def parse_map(pairs: Sequence[str]) -> dict[str, str]:
    """`reward=COLUMN,step=OTHER` -> {COLUMN: "reward", OTHER: "step"}."""
    found = {}
    for pair in (part for text in pairs for part in text.split(",") if part.strip()):
        ours, equals, column = pair.partition("=")
        if not equals or not ours.strip() or not column.strip():
            raise ValueError(f"--map {pair!r}: want SIGNAL=COLUMN, such as reward=my_score")
        found[column.strip()] = ours.strip()
    return found


def _said(found: Sequence[Diagnosis], markdown: bool) -> str:
    if markdown:
        return "\n".join(as_markdown(one) for one in found)
    pages = [as_text(one) for one in found]
    return "\n".join([*pages, table_text(side_by_side(found))] if len(found) > 1 else pages)


def _follow(
    logs: Sequence[Path],
    write: Callable[[str], Any],
    read: Callable[[Path], list[Diagnosis]],
    out: Path | None,
    seconds: float,
    bells: Sequence[Bell],
) -> int:
    if len(logs) != 1:
        raise ValueError("--follow watches one log: give one")
    rung: set[str] = set()
    try:
        for one in follow(Path(logs[0]), seconds=seconds, read=read):
            write(status_line(one))
            if out is not None:
                write_pages([one], Path(out))
            if news := _alarming(one) - rung:
                rung |= news
                ring(bells, one)
    except KeyboardInterrupt:
        write("stopped watching")
    return 0


def follow(
    path: Path,
    mapping: Mapping[str, str] | None = None,
    seconds: float = 30.0,
    sleep: Callable[[float], Any] = time.sleep,
    read: Callable[[Path], list[Diagnosis]] | None = None,
) -> Iterator[Diagnosis]:
    """A diagnosis each time that the log has grown and what is said of it has changed.

    Of a folder of several runs the one whose file changed last is followed.
    Never ends by itself. A log that cannot be read yet is waited for. `read` is `diagnose` with
    `mapping` unless it is given.
    """
    read = read or partial(diagnose, mapping=mapping)
    size, said = -1, None
    while True:
        now = path.stat().st_size if path.is_file() else _folder_size(path)
        if now != size:
            size = now
            try:
                one = max(reversed(read(path)), key=_changed)
            except Unreadable:
                one = None
            if one is not None and (new := _news(one)) != said:
                said = new
                yield one
        sleep(seconds)


def _folder_size(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if path.is_dir() else -1


def _changed(one: Diagnosis) -> float:
    """When the file of a run was written to."""
    file = one.run.path
    return file.stat().st_mtime if file is not None and file.is_file() else 0.0


def _news(one: Diagnosis) -> tuple:
    keys = tuple(p.key for p in one.patterns)
    return one.judged.verdict, one.judged.collapsed_at, one.warned, keys


def _alarming(one: Diagnosis) -> set[str]:
    """What is worth a bell: a bad verdict, and each warning."""
    verdict = one.judged.verdict
    bad = {verdict} if verdict in ("degrading", "collapsed") else set()
    return bad | {warning.name for warning in one.warnings}


# -- hooks -----------------------------------------------------------------------------------------


class Watcher:
    """Judges the rows of a run as they are logged, and says once when something is wrong."""

    def __init__(
        self,
        folder: Path | str | None = None,
        every: int = EVERY,
        name: str = "live",
        bells: Sequence[Bell] = (),
    ):
        self.folder = None if folder is None else Path(folder)
        self.every, self.name, self.bells = every, name, tuple(bells)
        self.rows: list[dict[str, float]] = []
        self.found: Diagnosis | None = None
        self.said: set[str] = set()

    def row(self, step: int | float, values: Mapping[str, Any]) -> Diagnosis | None:
        """Take one logged row; returns the diagnosis if it says something for the first time.

        What it says is logged as a warning, with the path of the page where `folder` was given, and
        rings the bells.
        """
        known = {str(k): number(v) for k, v in values.items()}
        kept = {k: v for k, v in known.items() if v is not None}
        if not kept:
            return None
        self.rows.append(kept | {"step": float(step)})
        if len(self.rows) % self.every:
            return None
        self.found = diagnose_rows(self.rows, self.name)
        news = _alarming(self.found) - self.said
        if not news:
            return None
        self.said |= news
        page = ""
        if self.folder is not None:
            page = f" See {write_pages([self.found], self.folder)}."
        log.warning("%s%s", status_line(self.found), page)
        ring(self.bells, self.found)
        return self.found


def trl_callback(
    folder: Path | str | None = None,
    stop: bool = False,
    every: int = EVERY,
    bells: Sequence[Bell] = (),
) -> Any:
    """A callback for any transformers trainer, TRL's GRPOTrainer above all: add_callback(...).

    `bells` ring at each first warning and bad verdict. With `stop` the training ends once the
    verdict is `collapsed`. Only the main process judges.
    """
    from transformers import TrainerCallback

    class DoctorCallback(TrainerCallback):
        """Hands what the trainer logs to a Watcher."""

        def __init__(self):
            self.watcher = Watcher(folder, every, bells=bells)

        def on_log(self, args, state, control, logs=None, **kwargs):
            """Judge; transformers calls this wherever the trainer logs."""
            if not state.is_world_process_zero or not logs or "train_runtime" in logs:
                return
            self.watcher.row(state.global_step, logs)
            found = self.watcher.found
            if stop and found is not None and found.judged.verdict == "collapsed":
                control.should_training_stop = True

    return DoctorCallback()


class Collapsed(RuntimeError):
    """Raised in the training loop where `stop` was asked for and the run has collapsed."""


def watch_tracking(
    tracking: Any,
    folder: Path | str | None = None,
    stop: bool = False,
    every: int = EVERY,
    bells: Sequence[Bell] = (),
) -> Any:
    """Hook a verl `Tracking` object, or its class: all that it logs is judged as well.

    Patch the class once before training (`watch_tracking(verl.utils.tracking.Tracking)`), or one
    object. Returns it. `bells` ring as those of `trl_callback`. With `stop` raises Collapsed once
    the verdict is `collapsed`.
    """
    original, watcher = tracking.log, Watcher(folder, every, bells=bells)

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        data, step = _data_and_step(args, kwargs)
        found = watcher.row(step, data) if isinstance(data, Mapping) else None
        if stop and found is not None and found.judged.verdict == "collapsed":
            raise Collapsed(status_line(found))
        return result

    tracking.log = watched
    return tracking


def _data_and_step(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """What `log(self?, data, step, backend?)` was called with."""
    place = next((i for i, a in enumerate(args) if isinstance(a, Mapping)), None)
    data = kwargs.get("data", None if place is None else args[place])
    after = args[place + 1 :] if place is not None else args[1:]
    return data, kwargs.get("step", after[0] if after else 0)


def upload_widget(height: int = 900) -> Any:
    """A field to drop a log into, with its page under it; for notebooks and Voila.

    `height` is the page's, in pixels. The page stands in a frame, so that neither changes the
    other's style.
    """
    import ipywidgets

    field = ipywidgets.FileUpload(multiple=True, description="Choose a log")
    said, page = ipywidgets.HTML(), ipywidgets.HTML()

    def dropped(change: Mapping[str, Any]) -> None:
        """Diagnose the files that were dropped, and show what is said of each."""
        with tempfile.TemporaryDirectory() as folder:
            found, errors = [], []
            for name, content in uploaded(change["new"]):
                file = Path(folder, Path(name).name or "log")
                file.write_bytes(content)
                try:
                    found += diagnose(file)
                except Unreadable as error:
                    errors.append(str(error).replace(f"{folder}/", ""))
        lines = [*errors, *(f"{one.run.name}: {one.judged.sentence}" for one in found)]
        said.value = "<br>".join(html.escape(line) for line in lines)
        page.value = "".join(frame(as_html(one), height) for one in found)

    field.observe(dropped, "value")
    hint = ipywidgets.HTML("or drop it in this box.")
    script = {"output_type": "display_data", "data": {"text/html": SCRIPT}, "metadata": {}}
    parts = [ipywidgets.HBox([field, hint]), said, page, ipywidgets.Output(outputs=(script,))]
    return ipywidgets.VBox(parts).add_class(CLASS)


def uploaded(value: Any) -> list[tuple[str, bytes]]:
    """Name and content of each file of an upload: a dict in ipywidgets 7 (Colab), else a tuple."""
    if isinstance(value, Mapping):
        return [(name, bytes(one["content"])) for name, one in value.items()]
    return [(one["name"], bytes(one["content"])) for one in value]


def frame(text: str, height: int) -> str:
    """A page inside another."""
    return (
        f'<iframe title="diagnosis" srcdoc="{html.escape(text, quote=True)}" '
        f'style="width:100%;height:{height}px;border:1px solid #d5dbe1;'
        'box-sizing:border-box"></iframe>'
    )
