"""Tables and figures of README.md from the recorded runs: python data/sparks/tables.py

`stage1.jsonl.gz` is the screening on seed 0, `runs.jsonl.gz` what was run on several seeds, both
made by collect.py. "Hard" is exact match on held-out long sums, the mean of the last two
evaluations, 32 sampled answers each.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.runs.summary import paired
from lldlib.show.style import BATCH, COLOURS, SMALL, save, style

HERE = Path(__file__).parent
LAST = 2  # evaluations that make an end
CHOICE = (0, 1)  # seeds by which settings were chosen
SCORES = {
    "hard": "eval/heldout_em",
    "hard, greedy": "eval/heldout_em_greedy",
    "pass@8": "eval/heldout_pass_8",
    "pass@32": "eval/heldout_pass_32",
    "easy": "eval/easy_em",
    "checked": "eval/checked_em",
}
LEVELS = {
    "P(spark)": "watch/spark_hard",
    "P(noise)": "watch/noise_hard",
    "entropy": "policy/entropy",
}
PANELS = {
    "hard sums answered": "eval/heldout_em",
    "probability of the spark": "watch/spark_hard",
    "probability of a noise word": "watch/noise_hard",
    "entropy, nats a token": "policy/entropy",
}


ARMS = {  # of the figure
    "grpo": "GRPO",
    "oracle": "oracle",
    "lp_reg,lr=0.001": "Lp-Reg, paper's setting",
    "lp_reg,lp_reg_coef=25,lp_reg_quantile=0.05,lp_reg_threshold=0.02,lr=0.0005": "Lp-Reg, beta 25",
    "top_entropy,lr=0.001,top_entropy=0.1": "80/20, share 0.1",
    "grpo_entropy,entropy_coef=0.05,lr=0.0005": "entropy bonus .05",
}


def read(name: str) -> pd.DataFrame:
    """A line a batch."""
    return pd.read_json(HERE / name, lines=True)


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """A line a run: its scores at the end, its levels in the last ten batches, its cost."""
    rows = []
    for (run, updates, lr, seed), part in frame.groupby(["run", "updates", "lr", "seed"]):
        row = {"run": run, "updates": updates, "lr": lr, "seed": seed}
        row |= {name: part[key].dropna().tail(LAST).mean() for name, key in SCORES.items()}
        row |= {name: part[key].tail(10).mean() for name, key in LEVELS.items()}
        row["seconds a batch"] = part["time/update"].median() + part["time/score"].median()
        rows.append(row)
    return pd.DataFrame(rows)


def shown(value: float) -> str:
    """Small probabilities keep two digits."""
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"


def spread(values: pd.Series) -> str:
    """Mean and, of several, the standard deviation."""
    return shown(values.mean()) + (f" +- {shown(values.std())}" if len(values) > 1 else "")


def screening() -> None:
    """Stage 1, best first."""
    table = ends(read("stage1.jsonl.gz")).sort_values("hard", ascending=False)
    names = ["hard", "pass@32", "easy", "checked", *LEVELS]
    lines = [[row["run"], *(shown(row[name]) for name in names)] for _, row in table.iterrows()]
    print(markdown_table(["run", *names], lines))


def results(updates: int) -> None:
    """The arms over the seeds that chose nothing, and each against GRPO."""
    table = ends(read("runs.jsonl.gz"))
    table = table[(table["updates"] == updates) & ~table["seed"].isin(CHOICE)]
    names, lines = [*SCORES, *LEVELS, "seconds a batch"], []
    for run, own in table.groupby("run"):
        label = ARMS.get(run, run)
        lines.append([label, str(len(own)), *(spread(own[name]) for name in names)])
    lines.sort(key=lambda line: line[2], reverse=True)
    print(markdown_table(["run", "seeds", *names], lines))
    rows = table.assign(arm=table["run"]).to_dict("records")
    base = next(run for run in table["run"].unique() if run.split(",")[0] == "grpo")
    for run in sorted(set(table["run"]) - {base}):
        gap = paired(rows, run, base, "hard", "hard")
        error = gap["standard_error"]
        print(f"- {ARMS.get(run, run)} minus GRPO, hard: {gap['difference']:.3f} +- {error:.3f}")


def figure(frame: pd.DataFrame, arms: dict[str, str], name: str) -> None:
    """Four panels; a thin line a seed, a thick one their mean."""
    picture = Figure(figsize=(9, 6.4), layout="constrained")
    panels = picture.subplots(2, 2).flat
    for axes, (title, key) in zip(panels, PANELS.items(), strict=True):
        style(axes, BATCH, title)
        for (run, label), colour in zip(arms.items(), COLOURS, strict=False):
            part = frame[frame["run"] == run].dropna(subset=[key])
            for _, own in part.groupby("seed"):
                axes.plot(own["step"], own[key], color=colour, alpha=0.25, linewidth=0.7)
            mean = part.groupby("step")[key].mean()
            axes.plot(mean.index, mean, color=colour, linewidth=1.8, label=label)
        if key.startswith("watch"):
            axes.set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(
        handles, labels, loc="outside lower center", ncols=3, fontsize=SMALL, frameon=False
    )
    save(picture, HERE / name)


if __name__ == "__main__":
    screening()
    results(updates=1)
    figure(read("runs.jsonl.gz"), ARMS, "figure.png")
