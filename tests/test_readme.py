"""The README's numbers are those of the recorded runs, and it stays a front door."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
from helpers import script

from lldlib.course import fate, last_five, limited_runs, smollm_runs
from lldlib.files import read_jsonl
from lldlib.runs.folder import Run
from lldlib.runs.phases import find_collapse
from lldlib.train.demo import verdict

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ATLAS = ROOT / "data/atlas"
ARMS = ("grpo", "llds", "grpo_best_rate")
SETTINGS = (("grpo", "grpo", 0.001), ("llds", "llds", 0.001), ("grpo_best_rate", "grpo", 0.0002))
SCORE, START = "eval/heldout_em", "eval/start_em"


BEST = "method=grpo,eval_every=5,lr=0.0002,policy=half_taught,steps=40,seed=2"  # of the ladder


@cache
def atlas() -> dict[str, dict[int, list[dict]]]:
    """The rows of the study's sixty runs, by arm and seed."""
    found, gathered = defaultdict(dict), defaultdict(list)
    for folder in (ATLAS / "main").iterdir():
        arm, _, seed = folder.name.partition("-seed")
        found[arm][int(seed)] = Run(folder).metrics
    for name in ("later", "search"):
        for _, row in read_jsonl(ATLAS / f"{name}.jsonl.gz"):
            gathered[row["run"]].append(row)
    found["grpo_best_rate"][2] = gathered[BEST]
    for arm, method, rate in SETTINGS:
        for name, rows in gathered.items():
            own = f"method={method}," in name and f"lr={rate}," in name and ":" not in name
            seed = int(name.rpartition("seed=")[2])
            if own and "exam_half=test" in name and "misses" not in name and len(rows) == 40:
                found[arm].setdefault(seed, rows)
    return found


def percent(arm: str) -> tuple[int, int]:
    """The start's score and the end's, means of the seeds of the test half."""
    runs = [atlas()[arm][seed] for seed in range(3, 20)]
    ends = [fmean([row[SCORE] for row in rows if SCORE in row][-2:]) for rows in runs]
    return round(100 * atlas()[arm][10][0][START]), round(100 * fmean(ends))  # one start for all


def test_it_is_a_front_door():
    """Short, and in short paragraphs."""
    assert len(README.splitlines()) <= 100
    assert len(README.split()) <= 2200
    assert max(len(line.split()) for line in README.splitlines()) <= 160


def test_the_toy_agent_at_the_hot_rate():
    """Who collapsed, with the limited updates' six runs, and how well the others learned."""
    counts = []
    for arm in ARMS:
        runs = atlas()[arm]
        assert sorted(runs) == list(range(20))
        counts.append(f"{sum(collapsed(rows) for rows in runs.values())} of 20")
    limited = limited_runs().query("arm in ('matched', 'capped')").groupby(["arm", "seed"])
    died = [collapsed(run.to_dict("records")) for _, run in limited]
    told = f"{' | '.join(counts)} (2e-4) | {sum(died)} of {len(died)} |"
    assert f"40 batches: collapsed | {told}" in README
    ways = [f"{start} % → {end} %" for start, end in map(percent, ARMS)]
    assert f"means of seeds 3 to 19) | {' | '.join(ways)} |" in README


def collapsed(rows: list[dict]) -> bool:
    """Whether a run collapses, by the study's rule."""
    return find_collapse([row["reward/mean"] for row in rows]).known is not None


def test_the_demo_s_verdict():
    """That of seed 0, and how many other seeds bear it out: GRPO dies, the order of ends holds."""
    rows = pd.read_csv(ATLAS / "hot_demo.csv")
    assert f"```\n{verdict(rows[rows.seed == 0].to_dict('records'))}\n```" in README
    other = rows[rows.seed != 0]
    died = other.pivot(index="seed", columns="arm", values="collapsed_at").notna()
    ends = other.pivot(index="seed", columns="arm", values="heldout_em")
    grpo, llds, cooler = (ends[arm] for arm in ARMS)
    held = died.grpo & ~died.llds & ~died.grpo_best_rate & (grpo < llds) & (llds < cooler)
    assert f"On new seeds this order held in {held.sum()} of {len(held)}" in README


def test_the_deciding_pairs():
    script("atlas/collect.py")  # which the other imports by its name
    uncertain = script("atlas/uncertain.py")
    runs = uncertain.runs()
    plain, kept = (uncertain.chosen(runs[0.35], llds=kind) for kind in (False, True))
    hotter = uncertain.Arm(None, kept.rate)

    def told(misses: float, base: tuple, arm: tuple = kept) -> str:
        arms = runs[misses]
        ends = [uncertain.end(arms[arm][s]) - uncertain.end(arms[base][s]) for s in uncertain.TEST]
        assert len(ends) == 10
        return uncertain.interval(ends).removesuffix(", 10 pairs").replace("0.", ".")

    pair, page = "1e-4 | 2e-4 | 10 | not told apart: LLDS", "(data/atlas/uncertain.md)"
    mean, between = told(0, plain).split(" ", 1)
    between += f"; both at 1e-4 {told(0, plain, uncertain.Arm(kept.coef, plain.rate))}"
    assert f"40 batches, best rates | {pair} [{mean}]{page} {between} |" in README
    assert f"misses, 40 batches, best rates | {pair} {told(0.35, plain)} |" in README
    assert hotter.rate == 2 * plain.rate
    assert f"twice GRPO's best rate | 2e-4 | 2e-4 | 10 | LLDS {told(0.35, hotter)};" in README
    assert told(0, hotter).startswith("+.001 [-")
    hottest = [uncertain.Arm(coef, 4 * plain.rate) for coef in (None, kept.coef)]
    mean, between = told(0.35, *hottest).split(" ", 1)
    page += "#result-of-the-sixteenth-rule-2026-11-28)"
    told_of = f"four times GRPO's best rate | 4e-4 | 4e-4 | 10 | not told apart: LLDS [{mean}]"
    assert f"{told_of}{page.replace(')#', '#')} {between} |" in README


def test_the_long_runs_whose_searches_miss():
    """How far the mean reward of ten batches falls under its best before."""
    falls, runs = defaultdict(list), pd.read_csv(ATLAS / "long_misses.csv")
    for (arm, rate, _), own in runs.groupby(["arm", "rate", "seed"]):
        assert len(own) >= 200
        falls[arm, rate].append(deepest_fall(own.reward))
    hot, good, low = (falls["grpo", rate] for rate in (2e-4, 1e-4, 5e-5))
    kept, limited = falls["llds", 2e-4], [limited_for_long()]
    wrong = [over_a_tenth(some) for some in (hot, kept, low, limited)]
    wrong[0] += f" (at 1e-4: {over_a_tenth(good)})"
    wrong[2] += " (5e-5)"
    assert f"2e-4, 200 to 300 batches: reward fell by over .1 | {' | '.join(wrong)} |" in README
    assert f"[failed in {over_a_tenth(good)} longer runs]" in README
    assert two(*limited) == ".04"


def over_a_tenth(falls: list[float]) -> str:
    """How many of them are."""
    return f"{sum(fall > 0.1 for fall in falls)} of {len(falls)}"


def two(value: float) -> str:
    """With two digits and no zero before the point, as the README writes it."""
    return f"{value:.2f}".replace("0.", ".")


def deepest_fall(rewards: pd.Series) -> float:
    """How far the mean of ten batches sinks under its best before."""
    ten = rewards.rolling(10).mean()
    return (ten.cummax() - ten).max()


def limited_for_long() -> float:
    """The fall of the one run of 200 batches with a limit on each update."""
    ((given, rows),) = (
        run for run in script("atlas/collect.py").gathered("limits.jsonl.gz") if len(run[1]) == 200
    )
    assert given["lr"] == "0.0002" and given["misses"] == "0.35"
    return deepest_fall(pd.Series([row["reward/mean"] for row in rows]))


def test_a_pretrained_model_rose_and_died():
    """SmolLM2: who is dead or has fallen, how runs end, how often right answers lost."""
    smollm2, arms = script("atlas/smollm2.py"), smollm_runs()
    grpo, llds, cooler = (arms[name] for name in (smollm2.GRPO, smollm2.LLDS, smollm2.COOLER))
    seeds = [[run.config["seed"] for run in runs] for runs in (grpo, llds, cooler)]
    assert seeds == [list(range(9))] * 3

    def fates(runs, fall=0.25):
        found = [fate(run, fall) for run in runs]
        assert [name == "died" for name in found] == [*map(smollm2.is_dead, runs)]
        return found.count("died"), found.count("fell")

    (grpo_died, *fell), (llds_died, *llds_fell) = fates(grpo), fates(llds)
    page = (ATLAS / "smollm2.md").read_text(encoding="utf-8")
    assert (grpo_died, llds_died) == (4, 0) and fell == llds_fell == [0]
    assert fates(cooler)[0] == 0 and [fates(runs, 0.1)[1] for runs in (grpo, llds)] == [3, 1]
    lost = []
    for run in grpo:
        rewards, change = (run.column(k) for k in ("reward/mean", smollm2.COST))
        last = max(batch for batch, reward in enumerate(rewards) if reward >= 0.8)
        lost.append(sum(value < 0 for value in change[last - 29 : last + 1]))
    assert f"over all nine seeds later {min(lost)} to {max(lost)})" in page
    matched = smollm2.noted()["GRPO matched, 3e-4"]
    wrong = [f"{sum(fates(runs))} of {len(runs)}" for runs in (grpo, llds, cooler, matched)]
    wrong = list(map("{}{}".format, wrong, (" (died)", "", " (1e-4; fell)", " (matched)")))
    assert f"died, or fell by .25 or more | {' | '.join(wrong)} |" in README
    for other, said in (
        (grpo, "one rate | 3e-4 | 3e-4 | 9 | LLDS [{}](data/atlas/smollm2.md) [{}, {}] |"),
        (cooler, "better rate of each | 1e-4 | 3e-4 | 9 | not told apart: LLDS {} [{}, {}] |"),
    ):
        gaps = [last_five(one) - last_five(two) for one, two in zip(llds, other, strict=True)]
        half = 2.306 * stdev(gaps) / 9**0.5  # Student's t, 8 degrees of freedom
        told = [fmean(gaps), fmean(gaps) - half, fmean(gaps) + half]
        assert said.format(*(f"{v:+.2f}".replace("0.", ".") for v in told)) in README


def test_limited_moves_do_what_llds_does():
    """SmolLM2, the twelfth rule: GRPO that may move no further than the LLDS run of its seed."""
    smollm2 = script("atlas/smollm2.py")
    noted = smollm2.noted()
    limited, llds = noted["GRPO matched, 3e-4"], noted[smollm2.LLDS]
    assert "matched GRPO ends above LLDS on [each of the three seeds tried]" in README
    assert [fate(run) for run in limited] == ["lived"] * 3
    for one, other in zip(limited, llds, strict=True):
        assert one.config["seed"] == other.config["seed"]
        last = slice(len(one.metrics) - 5, len(one.metrics))
        assert fmean(one.column("reward/mean")[last]) > fmean(other.column("reward/mean")[last])
        lost = [value < 0 for value in one.column(smollm2.COST)[10:] if value is not None]
        assert fmean(lost) > 0.5
    assert "put on at batch 45, carried [two runs past their deaths]" in README
    rows = [row for _, row in read_jsonl(ATLAS / "smollm2_capped.jsonl")]
    for recorded in smollm_runs()[smollm2.GRPO][:2]:
        own = [row for row in rows if row["seed"] == recorded.config["seed"]]
        assert own[0]["step"] == 45 and len(own) == 20 and smollm2.is_dead(recorded)
        assert own[0]["reward/mean"] == recorded.column("reward/mean")[45]
        best = max(smollm2.windows(smollm2.rewards(recorded)))
        assert fmean(row["reward/mean"] for row in own[-5:]) >= 0.8 * best
    gap = fmean(map(last_five, noted["GRPO, 2e-4"])) - fmean(map(last_five, noted[smollm2.COOLER]))
    assert gap < 0


def test_limited_moves_at_cooler_rates(monkeypatch):
    """The sixth, seventh and fourteenth rule of smaller_step.md: ends at 6e-4, and with misses."""
    monkeypatch.syspath_prepend(str(ROOT / "data" / "atlas"))  # it imports others there
    module = script("atlas/smaller_step_misses.py")
    for rate, misses, limited in ((6e-4, 0.0, ("matched", "capped")), (4e-4, 0.35, ("matched",))):
        runs = module.runs_of(rate, misses)
        arms = {arm: [module.ends(rows)[0] for _, rows in runs[arm]] for arm in ("llds", *limited)}
        assert {len(ends) for ends in arms.values()} == {3}
        assert max(fmean(arms[arm]) for arm in limited) < fmean(arms["llds"])
    assert "A limit falls short of LLDS at cooler rates, perhaps by chance." in README


NINETEENTH = "result-of-the-nineteenth-rule-2026-11-29"
ALL_NINE = "result-of-the-seventeenth-rule-all-nine-arms-with-misses-2026-11-29"


def test_what_an_epsilon_does_and_how_500_batches_end():
    """The thirteenth rule of smaller_step.md and the twelfth of long_misses.md."""
    gathered, ends = script("atlas/collect.py").gathered, defaultdict(list)
    for given, rows in gathered("limits.jsonl.gz"):
        if given.get("arm") == "large epsilon" and "lr" not in given:
            ends["epsilon"] += [fmean([row[SCORE] for row in rows if SCORE in row][-2:])]
    interval = script("atlas/uncertain.py").interval
    for given, rows in sorted(gathered("long_misses.jsonl.gz"), key=lambda run: run[0]["seed"]):
        if len(rows) == 500 and given["lr"] in ("5e-05", "0.0002"):
            cool = (given["method"], given["lr"]) == ("llds", "5e-05")
            ends["cool llds" if cool else given["method"]] += [
                fmean([row[SCORE] for row in rows if SCORE in row][-5:])
            ]
    assert [len(ends[name]) for name in ("epsilon", "grpo", "llds")] == [3, 3, 3]
    assert two(fmean(ends["epsilon"])) == ".85"  # LLDS has .77 there
    cool = "{}, {} and {} %".format(*(f"{100 * end:.0f}" for end in ends["grpo"]))
    assert f"GRPO at 5e-5 has {cool} right" in README
    gaps = [grpo - llds for grpo, llds in zip(ends["grpo"], ends["llds"], strict=True)]
    told = interval(gaps).removesuffix(", 3 pairs").replace("0.", ".")
    mean, between = told.split(" ", 1)
    place = "data/atlas/long_misses.md#result-of-the-twelfth-rule-2026-11-28"
    assert f"500 batches | 5e-5 | 2e-4 | 3 | GRPO [{mean}]({place}) {between} |" in README
    alone = "{}, {} and {} %".format(*(f"{100 * end:.0f}" for end in ends["cool llds"]))
    assert f"[LLDS there](data/atlas/long_misses.md#{NINETEENTH}) {alone}." in README
    pairs = {}
    for given, rows in gathered("uncertain.jsonl.gz"):
        tested = given.get("exam_half") == "test" and given["lr"] == "0.0001"
        if tested and given["misses"] == "0.35" and given.get("llds_coef", "0.5") == "0.5":
            end = fmean([row[SCORE] for row in rows if SCORE in row][-2:])
            pairs.setdefault(given["seed"], {})[given["method"]] = end
    gaps = [pair["grpo"] - pair["llds"] for pair in pairs.values()]
    place = f"data/atlas/uncertain.md#{ALL_NINE}"
    assert len(gaps) == 10 and f"[LLDS .5 is {two(fmean(gaps))} lower]({place})" in README


def test_the_world_of_sparks():
    tables = script("sparks/tables.py")
    ends = tables.ends(tables.read("runs.jsonl.gz"))
    ends = ends[(ends["updates"] == 8) & ends["seed"].isin(tables.FINAL)]
    beyond = (ends["hard"] > 0.5).groupby(ends["run"]).agg(["sum", "count"])
    lp_reg = beyond[beyond.index.str.startswith("lp_reg,")]
    assert (lp_reg["count"] == 5).all() and f"in {lp_reg['sum'].max()} of 5 runs with" in README
    bonus = beyond.loc["grpo_entropy,entropy_coef=0.05,lr=0.0001"]
    kept = beyond.loc[tables.KEPT.format(1, "")]
    assert bonus["count"] == kept["count"] == 5
    assert f"bonus does in {bonus['sum']} of 5 (4 of 5 at a higher rate, a control)" in README
    assert f"LLDS at weight 1 (unplanned) in {kept['sum']} of 5" in README


def test_the_methods_are_counted():
    """Fourteen besides GRPO, LLDS and Lp-Reg: their variants and combinations are not counted."""
    from lldlib.recipes import METHODS

    kinds = {re.sub(r"_(code|fixed|response|token|ma|llds)", "", name) for name in METHODS}
    assert len(kinds - {"grpo", "llds", "lp_reg"}) == 14
