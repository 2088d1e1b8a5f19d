"""The phase rule beside labels that were given by eye: counts and a figure.

    python data/atlas/phases.py

`phases.csv` has a row a run: its sample, the kind it was drawn as, where its metrics lie, and the
labels by hand, such as "learning 9, steady": learning up to batch 9, steady to the end. Writes
phases.png, the fifty runs of the second sample.
"""

from collections import Counter
from functools import cache
from pathlib import Path
from statistics import fmean

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lldlib.files import markdown_table, read_jsonl
from lldlib.runs.phases import PHASE_KEYS, PhaseRule, find_collapse, live_labels, phase_labels
from lldlib.show.style import SHADES, SMALL, stretches

DATA = Path(__file__).resolve().parent.parent
RULE, NEAR, MOST = PhaseRule(), 3, 0.75  # batches; share of a run's batches
SPARKS = ("run", "seed", "batches", "updates", "lr")  # a line of data/sparks names its run by these


@cache
def runs_of(file: str) -> dict[str, pd.DataFrame]:
    """The metrics of every run of a gathered file, by its name."""
    found: dict[str, list[dict]] = {}
    for _, row in read_jsonl(DATA / file):
        keys = SPARKS if "seed" in row else ("run",)
        found.setdefault("|".join(str(row[key]) for key in keys), []).append(row)
    return {name: pd.DataFrame(rows) for name, rows in found.items()}


def series(file: str, run: str) -> tuple[list[float], list[float]]:
    """Reward and likelihood of a run, nan where none was measured."""
    frame = runs_of(file)[run]
    return tuple(frame.reindex(columns=[key])[key].astype(float).tolist() for key in PHASE_KEYS)


def spelled(text: str, batches: int) -> list[str]:
    """The labels by hand, one per batch."""
    labels: list[str] = []
    for part in text.split(", "):
        name, _, last = part.partition(" ")
        labels += [name] * ((int(last) + 1 if last else batches) - len(labels))
    return labels


def judge(table: pd.DataFrame) -> pd.DataFrame:
    """What the rule says of each run beside the hand."""
    rows = []
    for row in table.itertuples():
        reward, probe = series(row.file, row.run)
        hand = spelled(row.hand, len(reward))
        rule, live = phase_labels(reward, probe, RULE), live_labels(reward, probe, RULE)
        found = find_collapse(reward, RULE)
        same = [fmean(a == b for a, b in zip(labels, hand, strict=True)) for labels in (rule, live)]
        fell = hand.index("collapse") if "collapse" in hand else None
        rows.append((*same, fell, found.began, found.known, list(zip(hand, rule, strict=True))))
    names = ["same", "live", "hand_began", "began", "known", "pairs"]
    return table.join(pd.DataFrame(rows, columns=names, index=table.index).astype(object))


def report(sample: int, judged: pd.DataFrame) -> None:
    """The counts of one sample."""
    print(f"\nsample {sample}: the rule with hindsight, and live, against the hand\n")
    lines = []
    for kind in SHADES:
        own = judged[judged["kind"] == kind]
        agree = sum(own["same"] >= MOST)
        means = (f"{fmean(own[key]):.2f}" for key in ("same", "live"))
        lines.append([kind, f"{agree} of {len(own)}", *means])
    lines.append(["all", f"{sum(judged['same'] >= MOST)} of {len(judged)}"])
    lines[-1] += [f"{fmean(judged[key]):.2f}" for key in ("same", "live")]
    print(markdown_table(["kind", "at least 3 of 4 batches", "share of batches", "live"], lines))
    both = judged[judged["began"].notna() & judged["hand_began"].notna()]
    near = sum(abs(both["began"] - both["hand_began"]) <= NEAR)
    waits = (both["known"] - both["began"]).astype(int)
    print(f"\ncollapses by both: {len(both)}, beginnings at most {NEAR} batches apart: {near}")
    print(f"known {waits.min()} to {waits.max()} batches after they began, median {waits.median()}")
    print("by the hand alone:", int((judged["began"].isna() & judged["hand_began"].notna()).sum()))
    print("by the rule alone:", int((judged["began"].notna() & judged["hand_began"].isna()).sum()))
    unlike = Counter(pair for pairs in judged["pairs"] for pair in pairs if pair[0] != pair[1])
    print(
        "batches, hand -> rule:",
        ", ".join(f"{a} -> {b} {n}" for (a, b), n in unlike.most_common(8)),
    )


def picture(judged: pd.DataFrame) -> Figure:
    """Small multiples, a column a kind; the strip under each panel is the hand's."""
    figure = Figure(figsize=(9.5, 13.5), layout="constrained")
    panels = figure.subplots(10, 5)
    for column, kind in zip(panels.T, SHADES, strict=True):
        for ax, row in zip(column, judged[judged["kind"] == kind].itertuples(), strict=True):
            reward, probe = series(row.file, row.run)
            for labels, low, high in (
                (phase_labels(reward, probe, RULE), 0.1, 1),
                (spelled(row.hand, len(reward)), 0, 0.1),
            ):
                for phase, start, length in stretches(labels):
                    ax.axvspan(start - 0.5, start + length - 0.5, low, high, fc=SHADES[phase], lw=0)
            ax.axhline(-0.02, color="white", linewidth=1)
            ax.plot(reward, color="black", linewidth=0.6)
            if pd.notna(row.began):
                ax.axvline(row.began, color="black", linewidth=0.8)
                ax.axvline(row.known, color="black", linewidth=0.8, linestyle=":")
            ax.set(ylim=(-0.13, 1), xlim=(-0.5, len(reward) - 0.5))
            ax.set_yticks([0, 0.5, 1])
            ax.tick_params(labelsize=6, length=2)
            known = pd.Series(probe).dropna()
            if len(known):
                own = ax.twinx()
                own.plot(known, color="#D55E00", linewidth=0.9)
                floor = min(-0.5, known.min())
                own.set(ylim=(floor * 1.13, 0))
                own.tick_params(labelsize=6, length=2, labelcolor="#D55E00")
        column[0].set_title(kind, fontsize=SMALL)
    handles = [Patch(facecolor=c, edgecolor="0.6", label=phase) for phase, c in SHADES.items()]
    figure.legend(
        handles=handles, fontsize=SMALL, frameon=False, loc="outside upper center", ncols=5
    )
    figure.supxlabel(
        "rollout batch. Black: reward; orange: probe log-prob (nats per token). Shades: the rule "
        "with hindsight; strip below: by hand.\nA collapse: line, where its fall began; dots, "
        "where it could be known.",
        fontsize=SMALL,
    )
    return figure


def main() -> None:
    """Print the counts of both samples, draw the second."""
    table = pd.read_csv(DATA / "atlas/phases.csv", dtype={"hand": str})
    for sample, own in table.groupby("sample"):
        judged = judge(own)
        report(sample, judged)
    picture(judged).savefig(DATA / "atlas/phases.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
