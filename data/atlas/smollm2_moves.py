"""SmolLM2's runs that note their moves: python data/atlas/smollm2_moves.py START FOLDER ARM SEED

START is the half-taught model that `lldlib warmstart --start smollm2` writes. ARM is one of

- llds, grpo: at a rate, as in llds-3e-4. Each update's move stands in moves.jsonl, a line a batch:
  half of the mean squared change of an action token's log-prob on the update's own rows.
- matched: GRPO at 3e-4 whose every update is shortened until it moves no further than the same
  update of llds-3e-4 on the same seed, a run which has to go on beside it or be there.

An interrupted run goes on. On a graphics card all arms of smollm2.md's twelfth rule fit at once.

    python data/atlas/smollm2_moves.py branch SOURCE FOLDER ARM BATCH

goes on from SOURCE's checkpoint at that batch: as SOURCE does (ARM plain), with LLDS (llds), or
with every update shortened until it moves no further than CAP (capped), as far as STEPS.
"""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import torch
from smaller_step import CAP, Matched, Watched

import lldlib.train.run as training
from lldlib.config import LoadConfig, TrainConfig, train_config_from
from lldlib.recipes import train_config
from lldlib.runs.folder import Run
from lldlib.train.run import TrainingRun

MOVES = "moves.jsonl"
STEPS = int(os.environ.get("STEPS", "60"))
PATIENCE = 600  # seconds for a batch of the paired run


class Logged(Watched):
    """Writes the moves of each batch as a line."""

    out: Path

    def step(self):
        """A batch, with its line in MOVES."""
        metrics, episodes = super().step()
        metrics["update/move"] = metrics.pop("control/move")
        metrics["update/kept"] = metrics.pop("control/share")
        with open(self.out / MOVES, "a") as file:
            file.write(json.dumps({"step": self.step_index - 1, "moves": self.moves[-1]}) + "\n")
        return metrics, episodes


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


class Capped(Matched, Logged):
    """Moves no further than CAP in an update."""

    limit = CAP


def config_of(method: str, lr: float, seed: int, start: str) -> TrainConfig:
    """The tenth rule's settings."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    load = LoadConfig(lora_rank=32, lora_alpha=64, dtype="bfloat16", device=device)
    rows = {"micro_rows": 30, "heldout_limit": 16}
    every = {"eval_every": 20, "questions_every": 10, "checkpoint_every": 10, "probe_every": 0}
    kept = {} if method == "grpo" else {"llds_preserve": "nonnegative"}
    settings = {"world": "shuffled", "lr": lr, "steps": STEPS, "load": load}
    return train_config(method, seed, start, **settings, **rows, **every, **kept)


def branch(source: str, folder: str, arm: str, batch: str) -> TrainingRun:
    """A run that goes on from a checkpoint, under another remedy."""
    run = Run(source)
    out = Path(folder) / f"{arm}-from{batch}-seed{run.config['seed']}"
    training.Trainer = Capped if arm == "capped" else Logged
    training.Trainer.out = out
    if not out.exists():
        kept = {"llds_coef": 0.5, "llds_preserve": "nonnegative"} if arm == "llds" else {}
        loss = dataclasses.replace(train_config_from(run.config).loss, **kept)
        TrainingRun.branch(run, int(batch), out, loss=loss, eval_every=20)
    return TrainingRun(train_config_from(run.config), out, resume=True)


def whole(start: str, folder: str, arm: str, seed: str) -> TrainingRun:
    """A run from the start, or its going on."""
    kind, _, rate = arm.partition("-")
    out = Path(folder) / f"{arm}-seed{seed}"
    trainer = Follower if kind == "matched" else Logged
    trainer.out, trainer.partner = out, Path(folder) / f"llds-3e-4-seed{seed}"
    training.Trainer = trainer  # of the run, and of its going on
    method = "llds" if kind == "llds" else "grpo"
    config = config_of(method, float(rate or 3e-4), int(seed), start)
    return TrainingRun(config, out, resume=out.exists())


def main() -> None:
    """Train one run as far as STEPS."""
    made = branch(*sys.argv[2:6]) if sys.argv[1] == "branch" else whole(*sys.argv[1:5])
    made.extend(STEPS)
    made.run()


if __name__ == "__main__":
    main()
