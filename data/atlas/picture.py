"""The papers' picture, quantity by quantity: python data/atlas/picture.py

For each arm the value of a quantity at four moments of a run, the median over its seeds: at the
start, where the reward (mean of three batches) is best, where it is first under half of that, and
at the end. A value is the mean of three batches.
"""

from collections import defaultdict
from pathlib import Path
from statistics import median

import pandas as pd

from lldlib.files import markdown_table, read_jsonl
from lldlib.runs.folder import Run
from lldlib.runs.phases import find_collapse

HERE = Path(__file__).parent
WINDOW = 3
MOMENTS = ("start", "best reward", "reward halved", "end")
OTHERS = {  # of later.jsonl.gz and methods.jsonl.gz, by settings
    ("grpo_entropy", "0.001"): "entropy bonus .001, 1e-3",
    ("llds_ma", "0.001"): "LLDS-MA, 1e-3",
}
ARMS = {"grpo": "GRPO, 1e-3", "llds": "LLDS, 1e-3", "grpo_best_rate": "GRPO, 2e-4"}
QUANTITIES = {
    "reward": "reward/mean",
    "likelihood, official": "likelihood/official",
    "likelihood of correct rows": "likelihood/correct",
    "the same less that of incorrect rows": "gap",
    "likelihood of action 1": "likelihood/action_1",
    "likelihood of action 2": "likelihood/action_2",
    "displacement of correct rows, a token": "displacement/correct_token",
    "displacement of action 1": "displacement/action_1",
    "displacement of action 2": "displacement/action_2",
    "displacement of action 3": "displacement/action_3",
    "entropy": "policy/entropy",
    "gradient norm": "grad/norm",
    "tokens": "length/tokens",
    "valid searches": "search/valid",
    "invalid searches": "search/invalid",
}


def moments(reward: pd.Series) -> dict[str, int | None]:
    """The last batch of each moment's window."""
    mean = reward.rolling(WINDOW).mean()
    low = mean[(mean < 0.5 * mean.cummax())].index
    halved = int(low[0]) if len(low) else None
    peak = mean if halved is None else mean[:halved]
    return dict(
        zip(MOMENTS, (WINDOW - 1, int(peak.idxmax()), halved, len(reward) - 1), strict=True)
    )


def values(frame: pd.DataFrame, key: str) -> dict[str, float]:
    """A quantity at each moment; a run whose reward is never halved has none there."""
    if key == "gap":
        series = frame["likelihood/correct"] - frame["likelihood/incorrect"]
    else:
        series = frame[key]
    smooth = series.astype(float).rolling(WINDOW, min_periods=1).mean()
    at = moments(frame["reward/mean"].reset_index(drop=True))
    return {name: smooth.iloc[batch] for name, batch in at.items() if batch is not None}


def frames() -> dict[str, list[pd.DataFrame]]:
    """The runs of each arm, a row a batch."""
    found = {
        name: [Run(path).frame for path in sorted((HERE / "main").glob(f"{arm}-seed*"))]
        for arm, name in ARMS.items()
    }
    rows = defaultdict(list)
    for _, row in read_jsonl(HERE / "methods.jsonl.gz"):
        given = dict(part.split("=") for part in row["run"].split(","))
        key = (given["method"], given.get("entropy_coef", given["lr"]))
        if key in OTHERS and given["lr"] == "0.001":
            rows[OTHERS[key], row["run"]].append(row)
    for (name, _), some in rows.items():
        found.setdefault(name, []).append(pd.DataFrame(some))
    return found


def main() -> None:
    """A table an arm, then how many of its runs collapse."""
    found = frames()
    for name, runs in found.items():
        lines = []
        for quantity, key in QUANTITIES.items():
            each = [values(frame, key) for frame in runs]
            cells = [[v[m] for v in each if m in v and pd.notna(v[m])] for m in MOMENTS]
            lines.append([quantity, *(f"{median(cell):.2f}" if cell else "-" for cell in cells)])
        dead = sum(find_collapse(list(frame["reward/mean"])).batch is not None for frame in runs)
        print(f"\n**{name}** ({len(runs)} runs, {dead} collapse)\n")
        print(markdown_table(["quantity", *MOMENTS], lines))
    order = defaultdict(list)
    for frame in found[ARMS["grpo"]]:
        at = moments(frame["reward/mean"])
        falls = at["best reward"], at["reward halved"]
        order["batches from the best reward to its half"].append(falls[1] - falls[0])
    print({key: (median(batches), min(batches), max(batches)) for key, batches in order.items()})


if __name__ == "__main__":
    main()
