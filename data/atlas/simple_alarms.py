"""Alarms of one sign: chosen on the 29 recorded runs, tried on runs that came later.

    python data/atlas/simple_alarms.py

An alarm rings where the mean of some batches of one curve has gone too far the wrong way. Prints
the tables "Simple alarms" and "At the ring" of alarm.md.
"""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import alarm_later
import pandas as pd

from lldlib.course import ARMS, recorded
from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse

HERE = Path(__file__).parent
FIRST, NEAR = 2, 3  # batch from which an alarm may ring; batches before a ring: see `rescues`
SIGNS: dict[str, tuple[str, Callable[[pd.Series], pd.Series]]] = {  # the curve; higher is worse
    "reward": ("reward/mean", lambda x: 1 - x / x.cummax()),
    "likelihood": ("displacement/correct_token", lambda x: -x),
    "gradient norm": ("grad/norm", lambda x: x / x.iloc[:3].median()),
    "length": ("length/tokens", lambda x: x / x.iloc[0]),
}
TRIED = {
    "reward": (0.4, 0.5, 0.55, 0.6, 0.64, 0.7, 0.75),
    "likelihood": (0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.45),
    "gradient norm": (2, 4, 8, 16, 30),
    "length": (1.3, 1.5, 1.7, 2, 2.5, 3),
}
WINDOWS = (1, 2, 3, 5)
Watched = list[tuple[pd.DataFrame, int | None]]  # a run, and where its fall begins


def watched(runs: Iterable[pd.DataFrame]) -> Watched:
    """Each run with the batch at which its fall begins, None if it lives."""
    return [(frame, find_collapse(frame["reward/mean"].tolist()).began) for frame in runs]


def ring(frame: pd.DataFrame, sign: str, limit: float, window: int) -> int | None:
    """The first batch at which the alarm rings."""
    key, wrong = SIGNS[sign]
    means = frame[key].astype(float).rolling(window, min_periods=1).mean()
    hits = [t for t, value in enumerate(wrong(means)) if t >= FIRST and value > limit]
    return hits[0] if hits else None


def score(runs: Watched, alarm: tuple[str, float, int]) -> tuple[int, int, float]:
    """Dying runs in which it rings, living ones, and batches after the fall began (median)."""
    rung = [(ring(frame, *alarm), began) for frame, began in runs]
    late = [batch - began for batch, began in rung if batch is not None and began is not None]
    false = sum(batch is not None for batch, began in rung if began is None)
    return len(late), false, median(late) if late else float("nan")


def low(frame: pd.DataFrame) -> bool:
    """Whether the reward, a mean of three batches, ends under half of its best."""
    means = frame["reward/mean"].rolling(3, min_periods=1).mean()
    return bool(means.iloc[-1] < 0.5 * means.max())


def rescues() -> list[list[str]]:
    """Branches at a fifth of the rate, by how many batches before the reward's ring they began."""
    counts = {"3 or more": [0, 0], "0 to 2": [0, 0], "after the ring": [0, 0]}
    with (HERE / "no_return.csv").open(encoding="utf-8") as file:
        lines = [line for line in csv.reader(file) if line[2] == "a fifth of the rate"]
    runs = [run.column("reward/mean") for run in recorded("grpo")]
    for seed, point, _, *rewards in lines:
        run = runs[int(seed)]
        ahead = alarm_later.fallen(run) - int(point)
        place = "3 or more" if ahead >= NEAR else "0 to 2" if ahead >= 0 else "after the ring"
        saved = sum(map(float, rewards[-3:])) / 3 >= sum(run[:2]) / 2
        counts[place][0] += saved
        counts[place][1] += 1
    return [[place, f"{saved} of {all_}"] for place, (saved, all_) in counts.items()]


def main() -> None:
    """Alarms that ring in all dying and no living one of the 29; rings of the reward; rescues."""
    known = watched(run.frame for arm in ARMS for run in recorded(arm))
    later = watched(pd.DataFrame(rows) for _, rows in alarm_later.runs())
    dying, rows = sum(began is not None for _, began in known), []
    every = (
        (s, limit, window) for s, limits in TRIED.items() for limit in limits for window in WINDOWS
    )
    for alarm in every:
        hits, false, late = score(known, alarm)
        if (hits, false) == (dying, 0):
            rows.append(
                [*map(str, alarm), f"{late:g}", *(f"{value:g}" for value in score(later, alarm))]
            )
    rows.sort(key=lambda row: float(row[3]))
    head = ["sign", "limit", "window", "29 runs: after the fall began"]
    print(markdown_table([*head, "67 dying", "282 living", "after the fall began"], rows))
    rung = [(ring(frame, "reward", 0.64, 3), began) for frame, began in later]
    after = [batch - began for batch, began in rung if batch is not None and began is not None]
    living = [
        (run[0], rings[0]) for run, rings in zip(later, rung, strict=True) if rings[1] is None
    ]
    living = [frame for frame, batch in living if batch is not None]
    kinds = [["dies, in the fall that had begun", sum(x >= 0 for x in after)]]
    kinds += [["dies, in a later fall", sum(x < 0 for x in after)], ["lives", len(living)]]
    kinds += [["lives, at the end under half of its best", sum(map(low, living))]]
    print(markdown_table(["the run", "runs"], [[name, str(n)] for name, n in kinds]))
    print(markdown_table(["branched before the ring", "saved"], rescues()))


if __name__ == "__main__":
    main()
