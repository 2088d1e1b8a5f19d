"""GRPO whose old log-probs are the sampler's: python data/atlas/samplers_old.py FOLDER NOISE SEED

Some engines do so, to save a pass. Writes a run folder, which data/atlas/collect.py gathers.
"""

import dataclasses
import sys
from pathlib import Path

import torch

from lldlib.losses import LossInputs
from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun
from lldlib.train.trainer import Trainer


class SamplersOld(Trainer):
    """Takes the ratio to what the sampler said."""

    def _inputs(self, experience, rows, number, draws) -> LossInputs:
        inputs = super()._inputs(experience, rows, number, draws)
        return dataclasses.replace(inputs, old_logp=inputs.sampler_logp)


def main() -> None:
    """Train one run."""
    torch.set_num_threads(1)
    folder, noise, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    given = {"lr": 2e-4, "sampler_noise": noise, "eval_every": 10, "probe_every": 0}
    config = train_config("grpo", seed, "half_taught", checkpoint_every=0, **given)
    name = f"method=grpo,arm=sampler,lr=0.0002,sampler_noise={noise:g},seed={seed}"
    run = TrainingRun(config, folder / name)
    run.trainer = SamplersOld(run.config, run.setting.policy, run.setting.environment)
    while run.next_batch < config.steps:
        run.step()
    run.writer.close()


if __name__ == "__main__":
    main()
