"""What a notebook of the course needs: `from lldlib.course import *` brings the names of `__all__`.

Thin: recorded runs, a live run from the half-taught start, a figure with its alt text, a table.
What only some notebooks need is imported inside, so that the first picture comes soon.
"""

import importlib.util
import math
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from lldlib import losses
from lldlib.config import data_dir
from lldlib.files import markdown_table
from lldlib.runs.folder import Run
from lldlib.show.controls import png
from lldlib.show.lab import LiveLab
from lldlib.show.style import BATCH, COLOURS, label_ends, style
from lldlib.types import Episode

if TYPE_CHECKING:
    from lldlib.policy.load import Policy

__all__ = [
    "ARMS", "BATCH", "COLOUR", "COOLER_COLOUR", "FAST", "GRPO_COLOUR", "LLDS_COLOUR", "Figure",
    "Markdown", "Path", "Run", "checks", "data_dir", "demo", "display", "fmean", "label_ends",
    "live", "load_policy", "losses", "math", "median", "pd", "random", "recorded", "roll_out",
    "show", "stdev", "style", "table", "tempfile", "torch",
]  # fmt: skip

FAST = os.environ.get("LLDLIB_FAST") == "1"  # a few live batches: for tests and the impatient
GRPO_COLOUR, LLDS_COLOUR, COOLER_COLOUR = COLOURS[:3]
ARMS = {"grpo": "GRPO", "llds": "GRPO + LLDS", "cooler": "GRPO, cooler"}
COLOUR = dict(zip(ARMS, COLOURS, strict=False))
FOLDERS = {"grpo": "grpo", "llds": "llds", "cooler": "grpo_best_rate"}  # of the recorded runs

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore", category=FutureWarning)


def recorded(arm: str) -> list[Run]:
    """The whole runs of 40 batches of an arm of `ARMS`, by seed; ValueError for another name."""
    runs = [Run(path) for path in sorted((data_dir() / "atlas/main").glob(f"{_of(arm)}-seed*"))]
    return [run for run in runs if len(run.metrics) == run.config["steps"]]


def demo(arm: str) -> Run:
    """The demo's recorded run of 25 batches, seed 0, of an arm of `ARMS`."""
    return Run(data_dir() / f"atlas/demo/{_of(arm)}-seed0")


def _of(arm: str) -> str:
    if arm not in FOLDERS:
        raise ValueError(f"no recorded arm {arm!r}: use {', '.join(FOLDERS)}")
    return FOLDERS[arm]


def show(figure: Figure, alt: str) -> None:
    """Display a figure as a PNG; `alt` says in words what it shows, for who cannot see it."""
    picture = {"image/png": png(figure), "text/plain": alt}
    display(picture, raw=True, metadata={"image/png": {"alt": alt}})


def table(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Display a Markdown table."""
    cells = [[str(value) for value in row] for row in rows]
    display(Markdown(markdown_table(tuple(map(str, heads)), cells)))


def live(method: str = "grpo", seed: int = 0, **settings: Any) -> LiveLab:
    """A lab on a new run from the half-taught start, in a folder that ends with the kernel.

    `settings` are those of `recipes.train_config`.
    """
    from lldlib.recipes import train_config
    from lldlib.train.run import TrainingRun

    lean = {"policy": "half_taught", "eval_every": 0, "checkpoint_every": 1}
    config = train_config(method, seed, **lean | settings)
    folder = tempfile.TemporaryDirectory(prefix="lldlib-course-")
    lab = LiveLab(TrainingRun(config, Path(folder.name) / "lab"))
    lab.folder = folder  # goes when the lab does
    return lab


def load_policy(name: str) -> "Policy":
    """A policy with its tokenizer: `policy.load.load_policy`, which takes seconds to import."""
    from lldlib.policy import load

    return load.load_policy(name)


def roll_out(
    policy: "Policy", planet: int, problems: int, *, group_size: int = 5, seed: int = 0
) -> list[Episode]:
    """The answers of a policy, at temperature 1, to questions of the planet of batch `planet`."""
    from lldlib.config import RolloutConfig
    from lldlib.recipes import train_config
    from lldlib.rollout.loop import Rollout
    from lldlib.world.registry import open_environment

    environment = open_environment(train_config("grpo", 0, "half_taught"))
    split = environment.training(planet)
    rollout = Rollout(policy.tokenizer, environment.rules, split.tool, RolloutConfig())
    questions = random.Random(seed).sample(split.questions, problems)
    draw = torch.Generator().manual_seed(seed)
    return rollout.run(policy.model, questions, samples=group_size, temperature=1.0, generator=draw)


def _graders() -> ModuleType:
    """The graders of the exercises, which lie beside the notebooks, or in an installed package."""
    package = Path(__file__).resolve().parent
    for place in (package / "notebooks", package.parent / "notebooks"):
        if (path := place / "exercises.py").is_file():
            spec = importlib.util.spec_from_file_location("exercises", path)
            module = sys.modules.setdefault("exercises", importlib.util.module_from_spec(spec))
            if not hasattr(module, "grade"):
                spec.loader.exec_module(module)
            return module
    raise FileNotFoundError(f"no exercises.py in {package} or beside it: install lldlib again")


checks = _graders()
