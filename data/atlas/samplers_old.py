"""GRPO whose old log-probs are the sampler's: python data/atlas/samplers_old.py FOLDER NOISE SEED

Some engines do so, to save a pass. Writes a run folder, which data/atlas/collect.py gathers.
"""

import dataclasses
import sys
from pathlib import Path

from seal import train

from lldlib.losses import LossInputs
from lldlib.train.trainer import Trainer


class SamplersOld(Trainer):
    """Takes the ratio to what the sampler said."""

    def _inputs(self, experience, rows, number, draws) -> LossInputs:
        inputs = super()._inputs(experience, rows, number, draws)
        return dataclasses.replace(inputs, old_logp=inputs.sampler_logp)


if __name__ == "__main__":
    place, noise, number = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    train(SamplersOld, place, "arm=sampler", number, lr=2e-4, sampler_noise=noise)
