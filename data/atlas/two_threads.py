"""GRPO and LLDS at the hot rate with two threads in place of one: as if on another machine.

    python data/atlas/two_threads.py FOLDER [SEED ...]

Writes a run folder for each arm and seed; collect.py gathers them.
"""

import sys
from pathlib import Path

import torch

from lldlib.train.sweep import grid_cells, is_finished, parse_grid, train_cell

THREADS = 2
ARMS = (["method=grpo"], ["method=llds", "llds_coef=0.5"])
SHARED = ["lr=1e-3", "policy=half_taught", "steps=40", "eval_every=40"]


def main() -> None:
    """Train what is missing."""
    torch.set_num_threads(THREADS)
    out = Path(sys.argv[1])
    for seed in sys.argv[2:] or map(str, range(10)):
        for arm in ARMS:
            [cell] = grid_cells(parse_grid([*arm, *SHARED, f"seed={seed}"]), out)
            if not is_finished(cell):
                train_cell(cell, keep_checkpoints=False, report=print, should_stop=lambda: False)


if __name__ == "__main__":
    main()
