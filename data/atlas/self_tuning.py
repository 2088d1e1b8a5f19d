"""The tables and the figure of self_tuning.md: python data/atlas/self_tuning.py

Reads search.jsonl.gz and later.jsonl.gz. An end is the mean of a run's last two evaluations.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from collect import gathered, rate_text
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.show.style import COLOURS, SMALL, save, style

HERE = Path(__file__).parent
RATES, SEEDS, BATCHES, LAST = (2e-4, 4e-4, 6e-4, 8e-4, 1e-3), (0, 1, 2), 40, 2
SHARED = {"method", "eval_every", "policy", "steps", "checkpoint_every", "probe_every"}
ARMS = {  # by what their runs' names say beside SHARED, rate and seed
    ("llds", "llds_coef=0.2,llds_target=0.01"): "self-tuned",
    ("grpo", ""): "GRPO",
    ("llds", "llds_coef=0.2"): "LLDS .2",
    ("llds", "llds_coef=0.5"): "LLDS .5",
    ("llds", "llds_coef=1"): "LLDS 1",
}
OWN = "self-tuned"


def ends() -> dict[str, dict[float, dict[int, float]]]:
    """The end of every whole run, by arm, rate and seed."""
    found = {name: defaultdict(dict) for name in ARMS.values()}
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        own = ",".join(
            f"{k}={v}" for k, v in sorted(given.items()) if k not in SHARED | {"lr", "seed"}
        )
        arm, rate, seed = (given["method"], own), float(given["lr"]), int(given["seed"])
        if arm in ARMS and seed in SEEDS and rate in RATES and len(rows) == BATCHES:
            exams = [row["eval/heldout_em"] for row in rows if "eval/heldout_em" in row]
            found[ARMS[arm]][rate][seed] = fmean(exams[-LAST:])
    return found


def cell(own: dict[int, float]) -> str:
    """The mean, and each seed."""
    each = " ".join(f"{own[seed]:.2f}" if seed in own else "-" for seed in SEEDS)
    return f"{fmean(own.values()):.2f} ({each})" if own else "-"


def gap(own: dict[int, float], other: dict[int, float]) -> str:
    """The mean paired difference and its standard error."""
    both = [own[seed] - other[seed] for seed in own if seed in other]
    if len(both) < 2:
        return "-"
    return f"{fmean(both):+.2f} +- {stdev(both) / len(both) ** 0.5:.2f}"


def main() -> None:
    """Tables and figure."""
    found = ends()
    others = [name for name in found if name != OWN]
    for head, cells in (
        (list(found), lambda rate: [cell(found[name][rate]) for name in found]),
        (
            [f"less {name}" for name in others],
            lambda rate: [gap(found[OWN][rate], found[name][rate]) for name in others],
        ),
    ):
        lines = [[rate_text(rate), *cells(rate)] for rate in RATES]
        print(markdown_table(["rate", *head], lines))
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = style(
        figure.subplots(), "learning rate, in 0.0001", "held-out exact match, sampled, at the end"
    )
    for (name, by_rate), colour in zip(found.items(), COLOURS, strict=False):
        points = [(rate * 1e4, fmean(own.values())) for rate in RATES if (own := by_rate[rate])]
        width = 2.4 if name == OWN else 1.2
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, linewidth=width)
    axes.set(ylim=(-0.03, 1))
    axes.legend(loc="lower left", frameon=False, fontsize=SMALL)
    save(figure, HERE / "self_tuning.png")


if __name__ == "__main__":
    main()
