"""The command line: `python -m lldlib demo | train | evaluate | report | sweep | warmstart`."""

import argparse
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

# Only what the help texts need: the commands import the rest, which takes seconds, when they run.
from lldlib.config import RolloutConfig, TrainConfig, WarmstartConfig, data_dir
from lldlib.methods import METHODS
from lldlib.presets import collapse_config

ABOUT = "A search agent whose training by GRPO collapses, and what saves it."
CONTROL_SEED = 1  # of the permuted facts
STEPS = collapse_config("grpo", seed=0).steps


def cores() -> int:
    """How many processes keep this machine busy."""
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Demo:
    """Watch GRPO collapse and GRPO+LLDS live: both are trained side by side from the same start.

    Ends with a table, figure.png and summary.json in the folder --out. Run it again to go on after
    an interruption; what is done is skipped.
    """

    seeds: tuple[int, ...] = (0,)  # two runs for each
    out: Path = Path("runs/demo")  # folder for the runs, the figure and the summary
    jobs: int = field(default_factory=cores)  # runs at the same time; one core each
    steps: int = STEPS  # rollout batches of each run
    policy: str = "tiny"  # "tiny" is the built-in searcher; else a Hugging Face name or path


@dataclass(frozen=True)
class Train:
    """Train one searcher, from its warm start, into a run folder.

    Every setting starts from the method's preset at the demo's setting. Interrupted, even by
    kill -9, it goes on with --resume and gives the numbers of an unbroken run.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path = Path("runs/train")  # the run folder: settings, metrics, rollouts, checkpoints
    resume: bool = False  # go on with the run in --out, by the settings saved there


@dataclass(frozen=True)
class Evaluate:
    """Ask the held-out questions, and ask again where the facts of the world are permuted.

    A searcher that reads answers from the permuted passages; one that remembers gives the true
    answers. Name a run or a policy.
    """

    run: Path | None = None  # a run folder with checkpoints
    checkpoint: int | None = None  # of that run: its batch number; the latest if left out
    policy: str | None = None  # "tiny", or a Hugging Face name or path


@dataclass(frozen=True)
class Report:
    """Make the table and the figures of recorded runs, from their folders alone."""

    runs: tyro.conf.Positional[tuple[Path, ...]]  # run folders, such as runs/demo/*-seed0
    out: Path  # folder for table.md, summary.json and the figures


@dataclass(frozen=True)
class Sweep:
    """Train a grid of runs at the demo's setting over all cores, such as:

    python -m lldlib sweep --grid method=grpo,llds seed=0,1,2 lr=2e-4,4e-4 --out runs/sweep

    Each cell has a folder; unfinished ones are resumed, finished ones skipped. The rows of all
    whole runs are in sweep.json. A setting of LLDS or Lp-Reg is left out for methods without that
    term.
    """

    grid: tuple[str, ...]  # settings as name=value,value; method and seed are needed
    out: Path  # folder for the runs and sweep.json
    jobs: int = field(default_factory=cores)  # runs at the same time; one core each


@dataclass(frozen=True)
class Warmstart:
    """Make the tiny searcher from nothing, by supervised training on noisy demonstrations.

    Takes some minutes on one core, and writes over what the folder --out holds.
    """

    config: Annotated[WarmstartConfig, tyro.conf.arg(name="")]
    out: Path = field(default_factory=lambda: data_dir() / "tiny")  # the policy's folder


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 2 after an error that the user can mend."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        command = tyro.cli(
            _commands(arguments), args=arguments, prog="python -m lldlib", description=ABOUT
        )
        return HANDLERS[type(command)](command)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; what is written can be resumed", file=sys.stderr)
        return 130


def _commands(arguments: Sequence[str]) -> Any:
    """The union of the commands; the method named in `arguments` gives the defaults of train."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--method", default="grpo")
    method = early.parse_known_args(arguments)[0].method
    train = tyro.conf.subcommand(
        "train",
        default=Train(config=collapse_config(method, seed=0)),
        description=f"{inspect.cleandoc(Train.__doc__)}\n\nMethods: {', '.join(METHODS)}.",
    )
    return (
        Annotated[Demo, tyro.conf.subcommand("demo")]
        | Annotated[Train, train]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Sweep, tyro.conf.subcommand("sweep")]
        | Annotated[Warmstart, tyro.conf.subcommand("warmstart")]
    )


def _demo(command: Demo) -> int:
    from lldlib.demo import demo, table

    overrides = {"steps": command.steps, "policy": command.policy}
    rows, failures = demo(command.out, command.seeds, command.jobs, **overrides)
    if rows:
        print(f"\n{table(rows)}\n\nfigure:  {command.out / 'figure.png'}")
        print(f"summary: {command.out / 'summary.json'}")
    return _complain(failures)


def _train(command: Train) -> int:
    from tqdm import tqdm

    from lldlib.demo import status
    from lldlib.run import TrainingRun
    from lldlib.runlog import Run

    _set_up()
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


def _evaluate(command: Evaluate) -> int:
    from lldlib.heldout import policy_of
    from lldlib.policies import load_policy
    from lldlib.run import saved_config
    from lldlib.runlog import Run

    if (command.run is None) == (command.policy is None):
        raise ValueError("name what to evaluate: either --run DIR or --policy NAME")
    _set_up()
    if command.run is None:
        if command.checkpoint is not None:
            raise ValueError("--checkpoint belongs to --run: a policy has no checkpoints")
        policy, rollout = load_policy(command.policy), collapse_config("grpo", seed=0).rollout
    else:
        run = Run(command.run)
        policy = policy_of(run, command.checkpoint)
        rollout = saved_config(run.config).rollout
    _print_exam(policy, rollout)
    return 0


def _print_exam(policy: Any, rollout: RolloutConfig) -> None:
    from lldlib.heldout import heldout_em, permuted_control
    from lldlib.run import HELDOUT_QUESTIONS, fixed_questions
    from lldlib.world import World

    world = World.load()
    questions = fixed_questions(world, HELDOUT_QUESTIONS, "heldout")
    em = heldout_em(policy, world, questions, rollout)
    control = permuted_control(policy, world, questions, rollout, seed=CONTROL_SEED)
    print(f"held-out exact match                        {em:.3f}  ({len(questions)} questions)")
    print(f"on a permuted corpus, against its answers   {control.em_permuted:.3f}  ", end="")
    print(f"({control.questions} questions whose answer changed)")
    print(f"on a permuted corpus, against true answers  {control.em_true:.3f}")


def _report(command: Report) -> int:
    from lldlib.report import write_report

    files = write_report(command.runs, command.out)
    print(files[0].read_text(encoding="utf-8"))
    print("\n".join(map(str, files)))
    return 0


def _sweep(command: Sweep) -> int:
    from lldlib.sweep import SUMMARY, parse_grid, sweep

    failures = sweep(parse_grid(command.grid), command.out, command.jobs)
    print(f"rows: {command.out / SUMMARY}")
    return _complain(failures)


def _warmstart(command: Warmstart) -> int:
    from lldlib.warmstart import save_policy, warm_start
    from lldlib.world import World

    _set_up()
    policy = warm_start(World.load(), command.config)
    save_policy(policy, command.out)
    print(f"policy: {command.out}")
    _print_exam(policy, collapse_config("grpo", seed=0).rollout)
    return 0


def _set_up() -> None:
    """One thread, as in demo and sweep: the same numbers, and no slower at this size."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def _complain(failures: dict[Path, str]) -> int:
    """Say which runs failed; the exit code."""
    for path, error in failures.items():
        print(f"failed: {path}: {error}", file=sys.stderr)
    return 1 if failures else 0


HANDLERS: dict[type, Callable[[Any], int]] = {
    Demo: _demo,
    Train: _train,
    Evaluate: _evaluate,
    Report: _report,
    Sweep: _sweep,
    Warmstart: _warmstart,
}
