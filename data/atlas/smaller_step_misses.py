"""LLDS's own moves where searches miss: python data/atlas/smaller_step_misses.py FOLDER ARM SEED

The seventh rule of uncertain.md. ARM is llds, matched or plain, as in smaller_step.py; matched
needs llds of its seed. Writes run folders.
"""

import json
import sys
from pathlib import Path

import torch
from smaller_step import KINDS, MOVES

from lldlib.recipes import train_config
from lldlib.train.run import TrainingRun

RATE, MISSES, WEIGHT = 4e-4, 0.35, 0.2


def main() -> None:
    """One run."""
    torch.set_num_threads(1)
    folder, arm, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    method = "llds" if arm == "llds" else "grpo"
    given = {"lr": RATE, "misses": MISSES, "eval_every": 5, "probe_every": 0}
    given |= {"llds_coef": WEIGHT} if arm == "llds" else {}
    config = train_config(method, seed, "half_taught", checkpoint_every=0, steps=40, **given)
    out = folder / f"method={method},arm={arm},misses={MISSES},seed={seed}"
    run = TrainingRun(config, out)
    trainer = KINDS[arm](run.config, run.setting.policy, run.setting.environment)
    if arm == "matched":
        partner = folder / f"method=llds,arm=llds,misses={MISSES},seed={seed}"
        trainer.allowed = json.loads((partner / MOVES).read_text())
    run.trainer = trainer
    while run.next_batch < config.steps:
        run.step()
    run.writer.close()
    (out / MOVES).write_text(json.dumps(trainer.moves))


if __name__ == "__main__":
    main()
