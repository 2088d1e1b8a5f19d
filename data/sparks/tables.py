"""Tables and figures of README.md from the recorded runs: python data/sparks/tables.py

`stage1.jsonl.gz` is the screening on seed 0, `runs.jsonl.gz` what was run on several seeds, both
made by collect.py. `ends.csv` and `curves.csv.gz` hold what notebook 8 draws of them. "Hard" is
exact match on held-out long sums, the mean of the last two evaluations, 32 sampled answers each.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lldlib.files import markdown_table
from lldlib.runs.summary import paired
from lldlib.show.style import BATCH, COLOURS, SMALL, save, style

HERE = Path(__file__).parent
LAST = 2  # evaluations that make an end
GUESS = 0.5  # whoever says the favourite has .45 of the exam's hard sums
FINAL = range(2, 7)  # seeds that chose nothing
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
    "entropy, nats per token": "policy/entropy",
}
BETA = "lp_reg,lp_reg_coef={},lp_reg_quantile=0.05,lp_reg_threshold={},lr={}"
NAMES = {  # of the arms, by the settings of their runs; in the order of the table
    "oracle": "oracle, 1e-3",
    "grpo_entropy,entropy_coef=0.05,lr=0.001": "entropy bonus .05, 1e-3 *",
    "grpo_entropy,entropy_coef=0.05,lr=0.0005": "entropy bonus .05, 5e-4",
    "grpo": "GRPO, 1e-3",
    "grpo,lr=0.0005": "GRPO, 5e-4 *",
    "lp_reg,lr=0.001": "Lp-Reg as in its paper, 1e-3",
    BETA.format(25, 0.02, 0.0005): "Lp-Reg, beta 25, 5e-4",
    BETA.format(100, 0.02, 0.001): "Lp-Reg, beta 100, 1e-3 *",
    "top_entropy,lr=0.001,top_entropy=0.1": "80/20, share .1, 1e-3",
    "top_entropy,lr=0.0005,top_entropy=0.1": "80/20, share .1, 5e-4 *",
}
OFF = {  # eight updates per batch
    "grpo,lr=0.0001": "GRPO, 1e-4",
    "grpo_entropy,entropy_coef=0.05,lr=0.0001": "entropy bonus .05, 1e-4",
    "clip_higher,clip_high=0.28,lr=0.0003": "Clip-Higher, 3e-4",
    BETA.format(25, 0.002, 0.0003): "Lp-Reg, beta 25, kappa .002, 3e-4",
    "lp_reg,lr=0.0001": "Lp-Reg as in its paper, 1e-4",
    "grpo,lr=0.0003": "GRPO, 3e-4 *",
    "grpo_entropy,entropy_coef=0.05,lr=0.0003": "entropy bonus .05, 3e-4 *",
}
TUNED = {  # tuned.py, seeds 2 to 4, beside fixed values
    "grpo": "GRPO, 1e-3",
    "lp_reg,lr=0.001": "Lp-Reg as in its paper, 1e-3",
    "lp_reg_tuned,lp_reg_coef=1,lr=1e-3": "self-tuned, beta 1, 1e-3",
    "lp_reg_tuned,lp_reg_coef=25,lr=1e-3": "self-tuned, beta 25, 1e-3",
    "grpo,lr=0.0005": "GRPO, 5e-4",
    BETA.format(25, 0.02, 0.0005): "Lp-Reg, beta 25, 5e-4",
    "lp_reg_tuned,lp_reg_coef=1,lr=5e-4": "self-tuned, beta 1, 5e-4",
    "lp_reg_tuned,lp_reg_coef=25,lr=5e-4": "self-tuned, beta 25, 5e-4",
}
KEPT = "llds,llds_coef={},llds_preserve=positive,{}lr=0.0003"
TUNED_OFF = {  # the same with eight updates per batch, and LLDS
    "grpo,lr=0.0003": "GRPO",
    "lp_reg_tuned,lp_reg_coef=1,lr=3e-4": "self-tuned Lp-Reg, beta 1",
    "lp_reg_tuned,lp_reg_coef=25,lr=3e-4": "self-tuned Lp-Reg, beta 25",
    KEPT.format(0.2, "llds_target=0.01,"): "self-tuned LLDS",
    KEPT.format(0.2, ""): "LLDS .2",
    KEPT.format(1, ""): "LLDS 1",
}
WATCHED = ("watch/spark_hard", "watch/noise_hard", "low_prob/threshold")  # on every batch
WATCHED += ("eval/heldout_em", "eval/checked_em")
DRAWN = [run for run in NAMES if "0.0005" not in run or "lp_reg" in run]


def read(name: str) -> pd.DataFrame:
    """A line a batch."""
    return pd.read_json(HERE / name, lines=True)


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """A line a run: its scores at the end and its levels in the last ten batches."""
    rows = []
    for (run, updates, lr, seed), part in frame.groupby(["run", "updates", "lr", "seed"]):
        row = {"run": run, "updates": updates, "lr": lr, "seed": seed}
        row |= {name: part[key].dropna().tail(LAST).mean() for name, key in SCORES.items()}
        row |= {name: part[key].tail(10).mean() for name, key in LEVELS.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def shown(value: float) -> str:
    """Small probabilities keep two digits."""
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"


def spread(values: pd.Series) -> str:
    """Mean and, of several, the standard deviation."""
    return shown(values.mean()) + (f" +- {shown(values.std())}" if len(values) > 1 else "")


def screening(updates: int) -> None:
    """Stage 1, best first, of runs with so many updates per batch."""
    table = ends(read("stage1.jsonl.gz")).sort_values("hard", ascending=False)
    table = table[table["updates"] == updates]
    names = ["hard", "pass@32", "easy", "checked", *LEVELS]
    lines = [[row["run"], *(shown(row[name]) for name in names)] for _, row in table.iterrows()]
    print(markdown_table(["run", *names], lines))


def results(updates: int, arms: dict[str, str], against: str, seeds: range) -> None:
    """The arms on seeds that chose nothing, each against one of them, paired by seed."""
    table = ends(read("runs.jsonl.gz"))
    table = table[(table["updates"] == updates) & table["seed"].isin(seeds)]
    names, lines = [*SCORES, *LEVELS], []
    rows = table.assign(arm=table["run"]).to_dict("records")
    for run, name in arms.items():
        own = table[table["run"] == run]
        gap = paired(rows, run, against, "hard", "hard")
        off = sum(own["hard"] > GUESS)
        cells = [f"{off} of {len(own)}", *(spread(own[key]) for key in names)]
        cells.append(f"{gap['difference']:+.3f} +- {gap['standard_error']:.3f}")
        lines.append([name, *cells])
    print(markdown_table(["arm", "beyond the guess", *names, "hard, less GRPO's"], lines))


def course(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What notebook 8 draws, by file: each run's end, and curves with one update a batch."""
    llds = {run: f"{name} *" for run, name in TUNED_OFF.items() if "llds" in run}
    arms = [((1, run), name) for run, name in NAMES.items()]
    arms = dict(arms + [((8, run), name) for run, name in (OFF | llds).items()])
    known = frame[frame["seed"].isin(FINAL)]
    found = ends(known)
    known, found = (
        part.assign(arm=[arms.get(pair) for pair in zip(part["updates"], part["run"], strict=True)])
        for part in (known, found)
    )
    keys = ["arm", "seed", "step", *WATCHED]
    return {
        "ends.csv": found.dropna(subset="arm").drop(columns="run"),
        "curves.csv.gz": known[known["updates"] == 1].dropna(subset="arm")[keys],
    }


def figure(frame: pd.DataFrame, names: dict[str, str], arms: list[str], name: str) -> None:
    """Four panels; a thin line a seed, a thick one their mean."""
    picture = Figure(figsize=(9, 6.4), layout="constrained")
    panels = picture.subplots(2, 2).flat
    for axes, (title, key) in zip(panels, PANELS.items(), strict=True):
        style(axes, BATCH, title)
        for run, colour in zip(arms, COLOURS, strict=True):
            part = frame[frame["run"] == run].dropna(subset=[key])
            for _, own in part.groupby("seed"):
                axes.plot(own["step"], own[key], color=colour, alpha=0.25, linewidth=0.7)
            mean = part.groupby("step")[key].mean()
            axes.plot(mean.index, mean, color=colour, linewidth=1.8, label=names[run].rstrip(" *"))
        if key.startswith("watch"):
            axes.set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(
        handles, labels, loc="outside lower center", ncols=3, fontsize=SMALL, frameon=False
    )
    save(picture, HERE / name)


def passes(frame: pd.DataFrame, arms: list[str], name: str) -> None:
    """pass@k on the hard sums at the end of a run; a thin line a seed, a thick one their mean."""
    picture = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = style(picture.subplots(), "k, answers sampled", "pass@k on hard sums")
    tries = [2**n for n in range(6)]
    keys = [f"eval/heldout_pass_{k}" for k in tries]
    for run, colour in zip(arms, COLOURS, strict=True):
        part = frame[frame["run"] == run].dropna(subset=keys)
        own = part.groupby("seed")[keys].apply(lambda some: some.tail(LAST).mean())
        for _, values in own.iterrows():
            axes.plot(tries, values, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(tries, own.mean(), color=colour, linewidth=1.8, label=NAMES[run].rstrip(" *"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(tries, [str(k) for k in tries], fontsize=SMALL)
    picture.legend(loc="outside right center", fontsize=SMALL, frameon=False)
    save(picture, HERE / name)


if __name__ == "__main__":
    screening(1)
    results(1, NAMES, "grpo", FINAL)
    screening(8)
    results(8, OFF, "grpo,lr=0.0001", FINAL)
    results(1, TUNED, "grpo", range(2, 5))
    results(8, TUNED_OFF, "grpo,lr=0.0003", FINAL)
    runs = read("runs.jsonl.gz")
    for file, table in course(runs).items():
        packed = {"method": "gzip", "mtime": 0} if file.endswith(".gz") else None
        table.to_csv(HERE / file, index=False, float_format="%.5g", compression=packed)
    runs = runs[runs["seed"].isin(FINAL)]
    figure(runs[runs["updates"] == 1], NAMES, DRAWN, "figure.png")
    passes(runs[runs["updates"] == 1], DRAWN, "passes.png")
    figure(runs[runs["updates"] == 8], OFF, list(OFF), "off_policy.png")
