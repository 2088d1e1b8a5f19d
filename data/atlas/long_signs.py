"""What the long runs with misses show: python data/atlas/long_signs.py

Prints tables of long_misses.md (the third rule's word for every long run, the fifth rule's
measure, the signs of signs.py run by run) and of greedy.md: the evaluations of all recorded runs
of the small agent whose greedy answers fail while sampled ones hold.
"""

from collections import Counter
from collections.abc import Callable
from statistics import fmean

import pandas as pd
from collect import HERE, gathered, rate_text
from ends import GREEDY, SAMPLED, Rows
from signs import FIRST, SIGNS, first
from verdicts import FROM, LAST, MISSING, arm_of

from lldlib.files import markdown_table, read_jsonl
from lldlib.runs.folder import Run
from lldlib.runs.phases import ALARM_KEYS, AlarmRule, alarm, find_collapse

LONG = 200  # batches of a run that is called long
SWAYS = 0.15  # how far an evaluation is under the best before it, by the third rule
ALONE, HOLDS = 0.2, 0.6  # greedy fails alone: so far under sampled, and sampled is over this
NEAR = 5  # batches on each side, of which the entropy and the length are compared
BESIDE = ("policy/entropy", "length/tokens")
NEUTRAL = {"policy", "probe_every", "checkpoint_every", "eval_every", "steps", "exam_half"}

Runs = list[tuple[str, str, Rows]]  # name, seed and rows


def long_runs() -> Runs:
    """Every long run with misses, in the order of the pages."""
    told = gathered("long_misses.jsonl.gz", "limits.jsonl.gz")
    return [(arm_of(given), given["seed"], rows) for given, rows in told if len(rows) >= LONG]


def fall(rows: Rows, key: str = SAMPLED) -> tuple[float, int]:
    """How far an evaluation from batch FROM on is under the best before it; the batches then."""
    marks = [(row["step"] + 1, row[key]) for row in rows if key in row]
    falls = [
        (max(v for _, v in marks[:i]) - mark, done)
        for i, (done, mark) in enumerate(marks)
        if i and done >= FROM
    ]
    return max(falls)


def word(rows: Rows, key: str = SAMPLED) -> str:
    """The third rule's: "dies", "sways" or "settles"."""
    known = find_collapse([row["reward/mean"] for row in rows]).known
    if known is not None:
        best = max(row[key] for row in rows[:known] if key in row)
        if all(row[key] <= best / 2 for row in rows[known:] if key in row):
            return "dies"
    return "sways" if fall(rows, key)[0] >= SWAYS else "settles"


def short(value: float) -> str:
    """Two digits and no zero before the point."""
    return f"{value:.2f}".replace("0.", ".")


def word_rows() -> list[list[str]]:
    """Name, seed, batches, word and the falls that it rests on."""
    return [
        [
            *(name, seed, str(len(rows)), word(rows)),
            *("{:.3f} at {}".format(*fall(rows, key)) for key in (SAMPLED, GREEDY)),
        ]
        for name, seed, rows in long_runs()
    ]


def words() -> None:
    """The third rule's word of every long run."""
    head = ["arm", "seed", "batches", "word", "deepest fall of an evaluation, sampled", "greedy"]
    print(markdown_table(head, word_rows()))


def learned() -> None:
    """The fifth rule's measure: the exam whose searches miss, and second searches."""
    told = pd.read_csv(HERE / "after_misses.csv").query("start == 'half_taught' and batch == 150")
    rows = []
    for given, own in gathered("long_misses.jsonl.gz", "limits.jsonl.gz"):
        if len(own) < LONG or len(own) == 500 or given["misses"] != "0.35":
            continue
        score = fmean(r[MISSING] for r in own if MISSING in r and 160 <= r["step"] + 1 <= 200)
        mine = told[(told.arm == given["method"]) & (told.rate == float(given["lr"]))]
        mine = mine[mine.seed == int(given["seed"])][["again", "on", "answer", "other"]]
        again = "not recorded"
        if len(mine) and "move_limit" not in given:
            again = f"{int(mine.again.iloc[0])} of {int(mine.sum(axis=1).iloc[0])}"
        rows.append([arm_of(given), given["seed"], f"{score:.3f}", again])
    head = ["arm", "seed", "searches miss, after 160 to 200 batches"]
    print(markdown_table([*head, "searched again in batches 150 to 199"], rows))


def means(x: pd.Series) -> pd.Series:
    """Of ten batches."""
    return x.astype(float).rolling(LAST).mean()


def kept(reward: pd.Series) -> pd.Series:
    """The lowest share of its best so far, means of three batches."""
    mean = reward.rolling(3, min_periods=1).mean()
    return mean / mean.cummax()


MOST: tuple[Callable[[pd.Series], float], ...] = (  # by how much, for each of SIGNS in its order
    lambda x: x.min(),
    lambda x: kept(x)[FIRST:].min(),
    lambda x: x[FIRST:].min() - x.iloc[0],
    lambda x: x[FIRST:].max() - x.iloc[0],
    lambda x: x[FIRST:].max() / x.iloc[:3].median(),
    lambda x: x[FIRST:].max() / x.iloc[0],
    lambda x: x.max(),
)


def decay(frame: pd.DataFrame) -> pd.Series:
    """How far right answers are under their best likelihood while the reward holds its best."""
    likely, reward = means(frame["likelihood/correct"]), means(frame["reward/mean"])
    return (likely.cummax() - likely).where(reward > reward.cummax() - 0.03)


MORE: dict[str, tuple[float, Callable[[pd.DataFrame], pd.Series]]] = {  # the line and the curve
    "reward .1 under its best": (
        0.1,
        lambda f: means(f["reward/mean"]).cummax() - means(f["reward/mean"]),
    ),
    "right answers .05 less likely than at their best, reward within .03 of its own": (0.05, decay),
    "entropy .1 over its lowest before": (
        0.1,
        lambda f: means(f["policy/entropy"]) - means(f["policy/entropy"]).cummin(),
    ),
    "action 1 less likely than action 2": (
        0.0,
        lambda f: means(f["likelihood/action_2"]) - means(f["likelihood/action_1"]),
    ),
    "invalid searches over .05 an answer": (0.05, lambda f: f["search/invalid"]),
}
ACTIONS = [f"displacement/action_{i}" for i in (1, 2, 3)]


def seen(batch: int | None, most: float) -> str:
    """The first batch of a sign, and by how much it shows at most."""
    return f"{'-' if batch is None else batch} ({short(most) if abs(most) < 10 else f'{most:.0f}'})"


def signs_of(rows: Rows) -> list[str]:
    """A cell for each of SIGNS and of MORE, and what the actions lose in the worst batch."""
    frame = pd.DataFrame(rows)
    cells = [
        seen(first(sign(frame[key])), most(frame[key]))
        for (key, sign), most in zip(SIGNS.values(), MOST, strict=True)
    ]
    for line, curve in MORE.values():
        cells.append(seen(first(curve(frame) > line), curve(frame).max()))
    worst = frame.loc[frame["displacement/correct_token"].astype(float).idxmin()]
    return [*cells, " ".join(f"{worst[key]:+.2f}".replace("0.", ".") for key in ACTIONS)]


def signs() -> None:
    """The papers' picture run by run: those that sway, then those that settle."""
    runs = sorted(long_runs(), key=lambda run: word(run[2]) == "settles")
    rows = []
    for name, seed, own in runs:
        rung = alarm({key: [row.get(key) for row in own] for key in ALARM_KEYS}, AlarmRule())
        cells = [*signs_of(own), "-" if rung is None else str(rung)]
        rows.append([f"{name}, seed {seed}, {len(own)}", word(own), *cells])
    head = ["run, batches", "word", *SIGNS, *MORE, "actions 1, 2, 3 in the worst batch"]
    print(markdown_table([*head, "the alarm rings"], rows))


def family(method: str) -> str:
    """GRPO, a method with LLDS in it, or another."""
    return "LLDS" if "llds" in method else "GRPO" if method == "grpo" else "other methods"


def recorded() -> list[tuple[str, str, float, Rows]]:
    """Every recorded run of the small agent that was examined: name, family, rate, rows.

    A run that was recorded twice (on one thread and on two) counts once, as it was examined more.
    """
    named: dict[str, Rows] = {}
    for path in sorted(HERE.glob("*.jsonl.gz")):
        for _, row in read_jsonl(path):
            named.setdefault(f"{path.name}: {row['run']}", []).append(row)
    for path in sorted((HERE / "main").iterdir()):
        named[f"main: method={Run(path).config['method']},{path.name}"] = Run(path).metrics
    alike: dict[tuple, tuple[str, Rows]] = {}
    for name, rows in named.items():
        key, examined = tuple(row["reward/mean"] for row in rows), sum(GREEDY in r for r in rows)
        if examined and examined > sum(GREEDY in row for row in alike.get(key, ("", []))[1]):
            alike[key] = name, rows
    return [
        (name, family(name.split("method=")[1].split(",")[0]), rate_of(rows), rows)
        for name, rows in alike.values()
    ]


def rate_of(rows: Rows) -> float:
    """The highest rate of a run, which it has after its ramp."""
    return float(f"{max(row['update/lr'] for row in rows):.2g}")


def beside(rows: Rows, done: int, key: str) -> tuple[float, float]:
    """The mean of the batches before and after an evaluation, and that of their neighbours."""
    near = rows[max(0, done - 1 - NEAR) : done - 1] + rows[done + 1 : done + 1 + NEAR]
    return tuple(fmean(row[key] for row in some) for some in (rows[done - 1 : done + 1], near))


def fails(mark: dict) -> bool:
    """Whether greedy answers are far under sampled ones."""
    return mark[SAMPLED] - mark[GREEDY] >= ALONE


def plain(name: str) -> str:
    """A run's name without the settings that do not tell runs apart here."""
    return ", ".join(part for part in name.split(",") if part.split("=")[0] not in NEUTRAL)


def failures() -> tuple[Counter, Counter, list[list[str]]]:
    """By family and rate the evaluations that hold when sampled, those that fail; a row each."""
    held, failed, told = Counter(), Counter(), []
    for name, kind, rate, rows in recorded():
        marks = [row for row in rows if GREEDY in row and SAMPLED in row]
        for i, mark in enumerate(marks):
            held[kind, rate] += mark[SAMPLED] > HOLDS
            if mark[SAMPLED] > HOLDS and fails(mark):
                failed[kind, rate] += 1
                three = [marks[j] if 0 <= j < len(marks) else None for j in (i - 1, i, i + 1)]
                exams = [f"{short(m[SAMPLED])} / {short(m[GREEDY])}" if m else "-" for m in three]
                done = mark["step"] + 1
                back = "-" if three[2] is None else "no" if fails(three[2]) else "yes"
                entropy, tokens = (beside(rows, done, key) for key in BESIDE)
                cells = "{:.2f}, {:.2f}".format(*entropy), "{:.0f}, {:.0f}".format(*tokens)
                told.append([plain(name), str(done), *exams, back, *cells])
    return held, failed, told


def greedy() -> None:
    """How often greedy answers fail alone, and every time that they do."""
    held, failed, told = failures()
    rates = sorted({rate for (_, rate), number in held.items() if number})
    rows = []
    for kind in ("GRPO", "LLDS", "other methods"):
        all_of = [sum(n for (own, _), n in some.items() if own == kind) for some in (failed, held)]
        rows.append([kind, *(f"{failed[kind, rate]} of {held[kind, rate]}" for rate in rates)])
        rows[-1].append("{} of {}".format(*all_of))
    print(markdown_table(["arm", *map(rate_text, rates), "all"], rows))
    head = ["run", "batches", "before", "then", "next", "back", "entropy", "tokens"]
    print("\n" + markdown_table(head, told))


if __name__ == "__main__":
    for table in (words, learned, signs, greedy):
        print(f"\n{table.__name__}\n")
        table()
