"""All methods at four rates, from methods.jsonl.gz: python data/atlas/methods.py

Prints the tables of methods.md and draws methods.png. GRPO, LLDS and the controls are the recorded
runs of search.jsonl.gz and later.jsonl.gz. An end is the mean of the last two evaluations, after 30
and 40 batches.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from collect import gathered, rate_text
from ends import BATCHES, ends, exam, fates, start
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.show.style import COLOURS, SMALL, save, style

HERE = Path(__file__).parent
SHARED = {"eval_every", "policy", "steps", "checkpoint_every", "probe_every", "lr", "seed"}
UPDATES, CHOSEN = "updates_per_batch", "16"
RATES = (2e-4, 4e-4, 6e-4, 1e-3)
ON_POLICY = (4e-4, 1e-3, 2e-3, 4e-3)  # the rates of one update a batch
GOOD, FATAL = RATES[0], RATES[-1]
MOST = 11  # methods
DRIFT = 10  # batches whose updates are asked how far they lower all rows, nats per token
NAMES = {  # by the settings that are no part of SHARED
    "grpo": "GRPO",
    "grpo_code": "GRPO as in the official code",
    "dr_grpo": "Dr. GRPO",
    "gspo": "GSPO",
    "clip_higher": "Clip-Higher",
    "grpo_entropy": "entropy bonus .002",
    "grpo_entropy,entropy_coef=0.001": "entropy bonus .001",
    "top_entropy": "80/20",
    "kl_cov": "KL-Cov",
    "clip_cov": "Clip-Cov",
    "nthr": "NTHR",
    "half_negative": "negatives halved",
    "positive_only": "negatives dropped",
    "lp_reg": "Lp-Reg",
    "lp_reg_code": "Lp-Reg as in the official code",
    "lp_reg_llds": "Lp-Reg + LLDS",
    "llds,llds_coef=0.5": "LLDS",
    "llds_code": "LLDS as in the official code",
    "llds_response": "LLDS, gate by response",
    "llds_token": "LLDS, gate by token",
    "llds_ma": "LLDS-MA",
    "gspo_llds": "GSPO + LLDS",
}
WHY = {  # why Lp-Reg falls at the good rate: itself and two controls
    "lp_reg": "Lp-Reg",
    "lp_reg,lp_reg_coef=0": "the same without its term",
    "lp_reg,ratio_cap=none": "the same with GRPO's clip",
}
LEARNED = 10  # batches after which the lowest reward is looked for


def runs(updates: str = CHOSEN) -> dict[str, dict[float, dict[int, list[dict]]]]:
    """Rows of every whole run with so many updates per batch, by method, rate and seed."""
    found = defaultdict(lambda: defaultdict(dict))
    for given, rows in gathered("search.jsonl.gz", "methods.jsonl.gz", "later.jsonl.gz"):
        own = [f"{k}={v}" for k, v in given.items() if k not in SHARED | {"method", UPDATES}]
        name, rate = ",".join([given["method"], *own]), float(given["lr"])
        same = given.get(UPDATES, CHOSEN) == updates
        if name in NAMES | WHY and same and len(rows) == BATCHES:
            found[name][rate][int(given["seed"])] = rows
    return found


def dead(seeds: dict[int, list[dict]]) -> str:
    """How many collapse."""
    return f"{sum(fate != '-' for fate in fates(seeds))} of {len(seeds)}"


def drift(seeds: dict[int, list[dict]]) -> str:
    """How many nats per token the first batches lower all rows."""
    moved = [row["displacement/all_token"] for rows in seeds.values() for row in rows[:DRIFT]]
    return f"{-fmean(moved):.2f}"


def by_rate(found: dict[str, dict[float, dict[int, list[dict]]]], rates: Sequence[float]) -> str:
    """A row a method that has run: its end and fate at each rate, and its best rate."""
    lines = [
        [
            "start",
            *[
                start(
                    rows
                    for own in found.values()
                    for seeds in own.values()
                    for rows in seeds.values()
                )
            ]
            * len(rates),
            "-",
        ]
    ]
    for key, name in NAMES.items():
        own = {rate: found[key][rate] for rate in rates if found[key][rate]}
        cells = [f"{ends(own[r])}, {dead(own[r])}" if r in own else "not run" for r in rates]
        means = {r: fmean(map(exam, seeds.values())) for r, seeds in own.items()}
        best = rate_text(max(means, key=means.get)) if len(means) > 1 else "-"
        lines += [[name, *cells, best]] if own else []
    return markdown_table(["method", *map(rate_text, rates), "best rate"], lines)


def paired(found: dict[str, dict[float, dict[int, list[dict]]]], rate: float) -> str:
    """The ends of the methods with several seeds at a rate, less GRPO's of the same seed."""
    base, lines = found["grpo"][rate], []
    for key, name in NAMES.items():
        own = found[key][rate]
        if key == "grpo" or len(own) < len(base):
            continue
        gaps = [exam(own[seed]) - exam(base[seed]) for seed in sorted(base)]
        error = stdev(gaps) / len(gaps) ** 0.5
        mean = f"{fmean(gaps):+.2f} +- {error:.2f}"
        lines.append((fmean(gaps), [name, *(f"{gap:+.2f}" for gap in gaps), mean]))
    head = ["method", *(f"seed {seed}" for seed in sorted(base)), "mean +- standard error"]
    return markdown_table(head, [line for _, line in sorted(lines, reverse=True)])


def falls(found: dict[str, dict[float, dict[int, list[dict]]]]) -> str:
    """Lp-Reg and its two controls at the good rate: the end, the deepest fall, the fate."""
    lines = []
    for key, name in WHY.items():
        seeds = found[key][GOOD]
        rewards = [[row["reward/mean"] for row in seeds[seed]] for seed in sorted(seeds)]
        low = [f"{min(own[LEARNED:]):.2f}" for own in rewards]
        lines.append([name, ends(seeds), " ".join(low), dead(seeds)])
    head = f"lowest reward after {LEARNED} batches, by seed"
    return markdown_table([f"at {rate_text(GOOD)}", "end", head, "collapse"], lines)


def draw(found: dict[str, dict[float, dict[int, list[dict]]]]) -> None:
    """A panel a rate that most methods have run at, a line a method, a point a run."""
    shown = [rate for rate in RATES if sum(bool(own[rate]) for own in found.values()) > MOST]
    figure = Figure(figsize=(6 + 2 * len(shown), 0.24 * len(NAMES) + 1.2), layout="constrained")
    [panels] = figure.subplots(1, len(shown), sharey=True, squeeze=False)
    for panel, rate in zip(panels, shown, strict=True):
        style(panel, f"held out, rate {rate_text(rate)}", "")
        for height, key in enumerate(NAMES):
            points = [exam(rows) for rows in found[key][rate].values()]
            colour = COLOURS[2 if "llds" in key else 1 if "lp_reg" in key else 0]
            panel.scatter(points, [height] * len(points), color=colour, s=20, alpha=0.8)
        panel.set(xlim=(-0.03, 1), ylim=(len(NAMES) - 0.5, -0.5))
    panels[0].set_yticks(range(len(NAMES)), NAMES.values(), fontsize=SMALL)
    save(figure, HERE / "methods.png")


def main() -> None:
    """The tables of methods.md, in their order, and the figure."""
    found = runs()
    lines = [["start", start(found["dr_grpo"][FATAL].values()), "-", "-"]]
    lines += [[n, *(f(found[k][FATAL]) for f in (ends, dead, drift))] for k, n in NAMES.items()]
    print(markdown_table(["method", rate_text(FATAL), "collapse", "drift"], lines))
    print(by_rate(found, RATES))
    print(paired(found, GOOD))
    print(falls(found))
    print(by_rate(runs("1"), ON_POLICY))
    draw(found)


if __name__ == "__main__":
    main()
