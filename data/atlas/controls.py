"""The tables of rewards and gradients changed in controls.md: python data/atlas/controls.py

Writes three files with a line a batch. suspects.csv, which notebook 6 draws: the runs with a coin's
rewards and GRPO's with fresh answers; fresh_llds.csv: those of LLDS with fresh answers; "trained"
and "fresh" in nats per token, rows with A > 0. other_targets.csv: the rewards of LLDS on the
incorrect rows, and of the pull k3 of weight 1 on the rows with A > 0.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from collect import gathered

from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse

NAMES = {  # by method and what differs from the chosen setting
    ("grpo", ()): "GRPO, true rewards",
    ("llds", ()): "LLDS, true rewards",
    ("grpo", ("rewards=coin",)): "GRPO, a coin's rewards",
    ("llds", ("rewards=coin",)): "LLDS, a coin's rewards",
    ("grpo", ("rewards=shuffled",)): "GRPO, rewards shuffled in their groups",
    ("llds", ("rewards=shuffled",)): "LLDS, rewards shuffled in their groups",
    ("positive_only", ()): "GRPO, negatives dropped",
    ("half_negative", ()): "GRPO, negatives halved",
    ("llds", ("llds_preserve=negative",)): "LLDS on the incorrect rows",
}
SHARED = {
    "method",
    "eval_every",
    "policy",
    "steps",
    "checkpoint_every",
    "probe_every",
    "lr",
    "seed",
}
HOT, COOL, BATCHES = "0.001", "0.0002", 40  # rates, and the length of the runs at the cool one
COINS = list(NAMES)[:4]  # what was run at the cool rate
COLUMNS = ("control", "arm", "rate", "seed", "batch", "reward", "trained", "fresh")
MEASURES = ("reward/mean", "displacement/mixed_token", "displacement/fresh_mixed_token")
EIGHT = ((0, 8), (8, 16), (16, 24), (32, 40))  # batches whose reward is averaged


def runs(rate: str) -> dict[tuple, dict[int, list[dict]]]:
    """Rows of each control's runs at a rate, by seed."""
    found = defaultdict(dict)
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        own = [f"{k}={v}" for k, v in given.items() if k not in SHARED | {"llds_coef"}]
        key = (given["method"], tuple(own))
        same = given["lr"] == rate and given.get("llds_coef", "0.5") == "0.5"
        if key in NAMES and same and len(rows) <= BATCHES:
            found[key][int(given["seed"])] = rows
    return found


def by_eight(rows: list[dict]) -> str:
    """The true reward, mean over stretches of eight batches."""
    rewards = [row["reward/mean"] for row in rows]
    return " ".join(f"{fmean(part):.2f}" for a, b in EIGHT if (part := rewards[a:b]))


def lost(rows: list[dict]) -> str:
    """The first batch whose updates cost its rewarded rows over .05 nats per token."""
    hits = [r["step"] for r in rows[2:] if (r.get("displacement/correct_token") or 0) < -0.05]
    return str(hits[0]) if hits else "-"


def table(found: dict[tuple, dict[int, list[dict]]], keys: Sequence[tuple], title: str) -> str:
    """A row a run."""
    lines = []
    for key in keys:
        for seed, rows in sorted(found[key].items()):
            ends = [row["eval/heldout_em"] for row in rows if "eval/heldout_em" in row]
            fate = find_collapse([row["reward/mean"] for row in rows]).known
            cells = [by_eight(rows), lost(rows), f"{ends[-1]:.2f}" if ends else "-"]
            lines.append(
                [NAMES[key], str(seed), str(len(rows)), *cells, "-" if fate is None else str(fate)]
            )
    head = [title, "seed", "batches", "true reward, batches 0-7, 8-15, 16-23, 32-39"]
    return markdown_table([*head, "first loss", "held out at the end", "collapse"], lines)


def suspects() -> tuple[list[list[object]], list[list[object]]]:
    """The lines of suspects.csv, and those of fresh_llds.csv; `COLUMNS` names what they hold."""
    found, llds = [], []
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        coin, fresh = given.get("rewards") == "coin", given.get("fresh_every") == "1"
        if coin or fresh:
            run = ["coin" if coin else "fresh", given["method"], given["lr"], int(given["seed"])]
            file = llds if fresh and given["method"] == "llds" else found
            for row in rows:
                values = [row.get(key) for key in MEASURES]
                file.append([*run, row["step"], *("" if v is None else v for v in values)])
    return tuple(sorted(file, key=lambda line: line[:5]) for file in (found, llds))


def other_targets() -> list[list[object]]:
    """The lines of other_targets.csv: arm, seed, batch, reward; 24 batches of each hot run."""
    arms = {"wrong": {"llds_preserve": "negative", "llds_coef": "0.5"}}
    arms["pull"] = {"method": "old_kl", "old_kl_coef": "1", "old_kl_rows": "preserved"}
    found = []
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        for arm, own in arms.items():
            plain = given["lr"] == HOT and "kl_estimator" not in given
            if plain and own.items() <= given.items():
                seed = int(given["seed"])
                found += [[arm, seed, row["step"], row["reward/mean"]] for row in rows[:24]]
    return sorted(found)


def write(name: str, columns: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """A CSV file beside this script."""
    with (Path(__file__).parent / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *lines])


def main() -> None:
    """All controls at the hot rate, coins at the cool one."""
    for name, lines in zip(("suspects", "fresh_llds"), suspects(), strict=True):
        write(f"{name}.csv", COLUMNS, lines)
    write("other_targets.csv", ("arm", "seed", "batch", "reward"), other_targets())
    print(table(runs(HOT), list(NAMES), "control"))
    print(table(runs(COOL), COINS, "control at 2e-4"))


if __name__ == "__main__":
    main()
