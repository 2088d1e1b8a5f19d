"""The demo: GRPO and GRPO+LLDS from one warm start, side by side, with a live line each."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lldlib.recipes import collapse_config
from lldlib.runs.folder import Run
from lldlib.runs.phases import Phase, phases_of
from lldlib.runs.summary import summarise
from lldlib.train.workers import Cell, train_cells

ARMS = ("grpo", "llds")
COLUMNS = {  # of summary.json, and what the table calls them
    "arm": "arm",
    "seed": "seed",
    "peak_reward": "peak reward",
    "end_reward": "end reward",
    "collapsed_at": "collapsed at",
    "alarm_at": "first alarm",
    "heldout_em": "held-out EM",
    "seconds": "seconds",
}
STATUS = {  # metrics in a progress line
    "reward/mean": "reward",
    "policy/entropy": "entropy",
    "probe/logp": "likelihood",
}

Row = Mapping[str, Any]


def demo(
    out: Path, seeds: Sequence[int], jobs: int, **overrides: object
) -> tuple[list[Row], dict[str, list[Run]], dict[Path, str]]:
    """Train both arms for each seed in folders of `out`, `jobs` at a time, resuming what is there.

    Writes summary.json (the rows) there; returns the rows, the runs by arm and what went wrong, by
    folder. `overrides` are those of `presets.collapse_config`.
    """
    cells = [
        Cell(out / f"{arm}-seed{seed}", collapse_config(arm, seed, **overrides))
        for seed in dict.fromkeys(seeds)
        for arm in ARMS
    ]
    failures = _train(cells, jobs)
    runs = [Run(cell.path) for cell in cells if cell.path not in failures]
    rows = [{key: row[key] for key in COLUMNS} for row in map(summarise, runs)]
    if runs:
        (out / "summary.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    by_arm = {arm: [run for run in runs if run.config["method"] == arm] for arm in ARMS}
    return rows, {arm: found for arm, found in by_arm.items() if found}, failures


def status(row: Row, phase: Phase) -> str:
    """Where a run stands after a batch: its reward, entropy, probe likelihood, and phase."""
    parts = [f"{name} {row[key]:.2f}" for key, name in STATUS.items() if key in row]
    return "  ".join([*parts, phase])


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text; a hyphen stands for None."""
    lines = [list(COLUMNS.values())] + [[_text(row[key]) for key in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _train(cells: Sequence[Cell], jobs: int) -> dict[Path, str]:
    """`train_cells` with a progress line per run."""
    bars = {
        cell.path: tqdm(total=cell.config.steps, desc=cell.path.name, position=place, unit="batch")
        for place, cell in enumerate(cells)
    }

    def on_batch(cell: Cell, done: int, row: Row, phase: Phase) -> None:
        bar = bars[cell.path]
        bar.set_postfix_str(status(row, phase), refresh=False)
        bar.update(done - bar.n)

    def on_end(cell: Cell, error: str | None) -> None:
        if error is None:  # perhaps a run that was whole before
            run = Run(cell.path)
            on_batch(cell, cell.config.steps, run.metrics[-1], phases_of(run)[-1])
        else:
            bars[cell.path].set_postfix_str("failed")

    try:
        return train_cells(cells, jobs, keep_checkpoints=True, on_batch=on_batch, on_end=on_end)
    finally:
        for bar in bars.values():
            bar.close()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
