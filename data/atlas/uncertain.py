"""Uncertain outcomes at normal rates: python data/atlas/uncertain.py

Prints the tables of uncertain.md from uncertain.jsonl.gz. An end is the mean of the last two
evaluations, after 35 and 40 batches.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import combinations
from statistics import fmean, stdev
from typing import NamedTuple

from collect import gathered, rate_text
from scipy.stats import t as student

from lldlib.files import markdown_table
from lldlib.runs.phases import find_collapse

CHOICE, TEST = range(3), range(3, 13)  # seeds
WIDE = 1 - 0.05 / 6  # of the seventeenth rule's interval, for six comparisons
BATCHES, LAST, WINDOW = 40, 2, 10
SAMPLED, GREEDY = "eval/heldout_em", "eval/heldout_em_greedy"
MISSING, START = "eval/missing_em", "eval/start_em"

Rows = list[dict]  # a run's metrics, one line a batch


class Arm(NamedTuple):
    """A method at a rate; lambda is None for GRPO."""

    coef: float | None
    rate: float

    def __str__(self) -> str:
        name = "GRPO" if self.coef is None else f"LLDS {self.coef:g}"
        return f"{name}, {rate_text(self.rate)}"


def runs() -> dict[float, dict[Arm, dict[int, Rows]]]:
    """Rows of every whole run by share of misses, arm and seed."""
    found = defaultdict(lambda: defaultdict(dict))
    for given, rows in gathered("uncertain.jsonl.gz"):
        if len(rows) == BATCHES:
            coef = float(given["llds_coef"]) if given["method"] == "llds" else None
            arm = Arm(coef, float(given["lr"]))
            found[float(given.get("misses", 0))][arm][int(given["seed"])] = rows
    return found


def curve(rows: Rows, key: str = SAMPLED) -> list[float]:
    """The evaluations in order, without the start's."""
    return [row[key] for row in rows if key in row]


def end(rows: Rows, key: str = SAMPLED) -> float:
    """The mean of the last two evaluations."""
    return fmean(curve(rows, key)[-LAST:])


def area(rows: Rows) -> float:
    """The mean of all evaluations and the start's: the area under the held-out curve, 0 to 1."""
    return fmean([rows[0][START], *curve(rows)])


def reached(rows: Rows, share: float) -> int | None:
    """Batches until an evaluation is this share of the way from the start's score to 1."""
    line = rows[0][START] + share * (1 - rows[0][START])
    return next((row["step"] + 1 for row in rows if row.get(SAMPLED, 0) >= line), None)


def dip(rows: Rows) -> float:
    """How far the mean reward of ten batches sinks under its best before."""
    reward = [row["reward/mean"] for row in rows]
    means = [fmean(reward[i : i + WINDOW]) for i in range(len(reward) - WINDOW + 1)]
    return max(max(means[: i + 1]) - mean for i, mean in enumerate(means))


def spread(values: list[float]) -> str:
    """Mean and deviation."""
    return f"{fmean(values):.2f}" + (f" +- {stdev(values):.2f}" if len(values) > 1 else "")


def middle(values: list[int | None]) -> str:
    """The median of batches, where None is later than all."""
    ordered = sorted(values, key=lambda value: (value is None, value))
    found = ordered[(len(ordered) - 1) // 2]
    return "-" if found is None else str(found)


def cells(seeds: Mapping[int, Rows]) -> list[str]:
    """What a table shows of an arm's runs."""
    own = [seeds[seed] for seed in sorted(seeds)]
    fallen = sum(find_collapse([r["reward/mean"] for r in rows]).known is not None for rows in own)

    def each(what: Callable[[Rows], float]) -> list[float]:
        return [what(rows) for rows in own]

    return [
        str(len(own)),
        spread(each(end)),
        spread(each(lambda rows: end(rows, GREEDY))),
        spread(each(lambda rows: end(rows, MISSING))),
        spread(each(area)),
        middle([reached(rows, 0.5) for rows in own]),
        middle([reached(rows, 0.9) for rows in own]),
        spread(each(dip)),
        str(fallen),
    ]


HEAD = [
    *("arm", "runs", "end, sampled", "end, greedy", "end, searches miss", "area"),
    *("batches to half", "to nine tenths", "deepest dip", "collapsed"),
]


def chosen(arms: Mapping[Arm, Mapping[int, Rows]], llds: bool) -> Arm | None:
    """The arm of one kind with the highest mean end on the seeds of the choice, if all are run."""
    means = {
        arm: fmean(end(seeds[seed]) for seed in CHOICE)
        for arm, seeds in arms.items()
        if (arm.coef is not None) == llds and all(seed in seeds for seed in CHOICE)
    }
    return max(means, key=means.get, default=None)


def interval(pairs: list[float], share: float = 0.95) -> str:
    """Mean of paired differences with the interval that holds this share, by Student's t."""
    half = student.ppf((1 + share) / 2, len(pairs) - 1) * stdev(pairs) / len(pairs) ** 0.5
    mean = fmean(pairs)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], {len(pairs)} pairs"


def print_equal_rates(arms: Mapping[Arm, Mapping[int, Rows]]) -> None:
    """At each rate every two arms on the test seeds: the ends' differences, sampled and greedy."""
    for one, other in combinations(sorted(arms, key=lambda arm: (arm.rate, arm.coef or 0)), 2):
        both = [seed for seed in TEST if seed in arms[one] and seed in arms[other]]
        if one.rate == other.rate and len(both) > 1:
            told = []
            for key in (SAMPLED, GREEDY, MISSING):
                pairs = [end(arms[other][s], key) - end(arms[one][s], key) for s in both]
                told.append(interval(pairs))
                if key == SAMPLED:
                    told.append(f"{WIDE:.1%}: {interval(pairs, WIDE)}")
            areas = [area(arms[other][s]) - area(arms[one][s]) for s in both]
            told.append(f"area {interval(areas)}")
            print(f"{other} minus {one}: " + "; ".join(told))


def main() -> None:
    """Choice, test, deciding pair, every seed; for each share of misses."""
    plain = kept = None  # the choice of the last share that had one holds for the next
    for misses, arms in sorted(runs().items(), reverse=True):
        for name, wanted in (("choice, seeds 0 to 2", CHOICE), ("test, seeds 3 to 12", TEST)):
            own = {
                arm: had
                for arm, seeds in sorted(arms.items(), key=lambda pair: str(pair[0]))
                if (had := {seed: seeds[seed] for seed in wanted if seed in seeds})
            }
            print(f"\nmisses {misses:g}, {name}\n")
            print(markdown_table(HEAD, ([str(arm), *cells(seeds)] for arm, seeds in own.items())))
            for how, key in (("sampled", SAMPLED), ("greedy", GREEDY)):
                ends = [
                    [str(arm), *(f"{end(had[s], key):.2f}" if s in had else "-" for s in wanted)]
                    for arm, had in own.items()
                ]
                print(f"\nEvery seed's end, {how}\n")
                print(markdown_table(["arm", *map(str, wanted)], ends))
        print("\nTest, at equal rates: sampled, greedy, searches miss, area")
        print_equal_rates(arms)
        plain = chosen(arms, llds=False) or plain
        kept = chosen(arms, llds=True) or kept
        print(f"\nmisses {misses:g}, chosen: {plain}; {kept}")
        for base in [plain, kept, *(arm for arm in arms if arm.coef is None and arm != plain)]:
            for other in sorted(arms, key=str):
                same = base == plain or other.rate == base.rate or other == kept
                same = other.coef == kept.coef if base == kept else same
                both = [seed for seed in TEST if seed in arms[other] and seed in arms.get(base, {})]
                if same and other != base and len(both) > 1:
                    pairs = [end(arms[other][s]) - end(arms[base][s]) for s in both]
                    print(f"{other} minus {base}, test: {interval(pairs)}")


if __name__ == "__main__":
    main()
