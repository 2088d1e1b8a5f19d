"""A whole training step against TRL's GRPOTrainer, which lives in an environment of its own."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lldlib.train.setup import probe_set
from lldlib.world.environment import Environment, Split

from .timing import Measurement
from .trainer import TimedTrainer
from .workload import Workload, policy_tokens

AIM = 2.0
ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "bench-trl-venv"  # build/ is git-ignored, and `make clean` removes it
PACKAGES = ("torch", "transformers", "rank-bm25", "safetensors", "tokenizers", "numpy", "jaxtyping")
TRL = "trl==1.16.0"


def environment(venv: Path = VENV) -> Path:
    """The python of TRL's environment, made now where it is missing or asks for other packages."""
    pins = (ROOT / "requirements.txt").read_text().split()
    wanted = [pin for pin in pins if pin.split("==")[0] in PACKAGES] + [TRL]
    python, stamp = venv / "bin" / "python", venv / "packages.txt"
    if not stamp.exists() or stamp.read_text().split() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        stamp.write_text("\n".join(wanted))
    return python


class Worker:
    """The running TRL process."""

    def __init__(self, process: subprocess.Popen, log: Path):
        self.process, self.log = process, log

    def step(self) -> dict[str, float]:
        """One whole TRL step: {seconds, rollout, reward, tokens}; RuntimeError if it died."""
        try:
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            last = self.log.read_text().strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"TRL's process ended ({last[0]}): see {self.log}")
        return json.loads(answer)


@contextmanager
def worker(python: Path, work: Workload, batches: int) -> Iterator[Worker]:
    """TRL's trainer, started and in the end stopped."""
    order = {"policy": work.config.policy, "overrides": work.overrides, "batches": batches}
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    settings |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    log = VENV / "worker.log"
    with (
        open(log, "w") as messages,
        subprocess.Popen(
            [python, "-m", "tests.bench.trl_worker", json.dumps(order)],
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        ) as process,
    ):
        yield Worker(process, log)  # on leaving, its standard input closes, which ends it


def measure(work: Workload, repeats: int) -> tuple[list[Measurement], str]:
    """The ratios, and a text with what a step took and gave in both."""
    probe = probe_set(work.policy, work.environment, work.config.rollout)
    trainer, batches = TimedTrainer(work, probe), work.batches(repeats + 1)
    _, rules, tool, _ = work.parts
    ours, theirs = [], []
    with worker(environment(), work, len(batches)) as trl:
        for number, questions in enumerate(batches):
            trainer.restart(number)
            trainer.environment = Environment.fixed(rules, Split(questions, tool))
            arms = [lambda: ours.append(_step(trainer)), lambda: theirs.append(trl.step())]
            for arm in arms if number % 2 else arms[::-1]:
                arm()
    trainer.restart(0)  # the policy is shared with the other measurements
    ours, theirs = ours[1:], theirs[1:]  # the first repeat warms up
    parts = {
        "training step against TRL": (lambda s: s["seconds"], AIM),
        "the same with our diagnostics": (lambda s: s["seconds"] + s.get("measuring", 0.0), None),
        "of the step: rollout": (lambda s: s["rollout"], None),
        "of the step: scoring and updates": (lambda s: s["seconds"] - s["rollout"], None),
    }
    ratios = [
        Measurement(what, [seconds(b) / seconds(a) for a, b in zip(ours, theirs, strict=True)], aim)
        for what, (seconds, aim) in parts.items()
    ]
    return ratios, _report(ours, theirs)


def _step(trainer: TimedTrainer) -> dict[str, float]:
    """One step of ours, in the terms of `Worker.step`, and `measuring`: seconds of diagnostics."""
    seconds, episodes = trainer.timed_step()
    return {
        "seconds": seconds,
        "rollout": trainer.rolling,
        "measuring": trainer.measuring,
        "reward": statistics.fmean(episode.reward for episode in episodes),
        "tokens": policy_tokens(episodes) / len(episodes),
    }


def _report(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    names = {
        "seconds": "seconds per step",
        "rollout": "of it rollout",
        "tokens": "policy tokens an episode",
        "reward": "reward",
    }
    lines = ["| median of | lldlib | TRL |", "|---|---|---|"]
    for key, name in names.items():
        a, b = (statistics.median(step[key] for step in arm) for arm in (ours, theirs))
        lines.append(f"| {name} | {a:.3f} | {b:.3f} |")
    return "\n".join(lines)
