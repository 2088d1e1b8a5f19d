"""How late does a change still save a GRPO run at the hot rate? Branches of seeds 0 to 4.

    python data/atlas/no_return.py FOLDER [SEED ...]

From the policy of a GRPO run before several of its batches ten batches go on with a change; the run
itself is the one unchanged. Writes FOLDER/no_return.csv, a line a branch: the reward of each of its
batches. What is there is not run again. Then prints the tables of controls.md.
"""

import csv
import shutil
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from lldlib.files import markdown_table
from lldlib.recipes import train_config
from lldlib.runs.folder import Run
from lldlib.train.run import TrainingRun

MAIN = Path(__file__).parent / "main"
QUICK, SLOW = (3, 6, 9, 12), (5, 10, 15, 20, 25, 30)  # batches to branch before, by how it falls
SLOW_SEEDS, BATCHES = (3, 4), 10
END = 3  # last batches of a branch whose mean reward the table shows
HOT = train_config("llds", 0, "half_taught", llds_coef=0.5).loss
UNCHANGED = "nothing"
CHANGES: dict[str, tuple[dict[str, Any], bool]] = {  # knobs, and whether Adam begins anew
    "LLDS": ({"method": "llds", "loss": HOT}, False),
    "LLDS, Adam anew": ({"method": "llds", "loss": HOT}, True),
    "Adam anew": ({}, True),  # the control of the one before
    "a fifth of the rate": ({"lr": 2e-4}, False),
}


def points(seed: int) -> tuple[int, ...]:
    """The batches before which the seed's run is branched."""
    return SLOW if seed in SLOW_SEEDS else QUICK


def trunk(out: Path, seed: int) -> Run:
    """A GRPO run with a checkpoint at every point, to the end of its last branch."""
    steps = max(points(seed)) + BATCHES
    config = train_config("grpo", seed, "half_taught", steps=steps, eval_every=0)
    folder = out / f"trunk-seed{seed}"
    if not folder.exists() or len(Run(folder).metrics) < steps:
        shutil.rmtree(folder, ignore_errors=True)
        run = TrainingRun(config, folder)
        while run.next_batch < config.steps:
            if run.next_batch in points(seed):
                run.checkpoint()
            run.step()
        run.writer.close()
    return Run(folder)


def branch(source: Run, point: int, name: str, folder: Path) -> list[float]:
    """The rewards of the batches that follow a change."""
    knobs, anew = CHANGES[name]
    shutil.rmtree(folder, ignore_errors=True)
    run = TrainingRun.branch(source, point, folder, steps=point + BATCHES, **knobs)
    if anew:
        run.trainer.optimizer.state.clear()
    rewards = [run.step()["reward/mean"] for _ in range(BATCHES)]
    run.writer.close()
    shutil.rmtree(folder)
    return rewards


Found = dict[tuple[str, str], dict[str, list[float]]]  # rewards by seed and point, by change


def read(path: Path) -> Found:
    """The branches of a file."""
    found: Found = defaultdict(dict)
    for seed, point, name, *rewards in csv.reader(path.open()):
        found[seed, point][name] = [float(reward) for reward in rewards]
    return found


def table(found: Found) -> str:
    """A row a seed and point: the reward then, and each branch's at its end."""
    lines = [
        [*key, f"{next(iter(own.values()))[0]:.2f}"]
        + [f"{fmean(own[n][-END:]):.2f}" if n in own else "-" for n in (UNCHANGED, *CHANGES)]
        for key, own in found.items()
    ]
    return markdown_table(
        ["seed", "branched before batch", "reward then", UNCHANGED, *CHANGES], lines
    )


def saved(found: Found) -> str:
    """A row a seed: before which of its batches each change saves the run.

    Saved: the end is at least the reward of the start, of batches 0 and 1 of the recorded run.
    """
    lines = []
    for seed in dict.fromkeys(seed for seed, _ in found):
        rewards = Run(MAIN / f"grpo-seed{seed}").column("reward/mean")
        own = {int(point): ends for (s, point), ends in found.items() if s == seed}
        cells = []
        for name in (UNCHANGED, *CHANGES):
            good = [p for p, ends in own.items() if fmean(ends[name][-END:]) >= fmean(rewards[:2])]
            cells.append(", ".join(map(str, good)) or "none")
        lines.append([seed, ", ".join(map(str, own)), *cells])
    return markdown_table(["seed", "branched before", UNCHANGED, *CHANGES], lines)


def main() -> None:
    """Run what is missing, then print."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    seeds = [int(seed) for seed in sys.argv[2:]] or list(range(5))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "no_return.csv"
    have = {tuple(row[:3]) for row in csv.reader(path.open())} if path.exists() else set()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        for seed in seeds:
            source = trunk(out, seed)
            for point, name in product(points(seed), (UNCHANGED, *CHANGES)):
                key = (str(seed), str(point), name)
                if key not in have:
                    if name == UNCHANGED:
                        rewards = source.column("reward/mean")[point : point + BATCHES]
                    else:
                        rewards = branch(source, point, name, out / f"branch-seed{seed}")
                    writer.writerow([*key, *(f"{reward:.3f}" for reward in rewards)])
                    file.flush()
    found = read(path)
    print(table(found) + "\n" + saved(found))


if __name__ == "__main__":
    main()
