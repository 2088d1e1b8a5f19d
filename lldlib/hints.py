"""What the command line says beside its results: near names, endings, how to go on."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from glob import escape
from itertools import dropwhile, takewhile
from pathlib import Path

from lldlib.config import unknown
from lldlib.files import claim

MADE_BY = b"lldlib diagnose</code>"  # in the last line of every page


def program() -> str:
    """The program's name as it was typed."""
    return "lldlib" if Path(sys.argv[0]).stem == "lldlib" else "python -m lldlib"


def command(*words: object) -> str:
    """A command to paste into a shell."""
    return f"{program()} {shlex.join(map(str, words))}"


def check_command(arguments: Sequence[str], known: Iterable[str]) -> None:
    """ValueError for a first argument that is no command, with the near ones."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
        raise ValueError(f"{unknown('command', arguments[0], known)}; see {program()} --help")


def wrong_flags(arguments: Sequence[str], known: str, box: str) -> str:
    """What is wrong with the flags of a command, in one line.

    `known` is the command's help, `box` what the parser of the flags said.
    """
    flags = sorted(set(re.findall(r"--[a-z][\w.-]*", known)))
    given = (word.partition("=")[0] for word in arguments if word.startswith("--"))
    lost = [flag for flag in given if flag.replace("_", "-") not in flags]
    if lost:
        near = get_close_matches(lost[0], flags, cutoff=0.7)
        told = f"unknown flag {lost[0]}" + (f": did you mean {' or '.join(near)}?" if near else "")
    else:
        _, *lines = (line.strip("│╰╯ ") for line in box.splitlines())  # without the title
        inside = dropwhile(lambda line: not line.strip("-"), lines)  # without UTF-8 a rule follows
        told = " ".join(takewhile(lambda line: line.strip("─-"), inside))
    name = [word for word in arguments[:1] if not word.startswith("-")]
    return f"{told.rstrip('.')}; see {command(*name, '--help')}"


def resume_hint(out: Path, name: str = "train") -> str:
    """After Ctrl-C: where a run stands and how it goes on."""
    from lldlib.runs.folder import Run

    try:
        step = max((number for number, _ in Run(out).checkpoints), default=0)
    except (OSError, ValueError):
        step = 0
    return f"stopped; it goes on from batch {step} with: {command(name, '--out', out, '--resume')}"


def claim_pages(folder: Path) -> None:
    """As `files.claim`, for the pages of `diagnose`, which are named after the logs."""
    pages = [page for page in folder.glob("*.html") if MADE_BY in page.read_bytes()[-400:]]
    made = [f"{escape(page.stem)}.{kind}" for page in pages for kind in ("html", "png", "json")]
    claim(folder, "diagnose", *made, *(["figure.png"] if pages else []))


def ending(out: Path) -> str:
    """After a run: its verdict, as `diagnose` gives it, its figure, and the next three commands."""
    from lldlib.doctor.page import diagnose
    from lldlib.runs.folder import Run
    from lldlib.show.curves import collapse_figure
    from lldlib.show.style import save

    run = Run(out)
    figure = save(collapse_figure({run.config.get("method", "run"): [run]}), out / "curves.png")
    more = command("train", "--out", out, "--resume", "--steps", 2 * len(run.metrics))
    page = out.with_name(f"{out.name}-page") if out.name else out.resolve().parent / "page"
    return "\n".join(
        [
            f"verdict:    {diagnose(out)[-1].judged.sentence}",
            f"figure:     {figure}",
            f"run folder: {out}",
            f"why:        {command('diagnose', out, '--out', page)}",
            f"held out:   {command('evaluate', '--run', out)}",
            f"go on:      {more}",
        ]
    )
