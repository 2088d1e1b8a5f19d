"""A micro training run as a program of its own, so that a test can kill it.

Usage: resume_worker.py POLICY OUT [CHECKPOINT | turn], where CHECKPOINT is the number of the
checkpoint in the middle of whose writing the process kills itself; with `turn` it turns knobs after
three batches, between two checkpoints, and kills itself as soon as that is done.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import helpers  # one thread, as in the tests

from lldlib.config import RolloutConfig, TrainConfig
from lldlib.recipes import METHODS
from lldlib.runs import folder as runlog
from lldlib.train import run
from lldlib.train import setup as setting
from lldlib.world import atlas

# A random policy never answers right, so any answer is worth 1; and there are fewer questions.
PATCHES = [
    (atlas, "ATLAS", replace(atlas.ATLAS, reward=helpers.answered)),
    (atlas, "HELDOUT_QUESTIONS", 6),
    (atlas, "TRAIN_QUESTIONS", 60),
    (setting, "PROBE_ROWS", 6),
]
KNOBS = {"lr": 5e-3, "loss": METHODS["grpo"]}


def config(policy: Path) -> TrainConfig:
    """LLDS over several updates, with a warm-up, a reference and an evaluation now and then."""
    return TrainConfig(
        seed=3,
        steps=16,
        updates_per_batch=3,
        lr=1e-3,
        warmup_batches=6,
        eval_every=5,
        checkpoint_every=2,
        policy=str(policy),
        rollout=RolloutConfig(problems=3, group_size=4, max_tokens=36),
        loss=METHODS["llds"],
    )


def die_writing(number: int) -> None:
    """Make the checkpoint of that number the last thing this process does, and only half of it."""
    save = runlog.save_file

    def half(tensors, path):
        save(tensors, path)
        if path.parent.name.startswith(f"step_{number:06d}"):
            path.write_bytes(path.read_bytes()[:1000])
            os.kill(os.getpid(), signal.SIGKILL)

    runlog.save_file = half


if __name__ == "__main__":
    assert helpers.torch.get_num_threads() == 1
    for owner, name, value in PATCHES:
        setattr(owner, name, value)
    policy, out, *how = sys.argv[1:]
    if how and how != ["turn"]:
        die_writing(int(how[0]))
    training = run.TrainingRun(config(Path(policy)), Path(out))
    if how == ["turn"]:
        for _ in range(3):
            training.step()
        training.turn(**KNOBS)
        os.kill(os.getpid(), signal.SIGKILL)
    training.run()
