"""Gather the runs of a sweep into one compressed file, and print a Markdown row for each.

    python data/atlas/collect.py runs/sweep/* --out data/atlas/search.jsonl.gz

The file has a line a batch: the name of the run's folder, which spells its settings, and every
logged metric but the parts of the batch's time, whose sum stays. Lines of a run that it holds
already are replaced. Only whole runs are taken.
"""

import argparse
from contextlib import closing
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
CHOSEN = {"updates_per_batch": 16, "rewards": "true", "llds_target": None, "steps": 40}
PROBLEMS = 64
LEFT_OUT = {"time/rollout", "time/score", "time/update"}
ABOUT = ("run", "step")  # what a line holds beside its metrics
COLUMNS = ("run", "batches", *KEYS, "EM start", "EM every ten, sampled/greedy", "collapse")


def rate_text(rate: float) -> str:
    """A learning rate as one writes it: 2e-4, 1.2e-3."""
    return f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")


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
    fate = "-" if collapse.known is None else str(collapse.known)
    return [
        run.path.name.replace("policy=half_taught,", "").replace("eval_every=5,", ""),
        str(len(frame)),
        *(by_ten(run, key) for key in KEYS.values()),
        "-" if start is None else f"{start.dropna().iloc[0]:.2f}",
        " ".join(f"{sampled:.2f}/{greedy:.2f}" for sampled, greedy in pairs),
        fate + (", for good" if collapse.for_good else ""),
    ]


def gathered(*names: str, machine: str = "") -> list[tuple[dict[str, str], list[dict]]]:
    """Each run of the gathered files beside this script: the settings in its name, its rows.

    A name may begin with a word and a colon: of which machine or try the run is. Those are left
    out, or with `machine` all others.
    """
    begin = f"{machine}:" if machine else ""
    runs: dict[str, list[dict]] = {}
    for name in names:
        for _, row in read_jsonl(HERE / name):
            runs.setdefault(row["run"], []).append(row)
    return [
        (dict(part.split("=") for part in run.removeprefix(begin).split(",")), rows)
        for run, rows in runs.items()
        if run.startswith(f"{begin}method=")
    ]


def on_the_line(run: Run) -> bool:
    """Whether a run differs from the chosen setting in method, weight, rate and seed alone."""
    config = run.config
    same = all(config[key] == value for key, value in CHOSEN.items())
    return same and config["rollout"]["problems"] == PROBLEMS and not config["data"]["misses"]


def unpack(out: Path, *names: str) -> list[Run]:
    """The runs of gathered files as run folders again: settings by their names, no rollouts."""
    runs = []
    for given, rows in gathered(*names):
        folder = out / rows[0]["run"]
        [cell] = grid_cells(parse_grid([f"{k}={v}" for k, v in given.items()]), out)
        with closing(RunWriter.create(folder, describe(cell.config))) as writer:
            for row in rows:
                writer.metrics(row["step"], {k: v for k, v in row.items() if k not in ABOUT})
        runs.append(Run(folder))
    return runs


def main() -> None:
    """Read the folders, write the file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    runs = [Run(path) for path in given.runs if (path / "config.json").is_file()]
    whole = [run for run in runs if len(run.metrics) == run.config["steps"]]
    new = [
        {"run": run.path.name} | {k: v for k, v in metrics.items() if k not in LEFT_OUT}
        for run in whole
        for metrics in run.metrics
    ]
    merge_jsonl(given.out, new, lambda row: row["run"])
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for run in whole:
        print("| " + " | ".join(row(run)) + " |")


if __name__ == "__main__":
    main()
