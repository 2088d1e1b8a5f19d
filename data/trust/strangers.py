"""Files of strangers, broken on purpose: python data/trust/strangers.py --count 100000 [--seed 0]

Each reader of the package is given so many files: good ones whose bytes are flipped, cut or
doubled, or whose values are replaced by what does not belong there. Each must be read, or refused
by one line. Prints other endings with the seeds that make them, and after every block the counts
and the processor time of the block.
"""

import argparse
import copy
import json
import math
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lldlib.config import train_config_from
from lldlib.doctor.completions import NoAnswers, read_answers
from lldlib.evaluate.scores import read_predictions
from lldlib.recipes import train_config
from lldlib.retrieval import load_corpus
from lldlib.runs.folder import Run
from lldlib.runs.phases import phases_of
from lldlib.runs.summary import summarise
from lldlib.show.says import said_html
from lldlib.show.spiral import spiral_page
from lldlib.show.steered import curves_text, knob_changes
from lldlib.train.lessons import load_gold_paths
from lldlib.train.run import describe
from lldlib.world.atlas import World
from lldlib.world.benchmarks import load_questions

BLOCK = 500  # files of each reader between two lines of output
REFUSED = (ValueError, OSError, NoAnswers)  # by a line; anything else is a fault
STRANGE = (
    *(None, True, -1, 0, 1.5, 10**400, 1e308, math.nan, math.inf, "", "x", "1", "\x1b[31m", "\x00"),
    *("../../etc/passwd", "\ud800", "a" * 10_000, [], {}, [[]], [None], {"a": 1}, ["x", 3], "1e5"),
)
TURN = {"role": "action", "text": "<answer> Lima </answer>", "logp": [-0.1, -0.2, -0.3]}
ROLLOUT = {"step": 0, "question": "q", "answers": ["Lima"], "reward": 1.0, "turns": [TURN]}
QUESTION = {"id": "a", "question": "What?", "golden_answers": ["Lima"], "type": "2hop"}
GOLD = QUESTION | {
    "context": [{"title": "A", "text": "A is in B."}, {"title": "B", "text": "B has Lima."}],
    "supporting_titles": ["A", "B"],
}
STEPS = GOLD | {
    "decomposition": [
        {"question": "Where is A?", "answer": "B", "title": "A"},
        {"question": "What has #1?", "answer": "Lima", "title": "B"},
    ],
    "supporting_idx": [0, 1],
}
PREDICTION = {
    **{"id": "a", "sample": 0, "question": "q", "golden_answers": ["x"], "prediction": "x"},
    "score": 1.0,
    **{"f1": 1.0, "searches": 1, "invalid": 0, "tokens": 9, "stop": "answer"},
}
METRICS = [
    {"step": n, "reward/mean": 0.5 / (n + 1), "probe/content": -1.0, "policy/entropy": 1.0}
    for n in range(12)
]


KNOB = {"step": 1, "kind": "knob", "lr": 1e-4, "loss": {"llds_coef": 0.5}}


class Reader(NamedTuple):
    """What is read, good rows of it, and how."""

    rows: list[dict]
    read: Callable[[Path], object]


def run_with(name: str, read: Callable[[Run], object]) -> Callable[[Path], object]:
    """A reader of a run folder in which `name` is the broken file."""

    def go(file: Path) -> object:
        folder = file.parent / f"run with {name}"
        if not folder.exists():  # every later trial of this reader replaces the one file
            folder.mkdir()
            config = json.dumps(describe(train_config("grpo", seed=0)))
            (folder / "config.json").write_text(config, encoding="utf-8")
            lines = "\n".join(map(json.dumps, METRICS)) + "\n"
            (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
        shutil.copyfile(file, folder / name)
        return read(Run(folder))

    return go


def pages(run: Run) -> tuple:
    """What is shown of a run."""
    return spiral_page([run]), said_html("A", run), knob_changes(run), curves_text({"A": run})


READERS = {
    "questions": Reader([QUESTION, QUESTION | {"id": "b"}], load_questions),
    "gold passages": Reader([GOLD, STEPS | {"id": "b"}], load_gold_paths),
    "corpus": Reader(
        [{"id": "1", "title": "A", "text": "x"}, {"id": "2", "contents": '"B"\ny'}], load_corpus
    ),
    "facts": Reader(
        [
            {"relation": "capital", "entity": "Peru", "value": "Lima", "split": "train"},
            {"relation": "capital", "entity": "Norway", "value": "Oslo", "split": "heldout"},
        ],
        lambda file: World.load(file).passages("all"),
    ),
    "answers": Reader([ROLLOUT, {"prompt": "p", "completion": "c", "step": 1}], read_answers),
    "predictions": Reader([PREDICTION, PREDICTION | {"sample": 1}], read_predictions),
    "metrics": Reader(
        METRICS, run_with("metrics.jsonl", lambda run: (summarise(run), phases_of(run)))
    ),
    "config": Reader(
        [describe(train_config("llds", seed=0))],
        run_with("config.json", lambda run: train_config_from(run.config)),
    ),
    "rollouts": Reader([ROLLOUT], run_with("rollouts.jsonl", lambda run: run.rollouts)),
    "page of rollouts": Reader([ROLLOUT], run_with("rollouts.jsonl", pages)),
    "page of questions": Reader([ROLLOUT], run_with("questions.jsonl", pages)),
    "page of settings": Reader(
        [describe(train_config("llds", seed=0))], run_with("config.json", pages)
    ),
    "page of events": Reader([KNOB, {"step": 2, "kind": "alarm"}], run_with("events.jsonl", pages)),
}


def places(value: object, way: tuple = ()) -> list[tuple]:
    """The ways to every value in nested lists and objects."""
    found = [way] if way else []
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inner in pairs:
        found += places(inner, (*way, key))
    return found


def strange(rows: list[dict], rng: random.Random) -> list:
    """The rows with one to three values replaced, dropped or renamed."""
    rows = copy.deepcopy(rows)
    for _ in range(rng.randint(1, 3)):
        every = places(rows)
        if not every:
            break
        *way, last = rng.choice(every)
        inner = rows
        for key in way:
            inner = inner[key]
        act = rng.random()
        if act < 0.7:
            inner[last] = copy.deepcopy(rng.choice(STRANGE))
        elif act < 0.85:
            del inner[last]
        elif isinstance(inner, dict):
            inner[str(rng.choice(STRANGE))] = inner.pop(last)
    return rows


def broken(rows: list[dict], rng: random.Random) -> bytes:
    """The bytes of a file that is wrong in its values, its bytes, or both."""
    if rng.random() < 0.6:
        rows = strange(rows, rng)
    data = "\n".join(json.dumps(row) for row in rows).encode() + b"\n"
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            way = rng.randrange(6)
            if way == 0:
                data = data[:at]
            elif way == 1:
                data = data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + 1 :]
            elif way == 2:
                data = data[:at] + data[at // 2 : at] + data[at:]
            elif way == 3:
                data = data[:at] + b"[" * 20_000 + data[at:]
            elif way == 4:
                data = data.decode("utf-8", "replace").encode("utf-16")
            else:
                data = b"\xef\xbb\xbf" + data
    return data


def one(reader: Reader, seed: int, folder: Path) -> str:
    """Read one broken file: "read", "refused", or what was wrong."""
    file = folder / "file.jsonl"
    file.write_bytes(broken(reader.rows, random.Random(seed)))
    try:
        reader.read(file)
    except REFUSED as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except Exception:
        return traceback.format_exc(limit=-3)
    return "read"


def trial(name: str, count: int, seed: int) -> tuple[Counter, list[str]]:
    """So many broken files for one reader: how they went, and what was wrong."""
    ways, wrong = Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + count):
            way = one(READERS[name], number, Path(folder))
            if way not in ("read", "refused"):
                wrong.append(f"{name}, seed {number}: {way}")
                way = "wrong"
            ways[way] += 1
    return ways, wrong


def main() -> None:
    """Read, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="files for each reader")
    parser.add_argument("--seed", type=int, default=0, help="of the first; one more for each file")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    given = parser.parse_args()
    end, total = given.seed + given.count, Counter()
    for first in range(given.seed, end, BLOCK):  # so that a long trial may be stopped at any block
        count, start = min(BLOCK, end - first), time.process_time()
        for name in given.readers:
            ways, wrong = trial(name, count, first)
            total += ways
            print("\n".join(wrong[:3]), end="\n" * bool(wrong))
        seconds = time.process_time() - start
        told = ", ".join(f"{total[way]} {way}" for way in ("read", "refused", "wrong"))
        print(f"seeds {given.seed} to {first + count - 1}: {told}; {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
