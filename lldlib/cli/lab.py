"""Commands of the lab: demo, train, report, sweep, warmstart."""

import sys
from pathlib import Path
from typing import Any

# The handlers import the rest, which takes seconds, when they run.
from lldlib.cli.options import Demo, Report, Sweep, Train, Warmstart
from lldlib.config import HELDOUT_QUESTIONS, RolloutConfig
from lldlib.recipes import collapse_config

CONTROL_SEED = 1  # of the permuted facts


def demo_command(command: Demo) -> int:
    """Train both arms, print the table and where the figure lies; 1 if a run failed."""
    from lldlib.train.demo import demo, table

    overrides = {"steps": command.steps, "policy": command.policy}
    rows, failures = demo(command.out, command.seeds, command.jobs, **overrides)
    if rows:
        print(f"\n{table(rows)}\n\nfigure:  {command.out / 'figure.png'}")
        print(f"summary: {command.out / 'summary.json'}")
    return complain(failures)


def train_command(command: Train) -> int:
    """Train or resume one run with a progress line."""
    from tqdm import tqdm

    from lldlib.runs.folder import Run
    from lldlib.train.demo import status
    from lldlib.train.run import TrainingRun

    set_up()
    config = command.config
    if command.resume and config != collapse_config(config.method, seed=0):
        raise ValueError("--resume goes on by the run's own settings: give it only --out")
    run = TrainingRun(config, command.out, resume=command.resume)
    total, done = run.trainer.config.steps, run.trainer.step_index
    with tqdm(total=total, initial=done, desc=command.out.name, unit="batch") as bar:

        def on_step(index: int, metrics: dict[str, float]) -> None:
            bar.set_postfix_str(status(Run(command.out)), refresh=False)
            bar.update()

        run.run(on_step)
    print(f"run folder: {command.out}")
    return 0


def print_heldout(policy: Any, rollout: RolloutConfig) -> None:
    """Print held-out exact match, sampled and greedy, and the permuted-facts control."""
    from lldlib.evaluate.heldout import heldout_em, permuted_control
    from lldlib.world.atlas import World
    from lldlib.world.environment import fixed_questions

    world = World.load()
    questions = fixed_questions(world, HELDOUT_QUESTIONS, "heldout")
    em = heldout_em(policy, world, questions, rollout)
    control = permuted_control(policy, world, questions, rollout, seed=CONTROL_SEED)
    print(f"held-out exact match                        {em:.3f}  ({len(questions)} questions)")
    print(f"on a permuted corpus, against its answers   {control.em_permuted:.3f}  ", end="")
    print(f"({control.questions} questions whose answer changed)")
    print(f"on a permuted corpus, against true answers  {control.em_true:.3f}")


def report_command(command: Report) -> int:
    from lldlib.runs.report import write_report

    files = write_report(command.runs, command.out)
    print(files[0].read_text(encoding="utf-8"))
    print("\n".join(map(str, files)))
    return 0


def sweep_command(command: Sweep) -> int:
    from lldlib.train.sweep import SUMMARY, parse_grid, sweep

    failures = sweep(parse_grid(command.grid), command.out, command.jobs)
    print(f"rows: {command.out / SUMMARY}")
    return complain(failures)


def warmstart_command(command: Warmstart) -> int:
    """Train the tiny searcher from nothing and save it."""
    from lldlib.train.warmstart import save_policy, warm_start
    from lldlib.world.atlas import World

    set_up()
    policy = warm_start(World.load(), command.config)
    save_policy(policy, command.out)
    print(f"policy: {command.out}")
    print_heldout(policy, collapse_config("grpo", seed=0).rollout)
    return 0


def set_up() -> None:
    """One thread, as in demo and sweep: the same numbers, and no slower at this size."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def complain(failures: dict[Path, str]) -> int:
    """Say which runs failed; the exit code."""
    for path, error in failures.items():
        print(f"failed: {path}: {error}", file=sys.stderr)
    return 1 if failures else 0
