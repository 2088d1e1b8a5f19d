"""All methods in the atlas, from methods.jsonl.gz: python data/atlas/methods.py

Prints the table of methods.md and draws methods.png. GRPO, LLDS and the controls are the recorded
runs of search.jsonl.gz. An end is the mean of the evaluations after 30 and 40 batches.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from lldlib.files import markdown_table, read_jsonl
from lldlib.runs.phases import find_collapse
from lldlib.show.style import COLOURS, SMALL, save, style

HERE = Path(__file__).parent
SHARED = {"eval_every", "policy", "steps", "checkpoint_every", "probe_every", "lr", "seed"}
BATCHES, EXAMS = 40, (29, 39)
RATES, HOT = (2e-4, 4e-4, 6e-4, 1e-3), 1e-3
DRIFT = 10  # batches
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
    "llds_code": "LLDS, divided by all tokens",
    "llds_response": "LLDS, gate by response",
    "llds_token": "LLDS, gate by token",
    "llds_ma": "LLDS-MA",
    "gspo_llds": "GSPO + LLDS",
}


def runs() -> dict[str, dict[float, dict[int, list[dict]]]]:
    """Rows of every whole run, by method, rate and seed."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for file in ("search.jsonl.gz", "methods.jsonl.gz"):
        for _, row in read_jsonl(HERE / file):
            given = dict(part.split("=") for part in row["run"].split(","))
            own = [f"{k}={v}" for k, v in given.items() if k not in SHARED | {"method"}]
            name = ",".join([given["method"], *own])
            if name in NAMES and given["steps"] == str(BATCHES):
                found[name][float(given["lr"])][int(given["seed"])].append(row)
    return found


def exam(rows: list[dict], key: str) -> float:
    """The mean of the last two exams."""
    return fmean(row[key] for row in rows if row["step"] in EXAMS)


def cell(seeds: dict[int, list[dict]]) -> str:
    """Mean end and each seed's, sampled; greedy; how many collapse."""
    if not seeds:
        return "-"
    ends = {seed: exam(rows, "eval/heldout_em") for seed, rows in sorted(seeds.items())}
    greedy = fmean(exam(rows, "eval/heldout_em_greedy") for rows in seeds.values())
    dead = [find_collapse([row["reward/mean"] for row in rows]).batch for rows in seeds.values()]
    each = f" ({' '.join(f'{end:.2f}' for end in ends.values())})" if len(ends) > 1 else ""
    fate = f", {sum(d is not None for d in dead)} of {len(dead)} collapse" if any(dead) else ""
    return f"{fmean(ends.values()):.2f}{each} / {greedy:.2f}{fate}"


def drift(seeds: dict[int, list[dict]]) -> str:
    """Nats a token by which a batch's updates lower all rows, mean over the first ten batches."""
    moved = [row["displacement/all_token"] for rows in seeds.values() for row in rows[:DRIFT]]
    return f"{-fmean(moved):.2f}" if moved else "-"


def main() -> None:
    """Table and figure."""
    found = runs()
    rates = sorted({rate for by_rate in found.values() for rate in by_rate if rate in RATES})
    lines = [
        [name, *(cell(found[key].get(rate, {})) for rate in rates), drift(found[key][HOT])]
        for key, name in NAMES.items()
        if key in found
    ]
    print(markdown_table(["method", *(f"{rate:g}" for rate in rates), f"drift at {HOT:g}"], lines))
    draw(found, rates)


def draw(found: dict, rates: list[float]) -> None:
    """A panel for each rate at which most methods ran, a line a method, a point a run."""
    names = {key: name for key, name in NAMES.items() if key in found}
    rates = [rate for rate in rates if 2 * sum(rate in found[key] for key in names) > len(names)]
    figure = Figure(figsize=(8.5, 0.24 * len(names) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    for ax, rate in zip(panels, rates, strict=True):
        style(ax, "held-out exact match", "").set_title(f"learning rate {rate:g}", fontsize=SMALL)
        for height, key in enumerate(names):
            ends = [exam(rows, "eval/heldout_em") for rows in found[key].get(rate, {}).values()]
            colour = COLOURS[2 if "llds" in key else 1 if "lp_reg" in key else 0]
            ax.scatter(ends, [height] * len(ends), color=colour, s=20, alpha=0.8)
        ax.set(xlim=(-0.03, 1), yticks=range(len(names)))
        ax.set_yticklabels(names.values(), fontsize=SMALL)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.grid(axis="x", color="0.85", linewidth=0.6)
    save(figure, HERE / "methods.png")


if __name__ == "__main__":
    main()
