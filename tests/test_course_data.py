"""The small files that the course draws say what the gathered runs say."""

import csv
import re
import sys
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from lldlib.course import limited_runs
from lldlib.runs.folder import Run

DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.fixture
def script(monkeypatch):
    """Imports a script of a study as it is run, from its own folder."""

    def load(path: str):
        monkeypatch.syspath_prepend(str((DATA / path).parent))
        name = Path(path).stem
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return load


@pytest.mark.long
def test_the_suspects_are_those_of_the_gathered_runs(script):
    controls = script("atlas/controls.py")
    found = []
    for name, expected in zip(("suspects", "fresh_llds"), controls.suspects(), strict=True):
        with (DATA / f"atlas/{name}.csv").open(encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        assert tuple(head) == controls.COLUMNS
        assert lines == [[str(value) for value in line] for line in expected]
        found.append({tuple(line[:4]) for line in lines})
    runs, llds = found
    assert len([run for run in runs if run[0] == "coin"]) == 12  # two arms, two rates, three seeds
    assert {run[1] for run in runs if run[0] == "fresh"} == {"grpo"}
    assert {run[:2] for run in llds} == {("fresh", "llds")}
    with (DATA / "atlas/other_targets.csv").open(encoding="utf-8") as file:
        _, *lines = csv.reader(file)
    assert lines == [[str(value) for value in line] for line in controls.other_targets()]
    assert {(arm, seed) for arm, seed, *_ in lines} == {
        (arm, seed) for arm in ("pull", "wrong") for seed in "012"
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "by", "made"),
    [
        ("map.csv", "map.py", "lines"),
        ("early.csv", "map.py", "early"),
        ("bells.csv", "alarm_later.py", "bells"),
        ("first_falls.csv", "first_falls.py", "lines"),
    ],
)
def test_small_files_are_those_of_the_gathered_runs(script, file, by, made):
    with (DATA / "atlas" / file).open(encoding="utf-8") as there:
        _, *lines = csv.reader(there)
    expected = getattr(script(f"atlas/{by}"), made)()
    assert lines == [[str(value) for value in line] for line in expected]


def test_what_notebook_7_says_of_the_first_batches(script):
    """Who lost likelihood in five batches, and who died; pairs sorted by the last batch read."""
    runs = pd.read_csv(DATA / "atlas/first_falls.csv")
    five = runs[runs.batch < 5].groupby("run").agg({"change": "mean", "died": "first"})
    lost, gained = five[five.change < 0].died, five[five.change >= 0].died
    counts = len(lost), lost.sum(), len(gained), gained.sum()
    assert counts == (76, 65, 183, 17)
    (path,) = (DATA.parent / "notebooks").glob("07_*.ipynb")
    text = path.read_text(encoding="utf-8")
    assert "| below 0 | 76 | 65 |" in text and "| 0 or above | 183 | 17 |" in text
    shares = script("atlas/first_falls.py").early_pairs().round(2)
    assert shares["right answers"].tolist() == [0.72, 0.81, 0.86, 0.86, 0.9, 0.91, 0.91, 0.91, 0.9]
    assert shares["reward"].tolist() == [0.48, 0.53, 0.61, 0.74, 0.83, 0.86, 0.89, 0.93, 0.93]


def test_what_notebook_6_says_of_42_runs():
    """Whose right answers lost likelihood over five batches, and who ends under its start."""
    sank = {True: [], False: []}
    for _, run in limited_runs().groupby(["arm", "seed"]):
        lost = run["displacement/correct_token"].head(5).mean() < 0
        reward = run["reward/mean"]
        sank[lost].append(reward.tail(5).mean() < reward.head(5).mean())
    assert [(len(some), sum(some)) for some in sank.values()] == [(22, 20), (20, 5)]
    (path,) = (DATA.parent / "notebooks").glob("06_*.ipynb")
    text = path.read_text(encoding="utf-8")
    assert "| fall (below 0) | 22 | 20 |" in text and "| do not fall | 20 | 5 |" in text


def test_how_much_of_a_fall_is_chance(script):
    """Five answers of uniform chance: two groups of three are mixed; and a row of the page."""
    steady = script("atlas/steady.py")
    assert steady.mixed(0.5, 1 / 3) == pytest.approx(2 / 3)
    rewards = steady.means(12, 0.8, 0.2, window=5)
    fell = (rewards.amax(1) - rewards[:, -1] >= 0.1).float().mean().item()
    page = (DATA / "atlas/smollm2.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"\| 12 \| 0.8 \| 0.52 \| ([\d.]+) \|", page)
    assert fell == pytest.approx(float(told), abs=0.02)


@pytest.mark.parametrize("name", ["rungs", "tied", "displaced", "picture", "hours"])
def test_the_tables_of_smollm2_that_came_after_the_runs(script, capsys, name):
    """The page has them as the script prints them."""
    getattr(script("atlas/smollm2.py"), name)()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    page = (DATA / "atlas/smollm2.md").read_text(encoding="utf-8").splitlines()
    assert len(told) > 5 and set(told) <= set(page)


@pytest.mark.long
def test_the_first_five_batches_of_all_runs(script):
    """The 259 runs of signs.md."""
    falls, sank = script("atlas/first_falls.py"), {True: [], False: []}
    for group in falls.OLD:
        for run in filter(None, (falls.told(batches) for _, batches in falls.of_group(group))):
            sank[run[0][falls.FALL] > 0].append(run[1])
    (lost, fell), (gained, other) = ((len(some), sum(some)) for some in sank.values())
    assert (lost + gained, gained, other) == (259, 183, 27)
    page = (DATA / "atlas/signs.md").read_text(encoding="utf-8")
    assert f"of {lost} runs whose right answers lost, {fell} sank; of 183 that gained, 27." in page


def test_the_first_five_batches_of_the_new_runs(script):
    """The pairs of signs.md: of the runs that the rule names one that sinks and one that lives."""
    falls, sank = script("atlas/first_falls.py"), {True: [], False: []}
    for group in ("new runs", "new runs, 8e-4"):
        for given, batches in falls.of_group(group):
            named = given["method"] == "reinforce" or given.get("arm") == "seal"
            named |= "keep_mixed" in given and "arm" not in given and given["seed"] == "0"
            if named or group != "new runs":
                values, sinks = falls.told(batches)
                sank[sinks].append(values[falls.FALL])
    pairs = [one > other for one in sank[True] for other in sank[False]]
    page = (DATA / "atlas/signs.md").read_text(encoding="utf-8")
    assert f"and {sum(pairs)} of {len(pairs)} pairs of one that sinks and one that lives" in page


def test_the_table_of_the_seven_sets():
    """Scores of 100 questions a set, with search and at once, and on how many each is better."""
    kept = pd.read_json(DATA / "runs/smollm2/seven_sets.jsonl.gz", lines=True)
    page = (DATA / "results/README.md").read_text(encoding="utf-8")
    names = {"nq_open_gold_context": "NQ", "popqa_context": "PopQA", "triviaqa": "TriviaQA"}
    names |= {"hotpotqa_distractor_dev": "HotpotQA", "2wiki_context_dev": "2Wiki"}
    names |= {"musique_context_dev": "MuSiQue", "bamboogle": "Bamboogle"}
    for task, name in names.items():
        scores = kept[kept.task == task].pivot(index="id", columns="arm", values="score")
        gain = scores.search - scores.at_once
        (row,) = re.findall(rf"^\| {name} \| 100 .*", page, re.M)
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(scores) == 100
        assert cells[3:5] == [f"{scores[arm].mean():.2f}"[1:] for arm in ("search", "at_once")]
        assert cells[6] == f"{(gain > 0).sum()}, {(gain < 0).sum()}"


def test_the_sparks_are_those_of_the_recorded_runs(script):
    tables = script("sparks/tables.py")
    runs = tables.read("runs.jsonl.gz")
    for file, table in tables.course(runs).items():
        packed = pd.read_csv(DATA / "sparks" / file)
        expected = table.reset_index(drop=True)[packed.columns]
        pd.testing.assert_frame_equal(packed, expected, rtol=1e-4, check_dtype=False)


def test_every_arm_of_the_sparks_has_five_seeds():
    ends = pd.read_csv(DATA / "sparks/ends.csv")
    assert set(ends.groupby(["updates", "arm"]).size()) == {5}
    assert ends.groupby("updates")["arm"].nunique().to_dict() == {1: 10, 8: 10}
    # the table of README.md: LLDS 1 is beyond the guess in 4 of 5, the paper's Lp-Reg in none
    hard = ends.set_index(["updates", "arm"])["hard"]
    assert (hard.loc[8, "LLDS 1 *"] > 0.5).sum() == 4
    assert (hard.loc[1, "Lp-Reg as in its paper, 1e-3"] > 0.5).sum() == 0


def test_the_table_of_rescues_in_notebook_1():
    """Places and saved branches, by the reward at which the change came."""
    found = pd.read_csv(DATA / "atlas/no_return.csv", header=None)
    changes = ("nothing", "LLDS", "LLDS, Adam anew", "a fifth of the rate")
    counts = {kind: [0, 0, 0, 0, 0] for kind in ("at least", "lower", "0")}
    for seed in range(5):
        start = Run(DATA / f"atlas/main/grpo-seed{seed}").column("reward/mean")[:2]
        for _, (_, _, change, then, *after) in found[found[0] == seed].iterrows():
            kind = "0" if then == 0 else "at least" if then >= fmean(start) else "lower"
            if change == "nothing":
                counts[kind][0] += 1
            if change in changes:
                ends = [reward for reward in after if reward == reward][-3:]
                counts[kind][1 + changes.index(change)] += fmean(ends) >= fmean(start)
    (path,) = (DATA.parent / "notebooks").glob("01_*.ipynb")
    text = path.read_text(encoding="utf-8")
    assert list(counts.values()) == [[6, 0, 6, 6, 6], [16, 0, 3, 9, 11], [2, 0, 0, 0, 0]]
    for row in counts.values():
        assert f"| {' | '.join(map(str, row))} |" in text


def test_the_short_table_of_smaller_steps(script):
    rows = script("atlas/smaller_step_misses.py").in_short()
    page = (DATA / "atlas/smaller_step.md").read_text(encoding="utf-8")
    told = [line for line in page.split("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 14
    assert told == [f"| {' | '.join(row)} |" for row in rows]


def test_the_words_of_the_long_runs(script):
    """The third rule of long_misses.md by hand, and every row of its table of words."""
    long_signs = script("atlas/long_signs.py")

    def word(rewards: list[float], marks: dict[int, float]) -> str:
        rows = [{"step": step, "reward/mean": reward} for step, reward in enumerate(rewards)]
        for done, mark in marks.items():
            rows[done - 1][long_signs.SAMPLED] = mark
        return long_signs.word(rows)

    held = [0.5] * 200
    assert word(held, {50: 0.9, 90: 0.2, 150: 0.76, 200: 0.8}) == "settles"
    assert word(held, {50: 0.9, 150: 0.74, 200: 0.9}) == "sways"
    gone = [0.5] * 120 + [0.0] * 80
    assert word(gone, {100: 0.8, 150: 0.1, 200: 0.4}) == "dies"
    assert word(gone, {100: 0.8, 150: 0.1, 200: 0.41}) == "sways"

    page = (DATA / "atlas/long_misses.md").read_text(encoding="utf-8")
    part = page.split("### The third rule's word for every long run")[1].split("### ")[0]
    told = [line for line in part.splitlines() if line.startswith("| ")][2:]
    assert len(told) >= 20
    assert set(told) <= {f"| {' | '.join(row)} |" for row in long_signs.word_rows()}


@pytest.mark.long
def test_greedy_answers_that_fail_alone(script):
    """The atlas's counts are those of all recorded runs."""
    held, failed, _ = script("atlas/long_signs.py").failures()
    count = {kind: [0, 0] for kind in ("LLDS", "GRPO", "other methods")}
    for i, found in enumerate((failed, held)):
        for (kind, _), number in found.items():
            count[kind][i] += number
    page = (DATA / "atlas/README.md").read_text(encoding="utf-8")
    told = ("{} of {:,}".format(*count[kind]) for kind in ("LLDS", "GRPO"))
    assert "[in {} evaluations](greedy.md) (GRPO: {})".format(*told) in page
