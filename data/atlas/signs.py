"""When each sign of a collapse is first seen, in runs that are whole: a table over arms.

    python data/atlas/signs.py data/atlas/main/*

A sign is looked for from batch 2 on and compared with the run's own beginning. "-": a sign
that no run of the arm shows.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pandas as pd

from lldlib.runs.folder import Run
from lldlib.runs.phases import alarm_of, find_collapse

FIRST = 2  # the batch from which on signs are looked for


def first(hit: pd.Series) -> int | None:
    """The first batch of a series of truths, from FIRST on."""
    steps = hit[hit.fillna(False) & (hit.index >= FIRST)].index
    return int(steps[0]) if len(steps) else None


def fallen(reward: pd.Series) -> pd.Series:
    """The mean of three batches is under half of its best so far."""
    mean = reward.rolling(3, min_periods=1).mean()
    return mean < 0.5 * mean.cummax()


SIGNS: dict[str, tuple[str, Callable[[pd.Series], pd.Series]]] = {
    "correct responses lose over .05 nats per token by their own updates": (
        "displacement/correct_token",
        lambda x: x < -0.05,
    ),
    "reward under half of its best (means of 3)": ("reward/mean", fallen),
    "likelihood, official quantity, under its start": (
        "likelihood/official",
        lambda x: x < x.iloc[0],
    ),
    "entropy over its start": ("policy/entropy", lambda x: x > x.iloc[0]),
    "gradient norm over 4 times its median of batches 0 to 2": (
        "grad/norm",
        lambda x: x > 4 * x.iloc[:3].median(),
    ),
    "length over 1.5 times its start": ("length/tokens", lambda x: x > 1.5 * x.iloc[0]),
    "over a fifth of the episodes cut off by the budget": (
        "stop/token_budget",
        lambda x: x > 0.2,
    ),
}


def cell(found: Sequence[int | None]) -> str:
    """The median and range of the batches, and in how many runs."""
    seen = [batch for batch in found if batch is not None]
    if not seen:
        return "-"
    return f"{median(seen):g} ({min(seen)} to {max(seen)}), {len(seen)} of {len(found)}"


def main() -> None:
    """Print the table of the given run folders, an arm a column."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    runs = [Run(path) for path in parser.parse_args().runs]
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(f"{run.config['method']}, lr {run.config['lr']:g}", []).append(run)
    rows: dict[str, Callable[[Run], int | None]] = {
        name: lambda run, key=key, sign=sign: first(sign(run.frame[key]))
        for name, (key, sign) in SIGNS.items()
    }
    rows["the alarm rings"] = alarm_of
    rows["collapse by the rule"] = lambda run: find_collapse(run.column("reward/mean")).known
    print("| sign | " + " | ".join(arms) + " |\n" + "|---" * (len(arms) + 1) + "|")
    for name, when in rows.items():
        cells = [cell([when(run) for run in found]) for found in arms.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
