"""GRPO whose spark is held at its start value: python data/sparks/oracle.py --seed 0 --out FOLDER.

After the updates of a batch it trains on nothing but the probability of the spark after a quick
answer, on fresh questions, until their mean is back at what the start gave. It may rise above.
The oracle knows which word the spark is, so it is no method: it shows what there is to win.
"""

import argparse
import random
from pathlib import Path

import torch

from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun
from lldlib.train.trainer import Trainer
from lldlib.world import sparks

CONTEXTS, TRIES = 64, 50  # questions of a step that holds the spark up; steps after a batch at most


class OracleTrainer(Trainer):
    """Holds the spark up after the updates of every batch."""

    def __init__(self, *args):
        super().__init__(*args)
        self.holding = torch.optim.SGD(self.parameters, lr=0.002)
        with torch.no_grad():
            self.floor = self._spark(random.Random(0)).exp().mean()

    def _update(self, prepared):
        found, rng = super()._update(prepared), random.Random(self.step_index)
        for _ in range(TRIES):
            logp = self._spark(rng)
            if logp.exp().mean() >= self.floor:
                break
            self.holding.zero_grad(set_to_none=True)
            (self.floor.log() - logp).relu().mean().backward()
            self.holding.step()
        return found

    def _spark(self, rng):
        """Log-prob of the spark after the favourite answer to hard questions."""
        texts = [f"{sparks.question(rng, 'hard').text} {sparks.FAVOURITE}" for _ in range(CONTEXTS)]
        encode = self.rollout.text.encode
        rows = torch.tensor([encode(text) for text in texts])
        logits = self.policy.model(input_ids=rows).logits[:, -1]
        return logits.log_softmax(-1)[:, encode(sparks.SPARK)[0]]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    config = train_config("grpo", given.seed, "sparks", steps=given.steps, checkpoint_every=0)
    run = TrainingRun(config, given.out)
    setting = run.setting
    run.trainer = OracleTrainer(config, setting.policy, setting.environment, setting.probe)
    run.run()


if __name__ == "__main__":
    main()
