"""All methods at the fatal rate, from methods.jsonl.gz: python data/atlas/methods.py

Prints the table of methods.md and draws methods.png. GRPO, LLDS and the controls are the recorded
runs of search.jsonl.gz. An end is the mean of the evaluations after 30 and 40 batches.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from collect import gathered
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse
from lldlib.show.style import COLOURS, SMALL, save, style

HERE = Path(__file__).parent
SHARED = {"eval_every", "policy", "steps", "checkpoint_every", "probe_every", "lr", "seed"}
BATCHES, EXAMS = 40, (29, 39)
RATE = 1e-3
DRIFT = 10  # batches whose updates are asked how far they lower all rows, nats a token
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


def runs() -> dict[str, dict[int, list[dict]]]:
    """Rows of every whole run at the fatal rate, by method and seed."""
    found = defaultdict(dict)
    for given, rows in gathered("search.jsonl.gz", "methods.jsonl.gz"):
        own = [f"{k}={v}" for k, v in given.items() if k not in SHARED | {"method"}]
        name = ",".join([given["method"], *own])
        if name in NAMES and float(given["lr"]) == RATE and len(rows) == BATCHES:
            found[name][int(given["seed"])] = rows
    return found


def exam(rows: list[dict], key: str) -> float:
    """The mean of the last two exams."""
    return fmean(row[key] for row in rows if row["step"] in EXAMS)


def cells(seeds: dict[int, list[dict]]) -> list[str]:
    """Mean end and each seed's, sampled, and greedy; how many collapse; the drift."""
    ends = {seed: exam(rows, "eval/heldout_em") for seed, rows in sorted(seeds.items())}
    greedy = fmean(exam(rows, "eval/heldout_em_greedy") for rows in seeds.values())
    each = f" ({' '.join(f'{end:.2f}' for end in ends.values())})" if len(ends) > 1 else ""
    fates = [find_collapse([row["reward/mean"] for row in rows]).batch for rows in seeds.values()]
    moved = [row["displacement/all_token"] for rows in seeds.values() for row in rows[:DRIFT]]
    return [
        f"{fmean(ends.values()):.2f}{each} / {greedy:.2f}",
        f"{sum(fate is not None for fate in fates)} of {len(fates)}",
        f"{-fmean(moved):.2f}",
    ]


def main() -> None:
    """Table and figure."""
    found = runs()
    lines = [[name, *cells(found[key])] for key, name in NAMES.items()]
    print(markdown_table(["method", f"{RATE:g}", "collapse", "drift"], lines))
    figure = Figure(figsize=(8.5, 0.24 * len(NAMES) + 1.2), layout="constrained")
    axes = style(figure.subplots(), f"held-out exact match, learning rate {RATE:g}", "")
    for height, key in enumerate(NAMES):
        ends = [exam(rows, "eval/heldout_em") for rows in found[key].values()]
        colour = COLOURS[2 if "llds" in key else 1 if "lp_reg" in key else 0]
        axes.scatter(ends, [height] * len(ends), color=colour, s=20, alpha=0.8)
    axes.set(xlim=(-0.03, 1), ylim=(len(NAMES) - 0.5, -0.5))
    axes.set_yticks(range(len(NAMES)), NAMES.values(), fontsize=SMALL)
    save(figure, HERE / "methods.png")


if __name__ == "__main__":
    main()
