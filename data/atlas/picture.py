"""The papers' picture, quantity by quantity: python data/atlas/picture.py

The value of a quantity at four moments of a run, the median over an arm's seeds: at the start,
where the reward (mean of three batches) is best, where it is first under half of that, and at the
end. A value is the mean of three batches.
"""

from pathlib import Path
from statistics import median

import pandas as pd
from collect import gathered

from lldlib.files import markdown_table
from lldlib.runs.folder import Run
from lldlib.runs.phases import find_collapse

HERE = Path(__file__).parent
WINDOW = 3
MOMENTS = ("start", "best reward", "reward halved", "end")
OTHERS = {  # of methods.jsonl.gz, by method and weight of the entropy bonus
    ("grpo_entropy", "0.001"): "entropy bonus .001, 1e-3",
    ("llds_ma", None): "LLDS-MA, 1e-3",
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
    "share of correct rows that fell": "displacement/share_fallen",
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
    for given, rows in gathered("methods.jsonl.gz"):
        key = (given["method"], given.get("entropy_coef"))
        if key in OTHERS and given["lr"] == "0.001":
            found.setdefault(OTHERS[key], []).append(pd.DataFrame(rows))
    return found


def main() -> None:
    """One table: a column for each arm and each moment that any of its runs has."""
    found = frames()
    columns, cells = [], []
    for name, runs in found.items():
        dead = sum(find_collapse(list(frame["reward/mean"])).known is not None for frame in runs)
        print(f"{name}: {len(runs)} runs, {dead} collapse")
        table = {key: [values(frame, key) for frame in runs] for key in QUANTITIES.values()}
        for moment in MOMENTS:
            if any(moment in row for row in table["reward/mean"]):
                columns.append(f"{name}: {moment}")
                cells.append([middle(rows, moment) for rows in table.values()])
    print(markdown_table(["quantity", *columns], zip(QUANTITIES, *cells, strict=True)))


def middle(rows: list[dict[str, float]], moment: str) -> str:
    """The median over the runs that have the moment."""
    known = [row[moment] for row in rows if moment in row and pd.notna(row[moment])]
    return f"{median(known):.2f}" if known else "-"


if __name__ == "__main__":
    main()
