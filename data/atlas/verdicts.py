"""Tables of weight.md, mismatch.md, rivals.md and of uncertain.md's long runs and second searches.

    python data/atlas/verdicts.py

Reads weight.jsonl.gz, mismatch.jsonl.gz, rivals.jsonl.gz, long_misses.jsonl.gz, again.jsonl.gz and,
for weight, uncertain.jsonl.gz. An end is the mean of the evaluations after 30 and 40 batches.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean

import pandas as pd
from collect import HERE, gathered
from ends import BATCHES, GREEDY, SAMPLED, Rows, ends, exam, fates
from matplotlib.figure import Figure

from lldlib.course import COOLER_COLOUR, LLDS_COLOUR
from lldlib.files import markdown_table
from lldlib.show.style import BATCH, save, style

MISSING, DRIFT = "eval/missing_em", "displacement/all_token"
GAP = "policy/sampler_kl"
NO_GRADIENT, TOKENS, TENS = "update/zero_gradient", "length/tokens", range(0, BATCHES, 10)
LOST = "displacement/correct_token"  # nats per token that a batch's updates add to correct rows

Found = dict[tuple, dict[int, Rows]]  # by what is varied, then by seed


def found(
    names: tuple[str, ...],
    key: Callable[[Mapping[str, str]], tuple],
    only: Callable = lambda g: True,
) -> Found:
    """The whole runs of the files by what `key` reads off their settings."""
    runs: Found = defaultdict(dict)
    for given, rows in gathered(*names):
        if len(rows) == BATCHES and only(given):
            runs[key(given)][int(given["seed"])] = rows
    return dict(sorted(runs.items(), key=lambda item: str(item[0])))


def mean(seeds: Mapping[int, Rows], key: str, last: int = BATCHES) -> float:
    """The mean of a column over batches up to `last` and over seeds, where it is logged."""
    return fmean(r[key] for rows in seeds.values() for r in rows[:last] if r.get(key) is not None)


def weight() -> None:
    """Ends by misses, lambda and rate; how often an update has no gradient."""
    names = ("weight.jsonl.gz", "uncertain.jsonl.gz")

    def key(given):
        kept = given.get("llds_preserve", "positive")
        coef = float(given["llds_coef"]) if given["method"] == "llds" else 0.0
        skipped = given.get("skip_zero_updates", "false") == "true"
        return float(given.get("misses", 0)), kept, skipped, coef, float(given["lr"])

    runs = found(names, key, lambda given: given.get("exam_half") != "test")
    rows = []
    for (misses, kept, skipped, coef, rate), seeds in sorted(runs.items()):
        missing = f"{fmean(exam(r, MISSING) for r in seeds.values()):.2f}" if misses else "-"
        none = sum(r[NO_GRADIENT] > 0 for own in seeds.values() for r in own)
        name = f"LLDS {coef:g}" if coef else "GRPO" + ", zero updates left out" * skipped
        rows.append(
            [
                *(f"{misses:g}", name + ", A >= 0" * (kept == "nonnegative"), f"{rate * 1e4:g}e-4"),
                *(" ".join(map(str, sorted(seeds))), ends(seeds), missing, "; ".join(fates(seeds))),
                *(f"{mean(seeds, LOST):+.3f}", str(none)),
            ]
        )
    head = ["misses", "arm", "rate", "seeds", "end", "searches miss", "collapse"]
    print(
        markdown_table([*head, "correct rows, nats per token", "batches without a gradient"], rows)
    )


def sampled_by(given: Mapping[str, str]) -> tuple[str, str]:
    """The sampler and the arm of a run."""
    fields = (("weights", "sampler_weights"), ("noise", "sampler_noise"), ("top-p", "top_p"))
    sampler = [f"{name} {given[field]}" for name, field in fields if field in given]
    arm = {"grpo": "GRPO", "llds": "GRPO + LLDS"}[given["method"]]
    fixed = given.get("sampler_correction")
    if "arm" in given:
        fixed = "ratio to the sampler"
    return " ".join(sampler) or "the policy itself", arm + (f", {fixed}" if fixed else "")


def mismatch() -> None:
    """Ends by sampler and remedy, with how far the sampler is from the policy."""
    rows = []
    for (sampler, arm), seeds in found(("mismatch.jsonl.gz",), sampled_by).items():
        gap, told = mean(seeds, GAP, 10), mean(seeds, GAP)
        weights = [r for own in seeds.values() for r in own if "policy/sampler_weight" in r]
        cut = f"{fmean(r['policy/sampler_weight'] for r in weights):.2f}" if weights else "-"
        rows.append(
            [
                *(sampler, arm, " ".join(map(str, sorted(seeds))), ends(seeds)),
                *("; ".join(fates(seeds)), f"{gap:.4f}, {told:.4f}"),
                *(f"{fmean(own[-1]['policy/entropy'] for own in seeds.values()):.2f}", cut),
            ]
        )
    head = ["sampler", "arm", "seeds", "end", "collapse", "sampler KL: first ten batches, all"]
    print(markdown_table([*head, "entropy at the end", "mean weight"], rows))


NAMES = {
    "sapo": "SAPO",
    "keep": "RAGEN-2's prompts",
    "reinforce": "REINFORCE",
    "cispo": "CISPO",
    "seal": "SEAL",
    "random": "as many random groups",
    "sixteen": "RAGEN-2's prompts, 16 updates",
}


def rivals() -> None:
    """Ends by method, misses and rate."""

    def key(given):
        name = given.get("arm") or ("keep" if "keep_mixed" in given else given["method"])
        return name, float(given.get("misses", 0)), float(given["lr"])

    rows = [
        [
            *(NAMES[name], f"{misses:g}", f"{rate * 1e4:g}e-4", " ".join(map(str, sorted(seeds)))),
            *(ends(seeds), "; ".join(fates(seeds)), f"{-mean(seeds, DRIFT, 10):.3f}"),
        ]
        for (name, misses, rate), seeds in found(("rivals.jsonl.gz",), key).items()
    ]
    head = ["method", "misses", "rate", "seeds", "end", "collapse", "drift, first ten batches"]
    print(markdown_table(head, rows))


FROM = 100  # the batch from which a long run is described
LAST = 10  # batches of a mean at the end, and of those among which the deepest fall is sought


def ranged(rows: Rows, key: str) -> str:
    """Mean, lowest and highest of the evaluations from batch FROM on."""
    values = [row[key] for row in rows[FROM - 1 :] if key in row]
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def deepest(rewards: list[float]) -> str:
    """How far a mean of ten batches sinks under its best before, and where those ten begin."""
    means = [fmean(rewards[i : i + LAST]) for i in range(len(rewards) - LAST + 1)]
    falls = [max(means[: i + 1]) - mean for i, mean in enumerate(means)]
    return f"{max(falls):.2f} at {falls.index(max(falls))}"


def long() -> None:
    """Long runs, with misses .35 where no other share is named, from batch FROM on."""
    rows = []
    for given, own in gathered("long_misses.jsonl.gz"):
        arm = {"grpo": "GRPO", "llds": f"LLDS {given.get('llds_coef')}"}.get(given["method"])
        arm = arm or f"GRPO, entropy bonus {given['entropy_coef']}"
        if given.get("misses", "0.35") != "0.35":
            arm += f", misses {given['misses']}"
        end = own[-LAST:]
        worst = min(own, key=lambda r: r[LOST] if r.get(LOST) is not None else 0.0)
        rows.append(
            [
                *(f"{arm}, {float(given['lr']) * 1e4:g}e-4", given["seed"], str(len(own))),
                *(ranged(own, key) for key in (SAMPLED, GREEDY, MISSING)),
                deepest([row["reward/mean"] for row in own]),
                f"{worst[LOST]:+.2f} at {worst['step']}",
                *(f"{fmean(r[key] for r in end):.2f}" for key in ("policy/entropy", TOKENS)),
                f"{fmean(row['search/valid'] for row in end):.2f}",
            ]
        )
    head = ["arm", "seed", "batches", "held out, sampled", "greedy", "searches miss"]
    head += ["deepest fall of the reward", "worst batch for correct rows, nats per token"]
    print(markdown_table([*head, "entropy", "tokens", "searches"], rows))


def again() -> None:
    """From a start that was shown to search again: the exam whose searches miss."""
    rows = []
    for given, own in gathered("again.jsonl.gz"):
        each = {key: [r[key] for r in own if key in r] for key in (SAMPLED, MISSING)}
        searches = " ".join(
            f"{fmean(r['search/valid'] for r in own[i : i + 10]):.2f}" for i in TENS
        )
        told = [" ".join(f"{v:.2f}" for v in values) for values in each.values()]
        rows.append([given["method"], given["lr"], *told, searches])
    head = ["method", "rate", "held out, sampled, every ten", "searches miss", "searches, by ten"]
    print(markdown_table(head, rows))


def misses() -> None:
    """What agents do after a miss, by batches, of after_misses.csv."""
    told = pd.read_csv(HERE / "after_misses.csv")
    acts = told[["again", "on", "answer", "other"]]
    share = acts.again / acts.sum(axis=1)
    told = told.assign(misses=acts.sum(axis=1), share=[f"{s:.2f}" for s in share])
    order = ["start", "arm", "rate", "seed", "batch", "misses", *acts, "share"]
    told = told.sort_values(order[:5])
    head = ["start", "arm", "rate", "seed", "from batch", "misses seen", "searches again"]
    head += ["goes on with what it got", "answers", "other", "share that searches again"]
    print(markdown_table(head, told[order].astype(str).values.tolist()))


WITH_MISSES = {  # arm and rate of the runs of `with_misses`: their name, colour and line
    ("grpo", 5e-5): ("GRPO, 0.5e-4", COOLER_COLOUR, ":"),
    ("grpo", 1e-4): ("GRPO, 1e-4", COOLER_COLOUR, "--"),
    ("grpo", 2e-4): ("GRPO, 2e-4", COOLER_COLOUR, "-"),
    ("llds", 2e-4): ("GRPO + LLDS, 2e-4", LLDS_COLOUR, "-"),
}


def with_misses() -> Figure:
    """200 batches whose searches miss now and then: rewards, and how often a miss is asked again.

    On the left a line is a run, its reward a mean of ten batches; on the right a line is an arm at
    a rate, with a point for 50 batches of its logged misses.
    """
    runs, acts = (
        pd.read_csv(HERE / f"{name}.csv").query("batch < 200")
        for name in ("long_misses", "after_misses")
    )
    acts = acts[acts.start == "half_taught"]
    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (arm, rate), (name, colour, look) in WITH_MISSES.items():
        one = runs[(runs.arm == arm) & (runs.rate == rate)]
        for seed, run in one.groupby("seed"):
            reward, label = run.reward.rolling(10).mean(), name if seed == 0 else "_"
            left.plot(run.batch, reward, look, color=colour, label=label, linewidth=1.5)
        told = acts[(acts.arm == arm) & (acts.rate == rate)].groupby("batch")
        told = told[["again", "on", "answer", "other"]].sum()
        share = told.again / told.sum(axis=1)
        right.plot(told.index + 25, share, look, marker="o", color=colour, label=name)
    style(left, BATCH, "reward (mean of ten batches)").set(ylim=(0, 0.6))
    style(right, BATCH, "misses that are asked again").set(ylim=(-0.02, 0.4))
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=4, frameon=False)
    return figure


def curves() -> None:
    """long_misses.csv, and its figure."""
    kept = {"step": "batch", "reward/mean": "reward", "stop/token_budget": "endless"}
    kept |= {SAMPLED: "right", MISSING: "right_misses", LOST: "correct_token"}
    parts = []
    for given, own in gathered("long_misses.jsonl.gz"):
        if given.get("misses", "0.35") != "0.35" or given["steps"] == "500":
            continue
        part = pd.DataFrame(own).reindex(columns=list(kept)).rename(columns=kept)
        parts.append(part.assign(arm=given["method"], rate=given["lr"], seed=given["seed"]))
    pd.concat(parts).to_csv(HERE / "long_misses.csv", index=False, float_format="%.4f")
    save(with_misses(), HERE / "long_misses.png")


if __name__ == "__main__":
    curves()
    for table in (weight, mismatch, rivals, long, again, misses):
        print(f"\n{table.__name__}\n")
        table()
