"""Other updates, rows and misses than the chosen ones: python data/atlas/off_line.py

Prints the tables of settings.md from search.jsonl.gz and later.jsonl.gz and draws off_line.png. An
end is the mean of the evaluations after 30 and 40 batches.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from collect import gathered, rate_text
from ends import BATCHES, Rows, ends, exam, fates, start
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.show.style import COLOURS, SMALL, save, style

HERE = Path(__file__).parent
SHARED = {"method", "eval_every", "policy", "steps", "checkpoint_every", "probe_every", "seed"}
ARMS = {"grpo": "GRPO", "llds": "GRPO + LLDS, lambda .5"}
MISSING = "eval/missing_em"
OWN = {"lr", "llds_coef", "updates_per_batch", "problems", "misses"}
GROUP = 5  # rollouts per question
SEEDS = (0, 1, 2)
RUNGS = (1e-4, 2e-4, 4e-4, 1e-3, 2e-3, 4e-3)  # the ticks of the figure

Seeds = dict[int, Rows]
Rates = dict[float, dict[str, Seeds]]  # by rate and arm


class Cell(NamedTuple):
    """What is varied; the defaults are the chosen setting."""

    updates: int = 16
    problems: int = 64
    misses: float = 0.0

    def about(self) -> list[str]:
        """The first columns of a row."""
        rows = self.problems * GROUP // self.updates
        return [f"{self.problems} x {GROUP}", str(self.updates), str(rows), f"{self.misses:g}"]


ABOUT = ["questions x rollouts", "updates", "rows per update", "misses"]


def runs() -> dict[Cell, Rates]:
    """Rows of every whole run, by cell, rate, arm and seed; on the line the rates run off it."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        arm, plain = given["method"], given.keys() <= SHARED | OWN
        coef = given.get("llds_coef", "0.5")
        if arm in ARMS and plain and coef == "0.5" and len(rows) == BATCHES:
            cell = Cell(
                int(given.get("updates_per_batch", 16)),
                int(given.get("problems", 64)),
                float(given.get("misses", 0)),
            )
            found[cell][float(given["lr"])][arm][int(given["seed"])] = rows
    off = {rate for cell, rates in found.items() if cell != Cell() for rate in rates}
    found[Cell()] = {rate: arms for rate, arms in found[Cell()].items() if rate in off}
    return {cell: found[cell] for cell in sorted(found, key=lambda cell: (cell != Cell(), cell))}


def cells(seeds: Seeds, misses: float) -> list[str]:
    """The end, where searches miss also by an exam whose searches do; the batches of collapse."""
    if not seeds:
        return ["not run", "-"]
    missing = [exam(rows, MISSING) for rows in seeds.values()] if misses else []
    beside = f" / {fmean(missing):.2f}" if missing else ""
    return [ends(seeds) + beside, "; ".join(fates(seeds))]


def best(rates: Rates, arm: str) -> tuple[float, Seeds]:
    """The arm's best rate on seed 0, and its runs there."""
    tried = {rate: arms[arm] for rate, arms in rates.items() if 0 in arms[arm]}
    rate = max(tried, key=lambda rate: exam(tried[rate][0]), default=0.0)
    return rate, tried.get(rate, {})


def at_best(cell: Cell, rates: Rates) -> list[str]:
    """Each arm at its own best rate, and the difference of the seeds that both have."""
    line, sides = cell.about(), []
    for arm in ARMS:
        rate, seeds = best(rates, arm)
        sides.append(seeds)
        line += [rate_text(rate), ends(seeds)] if seeds else ["-", "the same as GRPO"]
    pairs = [exam(sides[1][seed]) - exam(sides[0][seed]) for seed in SEEDS if seed in sides[1]]
    if len(pairs) < len(SEEDS):
        return [*line, "-"]
    return [*line, f"{fmean(pairs):+.2f} +- {stdev(pairs) / len(pairs) ** 0.5:.2f}"]


def draw(axes: Axes, cell: Cell, rates: Rates) -> None:
    """A point a run, a line through the means."""
    rows, misses = cell.about()[2:]
    missed = f", misses {misses}" if cell.misses else ""
    updates = "1 update" if cell.updates == 1 else f"{cell.updates} updates"
    title = f"{updates} of {rows} rows{missed}"
    style(axes, "learning rate, in 0.0001", "end, sampled").set_title(title, fontsize=SMALL)
    for colour, (arm, name) in zip(COLOURS, ARMS.items(), strict=False):
        own = {rate: arms[arm] for rate, arms in sorted(rates.items()) if arms[arm]}
        means = [fmean(map(exam, seeds.values())) for seeds in own.values()]
        axes.plot(list(own), means, color=colour, label=name)
        points = [(rate, exam(rows)) for rate, seeds in own.items() for rows in seeds.values()]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, s=12, alpha=0.7)
    axes.set(xscale="log", xlim=(RUNGS[0] * 0.9, RUNGS[-1] * 1.1), ylim=(-0.03, 1))
    axes.set_xticks(RUNGS, [f"{rate * 1e4:g}" for rate in RUNGS], fontsize=SMALL)
    axes.minorticks_off()


def main() -> None:
    """Each arm at its best rate; every rate; the figure."""
    found = runs()
    head = [*ABOUT, *(x for n in ARMS.values() for x in ("rate", n)), "difference"]
    off = [at_best(*item) for item in found.items() if item[0] != Cell()]  # the ladder has the line
    first = start(found[Cell(4)][1e-3]["grpo"].values())
    lines = [["start", *"----", first, "-", first, "-"]]
    print(markdown_table(head, lines + off))
    for cell, rates in found.items():
        for rate, arms in sorted(rates.items()):
            own = [text for arm in ARMS for text in cells(arms[arm], cell.misses)]
            lines.append([*cell.about(), rate_text(rate), *own])
    head = [*ABOUT, "rate", *(x for n in ARMS.values() for x in (n, "collapse"))]
    print(markdown_table(head, lines))
    figure = Figure(figsize=(9, 6.6), layout="constrained")
    places = figure.subplots(3, 3, sharey=True).flat
    for axes, item in zip(places, found.items(), strict=True):
        draw(axes, *item)
    figure.axes[1].legend(loc="lower left", frameon=False, fontsize=SMALL)
    save(figure, HERE / "off_line.png")


if __name__ == "__main__":
    main()
