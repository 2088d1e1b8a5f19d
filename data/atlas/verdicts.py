"""The tables of weight.md, mismatch.md and rivals.md: python data/atlas/verdicts.py

Reads weight.jsonl.gz, mismatch.jsonl.gz, rivals.jsonl.gz and, of weight, uncertain.jsonl.gz. An end
is the mean of the evaluations after 30 and 40 batches.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean

from collect import gathered
from ends import BATCHES, Rows, ends, exam, fates

from lldlib.files import markdown_table

MISSING, DRIFT = "eval/missing_em", "displacement/all_token"
NO_GRADIENT = "update/zero_gradient"
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


def mismatch() -> None:
    """Ends by sampler and remedy, with how far the sampler is from the policy."""

    def key(given):
        sampler = [
            f"{name} {given[field]}"
            for name, field in (
                ("weights", "sampler_weights"),
                ("noise", "sampler_noise"),
                ("top-p", "top_p"),
            )
            if field in given
        ]
        arm = {"grpo": "GRPO", "llds": "GRPO + LLDS"}[given["method"]]
        fixed = given.get("sampler_correction")
        return " ".join(sampler) or "the policy itself", arm + (f", {fixed}" if fixed else "")

    rows = []
    for (sampler, arm), seeds in found(("mismatch.jsonl.gz",), key).items():
        gap = mean(seeds, "policy/sampler_kl", 10)
        told = mean(seeds, "policy/sampler_kl")
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


if __name__ == "__main__":
    for table in (weight, mismatch, rivals):
        print(f"\n{table.__name__}\n")
        table()
