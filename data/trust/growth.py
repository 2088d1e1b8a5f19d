"""How time and memory grow: python data/trust/growth.py [--only WORD ...]

Each row does one thing at five sizes, each in a process of its own: processor seconds of the best
of three, and by how much the peak of the process's memory grew. The exponent is the slope of
log time against log size over the three largest sizes; 1 is linear. Prints a Markdown table.
"""

import argparse
import itertools
import json
import logging
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from load import texts

from lldlib.config import LossConfig, WarmstartConfig
from lldlib.doctor.page import diagnose
from lldlib.files import markdown_table
from lldlib.losses import LossInputs, compute_loss
from lldlib.policy.load import load_policy
from lldlib.policy.score import score
from lldlib.recipes import METHODS, train_config
from lldlib.retrieval import BM25Retriever
from lldlib.retrieval.disk import build_index, open_index
from lldlib.retrieval.passages import Passage, ScoredRetriever
from lldlib.rollout.batch import collate
from lldlib.runs.folder import Run, RunWriter
from lldlib.runs.phases import Monitor, PhaseRule, live_labels, phase_labels
from lldlib.show.compare import write_report
from lldlib.show.spiral import spiral_page
from lldlib.train.run import TrainingRun, describe
from lldlib.train.supervised import make_tiny
from lldlib.world.atlas import World

Work = Callable[[], object]
REPEATS, LARGEST = 3, 3
BATCHES = (1000, 2000, 4000, 8000, 16000)
PASSAGES = (2000, 4000, 8000, 16000, 32000)


def series(count: int, seed: int = 0) -> np.ndarray:
    """A reward that rises, holds and falls, with noise."""
    rise = np.interp(np.arange(count), [0, count / 3, count * 0.8, count], [0.3, 0.8, 0.8, 0.1])
    return np.clip(rise + 0.05 * np.random.default_rng(seed).standard_normal(count), 0, 1)


def log_of(folder: Path, batches: int, seed: int = 0) -> Path:
    """A run folder with so many batches of 30 metrics and an episode each."""
    config = describe(train_config("llds", seed, "half_taught", steps=batches))
    writer = RunWriter.create(folder / f"run{seed}", config)
    noise = np.random.default_rng(seed).standard_normal((batches, 28))
    turns = [{"role": "policy", "text": "<answer>a</answer>", "logp": [-0.1, -0.2, -0.3]}]
    episode = {"question": "?", "answers": ["a"], "answer": "a", "reward": 1.0, "stop": "answer"}
    for step, reward in enumerate(series(batches, seed)):
        row = {f"group/{i}": float(v) for i, v in enumerate(noise[step])}
        writer.metrics(step, row | {"reward/mean": reward, "probe/content": -1 - step / batches})
        writer.rollout(step, episode | {"turns": turns * 4})
    writer.checkpoint(batches, {"w": torch.ones(1)}, {})
    writer.close()
    return folder / f"run{seed}"


def step_of(problems: int, folder: Path) -> Work:
    config = train_config("llds", 0, "half_taught", steps=9, eval_every=0, probe_every=0)
    size = replace(config.rollout, problems=problems)
    return TrainingRun(replace(config, rollout=size, checkpoint_every=0), folder / "run").step


def rollout_of(tokens: int, folder: Path) -> Work:
    """An untrained policy hardly ever ends a turn, so it writes all its tokens."""
    config = train_config("grpo", 0, "half_taught", steps=9, eval_every=0, probe_every=0)
    size = replace(config.rollout, problems=8, max_tokens=tokens)
    run = TrainingRun(replace(config, rollout=size, checkpoint_every=0), folder / "run")
    run.trainer.policy.model.load_state_dict(
        make_tiny(World.load(), WarmstartConfig()).model.state_dict()
    )
    return run.trainer.collect


def scoring_of(vocabulary: int, folder: Path) -> Work:
    policy = load_policy("half_taught")
    run = TrainingRun(train_config("grpo", 0, "half_taught", steps=9), folder / "run")
    batch = collate(run.trainer.collect()[0][:40])
    policy.model.resize_token_embeddings(vocabulary)
    return lambda: score(policy.model, batch, 1.0, entropy=True).logp.sum().backward()


def objective_of(rows: int, _: Path) -> Work:
    draw = torch.Generator().manual_seed(0)
    logp = -torch.rand(rows, 512, generator=draw)
    mask = torch.rand(rows, 512, generator=draw) < 0.8
    loss: LossConfig = replace(METHODS["lp_reg"], llds_coef=0.5)
    x = LossInputs(
        logp=logp.clone().requires_grad_(),
        old_logp=logp + 0.1 * torch.randn(rows, 512, generator=draw),
        advantages=torch.randn(rows, generator=draw),
        action_mask=mask,
        answer_mask=mask,
        proxy_logp=logp - 0.1,
        low_logp=torch.tensor(-0.9),
        ref_logp=logp,
        proxy_kl=logp.abs(),
    )
    return lambda: compute_loss(loss, x)[0].backward()


def in_memory_of(passages: int, _: Path) -> Work:
    found = BM25Retriever([Passage(str(i), "", t) for i, t in enumerate(texts(passages, 0))])
    return searches(found)


def searches(found: ScoredRetriever) -> Work:
    """20 queries that were not asked before."""
    count = itertools.count()
    return lambda: [found.scored([f"id{next(count)}x w1 w2 w3"], 3) for _ in range(20)]


def corpus_of(passages: int, folder: Path) -> Path:
    rows = ({"id": str(n), "title": "", "text": t} for n, t in enumerate(texts(passages, 0)))
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def index_of(passages: int, folder: Path) -> Work:
    corpus, count = corpus_of(passages, folder), iter(range(99))
    return lambda: build_index(corpus, folder / f"index{next(count)}")


def on_disk_of(passages: int, folder: Path) -> Work:
    found = open_index(corpus_of(passages, folder), folder / "index")
    return searches(found)


def resume_of(batches: int, folder: Path) -> Work:
    path = log_of(folder, batches)
    return lambda: RunWriter.resume(path, batches).close()


def read_of(batches: int, folder: Path) -> Work:
    path = log_of(folder, batches)
    return lambda: (Run(path).metrics, Run(path).rollouts)


def doctor_of(batches: int, folder: Path) -> Work:
    path = log_of(folder, batches)
    return lambda: diagnose(path)


def page_of(batches: int, folder: Path) -> Work:
    path = log_of(folder, batches)
    return lambda: spiral_page([Run(path)])


def phases_of(batches: int, _: Path) -> Work:
    return lambda: phase_labels(series(batches), -series(batches, 1), PhaseRule())


def live_of(batches: int, _: Path) -> Work:
    return lambda: live_labels(series(batches), -series(batches, 1), PhaseRule())


def monitor_of(batches: int, _: Path) -> Work:
    """One more batch of a run of so many."""
    rows = [{"reward/mean": r, "displacement/correct_token": 0.0} for r in series(batches)]
    monitor = Monitor(rows)
    return lambda: monitor.add(rows[-1])


def report_of(runs: int, folder: Path) -> Work:
    paths = [log_of(folder, 100, seed) for seed in range(runs)]
    return lambda: write_report(paths, folder / "report")


ROWS: dict[str, tuple[str, Callable[[int, Path], Work], tuple[int, ...], str]] = {
    "step": ("training step against questions a batch", step_of, (8, 16, 32, 64, 128), "1"),
    "rollout": ("rollout against tokens", rollout_of, (50, 100, 200, 400, 800), "1 to 2"),
    "scoring": ("scoring against vocabulary", scoring_of, (4096, 8192, 16384, 32768, 65536), "1"),
    "objective": ("LLDS and Lp-Reg against rows", objective_of, (32, 64, 128, 256, 512), "1"),
    "memory": (
        "search in memory against passages",
        in_memory_of,
        PASSAGES,
        "1",
    ),
    "index": ("index on disk against passages", index_of, PASSAGES, "1"),
    "disk": (
        "search on disk against passages",
        on_disk_of,
        PASSAGES,
        "under 1",
    ),
    "read": ("reading a log against batches", read_of, BATCHES, "1"),
    "resume": ("resuming against batches", resume_of, BATCHES, "1"),
    "doctor": ("the doctor against batches", doctor_of, BATCHES, "1"),
    "page": ("explore against batches", page_of, BATCHES, "1"),
    "phases": ("phases against batches", phases_of, BATCHES, "1"),
    "monitor": (
        "one batch more against batches",
        monitor_of,
        BATCHES,
        "1",
    ),
    "live": (
        "live phases against batches",
        live_of,
        (100, 200, 400, 800, 1600),
        "1",
    ),
    "report": ("report against runs", report_of, (2, 4, 8, 16, 32), "1"),
}


def peak() -> float:
    """Of this process's memory so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(name: str, size: int) -> tuple[float, float]:
    """Processor seconds, and MB by which the peak grew."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        work, before, taken = ROWS[name][1](size, Path(folder)), peak(), []
        for _ in range(REPEATS):
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
        return min(taken), peak() - before


def main() -> None:
    """Measure every row in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--one", nargs=2, metavar=("ROW", "SIZE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one[0], int(given.one[1]))))
        return
    cells = []
    for name in given.only:
        what, _, sizes, expected = ROWS[name]
        found = []
        for size in sizes:
            words = [sys.executable, __file__, "--one", name, str(size)]
            said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            found.append(json.loads(said.splitlines()[-1]))
        last = np.log(sizes[-LARGEST:])
        slope = np.polyfit(last, np.log([max(s, 1e-6) for s, _ in found[-LARGEST:]]), 1)[0]
        times = " ".join(f"{seconds:.3g}" for seconds, _ in found)
        grown = f"{found[0][1]:.0f}, {found[-1][1]:.0f}"
        cells.append(
            [what, f"{sizes[0]:,} to {sizes[-1]:,}", times, f"{slope:.2f}", expected, grown]
        )
        print(cells[-1], file=sys.stderr, flush=True)
    heads = ["what", "sizes, each twice the last", "processor seconds", "exponent", "expected"]
    print(markdown_table([*heads, "memory at the smallest and largest, MB"], cells))


if __name__ == "__main__":
    main()
