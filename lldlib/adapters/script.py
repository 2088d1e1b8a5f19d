"""The command `script`: complete training scripts for other engines, to start from."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Literal

import tyro

from lldlib.files import write_whole

Name = Literal["trl-search", "verl-search"]


def script(name: tyro.conf.Positional[Name], out: Path | None = None) -> int:
    """Write a complete script that trains a search agent in TRL or in verl, with LLDS.

    Its first lines say how it is started, on one GPU and on eight.

    Args:
        name: engine and task
        out: file to write (default: standard output)
    """
    text = files("lldlib.adapters").joinpath("scripts", f"{name}.txt").read_text("utf-8")
    if out is None:
        sys.stdout.write(text)
    elif out.exists():
        raise FileExistsError(f"{out} exists: give another file, or remove it first")
    else:
        write_whole(out, text)
    return 0
