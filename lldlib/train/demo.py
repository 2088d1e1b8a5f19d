"""The demo: a few arms for each seed, side by side, and what came of them in plain words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from lldlib.config import TrainConfig
from lldlib.files import write_json
from lldlib.recipes import built_in, train_config
from lldlib.runs.folder import Run
from lldlib.runs.phases import phases_of
from lldlib.runs.summary import COLUMNS as TITLES
from lldlib.runs.summary import summarise
from lldlib.train.run import status
from lldlib.train.sweep import Cell, train_cells

COLUMNS = (  # of the demo's summary.json
    *("arm", "seed", "peak_reward", "end_reward", "collapsed_at", "known_at", "alarm_at"),
    *("heldout_em", "seconds", "start_em", "best_em", "start_em_greedy", "heldout_em_greedy"),
)
NAMES = {  # of the demo's arms, in its verdict
    "grpo": "GRPO",
    "llds": "GRPO + LLDS",
    "grpo_best_rate": "GRPO at a lower learning rate",
}
SHOWN = {"method": "grpo", "questions_every": 1}  # of every arm, where nothing else is said

Row = Mapping[str, Any]


def demo(
    out: Path, seeds: Sequence[int], jobs: int, **overrides: object
) -> tuple[list[Row], dict[str, list[Run]], dict[Path, str]]:
    """Train the arms for each seed in folders of `out`, `jobs` at a time, resuming what is there.

    The arms are GRPO and GRPO + LLDS, at the recipe's rate for the demo where it has one, and,
    where the recipe knows it, GRPO at a lower learning rate. Writes summary.json (the rows)
    there; returns the rows, the runs by arm and what went wrong, by folder. `overrides` are those
    of `recipes.train_config`.
    """
    recipe = built_in(overrides.get("policy", TrainConfig.policy))
    given = "lr" in overrides or recipe.demo_rate is None
    hot = {} if given else {"lr": recipe.demo_rate}
    arms = {"grpo": hot, "llds": {"method": "llds", **hot}}
    if recipe.best_rate is not None:
        arms["grpo_best_rate"] = {"lr": recipe.best_rate}
    cells = {
        (arm, seed): Cell(
            out / f"{arm}-seed{seed}",
            train_config(**SHOWN | overrides | own, seed=seed, recipe=recipe),
        )
        for seed in dict.fromkeys(seeds)
        for arm, own in arms.items()
    }
    failures = _train_with_lines(list(cells.values()), jobs)
    runs = {place: Run(cell.path) for place, cell in cells.items() if cell.path not in failures}
    rows = [demo_row(arm, run) for (arm, _), run in runs.items()]
    if runs:
        write_json(out / "summary.json", rows)
    by_arm = {arm: [run for (name, _), run in runs.items() if name == arm] for arm in arms}
    return rows, {arm: found for arm, found in by_arm.items() if found}, failures


def demo_row(arm: str, run: Run) -> Row:
    """What the table and the verdict need of a run."""
    row = summarise(run)  # of the start as well: evaluations may miss a short peak
    exams = [row[key] for key in ("start_em", "heldout_em_best_before_collapse")]
    known = [em for em in exams if em is not None]
    row |= {"arm": arm, "best_em": max(known, default=None)}
    return {key: row[key] for key in COLUMNS}


def verdict(rows: Sequence[Row]) -> str:
    """What the demo's rows say, in plain words: shares of held-out questions, means over seeds.

    A run that fell late is no collapse yet by the rule of ten batches; that it ended under its
    start is said too.
    """
    frame = pd.DataFrame(rows)
    frame = frame[frame["start_em"].notna() & frame["heldout_em"].notna()]
    if frame.empty:
        return ""
    lines = [
        "Questions it never saw, sampled answers: the start answered "
        f"{frame['start_em'].mean():.0%} of them."
    ]
    for arm, own in frame.groupby("arm", sort=False):
        died = int(own["collapsed_at"].notna().sum())
        fell = own["collapsed_at"].isna() & (own["heldout_em"] < own["start_em"])
        fates = [
            f"{what} in {count} of {len(own)} runs"
            for what, count in (("collapsed", died), ("sank under its start", int(fell.sum())))
            if count
        ]
        fate = ", ".join(fates) or "did not collapse"
        best = f", from {own['best_em'].mean():.0%} at its best" if fates else ""
        lines.append(f"{NAMES[arm]} {fate} and ended at {own['heldout_em'].mean():.0%}{best}.")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text; a hyphen stands for None."""
    titles = TITLES | {
        "start_em": "EM at start",
        "best_em": "best EM",
        "start_em_greedy": "greedy at start",
        "heldout_em_greedy": "greedy EM",
    }
    frame = pd.DataFrame(rows).rename(columns=titles).fillna(float("nan"))
    return frame.to_string(index=False, na_rep="-", float_format="{:.3g}".format)


def _train_with_lines(cells: Sequence[Cell], jobs: int) -> dict[Path, str]:
    """`train_cells` with a progress line per run."""
    bars = {
        cell.path: tqdm(total=cell.config.steps, desc=cell.path.name, position=place, unit="batch")
        for place, cell in enumerate(cells)
    }

    def on_batch(cell: Cell, done: int, line: str) -> None:
        bar = bars[cell.path]
        bar.set_postfix_str(line, refresh=False)
        bar.update(done - bar.n)

    def on_end(cell: Cell, error: str | None) -> None:
        if error is None:  # perhaps a run that was finished before
            run = Run(cell.path)
            phases = phases_of(run)
            line = status(run.metrics[-1], phases.labels[-1], phases.told)
            on_batch(cell, cell.config.steps, line)
        else:
            bars[cell.path].set_postfix_str("failed")

    try:
        return train_cells(cells, jobs, keep_checkpoints=True, on_batch=on_batch, on_end=on_end)
    finally:
        for bar in bars.values():
            bar.close()
