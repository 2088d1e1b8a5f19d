"""The ladder of learning rates: python data/atlas/ladder.py

Prints the table of settings.md, from search.jsonl.gz and later.jsonl.gz, and draws ladder.png.
A run's end is the mean of its last two evaluations, sampled, on the validation half.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from collect import gathered, rate_text
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse
from lldlib.show.style import COLOURS, SMALL, save, style

HERE = Path(__file__).parent
SEEDS, BATCHES, LAST = (0, 1, 2), 40, 2
ARMS = {"grpo": "GRPO", "llds": "GRPO + LLDS, lambda 0.5"}
SHARED = {"eval_every", "policy", "steps", "checkpoint_every", "probe_every"}
NEAR = 0.9  # of an arm's best: the range of rates that serve


def ladder() -> dict[str, dict[float, dict[int, list[dict]]]]:
    """Rows of each arm's runs that differ from the recipe in rate and seed alone."""
    found = {arm: defaultdict(dict) for arm in ARMS}
    for given, rows in gathered("search.jsonl.gz", "later.jsonl.gz"):
        arm, seed = given.pop("method"), int(given.pop("seed", 0))
        rate, coef = float(given.pop("lr", 1e-3)), given.pop("llds_coef", None)
        plain = given.keys() <= SHARED and given["eval_every"] == "5"
        if arm in ARMS and plain and seed in SEEDS and coef == {"llds": "0.5"}.get(arm):
            found[arm][rate][seed] = rows
    return {
        arm: {
            rate: {seed: rows for seed, rows in seeds.items() if len(rows) == BATCHES}
            for rate, seeds in sorted(rates.items())
        }
        for arm, rates in found.items()
    }


def end(rows: list[dict]) -> float:
    """Exact match at the end, sampled."""
    return fmean([row["eval/heldout_em"] for row in rows if "eval/heldout_em" in row][-LAST:])


def main() -> None:
    """Table, range, figure."""
    runs = ladder()
    ends = {
        arm: {rate: {s: end(x) for s, x in seeds.items()} for rate, seeds in rates.items() if seeds}
        for arm, rates in runs.items()
    }
    first = runs["grpo"][min(runs["grpo"])][SEEDS[0]][0]["eval/start_em"]
    lines = [["start", f"{first:.2f}", "-", f"{first:.2f}", "-"]]
    for rate in sorted({rate for rates in ends.values() for rate in rates}):
        cells = [rate_text(rate)]
        for arm in ARMS:
            own = ends[arm].get(rate, {})
            dead = sum(
                find_collapse([row["reward/mean"] for row in runs[arm][rate][s]]).known is not None
                for s in own
            )
            each = " ".join(f"{own[s]:.2f}" if s in own else "-" for s in SEEDS)
            cells += [f"{fmean(own.values()):.2f} ({each})", f"{dead} of {len(own)}"] if own else [
                "not run", "-"
            ]  # fmt: skip
        lines.append(cells)
    print(markdown_table(["rate", *(x for n in ARMS.values() for x in (n, "collapsed"))], lines))
    for arm, name in ARMS.items():
        means = {rate: fmean(own.values()) for rate, own in ends[arm].items()}
        best = max(means, key=means.get)
        near = [rate for rate, mean in means.items() if mean >= NEAR * means[best]]
        print(f"{name}: best {means[best]:.3f} at {best:g}")
        print(f"  within 10 % of it: {min(near):g} to {max(near):g}")
    draw(ends, first)


def draw(ends: dict[str, dict[float, dict[int, float]]], start: float) -> None:
    """A point a run, a line through the means."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = style(
        figure.subplots(),
        "learning rate, in 0.0001",
        "held-out exact match, sampled",
    )
    for (arm, name), colour in zip(ARMS.items(), COLOURS, strict=False):
        rates = list(ends[arm])
        means = [fmean(ends[arm][rate].values()) for rate in rates]
        axes.plot(rates, means, color=colour, label=name)
        points = [(rate, value) for rate in rates for value in ends[arm][rate].values()]
        axes.scatter(*zip(*points, strict=True), color=colour, s=18, alpha=0.7)
    axes.axhline(start, color="grey", linestyle=":", label="the start")
    axes.set(xscale="log", ylim=(-0.03, 1))
    rungs = sorted({rate for rates in ends.values() for rate in rates})
    axes.set_xticks(rungs, [f"{rate * 1e4:g}" for rate in rungs], fontsize=SMALL)
    axes.minorticks_off()
    axes.legend(loc="lower left", frameon=False)
    save(figure, HERE / "ladder.png")


if __name__ == "__main__":
    main()
