"""Gather runs into one compressed file: python data/sparks/collect.py RUN ... --out FILE.jsonl.gz

A line a batch: what the run's settings are (the name of its folder without what all runs share),
its seed, and the metrics that the tables and figures read. Lines that the file holds already of
the same run are replaced. Only whole runs are taken.
"""

import argparse
import gzip
import json
import re
from pathlib import Path

from lldlib.runs.folder import Run

KEPT = re.compile(
    r"step$|reward/mean|policy/entropy|watch/|eval/(heldout|easy|checked|start)_(em|pass)|low_prob/|"
    r"lp_reg/|grad/norm$|length/tokens|time/(step|update|score)"
)
SHARED = re.compile(r",?(checkpoint_every|policy|seed|steps|updates_per_batch)=[^,]*|-seed\d+")


def lines(run: Run) -> list[str]:
    """The lines of one run."""
    known = {"run": SHARED.sub("", run.path.name).removeprefix("method=")}
    known |= {"seed": run.config["seed"], "batches": run.config["steps"]}
    known |= {"updates": run.config["updates_per_batch"], "lr": run.config["lr"]}
    return [
        json.dumps(known | {key: _short(row[key]) for key in row if KEPT.match(key)}) + "\n"
        for row in run.metrics
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
    new = [line for run in runs if len(run.metrics) == run.config["steps"] for line in lines(run)]
    held = []
    if given.out.exists():
        taken = {_name(line) for line in new}
        with gzip.open(given.out, "rt") as file:
            held = [line for line in file if _name(line) not in taken]
    with gzip.open(given.out, "wt") as file:
        file.writelines(held + new)
    print(f"{given.out}: {len({_name(line) for line in held + new})} runs")


def _name(line: str) -> tuple:
    row = json.loads(line)
    return tuple(row[key] for key in ("run", "seed", "batches", "updates", "lr"))


if __name__ == "__main__":
    main()
