"""Gather runs into one compressed file: python data/sparks/collect.py RUN ... --out FILE.jsonl.gz

A line a batch: what the run's settings are (the name of its folder without what all runs share),
its seed, and the metrics that the tables and figures read. Lines that the file holds already of
the same run are replaced. Only whole runs are taken.
"""

import argparse
import re
from pathlib import Path

from lldlib.files import merge_jsonl
from lldlib.runs.folder import Run

KEPT = re.compile(
    r"step$|reward/mean|policy/entropy|watch/|eval/(heldout|easy|checked|start)_(em|pass)|low_prob/|"
    r"lp_reg/|grad/norm$|length/tokens|time/(step|update|score)"
)
SHARED = re.compile(r",?(checkpoint_every|policy|seed|steps|updates_per_batch)=[^,]*|-seed\d+")


def rows_of(run: Run) -> list[dict]:
    """The rows of one run, one a batch."""
    known = {"run": SHARED.sub("", run.path.name).removeprefix("method=")}
    known |= {"seed": run.config["seed"], "batches": run.config["steps"]}
    known |= {"updates": run.config["updates_per_batch"], "lr": run.config["lr"]}
    return [
        known | {key: _short(row[key]) for key in row if KEPT.match(key)} for row in run.metrics
    ]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def main() -> None:
    """Read the folders, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    runs = [Run(path) for path in given.runs if (path / "config.json").is_file()]
    new = [row for run in runs if len(run.metrics) == run.config["steps"] for row in rows_of(run)]
    print(f"{given.out}: {len(set(map(_name, merge_jsonl(given.out, new, _name))))} runs")


def _name(row: dict) -> tuple:
    return tuple(row[key] for key in ("run", "seed", "batches", "updates", "lr"))


if __name__ == "__main__":
    main()
