"""Is the loss of likelihood noise? One batch of updates from the same policy, by few rows or many.

    python data/atlas/noise.py FOLDER

A GRPO run at the hot rate leaves a checkpoint before every batch. From three of them one batch is
trained several times over, each time on other questions and rollouts: by 320 rows as in the run,
by 4 times and by 16 times as many, in 16 updates each. Written to FOLDER/noise.csv: the change of
fresh rows of the same policy, which were not trained on, and of the trained rows, nats per token.
"""

import csv
import sys
from pathlib import Path

import torch

from lldlib.config import RolloutConfig
from lldlib.recipes import train_config
from lldlib.runs.folder import Run
from lldlib.train.run import TrainingRun

MOMENTS = (2, 4, 6)
SIZES = {320: (64, 5, 6), 1280: (256, 5, 3), 5120: (256, 20, 2)}  # rows: questions, group, repeats
SHOWN = ("mixed_token", "fresh_mixed_token", "fresh_token")


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    source = out / "source"
    config = train_config("grpo", 0, "half_taught", steps=max(MOMENTS) + 1, eval_every=0)
    if not source.exists():
        run = TrainingRun(config, source)
        while run.next_batch < config.steps:
            run.checkpoint()
            run.step()
        run.writer.close()
    with (out / "noise.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("moment", "rows", "repeat", "reward", *SHOWN))
        for moment in MOMENTS:
            for rows, (problems, group, repeats) in SIZES.items():
                for repeat in range(repeats):
                    row = one(source, out, moment, repeat, problems, group)
                    table.writerow((moment, rows, repeat, row["reward/mean"], *shown(row)))
                    file.flush()


def one(source: Path, out: Path, moment: int, repeat: int, problems: int, group: int) -> dict:
    """The metrics of one batch from the checkpoint, on questions and rollouts of its own."""
    rollout = RolloutConfig(problems=problems, group_size=group, max_tokens=160)
    branch = TrainingRun.branch(
        Run(source),
        moment,
        out / f"from{moment}-rows{problems * group}-{repeat}",
        rollout=rollout,
        seed=100 + repeat,
        steps=moment + 1,
        fresh_every=1,
        checkpoint_every=0,
    )
    return branch.step()


def shown(row: dict) -> list[float]:
    """The displacements of a batch."""
    return [round(row[f"displacement/{key}"], 5) for key in SHOWN]


if __name__ == "__main__":
    main()
