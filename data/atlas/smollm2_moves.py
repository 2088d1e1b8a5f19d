"""SmolLM2's runs that note their moves: python data/atlas/smollm2_moves.py START FOLDER ARM SEED

START is the half-taught model that `lldlib warmstart --start smollm2` writes. ARM is one of

- llds, grpo: at a rate, as in llds-3e-4. Each update's move stands in moves.jsonl, a line a batch:
  half of the mean squared change of an action token's log-prob on the update's own rows.
- matched: GRPO at 3e-4 whose every update is shortened until it moves no further than the same
  update of llds-3e-4 on the same seed, a run which has to go on beside it or be there.

An interrupted run goes on. On a graphics card all arms of smollm2.md's twelfth rule fit at once.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from smaller_step import Matched, Watched

import lldlib.train.run as training
from lldlib.config import LoadConfig, TrainConfig
from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun

MOVES = "moves.jsonl"
PATIENCE = 600  # seconds for a batch of the paired run


class Logged(Watched):
    """Writes the moves of each batch as a line."""

    out: Path

    def step(self):
        """A batch, with its line in MOVES."""
        found = super().step()
        with open(self.out / MOVES, "a") as file:
            file.write(json.dumps({"step": self.step_index - 1, "moves": self.moves[-1]}) + "\n")
        return found


class Follower(Matched, Logged):
    """Moves no further than the run in `partner` did, batch by batch."""

    partner: Path

    def __init__(self, *args):
        super().__init__(*args)
        self._read: dict[int, list[float]] = {}  # moves of the partner's batches

    @property
    def limit(self) -> float:
        """How far this update may move, once the partner has made its own."""
        until = time.monotonic() + PATIENCE
        while self.step_index not in self._read:
            if time.monotonic() > until:
                raise SystemExit(f"{self.partner} has no batch {self.step_index}")
            if (file := self.partner / MOVES).exists():
                rows = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
                self._read.update({row["step"]: row["moves"] for row in rows})
            time.sleep(0.1)
        return self._read[self.step_index][self.number]


def config_of(method: str, lr: float, seed: int, start: str, steps: int) -> TrainConfig:
    """The tenth rule's settings."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    load = LoadConfig(lora_rank=32, lora_alpha=64, dtype="bfloat16", device=device)
    rows = {"micro_rows": 30, "heldout_limit": 16}
    every = {"eval_every": 20, "questions_every": 10, "checkpoint_every": 10, "probe_every": 0}
    kept = {} if method == "grpo" else {"llds_preserve": "nonnegative"}
    settings = {"world": "shuffled", "lr": lr, "steps": steps, "load": load}
    return train_config(method, seed, start, **settings, **rows, **every, **kept)


def main() -> None:
    """Train one arm."""
    start, folder, name, seed = *sys.argv[1:4], int(sys.argv[4])
    steps = int(os.environ.get("STEPS", "60"))
    kind, _, rate = name.partition("-")
    out = Path(folder) / f"{name}-seed{seed}"
    trainer = Follower if kind == "matched" else Logged
    trainer.out, trainer.partner = out, Path(folder) / f"llds-3e-4-seed{seed}"
    training.Trainer = trainer  # of the run, and of its going on
    method = "llds" if kind == "llds" else "grpo"
    config = config_of(method, float(rate or 3e-4), seed, start, steps)
    run = TrainingRun(config, out, resume=out.exists())
    run.extend(steps)
    run.run()


if __name__ == "__main__":
    main()
