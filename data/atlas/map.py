"""One line a run of every setting that the course's map tells of: python data/atlas/map.py

Writes map.csv from search.jsonl.gz, later.jsonl.gz and main: GRPO and GRPO + LLDS by rate, lambda,
updates, rows and misses, whole runs of 40 batches, and the runs of 400; seeds 3 to 19 of the main
study on the test half of the held-out questions, all others on the validation half. An end is the
mean of the last two evaluations of a run, or of the last five of 400 batches.

Beside it early.csv: reward and drift of every batch of the ladder of rates, means of seeds 0 to 2.
"""

import csv
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from collect import gathered
from ends import GREEDY, SAMPLED

from lldlib.runs.folder import Run
from lldlib.runs.phases import find_collapse

HERE = Path(__file__).parent
SHARED = {"method", "eval_every", "policy", "steps", "checkpoint_every", "probe_every", "seed"}
OWN = {"lr", "llds_coef", "updates_per_batch", "problems", "misses", "exam_half"}
WHOLE = {40: 2, 400: 5}  # batches: evaluations that make an end
HEAD = [
    *("batches", "lambda", "rate", "updates", "rows", "misses", "seed"),
    *("start", "end", "end_greedy", "dip", "collapsed"),
]


def line(given: dict[str, str], rows: list[dict]) -> list[object]:
    """A run's settings, start, end, deepest dip of ten-batch rewards, batch of collapse."""
    rewards = [row["reward/mean"] for row in rows]
    tens = [fmean(rewards[t : t + 10]) for t in range(len(rewards) - 9)]
    dip = max(best - ten for best, ten in zip(accumulate(tens, max), tens, strict=True))
    last = WHOLE[len(rows)]
    ends = [fmean([r[key] for r in rows if key in r][-last:]) for key in (SAMPLED, GREEDY)]
    known = find_collapse(rewards).known
    updates = int(given.get("updates_per_batch", 16))
    lambda_ = float(given.get("llds_coef", 0.5)) if given["method"] == "llds" else 0.0
    setting = [len(rows), lambda_, float(given.get("lr", 1e-3)), updates]
    setting += [int(given.get("problems", 64)) * 5 // updates, float(given.get("misses", 0))]
    start = rows[0].get("eval/start_em")
    found = ["" if start is None else round(start, 3), *(round(e, 3) for e in ends)]
    return [*setting, int(given["seed"]), *found, round(dip, 3), "" if known is None else known]


def lines() -> list[list[object]]:
    """All of them, in order."""
    found = [
        line(given, rows)
        for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz")
        if given["method"] in ("grpo", "llds")
        and given.keys() <= SHARED | OWN
        and len(rows) in WHOLE
    ]
    there = {tuple(row[:7]) for row in found}
    main = [main_line(Run(path)) for path in sorted((HERE / "main").iterdir())]
    return sorted(found + [row for row in main if tuple(row[:7]) not in there])


def main_line(run: Run) -> list[object]:
    """The line of a run of the main study, which has a folder of its own."""
    config = run.config
    given = {"method": config["method"], "lr": config["lr"], "seed": config["seed"]}
    return line(given, run.metrics)


EARLY = ("reward/mean", "displacement/all_token")  # and what its answers gained, nats per token


def early() -> list[list[object]]:
    """Rate, arm, batch, reward and drift of the ladder: runs that differ in rate and method alone.

    The drift is what a batch's answers, right and wrong, lose on average by its own updates.
    """
    found: dict[tuple, dict[int, list[tuple]]] = {}
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        weight = float(given.get("llds_coef", 0.5))
        plain = given.keys() <= SHARED | {"lr", "llds_coef"} and "lr" in given and weight == 0.5
        if given["method"] in ("grpo", "llds") and plain and len(rows) == 40:
            own = found.setdefault((float(given["lr"]), given["method"]), {})
            own[int(given["seed"])] = [tuple(row.get(key) for key in EARLY) for row in rows]
    return [
        [*key, batch, *mean_of([own[seed][batch] for seed in range(3)])]
        for key, own in sorted(found.items())
        if own.keys() >= {0, 1, 2}
        for batch in range(40)
    ]


def mean_of(seeds: list[tuple]) -> list[object]:
    """Mean reward and mean drift of three seeds; the drift is empty where none was logged."""
    rewards, gains = zip(*seeds, strict=True)
    known = [gain for gain in gains if gain is not None]
    return [round(fmean(rewards), 4), round(-fmean(known), 4) if len(known) == 3 else ""]


if __name__ == "__main__":
    with (HERE / "map.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *lines()])
    with (HERE / "early.csv").open("w", newline="", encoding="utf-8") as file:
        head = ["rate", "arm", "batch", "reward", "drift"]
        csv.writer(file, lineterminator="\n").writerows([head, *early()])
