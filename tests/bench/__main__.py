"""`python -m tests.bench [--policy tiny] [--quick]`: the ratios and rates as markdown tables."""

import argparse
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from . import lean, overhead, retrieval, rollouts, starting, steps
from .timing import table
from .workload import Workload

BENCHMARKS = Path(os.environ.get("LLDLIB_BENCHMARKS", "no benchmarks"))
REPEATS = {"rollouts": 12, "steps": 12, "overhead": 30, "methods": 6, "lean": 5}
# half a batch of the collapse setting: TRL wants equal updates, and 64 do not divide its batch
SIZE = {"problems": 16, "updates_per_batch": 40}
LARGER = 2  # the rollout is measured once more with so many times the questions
QUICK = {"rollouts": 3, "steps": 3, "overhead": 4, "methods": 1, "lean": 1}

COMPARED = """\
One thread; seconds of CPU time; every arm in turn on the same policy and questions; the first
repeat is dropped; medians of the ratios of paired repeats. {rows} episodes per batch where no
other number is named, at most {tokens} tokens each, {updates} updates per step. Policy {policy}.
{machine}.

- Rollout: `lldlib.rollout.loop.Rollout` (one key-value cache over all turns) against a loop in the
  manner of Search-R1: at every turn, transformers' `generate` over the whole text so far, rows that
  ended left out, stopping at </search> or </answer>. Same protocol, budgets and temperature.
- Training step: `Trainer` against TRL 1.16.0's `GRPOTrainer` with that same loop as
  its `rollout_func` (no vLLM: it needs a GPU), retrieved text masked by `env_mask`; same weights
  and questions before each step, same number of updates, KL weight, lr, AdamW, clip, token mean,
  float32, no gradient checkpointing. Logs and evaluations are outside the clock.
- Overhead: scoring and updates of one batch of episodes with the term and without, nothing else
  changed; divided by a whole GRPO step (rollout, scoring, updates). The same for every preset, as
  multiples of the GRPO step; a preset without the KL to the reference policy saves its scoring.
"""


def main() -> None:
    """Measure everything and print; a one-line error where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--policy", default="tiny", help="'tiny', or a folder with a tiny searcher")
    parser.add_argument("--quick", action="store_true", help="few repeats: a rough look")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        print(f"## Starting\n\n{starting.report()}\n", flush=True)
        bench(Workload.make(arguments.policy, **SIZE), QUICK if arguments.quick else REPEATS)
        sizes = retrieval.QUICK_SIZES if arguments.quick else retrieval.SIZES
        print(f"\n## Retrieval\n\n{retrieval.report(BENCHMARKS, sizes)}", flush=True)
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"bench: {error}")


def bench(work: Workload, repeats: dict[str, int]) -> None:
    """Measure every part, printing each as it is done."""
    print(_compared(work))
    rolled = []
    for part in (work, work.wider(LARGER)):
        ratios, episodes = rollouts.measure(part, repeats["rollouts"])
        rolled += ratios
        print(f"{table(ratios)}\n\n{episodes}\n", flush=True)
    stepped, details = steps.measure(work, repeats["steps"])
    print(f"{table(stepped)}\n\n{details}\n", flush=True)
    extra = overhead.measure(work, repeats["overhead"])
    extra += overhead.compare(work, repeats["methods"])
    print(f"## The head\n\n{lean.report(repeats['lean'])}\n", flush=True)
    print(f"## All ratios\n\n{table([*rolled, *stepped, *extra])}", flush=True)


def _compared(work: Workload) -> str:
    return COMPARED.format(
        rows=work.rows,
        tokens=work.config.rollout.max_tokens,
        updates=work.config.updates_per_batch,
        policy=Path(work.config.policy).name,
        machine=f"{platform.processor() or platform.machine()}, torch {torch.__version__}",
    )


if __name__ == "__main__":
    main()
