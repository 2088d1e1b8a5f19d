"""Does an agent search again after a miss?

    python data/atlas/again.py count OUT.csv ROLLOUTS ...
    python data/atlas/again.py teach FOLDER
    python data/atlas/again.py train FOLDER START METHOD RATE SEED

"count" reads rollouts.jsonl of runs with misses: what the agent does after a search that found
nothing of what it asked for, by batches (after_misses.csv). "teach" trains the start half_taught on
demonstrations that search again after every wrong passage. "train" trains a policy with misses .35.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from lldlib.config import DemonstrationConfig, WarmstartConfig, data_dir
from lldlib.files import read_jsonl, write_whole
from lldlib.policy.load import save_policy
from lldlib.recipes import SHUFFLED, train_config
from lldlib.train.run import TrainingRun
from lldlib.train.supervised import warm_start
from lldlib.world.atlas import World

SPAN = 50  # batches of a row
ACTS = ("again", "on", "answer", "other")  # searches again, goes on with what it got, answers


def inside(text: str, tag: str) -> list[str]:
    """The words between the last such tags."""
    return text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0].split()


def after_misses(path: Path) -> Iterator[tuple[int, str]]:
    """The batch of each miss, and what the agent did then."""
    for _, episode in read_jsonl(path):
        turns = episode["turns"]
        for asked, got, then in zip(turns, turns[1:], turns[2:], strict=False):
            if "<information>" not in got["text"]:
                continue
            found = set(inside(got["text"], "information"))
            named = {w for w in inside(asked["text"], "search") if not w.islower()}
            if not named or named & found:
                continue  # a search without a name, or one that did not miss
            new = set(inside(then["text"], "search")) if "<search>" in then["text"] else set()
            if named & new:
                act = "again"
            elif found & new:
                act = "on"
            else:
                act = "answer" if "<answer>" in then["text"] else "other"
            yield episode["step"], act


def count(out: Path, paths: list[Path]) -> None:
    """A line for each run and SPAN batches: how often what was done after a miss."""
    lines = [",".join(("start", "arm", "rate", "seed", "batch", *ACTS))]
    for path in paths:
        given = dict(part.split("=") for part in path.parent.name.split(","))
        told = [given.get("arm", "half_taught"), *(given[key] for key in ("method", "lr", "seed"))]
        spans: dict[int, Counter] = {}
        for step, act in after_misses(path):
            spans.setdefault(step // SPAN * SPAN, Counter())[act] += 1
        for batch, acts in sorted(spans.items()):
            lines.append(",".join([*told, str(batch), *(str(acts[act]) for act in ACTS)]))
    write_whole(out, "\n".join(lines) + "\n")


def teach(out: Path) -> None:
    """half_taught after 250 more updates in which every wrong passage is followed by a search."""
    shown = DemonstrationConfig(
        corrupt=0.35, stop_early=0.85, give_up=0.0, filler_words=2.0, filler_words_failing=3.0
    )
    config = WarmstartConfig(
        start=str(data_dir() / "starts/half_taught"),
        seed=11,
        plain_steps=0,
        steps=250,
        lr=1e-3,
        warmup=30,
        hop_weights=(0.34, 0.33, 0.33),
        demonstrations=shown,
    )
    save_policy(warm_start(World.load(), config), out)


def train(folder: Path, start: str, method: str, rate: float, seed: int) -> None:
    """40 batches with misses .35; LLDS has lambda .2, rows of advantage > 0."""
    given = {"lr": rate, "misses": 0.35, "eval_every": 10, "probe_every": 0, "checkpoint_every": 0}
    if method == "llds":
        given["llds_coef"] = 0.2
    config = train_config(method, seed, start, recipe=SHUFFLED, rollouts_logged=10, **given)
    name = f"method={method},arm={Path(start).name},lr={rate:g},misses=0.35,seed={seed}"
    run = TrainingRun(config, folder / name)
    while run.next_batch < config.steps:
        run.step()
    run.writer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *rest = sys.argv[1:]
    if what == "teach":
        teach(Path(rest[0]))
    elif what == "train":
        folder, start, method, rate, seed = rest
        train(Path(folder), start, method, float(rate), int(seed))
    else:
        out, *paths = map(Path, rest)
        count(out, paths)
