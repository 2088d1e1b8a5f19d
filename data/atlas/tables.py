"""Print the tables of README.md from the recorded runs: `python data/atlas/tables.py`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from collect import gathered
from fates import alarm_report

from lldlib.files import markdown_table
from lldlib.runs.folder import Run
from lldlib.runs.phases import ALARM_KEYS, AlarmRule, find_collapse
from lldlib.runs.summary import paired, share_interval, summarise

HERE = Path(__file__).parent
ARMS = ("grpo", "llds", "grpo_best_rate")
HALVES = {"validation, seeds 0 to 2": range(3), "test, seeds 3 to 9": range(3, 10)}
REWARDS = {"best_reward": "best reward (means of 3)", "end_reward": "end reward (mean of 10)"}
LATE = "later.jsonl.gz"
MACHINES = ("avx2", "two threads")  # before the colon in a run's name
START = ("eval/start_em", "eval/start_em_greedy")
LAST = 2  # evaluations whose mean is a run's end
BATCHES = 40
SCORES = ("eval/heldout_em", "eval/heldout_em_greedy")
KEYS = {
    "end, sampled": SCORES[0],
    "end, greedy": SCORES[1],
    "end, one hop more": "eval/further_em",
}


def end(run: Run, key: str) -> float:
    """The mean of the last evaluations."""
    return fmean(run.series(key)[1][-LAST:])


def starts(runs: Sequence[Run]) -> dict[str, list[float]]:
    """The start's score on each half, sampled and greedy, from the runs that logged it."""
    logged = [
        (run.config["data"]["exam_half"], [run.series(key)[1][:1] for key in START]) for run in runs
    ]
    return {half: [score for [score] in scores] for half, scores in logged if all(scores)}


def row_of(arm: str, run: Run, start: float) -> dict[str, object]:
    """What the tables need of a run; `best` is the best evaluation before a collapse, `start` too.

    A peak can be shorter than the five batches between two evaluations.
    """
    made = summarise(run)
    row = {key: made[key] for key in ("seed", "known_at", "for_good")}
    ends = {name: end(run, key) for name, key in KEYS.items() if run.series(key)[1]}
    best = max(made["heldout_em_best_before_collapse"], start)
    peak = run.frame["reward/mean"].rolling(3).mean().max()
    rewards = {"best_reward": float(peak), "end_reward": made["end_reward"]}
    return {"arm": arm, "best": best} | rewards | row | ends


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):.2f}" + (f" +- {stdev(values):.2f}" if len(values) > 1 else "")


def fate(rows: Sequence[dict]) -> str:
    """The batch of collapse, or "-"."""
    batch = find_collapse([row["reward/mean"] for row in rows]).known
    return "-" if batch is None else str(batch)


def late() -> None:
    """The seeds that were run once, at the end: LATE, test half."""
    found: dict[tuple[str, int], list[dict]] = {}
    for given, rows in gathered(LATE):
        if given.get("exam_half") == "test" and len(rows) == BATCHES:
            arm = "grpo_best_rate" if float(given["lr"]) < 1e-3 else given["method"]
            found[arm, int(given["seed"])] = rows
    cells, ends = {}, {arm: [] for arm in ARMS}
    for (arm, seed), rows in found.items():
        exams = [row for row in rows if "eval/heldout_em" in row]
        batch = fate(rows)
        before = [row for row in exams if batch == "-" or row["step"] < int(batch)]
        best = max(row["eval/heldout_em"] for row in before) if before else 0.0
        best = max(best, rows[0]["eval/start_em"])
        last = [fmean(row[key] for row in exams[-LAST:]) for key in SCORES]
        ends[arm].append((seed, last[0], best, batch))
        cells[arm, seed] = " / ".join(f"{x:.2f}" for x in (best, *last)) + f", {batch}"
    print("\nseeds 10 and over, test half: best / end sampled / end greedy, batch of collapse\n")
    seeds = sorted({seed for _, seed in found})
    lines = [[str(s), *(cells.get((arm, s), "not run") for arm in ARMS)] for s in seeds]
    print(markdown_table(["seed", *ARMS], lines))
    for arm, own in ends.items():
        if not own:
            continue
        dead = sum(batch != "-" for *_, batch in own)
        print(f"{arm}: end {spread([end for _, end, *_ in own])}, {dead} of {len(own)} collapse")


def longer() -> None:
    """The runs of twice as many batches: what becomes of each, and its ends after 40 and all."""
    lines = []
    for given, rows in gathered(LATE):
        if given.get("exam_half") == "test" and len(rows) == 2 * BATCHES:
            found = find_collapse([row["reward/mean"] for row in rows])
            exams = [row for row in rows if "eval/heldout_em" in row]
            early = [row for row in exams if row["step"] < BATCHES]
            ends = [
                " / ".join(f"{fmean(row[key] for row in part[-LAST:]):.2f}" for key in SCORES)
                for part in (early, exams)
            ]
            fate = "-" if found.known is None else f"{found.known}{', for good' * found.for_good}"
            lines.append([given["method"], given["seed"], *ends, fate])
    print("\ntwice as many batches: end sampled / greedy\n")
    head = ["arm", "seed", f"after {BATCHES} batches", f"after {2 * BATCHES}", "collapse"]
    print(markdown_table(head, sorted(lines)))


def rounding() -> None:
    """Who collapses on another machine."""
    for machine in MACHINES:
        runs = gathered(LATE, machine=machine)
        for arm in ARMS[:2]:
            fates = [fate(rows) for given, rows in runs if given["method"] == arm]
            dead = sorted(int(batch) for batch in fates if batch != "-")
            print(f"{machine}, {arm}: {len(dead)} of {len(fates)} collapse, at {dead}")


def main() -> None:
    """Arms by half, then every seed, then the paired difference and the alarm."""
    folders = [(arm, f) for arm in ARMS for f in sorted((HERE / "main").glob(f"{arm}-seed*"))]
    runs = [(arm, Run(folder)) for arm, folder in folders]
    start = starts([run for _, run in runs])
    rows = [row_of(arm, run, start[run.config["data"]["exam_half"]][0]) for arm, run in runs]
    for half, seeds in HALVES.items():
        print(f"\n{half}\n")
        sampled, greedy = (f"{score:.2f}" for score in start[half.split(",")[0]])
        lines = [["start", "-", sampled, sampled, greedy, "-", "-", "-"]]
        for arm in ARMS:
            own = [row for row in rows if row["arm"] == arm and row["seed"] in seeds]
            if not own:
                continue
            good = sum(bool(row["for_good"]) for row in own)
            low, high = share_interval(good, len(own))
            lines.append(
                [
                    arm,
                    f"{good} of {len(own)} [{low:.2f}, {high:.2f}]",
                    *(spread([row[key] for row in own]) for key in ("best", *KEYS)),
                    *(spread([row[key] for row in own]) for key in REWARDS),
                ]
            )
        head = ["arm", "collapsed for good", "best before a collapse", *KEYS, *REWARDS.values()]
        print(markdown_table(head, lines))
    print("\nevery seed: best / end sampled / end greedy, batch of collapse\n")
    lines = []
    for seed in range(10):
        cells = [str(seed)]
        for arm in ARMS:
            own = [row for row in rows if row["arm"] == arm and row["seed"] == seed]
            for row in own:
                batch = "-" if row["known_at"] is None else row["known_at"]
                names = ("best", "end, sampled", "end, greedy")
                cells.append(" / ".join(f"{row[name]:.2f}" for name in names) + f", {batch}")
            cells += [] if own else ["not run"]
        lines.append(cells)
    print(markdown_table(["seed", *ARMS], lines))
    for half, seeds in HALVES.items():
        own = [row for row in rows if row["seed"] in seeds]
        others = (("grpo", "best"), ("grpo", "best_reward"), ("grpo_best_rate", "end, sampled"))
        for other, key in others if own else ():
            gap = paired(own, "llds", other, "end, sampled", key)
            print(f"{half}: llds at its end minus {other} ({key}): {gap}")
    watched = [
        (run.column("reward/mean"), {key: run.column(key) for key in ALARM_KEYS}) for _, run in runs
    ]
    print(alarm_report(watched, AlarmRule()))
    late()
    longer()
    rounding()


if __name__ == "__main__":
    main()
