"""Is LLDS .2 a smaller step? python data/atlas/smaller_step_misses.py FOLDER ARM SEED [RATE MISSES]

The seventh and thirteenth rule of smaller_step.md, at 4e-4 with misses .35, and its fourteenth, at
6e-4 with misses 0. ARM is one of smaller_step.py, of which matched needs llds of its seed in
FOLDER, or one of other_steps.py, of which gentle entropy needs it there too. Writes run folders,
which data/atlas/collect.py gathers into limits.jsonl.gz. Without arguments it prints the tables of
those runs, and of the hot rate's, that smaller_step.md has.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import other_steps
import torch
from collect import gathered
from ends import Rows
from smaller_step import ARMS, BATCHES, SEEDS, train

from lldlib.config import TrainConfig
from lldlib.files import markdown_table, read_jsonl
from lldlib.recipes import train_config

RATE, MISSES, WEIGHT = 4e-4, 0.35, 0.2
HOT = 1e-3
SETTINGS = (HOT, 0.0), (6e-4, 0.0), (RATE, MISSES)  # the rate, the share of misses
CONTROLS = {  # the arms of a line of the short table, and its name
    ("plain",): "GRPO alone",
    ("llds",): "GRPO + LLDS (.5 at 1e-3, else .2)",
    ("large epsilon",): "AdamW's epsilon 1e-3",
    ("matched",): "updates no longer than LLDS's",
    ("capped",): "updates of at most .01 nats",
    ("brake",): "LLDS's share in a step's size, not its direction",
    ("entropy", "gentle entropy"): (
        "an entropy bonus to follow LLDS (at 1e-3 it did not, else on two of three seeds: no test)"
    ),
    ("random rows",): "LLDS's norm on random rows",
    ("random tokens",): "LLDS's norm on random tokens",
    ("after the clip",): "LLDS added after the clip",
    ("half clip",): "half the clip",
    ("quick Adam",): "beta2 .95",
    ("cosine",): "a cosine to 0",
    ("cosine llds",): "a cosine to 0, with LLDS .2",
    ("long ramp",): "a ramp over 20 batches",
}
CORRECT = "displacement/correct_token"
EXAMS = ("eval/heldout_em", "eval/heldout_em_greedy", "eval/missing_em")


def setting(given: Mapping[str, str]) -> tuple[str, float, float]:
    """The arm's name, its rate and its share of misses, by the name of a run in limits.jsonl.gz."""
    rate, misses = float(given.get("lr", RATE)), float(given.get("misses", 0))
    limited = "capped" if given["method"] == "grpo" else "llds, capped"
    return given.get("arm", limited), rate, misses


def ends(rows: Rows) -> list[float]:
    """Means of the last two evaluations of each exam."""
    return [fmean([row[key] for row in rows if key in row][-2:]) for key in EXAMS]


def runs_of(rate: float, misses: float) -> dict[str, list[tuple[str, Rows]]]:
    """By arm its runs of BATCHES batches, each with its seed."""
    if rate == HOT:
        found = gathered("smaller_step.jsonl.gz", "other_steps.jsonl.gz")
        named = [((given["arm"], rate, misses), given, rows) for given, rows in found]
    else:
        named = [(setting(given), given, rows) for given, rows in gathered("limits.jsonl.gz")]
        named += [
            (("plain", float(given["lr"]), float(given["misses"])), given, rows)
            for given, rows in gathered("uncertain.jsonl.gz")
            if given["method"] == "grpo" and int(given["seed"]) < len(SEEDS)
        ]
    found: dict[str, list[tuple[str, Rows]]] = {}
    for (arm, *where), given, rows in named:
        if where == [rate, misses] and len(rows) == BATCHES:
            found.setdefault(arm, []).append((given["seed"], rows))
    return found


def print_arms(rate: float, misses: float) -> None:
    """The arms of one setting: each seed's end, then means over the seeds."""
    table = []
    for arm, runs in runs_of(rate, misses).items():
        exams = [ends(rows)[: 3 if misses else 2] for _, rows in runs]
        means = [f"{fmean(column):.2f}" for column in zip(*exams, strict=True)]

        def each(key: str, form: str, runs: list = runs) -> str:
            told = [[row[key] for row in rows if key in row] for _, rows in runs]
            return " ".join(f"{fmean(one):{form}}" for one in told if one)

        last = [rows[-1].get("policy/entropy") for _, rows in runs]
        table.append(
            [
                *(arm, " ".join(seed for seed, _ in runs)),
                " ".join(f"{exam[0]:.2f}" for exam in exams),
                *means,
                *(each("control/move", ".4f"), each(CORRECT, "+.3f")),
                " ".join(f"{one:.2f}" for one in last),
            ]
        )
    head = ["arm", "seeds", "ends", "mean end", "greedy"]
    head += ["searches miss"] if misses else []
    head += ["mean move of an update, nats", "correct rows, nats per token", "entropy"]
    print(f"{rate:g}, misses {misses:g}\n{markdown_table(head, table)}")


def print_runs() -> None:
    """Every run of limits.jsonl.gz: its ends, moves of an update, share of a step kept."""
    table = []
    for given, rows in gathered("limits.jsonl.gz"):
        arm, rate, misses = setting(given)
        kind, kept = ("control", "share") if "arm" in given else ("update", "kept")
        moves = [row[f"{kind}/move"] for row in rows]
        cells = [arm, f"{rate:g}", f"{misses:g}", given["seed"], str(len(rows))]
        cells += [f"{end:.2f}" for end in ends(rows)]
        cells += [f"{fmean(moves):.4f}", f"{max(moves):.3f}"]
        table.append([*cells, f"{fmean(row[f'{kind}/{kept}'] for row in rows):.2f}"])
    head = ["arm", "rate", "misses", "seed", "batches", "end", "greedy", "searches miss"]
    print(markdown_table([*head, "mean move", "largest of a batch", "kept"], table))


def in_short() -> list[list[str]]:
    """Every control's mean end at each setting, "-" where it was not run on all seeds."""
    found = [runs_of(*where) for where in SETTINGS]
    rows = []
    for arms, told in CONTROLS.items():
        cells = []
        for runs in found:
            kept = [rows for arm in arms for _, rows in runs.get(arm, [])]
            end = fmean(ends(rows)[0] for rows in kept) if len(kept) == len(SEEDS) else None
            cells.append("-" if end is None else f"{end:.2f}".lstrip("0"))
        rows.append([told, *cells])
    return rows


def main() -> None:
    """One run, or the table."""
    if len(sys.argv) == 1:
        heads = (f"{rate:g}, misses {misses:g}" for rate, misses in SETTINGS)
        print(markdown_table(["GRPO with", *heads], in_short()))
        for where in SETTINGS:
            print_arms(*where)
        print_runs()
        return
    torch.set_num_threads(1)
    folder, arm, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rate, misses = map(float, sys.argv[4:] or (RATE, MISSES))
    about = ("" if rate == RATE else f"lr={rate:g},") + f"misses={misses:g},"

    def config_of(arm: str, seed: int) -> TrainConfig:
        given = {"lr": rate, "misses": misses, "eval_every": 5, "probe_every": 0}
        given |= {"llds_coef": WEIGHT} if ARMS[arm] == "llds" else {}
        return train_config(
            ARMS[arm], seed, "half_taught", checkpoint_every=0, steps=BATCHES, **given
        )

    def named(arm: str, seed: int) -> str:
        return f"method={ARMS[arm]},arm={arm},{about}seed={seed}"

    if arm in ARMS:
        train(folder, arm, seed, config_of, named)
        return
    aim = []
    if arm == "gentle entropy":
        guide = folder / named("llds", seed) / "metrics.jsonl"
        aim = [row["policy/entropy"] for _, row in read_jsonl(guide)]
    other_steps.train(folder, arm, seed, config_of, about, aim)


if __name__ == "__main__":
    main()
