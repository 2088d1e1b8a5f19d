"""What a batch costs under each method, against GRPO: python data/atlas/costs.py [REPEATS]

Each repeat trains every method from the start, in a new random order, and times its second batch:
processor time of one thread. The batches of a repeat have the same questions. Prints a Markdown
row a method: the median time, and the median, lowest and highest ratio to GRPO's of that repeat.
"""

import random
import sys
import time
from statistics import median

import torch
from methods import NAMES

from lldlib.files import markdown_table
from lldlib.policy.load import load_policy
from lldlib.recipes import train_config
from lldlib.train.trainer import Trainer
from lldlib.world.registry import open_environment

START, RATE = "half_taught", 2e-4
METHODS = {name: NAMES[name] for name in NAMES if "," not in name} | {"llds": "LLDS"}


def seconds(name: str, seed: int) -> float:
    """Processor time of a second batch."""
    knobs = {"lr": RATE, "probe_every": 0, "eval_every": 0, "fresh_every": 0}
    config = train_config(name, seed, START, **knobs)
    trainer = Trainer(config, load_policy(START), open_environment(config))
    trainer.step()
    begun = time.process_time()
    trainer.step()
    return time.process_time() - begun


def main() -> None:
    """A row a method."""
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    spent: dict[str, list[float]] = {name: [] for name in METHODS}
    for repeat in range(repeats):
        for name in random.Random(repeat).sample(list(METHODS), len(METHODS)):
            spent[name].append(seconds(name, repeat))
    lines = []
    for name, own in spent.items():
        ratios = sorted(a / b for a, b in zip(own, spent["grpo"], strict=True))
        cells = (f"{median(own):.2f}", f"{median(ratios):.2f}", f"{ratios[0]:.2f}")
        lines.append([METHODS[name], *cells, f"{ratios[-1]:.2f}"])
    print(markdown_table(["method", "s a batch", "of GRPO's", "lowest", "highest"], lines))


if __name__ == "__main__":
    main()
