"""SEAL beside GRPO: python data/atlas/seal.py FOLDER RATE MISSES SEED

A network of three layers reads the policy's last hidden state at each of its tokens and tells
tokens of A >= 0 from those of A < 0. Its binary cross-entropy, times WEIGHT, is added to the loss,
and its gradient reaches the policy (2605.27954, by its official code). Writes a run folder, which
data/atlas/collect.py gathers.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun
from lldlib.train.trainer import Trainer

WEIGHT, LAYERS, DROPPED = 0.02, 3, 0.1


class Seal(Trainer):
    """GRPO with SEAL's loss; the network has an AdamW of its own, at the policy's rate."""

    def __init__(self, *args):
        super().__init__(*args)
        width = self.policy.model.config.hidden_size
        torch.manual_seed(self.config.seed)
        inner = []
        for _ in range(LAYERS - 1):
            inner += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Dropout(DROPPED)]
        self.judge = nn.Sequential(*inner, nn.Linear(width, 1))
        self.judges = torch.optim.AdamW(self.judge.parameters(), lr=self.config.lr)
        self.told = []

    def step(self):
        """One batch, with the mean of SEAL's loss over its updates."""
        self.told = []
        metrics, episodes = super().step()
        return metrics | {"control/seal": sum(self.told) / max(1, len(self.told))}, episodes

    def _inputs(self, experience, rows, number, draws):
        self.part = experience.batch.rows(rows)
        return super()._inputs(experience, rows, number, draws)

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        part, decoder = self.part, self.policy.model.get_decoder()
        states = decoder(input_ids=part.tokens, attention_mask=part.attention_mask.long())
        said = self.judge(states.last_hidden_state)[part.action_mask][:, 0]
        good = (inputs.advantages >= 0).float()[:, None].expand(part.action_mask.shape)
        seal = binary_cross_entropy_with_logits(said, good[part.action_mask])
        self.told.append(float(seal.detach()))
        self.judges.zero_grad()
        norm = super()._apply(loss + WEIGHT * seal, inputs, experience, pieces)
        self.judges.step()
        return norm


def train(
    trainer: type[Trainer],
    folder: Path,
    arm: str,
    seed: int,
    method: str = "grpo",
    **given: float | str,
) -> None:
    """Train one run of 40 batches with a trainer of one's own; `arm`, numbers go into its name."""
    torch.set_num_threads(1)
    numbers = {name: value for name, value in given.items() if not isinstance(value, str)}
    told = ",".join(f"{name}={value:g}" for name, value in numbers.items())
    given |= {"eval_every": 10, "probe_every": 0}
    config = train_config(method, seed, "half_taught", checkpoint_every=0, **given)
    run = TrainingRun(config, folder / f"method={method},{arm},{told},seed={seed}")
    run.trainer = trainer(run.config, run.setting.policy, run.setting.environment)
    while run.next_batch < config.steps:
        run.step()
    run.writer.close()


if __name__ == "__main__":
    place, rate, missed, number = Path(sys.argv[1]), *map(float, sys.argv[2:4]), int(sys.argv[4])
    train(Seal, place, "arm=seal", number, lr=rate, misses=missed)
