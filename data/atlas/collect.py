"""Gather the runs of a sweep into one compressed file, and print a Markdown row for each.

    python data/atlas/collect.py runs/sweep/* --out data/atlas/search.jsonl.gz

The file has a line a batch: the name of the run's folder, which spells its settings, and every
logged metric. Lines of a run that it holds already are replaced. Only whole runs are taken.
"""

import argparse
from pathlib import Path
from statistics import fmean

from lldlib.files import merge_jsonl, read_jsonl
from lldlib.runs.folder import Run, RunWriter
from lldlib.runs.phases import find_collapse
from lldlib.train.run import describe
from lldlib.train.sweep import grid_cells, parse_grid

HERE = Path(__file__).parent
KEYS = {  # columns of the row that are means over ten batches
    "reward": "reward/mean",
    "entropy": "policy/entropy",
    "tokens": "length/tokens",
    "correct rows, nats/token": "displacement/correct_token",
}
COLUMNS = ("run", "batches", *KEYS, "EM start", "EM every ten, sampled/greedy", "collapse")


def by_ten(run: Run, key: str) -> str:
    """Means over ten batches each."""
    values = run.column(key)
    tens = [[v for v in values[i : i + 10] if v is not None] for i in range(0, len(values), 10)]
    return " ".join(f"{fmean(ten):.2f}" if ten else "-" for ten in tens)


def row(run: Run) -> list[str]:
    """The cells of a run, in the order of COLUMNS."""
    frame, collapse = run.frame, find_collapse(run.column("reward/mean"))
    exams = frame[frame.index % 10 == 9]
    names = [name for name in ("eval/heldout_em", "eval/heldout_em_greedy") if name in exams]
    pairs = exams[names].dropna().values if names else []
    start = frame.get("eval/start_em")
    fate = "-" if collapse.batch is None else str(collapse.batch)
    return [
        run.path.name.replace("policy=half_taught,", "").replace("eval_every=5,", ""),
        str(len(frame)),
        *(by_ten(run, key) for key in KEYS.values()),
        "-" if start is None else f"{start.dropna().iloc[0]:.2f}",
        " ".join(f"{sampled:.2f}/{greedy:.2f}" for sampled, greedy in pairs),
        fate + (", for good" if collapse.for_good else ""),
    ]


def gathered(*names: str) -> list[tuple[dict[str, str], list[dict]]]:
    """Each run of the gathered files beside this script: the settings in its name, its rows.

    A name that begins otherwise says of which machine or try a run is; those are left out.
    """
    runs: dict[str, list[dict]] = {}
    for name in names:
        for _, row in read_jsonl(HERE / name):
            runs.setdefault(row["run"], []).append(row)
    return [
        (dict(part.split("=") for part in run.split(",")), rows)
        for run, rows in runs.items()
        if run.startswith("method=")
    ]


def unpack(path: Path, out: Path) -> list[Run]:
    """The runs of a gathered file as run folders again: settings by their names, no rollouts."""
    writers: dict[str, RunWriter] = {}
    for _, line in read_jsonl(path):
        name, step = line.pop("run"), line.pop("step")
        if name not in writers:
            [cell] = grid_cells(parse_grid(name.split(",")), out)
            writers[name] = RunWriter.create(out / name, describe(cell.config))
        writers[name].metrics(step, line)
    for writer in writers.values():
        writer.close()
    return [Run(writer.path) for writer in writers.values()]


def main() -> None:
    """Read the folders, write the file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    runs = [Run(path) for path in given.runs if (path / "config.json").is_file()]
    whole = [run for run in runs if len(run.metrics) == run.config["steps"]]
    new = [{"run": run.path.name} | metrics for run in whole for metrics in run.metrics]
    merge_jsonl(given.out, new, lambda row: row["run"])
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for run in whole:
        print("| " + " | ".join(row(run)) + " |")


if __name__ == "__main__":
    main()
