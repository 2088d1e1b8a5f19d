"""The alarm on runs that came after it was chosen: python data/atlas/alarm_later.py

Reads later.jsonl.gz and methods.jsonl.gz, and prints the table of alarm.md: the alarm, and as a
control the fall of the reward itself; then the same for the runs of SINCE. Writes bells.csv, a
line a run that dies: where its fall begins, and where the alarm, the control and the collapse rule
ring (empty: not at all).
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import pandas as pd
from collect import gathered
from ends import BATCHES

from lldlib.files import markdown_table
from lldlib.runs.phases import ALARM_KEYS, AlarmRule, alarm, find_collapse

FALLEN, START = 0.36, 2  # the control: a mean of three batches under this share of the best so far
FILES = ("later.jsonl.gz", "methods.jsonl.gz")
SINCE = ("rivals", "smaller_step", "other_steps", "limits", "uncertain", "weight", "mismatch")
SINCE += ("first_five", "long_misses")
BELLS = ("began", "likelihood", "reward", "rule")  # columns of bells.csv


def kind(given: dict[str, str]) -> str:
    """The row of the table that a run belongs to."""
    if given.get("exam_half") == "test":
        return "seeds 10 to 19, three arms"
    if "llds_target" in given or given.get("llds_coef", "0.5") != "0.5":
        return "LLDS with other weights and rates"
    return "other methods, numbers of updates and rows, misses, rates"


def fallen(rewards: list[float]) -> int | None:
    """The control: the first batch at which the reward has fallen."""
    means = pd.Series(rewards).rolling(3, min_periods=1).mean()
    hits = [t for t in means.index[means < FALLEN * means.cummax()] if t >= START]
    return hits[0] if hits else None


def told(pairs: list[tuple[int | None, int | None]]) -> list[str]:
    """Of (warning, collapse) by run: collapses warned of, how far ahead, and false warnings."""
    dead = [(warning, end) for warning, end in pairs if end is not None]
    leads = sorted(e - w for w, e in dead if w is not None and w < e)
    live = [warning for warning, end in pairs if end is None]
    return [
        f"{len(leads)} of {len(dead)}" if dead else "none collapses",
        f"{median(leads):g} ({leads[0]})" if leads else "-",
        f"{sum(warning is not None for warning in live)} of {len(live)}",
    ]


def runs() -> list[tuple[str, list[dict]]]:
    """The whole runs with true rewards, each with the row of the table that it belongs to."""
    honest = [(given, rows) for given, rows in gathered(*FILES) if "rewards" not in given]
    found = [(kind(given), rows) for given, rows in honest]
    found += [
        ("other instructions, both arms", rows) for _, rows in gathered(*FILES, machine="avx2")
    ]
    return [(name, rows) for name, rows in found if len(rows) == BATCHES]


def since() -> list[tuple[str, list[dict]]]:
    """The runs recorded later, by file; of runs whose first 40 rewards are the same, one."""
    seen, found = set(), []
    for name in SINCE:
        for given, rows in gathered(f"{name}.jsonl.gz"):
            first = tuple(row["reward/mean"] for row in rows[:BATCHES])
            if len(rows) >= BATCHES and "rewards" not in given and first not in seen:
                seen.add(first)
                found.append((name, rows))
    return found


def rings(rows: list[dict]) -> list[int | None]:
    """Where the fall begins; where the alarm, the reward's own fall and the collapse rule ring."""
    rewards = [row["reward/mean"] for row in rows]
    end = find_collapse(rewards)
    rung = alarm({key: [row.get(key) for row in rows] for key in ALARM_KEYS}, AlarmRule())
    return [end.began, rung, fallen(rewards), end.known]


def bells() -> list[list[str]]:
    """The lines of bells.csv."""
    found = [rings(rows) for _, rows in runs()]
    dead = [line for line in found if line[-1] is not None]
    return sorted(["" if batch is None else str(batch) for batch in line] for line in dead)


def print_table(found: list[tuple[str, list[dict]]]) -> None:
    """A row a kind of run, and one for all."""
    alarms, controls = defaultdict(list), defaultdict(list)
    for name, rows in found:
        _, rung, fell, end = rings(rows)
        for place in (name, "all of these"):
            alarms[place].append((rung, end))
            controls[place].append((fell, end))
    places = sorted(alarms, key=lambda place: place == "all of these")
    lines = [[place, *told(alarms[place]), *told(controls[place])] for place in places]
    head = ["warned", "ahead of the rule, median (least)", "false"]
    print(markdown_table(["runs", *head, *(f"control: {name}" for name in head)], lines) + "\n")


def main() -> None:
    """The page's tables, and bells.csv."""
    with (Path(__file__).parent / "bells.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([BELLS, *bells()])
    for found in (runs(), since(), runs() + since()):
        print_table(found)


if __name__ == "__main__":
    main()
