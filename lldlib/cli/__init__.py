"""The command line: `python -m lldlib demo | train | evaluate | serve | report | ...`."""

import argparse
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

from lldlib.cli import lab, models, questions
from lldlib.cli.options import Demo, Evaluate, Fit, Report, Serve, Sft, Sweep, Train, Warmstart
from lldlib.config import SftConfig
from lldlib.recipes import METHODS, train_config

ABOUT = "A search agent whose training by GRPO collapses, and what saves it."
HANDLERS: dict[type, Callable[[Any], int]] = {
    Demo: lab.demo_command,
    Train: lab.train_command,
    Evaluate: questions.evaluate_command,
    Serve: questions.serve_command,
    Report: lab.report_command,
    Sweep: lab.sweep_command,
    Warmstart: lab.warmstart_command,
    Sft: models.sft_command,
    Fit: models.fit_command,
}


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
    """The union of the commands; method and policy in `arguments` give the defaults of train."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--method", default="grpo")
    early.add_argument("--policy", default="tiny")
    named = early.parse_known_args(arguments)[0]
    train = tyro.conf.subcommand(
        "train",
        default=Train(config=train_config(named.method, seed=0, policy=named.policy)),
        description=f"{inspect.cleandoc(Train.__doc__)}\n\nMethods: {', '.join(METHODS)}.",
    )
    return (
        Annotated[Demo, tyro.conf.subcommand("demo")]
        | Annotated[Train, train]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Serve, tyro.conf.subcommand("serve")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Sweep, tyro.conf.subcommand("sweep")]
        | Annotated[Warmstart, tyro.conf.subcommand("warmstart")]
        | Annotated[Sft, tyro.conf.subcommand("sft", default=Sft(config=SftConfig()))]
        | Annotated[Fit, tyro.conf.subcommand("fit")]
    )
