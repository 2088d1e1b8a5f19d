"""400 batches of each arm at its own best rate, from later.jsonl.gz: python data/atlas/long.py

Prints the table of settings.md and draws long.png.
"""

from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from collect import gathered, rate_text
from ends import GREEDY, SAMPLED
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse
from lldlib.show.style import COLOURS, save, style

HERE = Path(__file__).parent
BATCHES, LAST = 400, 100
NAMES = {"grpo": "GRPO", "llds": "GRPO + LLDS, lambda .5"}


def runs() -> dict[str, dict[int, list[dict]]]:
    """Rows of the long runs, by arm with its rate, and seed."""
    found = defaultdict(dict)
    for given, rows in gathered("later.jsonl.gz"):
        if len(rows) == BATCHES:
            rate = rate_text(float(given["lr"]))
            found[f"{NAMES[given['method']]}, {rate}"][int(given["seed"])] = rows
    return found


def cells(rows: list[dict]) -> list[str]:
    """The last batches, the deepest fall of ten-batch rewards under their best, the collapse."""
    rewards = [row["reward/mean"] for row in rows]
    tens = [fmean(rewards[t : t + 10]) for t in range(BATCHES - 9)]
    falls = [best - ten for best, ten in zip(accumulate(tens, max), tens, strict=True)]
    late = rows[-LAST:]
    exams = [fmean(row[key] for row in late if key in row) for key in (SAMPLED, GREEDY)]
    logged = (fmean(row[key] for row in late) for key in ("policy/entropy", "length/tokens"))
    fate = find_collapse(rewards).known
    entropy, tokens = logged
    return [
        f"{exams[0]:.2f} / {exams[1]:.2f}",
        f"{max(falls):.2f} at {falls.index(max(falls))}",
        f"{entropy:.2f}",
        f"{tokens:.0f}",
        "-" if fate is None else str(fate),
    ]


def main() -> None:
    """A row a run; a line a run."""
    found = runs()
    lines = [
        [arm, str(seed), *cells(rows)]
        for arm, seeds in found.items()
        for seed, rows in sorted(seeds.items())
    ]
    head = ["end, sampled / greedy", "deepest fall", "entropy", "tokens", "collapse"]
    print(markdown_table(["arm", "seed", *head], lines))
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = style(figure.subplots(), "batch", "held-out exact match,\nsampled")
    for colour, (arm, seeds) in zip(COLOURS, found.items(), strict=False):
        for place, rows in enumerate(seeds.values()):
            exams = [(row["step"] + 1, row[SAMPLED]) for row in rows if SAMPLED in row]
            label = arm if place == 0 else None
            axes.plot(*zip(*exams, strict=True), color=colour, alpha=0.8, label=label)
    axes.set(ylim=(0, 1))
    axes.legend(loc="lower right", frameon=False)
    save(figure, HERE / "long.png")


if __name__ == "__main__":
    main()
