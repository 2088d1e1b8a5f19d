"""Tables of weight.md, mismatch.md, rivals.md and of long_misses.md.

    python data/atlas/verdicts.py

Reads weight.jsonl.gz, mismatch.jsonl.gz, rivals.jsonl.gz, long_misses.jsonl.gz, again.jsonl.gz and,
for what stands beside them, the files of GRID and HOT; draws weight.png. An end is the mean
of the evaluations after 30 and 40 batches.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from io import BytesIO
from statistics import fmean

import pandas as pd
from collect import HERE, gathered, rate_text
from ends import BATCHES, GREEDY, SAMPLED, Rows, ends, exam, fates
from matplotlib.figure import Figure
from uncertain import interval

from lldlib.course import COOLER_COLOUR, LLDS_COLOUR, light
from lldlib.files import markdown_table, write_whole
from lldlib.runs.phases import find_collapse
from lldlib.show.style import BATCH, COLOURS, WIDTH, save, style

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


PLAIN = {"method", "policy", "lr", "seed", "steps", "misses", "llds_coef", "llds_preserve"}
PLAIN |= {"checkpoint_every", "eval_every", "probe_every", "exam_half"}
GRID = ("weight.jsonl.gz", "uncertain.jsonl.gz", "mismatch.jsonl.gz")
OLDER = ("search.jsonl.gz", "later.jsonl.gz")  # runs on the older planets
HOT = ("smaller_step.jsonl.gz", "other_steps.jsonl.gz", "rivals.jsonl.gz", "methods.jsonl.gz")
HOT += ("limits.jsonl.gz", *OLDER)
HOT_RATE, A_POSITIVE = 1e-3, "positive"


def weighed(*names: str) -> Found:
    """GRPO and LLDS of seeds 0 to 2, validation half, by misses, kept rows, lambda and rate."""

    def key(given):
        kept = given.get("llds_preserve", A_POSITIVE)
        coef = float(given["llds_coef"]) if given["method"] == "llds" else 0.0
        return float(given.get("misses", 0)), kept, coef, float(given["lr"])

    def only(given):
        same = given.keys() <= PLAIN and given["method"] in ("grpo", "llds")
        return same and given.get("exam_half") != "test" and int(given["seed"]) < 3

    return found(names, key, only)


def weight() -> None:
    """Ends by misses, lambda and rate; how often no group of a batch is mixed."""
    rows = []
    for (misses, kept, coef, rate), seeds in sorted(weighed(*GRID).items()):
        missing = f"{fmean(exam(r, MISSING) for r in seeds.values()):.2f}" if misses else "-"
        none = sum(r[NO_GRADIENT] > 0 for own in seeds.values() for r in own)
        name = f"LLDS {coef:g}" if coef else "GRPO"
        rows.append(
            [
                *(f"{misses:g}", name + ", A >= 0" * (kept != A_POSITIVE), rate_text(rate)),
                *(" ".join(map(str, sorted(seeds))), ends(seeds), missing, "; ".join(fates(seeds))),
                *(f"{mean(seeds, LOST):+.3f}", str(none)),
            ]
        )
    head = ["misses", "arm", "rate", "seeds", "end", "searches miss", "collapse"]
    print(
        markdown_table([*head, "correct rows, nats per token", "batches without a gradient"], rows)
    )
    print()
    unmixed()


def unmixed() -> None:
    """Batches without a mixed group: before the fall of a collapse begins, and from then on.

    All runs of GRID, and those at the hot rate of the other files.
    """
    counts: dict[tuple, list[int]] = defaultdict(lambda: [0] * 7)
    for name in (*GRID, *HOT):
        for given, own in gathered(name):
            rate = float(given.get("lr", HOT_RATE if "_step" in name else 0))
            if name in HOT and rate != HOT_RATE:
                continue
            fall = find_collapse([row["reward/mean"] for row in own])
            begun = len(own) if fall.began is None else fall.began
            bare = [row["step"] for row in own if row["reward/mixed_groups"] == 0]
            early = sum(step < begun for step in bare)
            logged = [row[NO_GRADIENT] > 0 for row in own if NO_GRADIENT in row]
            counted = early, len(bare) - early, sum(logged), len(logged)
            told = (1, fall.known is not None, len(own), *counted)
            line = counts[name in HOT, rate, kind(name, given)]
            line[:] = [a + b for a, b in zip(line, told, strict=True)]
    rows = [[n, rate_text(r), *map(str, told)] for (_, r, n), told in sorted(counts.items())]
    head = ["arm", "rate", "runs", "collapse", "batches", "no mixed group before the fall begins"]
    print(
        markdown_table([*head, "from then on", "a gradient of 0", "of batches that log it"], rows)
    )


def kind(name: str, given: Mapping[str, str]) -> str:
    """The line of a run in the table of `unmixed`."""
    if name.startswith("rivals"):
        return "rivals"
    if "arm" in given:
        return f"control: {given['arm']}"
    if given["method"] in ("grpo", "llds"):
        changed = not given.keys() <= PLAIN or given.get("llds_preserve") == "negative"
        misses = f", misses {given['misses']}" if float(given.get("misses", 0)) else ""
        return given["method"] + (", another setting" if changed else misses)
    return "other methods" + " with LLDS" * ("llds" in given["method"])


RATES, LAMBDAS = (1e-4, 2e-4, 4e-4, 6e-4, HOT_RATE), (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
SMALL_DPI = 80


def by_lambda() -> Figure:
    """The end by lambda with misses and without: a dot is a run, a line joins a rate's means.

    Without misses open dots are runs on the older planets.
    """
    grid, older = weighed(*GRID), weighed(*OLDER)
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    for ax, misses in zip(figure.subplots(1, 2, sharey=True), (0.35, 0.0), strict=True):
        for rate, colour in zip(RATES, COLOURS, strict=False):
            line = []
            for place, coef in enumerate(LAMBDAS):
                cell = (misses, A_POSITIVE, coef, rate)
                full = [exam(rows) for rows in grid.get(cell, {}).values()]
                bare = [exam(rows) for rows in older.get(cell, {}).values()] * (not misses)
                for values, face in ((full, colour), (bare, "white")):
                    ax.scatter([place] * len(values), values, s=16, c=face, ec=colour, zorder=3)
                line += [(place, fmean(full + bare))] if full + bare else []
            where, height = zip(*line, strict=True) if line else ((), ())
            ax.plot(where, height, color=colour, label=rate_text(rate))
        style(ax, "lambda (0: GRPO)", "held out, sampled, at the end" if misses else "")
        ax.set(title=f"misses {misses:g}" if misses else "no misses", ylim=(-0.03, 1))
        ax.set_xticks(range(len(LAMBDAS)), [f"{coef:g}" for coef in LAMBDAS])
    handles = ax.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(RATES), frameon=False)
    return figure


def draw_by_lambda() -> None:
    """weight.png, of few bytes."""
    drawn = BytesIO()
    by_lambda().savefig(drawn, format="png", dpi=SMALL_DPI, facecolor="white")
    write_whole(HERE / "weight.png", light(drawn.getvalue()))


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
RIVAL_RATES = (2e-4, 6e-4, HOT_RATE)


def no_control(given: Mapping[str, str]) -> bool:
    """Whether a run of the smaller steps is plain GRPO or LLDS, without misses."""
    return given.get("arm") in ("plain", "llds") and not float(given.get("misses", 0))


def bare(given: Mapping[str, str]) -> tuple[float, str, float, float]:
    """Such a run as a cell of `weighed`; the weight of LLDS is not in its name."""
    rate = float(given.get("lr", HOT_RATE))
    coef = 0.0 if given["arm"] == "plain" else 0.2 if rate < HOT_RATE else 0.5
    return 0.0, A_POSITIVE, coef, rate


def rivals() -> None:
    """Ends by method, misses and rate, and those of GRPO and LLDS at the same rates."""

    def key(given):
        name = given.get("arm") or ("keep" if "keep_mixed" in given else given["method"])
        return name, float(given.get("misses", 0)), float(given["lr"])

    rows = [
        [
            *(NAMES[name], f"{misses:g}", rate_text(rate), " ".join(map(str, sorted(seeds)))),
            *(ends(seeds), "; ".join(fates(seeds)), f"{-mean(seeds, DRIFT, 10):.3f}"),
            " ".join(str(sum(r[NO_GRADIENT] > 0 for r in seeds[seed])) for seed in sorted(seeds)),
        ]
        for (name, misses, rate), seeds in found(("rivals.jsonl.gz",), key).items()
    ]
    same = weighed(*GRID) | found(("limits.jsonl.gz", HOT[0]), bare, no_control)
    for planets, runs in (("", same), (", older planets", weighed(*OLDER))):
        for (misses, kept, coef, rate), seeds in runs.items():
            if kept != A_POSITIVE or rate not in RIVAL_RATES or misses not in (0, 0.35):
                continue
            if coef not in (0.0, 0.2, 0.5):
                continue
            own = {seed: seeds[seed] for seed in range(3) if seed in seeds}
            name = (f"LLDS {coef:g}" if coef else "GRPO") + planets
            rows.append(
                [
                    *(name, f"{misses:g}", rate_text(rate), " ".join(map(str, own))),
                    *(ends(own), "; ".join(fates(own)), f"{-mean(own, DRIFT, 10):.3f}", "-"),
                ]
            )
    head = ["method", "misses", "rate", "seeds", "end", "collapse", "drift, first ten batches"]
    print(markdown_table([*head, "batches with an update of gradient 0"], rows))


def paired() -> None:
    """Rivals at 2e-4, and with misses at their best rates: each seed's end, paired differences."""

    def key(given):
        name = "keep" if "keep_mixed" in given else given["method"]
        return float(given.get("misses", 0)), NAMES[given.get("arm", name)], float(given["lr"])

    runs, bases = found(("rivals.jsonl.gz",), key), weighed(*GRID)
    for misses, rate in ((0.35, 2e-4), (0.35, None), (0.0, 2e-4)):
        names = {name for at, name, _ in runs if at == misses}
        arms = {name: (misses, name, rate or best_rate(runs, misses, name)) for name in names}
        usual = rate or 1e-4  # GRPO's own best with misses, and LLDS's by the rule
        own = {
            name: bases[misses, A_POSITIVE, coef, usual]
            for name, coef in (("GRPO", 0.0), ("LLDS .2", 0.2))
            if (misses, A_POSITIVE, coef, usual) in bases
        }
        rows = [paired_row(name, seeds, own, usual) for name, seeds in own.items()]
        rows += [
            paired_row(name, runs[at], own, at[2])
            for name, at in sorted(arms.items())
            if at in runs
        ]
        head = ["method", "rate", "seeds", "ends", "mean", "greedy", "collapse"]
        head += [f"minus {name}" for name in own]
        print(f"misses {misses:g}\n{markdown_table([*head, 'drift, first ten batches'], rows)}")


def best_rate(runs: Found, misses: float, name: str) -> float:
    """The rate at which a method ends highest on seed 0."""
    rates = [rate for at, who, rate in runs if (at, who) == (misses, name)]
    return max(rates, key=lambda rate: exam(runs[misses, name, rate][0]))


def paired_row(
    name: str, seeds: Mapping[int, Rows], own: Mapping[str, Mapping[int, Rows]], rate: float
) -> list[str]:
    """A method's ends, and their paired differences from the arms of `own`."""
    ends = {seed: exam(seeds[seed]) for seed in sorted(seeds)}
    row = [
        name,
        rate_text(rate),
        " ".join(map(str, ends)),
        " ".join(f"{e:.2f}" for e in ends.values()),
    ]
    for k in (SAMPLED, GREEDY):
        row.append(f"{fmean(exam(run, k) for run in seeds.values()):.2f}")
    row.append("; ".join(fates(seeds)))
    for base in own.values():
        differences = [end - exam(base[seed]) for seed, end in ends.items()]
        row.append(interval(differences) if seeds is not base else "")
    return [*row, f"{-mean(seeds, DRIFT, 10):.3f}"]


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


def arm_of(given: Mapping[str, str]) -> str:
    """The name of a long run: method, share of misses unless .35, limit on updates, rate."""
    arm = {"grpo": "GRPO", "llds": f"LLDS {given.get('llds_coef')}"}.get(given["method"])
    arm = arm or f"GRPO, entropy bonus {given['entropy_coef']}"
    if given.get("misses", "0.35") != "0.35":
        arm += f", misses {given['misses']}"
    if "move_limit" in given:
        arm += f", limit {given['move_limit']}"
    return f"{arm}, {rate_text(float(given['lr']))}"


def long() -> None:
    """Long runs, with misses .35 where no other share is named, from batch FROM on."""
    rows = []
    for given, own in gathered("long_misses.jsonl.gz"):
        end = own[-LAST:]
        worst = min(own, key=lambda r: r[LOST] if r.get(LOST) is not None else 0.0)
        rows.append(
            [
                *(arm_of(given), given["seed"], str(len(own))),
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
    ("grpo", 5e-5): ("GRPO, 5e-5", COOLER_COLOUR, ":"),
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
    draw_by_lambda()
    for table in (weight, mismatch, rivals, paired, long, again, misses):
        print(f"\n{table.__name__}\n")
        table()
