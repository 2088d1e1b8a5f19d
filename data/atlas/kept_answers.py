"""Which answers LLDS keeps, in the loop of notebook 3: python data/atlas/kept_answers.py

Trains the half-taught searcher at the hot rate for eight batches with LLDS on the answers of A > 0,
on those of A >= 0, and with an LLDS that compares the policy with itself; seeds 0 to 2. Writes
kept_answers.csv, in about four minutes.
"""

import csv
from pathlib import Path

import torch

from lldlib.losses import aggregate, llds_penalty, preserved_mask
from lldlib.train.by_hand import train_with

HERE = Path(__file__).parent
SEEDS, BATCHES = range(3), 8


def llds(logp, old_logp, advantages, action_mask, preserve):
    """LLDS per kept token, gated by action."""
    kept = preserved_mask(advantages, action_mask, preserve)
    paid = llds_penalty(logp, old_logp, advantages, action_mask, preserve=preserve)
    return aggregate(paid, kept, "token-mean")


ARMS = {
    "A (does nothing)": lambda x, old, A, mask: llds(x, x.detach(), A, mask, "nonnegative"),
    "LLDS, A ≥ 0": lambda x, old, A, mask: llds(x, old, A, mask, "nonnegative"),
    "LLDS, A > 0": lambda x, old, A, mask: llds(x, old, A, mask, "positive"),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    with (HERE / "kept_answers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", "seed", "batch", "reward"])
        for arm, term in ARMS.items():
            for seed in SEEDS:
                rewards = train_with(term, BATCHES, seed=seed)
                writer.writerows([arm, seed, n, round(r, 4)] for n, r in enumerate(rewards))
