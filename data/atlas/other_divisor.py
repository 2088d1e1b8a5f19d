"""LLDS divided by all action tokens: python data/atlas/other_divisor.py FOLDER WEIGHT MISSES SEED

So the official code divides it, and our loss for verl. Notes beside each batch which share of the
action tokens lies in rows that LLDS keeps (A > 0). Writes a run folder, which data/atlas/collect.py
gathers into weight.jsonl.gz.
"""

import sys
from pathlib import Path

import torch

from lldlib.losses import LossInputs, preserved_mask
from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun
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


def main() -> None:
    """Train one run."""
    torch.set_num_threads(1)
    folder, weight, misses = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    seed = int(sys.argv[4])
    given = {"lr": 6e-4, "misses": misses, "eval_every": 10, "probe_every": 0}
    given |= {"llds_coef": weight, "llds_normalizer": "all"}
    config = train_config("llds", seed, "half_taught", checkpoint_every=0, **given)
    name = f"method=llds,arm=all,llds_coef={weight:g},lr=0.0006,misses={misses:g},seed={seed}"
    run = TrainingRun(config, folder / name)
    run.trainer = Counted(run.config, run.setting.policy, run.setting.environment)
    while run.next_batch < config.steps:
        run.step()
    run.writer.close()


if __name__ == "__main__":
    main()
