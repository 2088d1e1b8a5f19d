"""RAGEN-2's prompts, or fewer updates? python data/atlas/random_groups.py FOLDER ARM SEED

Two controls of `keep_mixed` .9 at the hot rate. "random" trains on as many groups, drawn by chance,
in as many updates. "sixteen" trains on RAGEN-2's groups, in all of the batch's updates, of fewer
rows each. Writes a run folder, which data/atlas/collect.py gathers.
"""

import sys
from pathlib import Path

import torch
from jaxtyping import Int
from seal import train
from torch import Tensor

from lldlib.train.experience import Experience
from lldlib.train.trainer import Trainer

SHARE, RATE = 0.9, 1e-3


class Random(Trainer):
    """RAGEN-2's number of rows and of updates; the groups are drawn by chance."""

    def _trained_rows(self, experience: Experience) -> tuple[Int[Tensor, " n"], int]:
        rows, updates = super()._trained_rows(experience)
        group = experience.batch.group
        drawn = torch.Generator().manual_seed(self._seed("control"))
        numbers, count = group.unique(), len(group[rows].unique())
        chosen = numbers[torch.randperm(len(numbers), generator=drawn)[:count]]
        return torch.isin(group, chosen).nonzero()[:, 0], updates


class Sixteen(Trainer):
    """RAGEN-2's groups, in as many updates as without a choice."""

    def _trained_rows(self, experience: Experience) -> tuple[Int[Tensor, " n"], int]:
        rows, _ = super()._trained_rows(experience)
        return rows, min(self.config.updates_per_batch, len(rows))


ARMS = {"random": Random, "sixteen": Sixteen}

if __name__ == "__main__":
    folder, arm, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    train(ARMS[arm], folder, f"arm={arm}", seed, lr=RATE, keep_mixed=SHARE)
