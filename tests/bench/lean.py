"""The lean head against naive log-softmax and TRL's fused head: peak memory and time.

Run by itself with `python -m tests.bench.lean`. Each arm is a process of its own that scores and
differentiates log-probs of the same tokens; the hidden states carry gradient, the head's weight is
frozen (LoRA, QLoRA) or trained. The peak is of tensors, as torch's profiler counts it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .steps import ROOT, VENV, Worker, environment
from .timing import Measurement, table

TOKENS, WIDTH, VOCABULARY = 1024, 896, 151_936  # the head of Qwen2.5-0.5B
ARMS = ("lldlib", "naive", "trl")
MEMORY_AIM, TIME_AIM = 4.0, 1.0  # naive peak over ours; their seconds over ours


@contextmanager
def _worker(python: str, arm: str, frozen: bool, shape: tuple[int, int, int]) -> Iterator[Worker]:
    order = json.dumps({"arm": arm, "frozen": frozen, "shape": shape})
    log = VENV.parent / f"bench-lean-{arm}.log"
    log.parent.mkdir(exist_ok=True)
    with (
        open(log, "w") as messages,
        subprocess.Popen(
            [python, "-m", "tests.bench.lean_worker", order],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        ) as process,
    ):
        yield Worker(process, log)


def measure(
    repeats: int, shape: tuple[int, int, int] = (TOKENS, WIDTH, VOCABULARY)
) -> tuple[list[Measurement], str]:
    """The ratios, and a table of peaks and seconds."""
    ratios, lines = [], ["| head | arm | peak, MB | seconds |", "|---|---|---|---|"]
    pythons = {"lldlib": sys.executable, "naive": sys.executable, "trl": str(environment())}
    for frozen in (True, False):
        kind = "frozen" if frozen else "trained"
        with ExitStack() as stack:
            workers = {
                arm: stack.enter_context(_worker(pythons[arm], arm, frozen, shape)) for arm in ARMS
            }
            first = {arm: worker.step() for arm, worker in workers.items()}  # measures the peak
            steps = {arm: [] for arm in ARMS}
            for repeat in range(repeats):
                for arm in ARMS if repeat % 2 else ARMS[::-1]:
                    steps[arm].append(workers[arm].step()["seconds"])
        peaks = {arm: first[arm]["peak"] for arm in ARMS}
        for other in ARMS[1:]:
            aim = MEMORY_AIM if other == "naive" else None
            what = f"{kind} head: peak of {other} over ours"
            ratios.append(Measurement(what, [peaks[other] / peaks["lldlib"]], aim))
            pairs = zip(steps[other], steps["lldlib"], strict=True)
            what = f"{kind} head: time of {other} over ours"
            ratios.append(Measurement(what, [theirs / ours for theirs, ours in pairs], TIME_AIM))
        for arm in ARMS:
            seconds = sorted(steps[arm])[len(steps[arm]) // 2]
            lines.append(f"| {kind} | {arm} | {peaks[arm] / 1e6:.0f} | {seconds:.2f} |")
    return ratios, "\n".join(lines)


def report(repeats: int, shape: tuple[int, int, int] = (TOKENS, WIDTH, VOCABULARY)) -> str:
    """Both tables as markdown."""
    ratios, details = measure(repeats, shape)
    tokens, width, vocabulary = shape
    head = f"{tokens} tokens, hidden size {width}, vocabulary {vocabulary}, float32, one thread."
    return f"{head}\n\n{table(ratios)}\n\n{details}"


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] or [5, TOKENS, WIDTH, VOCABULARY]
    print(report(numbers[0], tuple(numbers[1:])))
