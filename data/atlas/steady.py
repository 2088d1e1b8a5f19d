"""How often does an agent that never changes "fall", or ring the alarm? python data/atlas/steady.py

A question's chance of a right answer is drawn from a beta distribution with mean p, its five
answers are drawn with it, and nothing is ever learned: what is seen is chance. "Alike" is the
correlation of two answers to one question, which the share of mixed groups tells.
"""

from statistics import fmean

import torch

from lldlib.course import smollm_runs
from lldlib.files import markdown_table

RUNS, BATCHES, ANSWERS = 4000, 60, 5


def means(questions: int, p: float, alike: float, window: int) -> torch.Tensor:
    """Mean rewards of so many batches in a row, [RUNS, BATCHES - window + 1]."""
    torch.manual_seed(0)
    spread = 1 / alike - 1
    chance = torch.distributions.Beta(p * spread, (1 - p) * spread)
    right = torch.distributions.Binomial(ANSWERS, chance.sample((RUNS, BATCHES, questions)))
    return right.sample().mean(-1).div(ANSWERS).unfold(1, window, 1).mean(-1)


def mixed(p: float, alike: float) -> float:
    """The share of groups with right and wrong answers."""
    a, b = p * (1 / alike - 1), (1 - p) * (1 / alike - 1)
    all_right = all_wrong = 1.0
    for k in range(ANSWERS):
        all_right *= (a + k) / (a + b + k)
        all_wrong *= (b + k) / (a + b + k)
    return 1 - all_right - all_wrong


def main() -> None:
    """Print the table of smollm2.md."""
    rows = []
    for questions in (8, 12, 64):
        for p in (0.3, 0.4, 0.6, 0.7, 0.8, 0.9):
            for alike in (0.2, 0.5):
                three, five, twenty = (means(questions, p, alike, w) for w in (3, 5, 20))
                under = (five.amax(1) - five[:, -1], twenty.amax(1) - twenty[:, -1])
                fell = (under[0] >= 0.1, under[0] >= 0.25, under[1] >= 0.1)
                rang = (three < 0.36 * three.cummax(1).values).any(1)
                told = [f"{some.float().mean():.2f}" for some in (*fell, rang)]
                rows.append([str(questions), f"{p:g}", f"{mixed(p, alike):.2f}", *told])
    heads = ("questions", "right", "groups mixed", "ends .1 under its best, means of 5", ".25")
    heads += (".1, means of 20", "the alarm rings")
    print(markdown_table(heads, rows))
    for name, runs in smollm_runs().items():
        for run in runs:
            last = [fmean(run.column(key)[-20:]) for key in ("reward/mean", "reward/mixed_groups")]
            print(name, run.config["seed"], *(f"{value:.2f}" for value in last))


if __name__ == "__main__":
    main()
