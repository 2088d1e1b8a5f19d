"""The point of no return: the latest batch from which switching LLDS on still saves a GRPO run."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lldlib.recipes import collapse_config
from lldlib.runs.folder import CONFIG, Run
from lldlib.runs.phases import collapse_batch
from lldlib.runs.summary import summarise
from lldlib.train.run import TrainingRun
from lldlib.train.workers import Cell, train_with_bar

SUMMARY = "no_return.json"

Row = Mapping[str, Any]


def no_return(
    out: Path, seeds: Sequence[int], jobs: int, *, every: int, window: int, **overrides: object
) -> tuple[list[Row], dict[Path, str]]:
    """Branch each seed's GRPO run off its checkpoints with LLDS switched on; who lives?

    The run left alone is `out`/seed=S/alone, with a checkpoint each `every` batches. From every
    checkpoint in the `window` batches before its collapse a branch, `out`/seed=S/llds_from=K, goes
    on with LLDS to the same last batch. All of it can be resumed. Writes `out`/no_return.json;
    returns its rows and what went wrong, by folder. A row is a branch: `seed`, `branched_at`,
    `lived` (it never fell under the collapse line), `collapsed_at` and `end_reward`, the last two
    and `alarm_at` also of the run left alone, as `..._alone`. A seed that did not collapse, or has
    no such checkpoint, has no row. `overrides` are those of `presets.collapse_config`.
    """
    alone = {
        seed: Cell(
            out / f"seed={seed}" / "alone",
            collapse_config("grpo", seed, **overrides | {"checkpoint_every": every}),
        )
        for seed in dict.fromkeys(seeds)
    }
    failures = train_with_bar(list(alone.values()), jobs, keep_checkpoints=True)
    branches = {
        (seed, step): Cell(cell.path.parent / f"llds_from={step}", cell.config)
        for seed, cell in alone.items()
        if cell.path not in failures
        for step in branch_points(Run(cell.path), window)
    }
    for (seed, step), cell in branches.items():
        if not (cell.path / CONFIG).is_file():
            llds = collapse_config("llds", seed, **overrides)
            knobs = {"method": "llds", "loss": llds.loss}
            run = TrainingRun.branch(Run(alone[seed].path), step, cell.path, **knobs)
            run.writer.close()
    failures |= train_with_bar(list(branches.values()), jobs, keep_checkpoints=False)
    rows = [
        branch_row(Run(alone[seed].path), Run(cell.path), step)
        for (seed, step), cell in branches.items()
        if cell.path not in failures
    ]
    _write(out / SUMMARY, rows)
    return rows, failures


def branch_points(run: Run, window: int) -> list[int]:
    """The checkpoints of the last `window` batches before the collapse; none without a collapse."""
    collapse = collapse_batch(run.column("reward/mean"))
    if collapse is None:
        return []
    return [step for step, _ in run.checkpoints if max(1, collapse - window) <= step <= collapse]


def branch_row(alone: Run, branch: Run, step: int) -> Row:
    """What became of a branch, beside the run left alone."""
    left, mine = summarise(alone), summarise(branch)
    return {
        "seed": left["seed"],
        "branched_at": step,
        "lived": mine["collapsed_at"] is None,
        "collapsed_at": mine["collapsed_at"],
        "end_reward": mine["end_reward"],
    } | {f"{key}_alone": left[key] for key in ("collapsed_at", "alarm_at", "end_reward")}


def points_of_no_return(rows: Sequence[Row]) -> dict[int, int | None]:
    """The latest batch, per seed, from which a branch lived; None where all died."""
    return {
        seed: max(
            (r["branched_at"] for r in rows if r["seed"] == seed and r["lived"]), default=None
        )
        for seed in sorted({row["seed"] for row in rows})
    }


def _write(path: Path, rows: Sequence[Row]) -> None:
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    os.replace(fresh, path)
