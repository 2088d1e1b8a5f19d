"""Is LLDS .2 a smaller step? python data/atlas/smaller_step_misses.py FOLDER ARM SEED [RATE MISSES]

The seventh and thirteenth rule of uncertain.md, at 4e-4 with misses .35, and its fourteenth, at
6e-4 with misses 0. ARM is one of smaller_step.py, of which matched needs llds of its seed in
FOLDER, or one of other_steps.py, of which gentle entropy needs it there too. Writes run folders,
which data/atlas/collect.py gathers into limits.jsonl.gz. Without arguments it prints the table of
those runs and of the sixth rule's.
"""

import sys
from pathlib import Path
from statistics import fmean

import other_steps
import torch
from collect import gathered
from smaller_step import ARMS, BATCHES, train

from lldlib.config import TrainConfig
from lldlib.files import markdown_table, read_jsonl
from lldlib.recipes import train_config

RATE, MISSES, WEIGHT = 4e-4, 0.35, 0.2
EXAMS = ("eval/heldout_em", "eval/heldout_em_greedy", "eval/missing_em")


def print_table() -> None:
    """Ends (means of the last two evaluations), moves of an update, share of a step kept."""
    table = []
    for given, rows in gathered("limits.jsonl.gz"):
        arm = given.get("arm", "limited")
        rate, misses = given.get("lr", f"{RATE:g}"), given.get("misses", "0")
        exams = [[row[key] for row in rows if key in row][-2:] for key in EXAMS]
        kind = "update" if arm == "limited" else "control"
        share = "kept" if arm == "limited" else "share"
        moves = [row[f"{kind}/move"] for row in rows]
        cells = [arm, rate, misses, given["seed"], str(len(rows))]
        cells += [f"{fmean(exam):.2f}" if exam else "" for exam in exams]
        cells += [f"{fmean(moves):.4f}", f"{max(moves):.3f}"]
        table.append([*cells, f"{fmean(row[f'{kind}/{share}'] for row in rows):.2f}"])
    head = ["arm", "rate", "misses", "seed", "batches", "end", "greedy", "searches miss"]
    print(markdown_table([*head, "mean move", "largest of a batch", "kept"], table))


def main() -> None:
    """One run, or the table."""
    if len(sys.argv) == 1:
        print_table()
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
