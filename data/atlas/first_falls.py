"""Do falls in the first five batches say who sinks? python data/atlas/first_falls.py [--write]

With `--write` it writes first_falls.csv, from which a table of notebook 7 is counted: the first
eleven batches of the runs below, without the new ones. A run has a number there, its file is its
row, and `died` is 1 where the collapse rule says so.

Prints the tables of signs.md's "The first five batches". "Area" is the share of pairs, one run that
sinks and one that lives, in which the first has the deeper fall (the further move, the lower
reward): .5 says nothing, 1 sorts all.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean

import pandas as pd
from collect import gathered

from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse

FIRST, LINE = 5, -0.025  # batches; nats per token: of the rule
FALL, MOVE, REWARD = "displacement/correct_token", "control/move", "reward/mean"
GROUPS = {  # a file of gathered runs, and the rates that are read; without one, all
    "limited updates, and beside them": ("smaller_step.jsonl.gz",),
    "other changes of GRPO and LLDS": ("other_steps.jsonl.gz",),
    "methods, 6e-4": ("methods.jsonl.gz", 6e-4),
    "methods, 1e-3": ("methods.jsonl.gz", 1e-3),
    "later runs, 1e-3": ("later.jsonl.gz", 1e-3),
    "later runs, 2e-3": ("later.jsonl.gz", 2e-3),
    "search for the hot rate, 1e-3": ("search.jsonl.gz", 1e-3),
    "methods, 2e-4 and 4e-4": ("methods.jsonl.gz", 2e-4, 4e-4),
    "new runs": ("rivals.jsonl.gz", 6e-4, 1e-3),
    "new runs, 8e-4": ("first_five.jsonl.gz",),
}
OLD = list(GROUPS)[:-2]  # whose runs had ended before the rule
AFTER = ("rivals.jsonl.gz", "limits.jsonl.gz", "weight.jsonl.gz")  # looked at, no rule
DRAWN, HOT = 11, "0.001"  # batches of first_falls.csv; the rate where a run's name holds none
COLUMNS = ("run", "row", "rate", "batch", "change", "reward", "died")
Run = tuple[dict[str, float], bool]  # what its first batches say (higher is worse), did it sink


def told(rows: Sequence[dict]) -> Run | None:
    """One run of at least 40 batches; None where it was not measured."""
    first = rows[:FIRST]
    means = {
        key: fmean(some)
        for key in (FALL, MOVE, REWARD)
        if (some := [row[key] for row in first if row.get(key) is not None])
    }
    if len(rows) < 40 or FALL not in means:
        return None
    sank = fmean(r[REWARD] for r in rows[35:40]) < fmean(r[REWARD] for r in rows[:5])
    return {key: value if key == MOVE else -value for key, value in means.items()}, sank


def of_group(group: str) -> list[tuple[dict[str, str], list[dict]]]:
    """The settings and the batches of each run of one of `GROUPS`."""
    name, *rates = GROUPS[group]
    return [run for run in gathered(name) if not rates or float(run[0]["lr"]) in rates]


def afterwards() -> list[Run]:
    """Runs of AFTER at 6e-4 and above without misses, but for those that an older table holds.

    These are REINFORCE, SAPO, CISPO, SEAL, and RAGEN-2's prompts on seed 0.
    """
    seen, found = set(), []
    for name in AFTER:
        for given, rows in gathered(name):
            older = name == AFTER[0] and (given["method"] != "grpo" or given.get("arm") == "seal")
            older |= name == AFTER[0] and "arm" not in given and given["seed"] == "0"
            if older or float(given.get("lr", 0)) < 6e-4 or float(given.get("misses", 0)):
                continue
            first, run = tuple(row[REWARD] for row in rows[:40]), told(rows)
            if run is not None and first not in seen:
                seen.add(first)
                found.append(run)
    return found


def lines() -> list[list[str]]:
    """The lines of first_falls.csv; a change is empty where no answer was right."""
    found, number = [], count()
    for group in OLD:
        row = GROUPS[group][0].split(".")[0]
        for given, batches in of_group(group):
            if told(batches) is None:
                continue
            died = find_collapse([batch[REWARD] for batch in batches]).known is not None
            run = [str(next(number)), row, f"{float(given.get('lr', HOT)):g}"]
            for t, batch in enumerate(batches[:DRAWN]):
                change, reward = batch.get(FALL), f"{batch[REWARD]:.4f}"
                lost = "" if change is None else f"{change:.4f}"
                found.append([*run, str(t), lost, reward, str(int(died))])
    return found


def area(runs: Iterable[Run], key: str) -> str:
    """The share of pairs in which the run that sinks is the worse one; ties count half."""
    sank, lived = [], []
    for values, sinks in runs:
        if key in values:
            (sank if sinks else lived).append(values[key])
    pairs = [(a > b) + (a == b) / 2 for a in sank for b in lived]
    return f"{fmean(pairs):.2f}" if pairs else "-"


def early_pairs() -> pd.DataFrame:
    """How well the first batches of 259 recorded runs tell who dies.

    A pair is two runs of one file and one rate, of which one died. A curve sorts it rightly if it
    is lower in that run (ties count half). A line for each last batch that is read, from 2 on, with
    the share of pairs that are sorted rightly: by the mean change of right answers so far, and by
    the mean reward of the last two batches, less that of the first two.
    """
    rows = pd.read_csv(Path(__file__).parent / "first_falls.csv")
    two = rows.pivot(index="batch", columns="run", values="reward").rolling(2).mean()
    change = rows.pivot(index="batch", columns="run", values="change").expanding().mean()
    about = rows[rows.batch == 0][["run", "row", "rate", "died"]]
    dead, alive = about[about.died == 1], about[about.died == 0]
    pairs = dead.merge(alive, on=["row", "rate"])
    shares = {}
    for name, curve in (("right answers", change), ("reward", two - two.loc[1])):
        one, other = curve[pairs.run_x].to_numpy(), curve[pairs.run_y].to_numpy()
        shares[name] = ((one < other) + (one == other) / 2).mean(axis=1)
    return pd.DataFrame(shares, index=two.index).loc[2:]


def main() -> None:
    """Print the table; with `--write`, write first_falls.csv."""
    if "--write" in sys.argv:
        place = Path(__file__).parent / "first_falls.csv"
        with place.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines()])
    rows = []
    for group in GROUPS:
        runs = [run for _, batches in of_group(group) if (run := told(batches))]
        places = [-values[FALL] for values, _ in runs]
        sides = [
            [at < LINE for at in places],
            [at < 0 for at in places],
            [at >= 0 for at in places],
        ]
        some = [
            [sinks for (_, sinks), in_it in zip(runs, side, strict=True) if in_it] for side in sides
        ]
        counts = (f"{sum(sunk)} of {len(sunk)}" for sunk in some)
        areas = (area(runs, key) for key in (FALL, MOVE, REWARD))
        rows.append([group, str(len(runs)), *counts, *areas])
    heads = (
        "runs",
        "number",
        "lost over .025: sank",
        "lost: sank",
        "gained: sank",
        "area: fall",
        "move",
        "reward",
    )
    print(markdown_table(heads, rows))
    lost, gained = (
        [sank for values, sank in afterwards() if (values[FALL] > 0) == fell]
        for fell in (True, False)
    )
    print(f"Afterwards: of {len(lost)} that lost {sum(lost)} sank,", end=" ")
    print(f"of {len(gained)} that gained {sum(gained)}.")
    shares = early_pairs().map("{:.2f}".format)
    rows = [[str(batch), *shares] for batch, *shares in shares.itertuples()]
    print(markdown_table(("last batch read", *shares), rows))


if __name__ == "__main__":
    main()
