"""LLDS divided by all action tokens: python data/atlas/other_divisor.py FOLDER WEIGHT MISSES SEED

So the official code divides it, and our loss for verl. Notes beside each batch which share of the
action tokens lies in rows that LLDS keeps (A > 0). Writes a run folder, which data/atlas/collect.py
gathers into weight.jsonl.gz.
"""

import sys
from pathlib import Path

from seal import train

from lldlib.losses import LossInputs, preserved_mask
from lldlib.train.trainer import Trainer


class Counted(Trainer):
    """Notes the share of the action tokens that is kept."""

    def step(self):
        """One batch, with the share over its updates."""
        self.kept = self.all = 0
        metrics, episodes = super().step()
        return metrics | {"control/kept_tokens": self.kept / max(1, self.all)}, episodes

    def _inputs(self, experience, rows, number, draws) -> LossInputs:
        inputs = super()._inputs(experience, rows, number, draws)
        rule = self.config.loss.llds_preserve
        kept = preserved_mask(inputs.advantages, inputs.action_mask, preserve=rule)
        self.kept += int(kept.sum())
        self.all += int(inputs.action_mask.sum())
        return inputs


if __name__ == "__main__":
    place, weight, missed, number = Path(sys.argv[1]), *map(float, sys.argv[2:4]), int(sys.argv[4])
    given = {"llds_coef": weight, "lr": 6e-4, "misses": missed}
    train(Counted, place, "arm=all", number, "llds", llds_normalizer="all", **given)
