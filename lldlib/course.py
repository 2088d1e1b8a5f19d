"""What a notebook of the course needs: `from lldlib.course import *` brings the names of `__all__`.

Thin: recorded runs, a lab on one of them, fresh answers, a figure with its alt text, a table.
What only some notebooks need is imported inside, so that the first picture comes soon.
"""

import importlib.util
import io
import math
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib.figure import Figure
from PIL import Image

from lldlib import losses
from lldlib.config import data_dir
from lldlib.files import markdown_table
from lldlib.runs.folder import Run
from lldlib.show.controls import png
from lldlib.show.lab import LiveLab
from lldlib.show.predict import DrawPrediction, Predict
from lldlib.show.says import outcome
from lldlib.show.style import BATCH, COLOURS, SMALL, TEXT, WIDTH, label_ends, style
from lldlib.show.tokens import LOGP, record_tokens, token_panel
from lldlib.types import Episode, TokenInfo

if TYPE_CHECKING:
    from lldlib.policy.load import Policy

__all__ = [
    "ARMS", "BATCH", "COLOUR", "COOLER_COLOUR", "FAST", "GRPO_COLOUR", "LLDS_COLOUR",
    "DrawPrediction", "Figure", "Path", "Predict", "Run", "checks", "data_dir", "demo", "display",
    "fmean", "label_ends", "load_policy", "losses", "math", "median", "pd", "random", "recorded",
    "replay", "roll_out", "show", "stdev", "style", "table", "tempfile", "torch",
    "train_with", "transcript_figure",
]  # fmt: skip

checks: ModuleType  # the graders of the exercises: see `__getattr__`
FAST = os.environ.get("LLDLIB_FAST") == "1"  # a few live batches: for tests and the impatient
GRPO_COLOUR, LLDS_COLOUR, COOLER_COLOUR = COLOURS[:3]
ARMS = {"grpo": "GRPO", "llds": "GRPO + LLDS", "cooler": "GRPO, cooler"}
COLOUR = dict(zip(ARMS, COLOURS, strict=False))
FOLDERS = {"grpo": "grpo", "llds": "llds", "cooler": "grpo_best_rate"}  # of the recorded runs

KEPT: list[tempfile.TemporaryDirectory] = []  # folders that are gone when the kernel ends

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
    picture = {"image/png": light(png(figure)), "text/plain": alt}
    display(picture, raw=True, metadata={"image/png": {"alt": alt}})


def light(picture: bytes) -> bytes:
    """A PNG with at most 256 colours: about a third of the bytes, for committed notebooks."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def transcript_figure(records: Mapping[str, Mapping[str, Any]], longest: int = 80) -> Figure:
    """Lines of rollouts.jsonl or questions.jsonl under names of your own, painted by log-prob.

    Of each at most the first `longest` words are shown.
    """
    figure = Figure(layout="constrained")
    panels = figure.subplots(len(records), 1, squeeze=False)[:, 0]
    for ax, (name, record) in zip(panels, records.items(), strict=True):
        words = record_tokens(record)
        end = [TokenInfo("...", words[-1].role)] * (len(words) > longest)
        token_panel(ax, [words[:longest] + end], LOGP)
        ax.set_title(f"{name}: {outcome(record)}", fontsize=TEXT, loc="left", weight="bold")
    lines = [abs(top - bottom) for bottom, top in (ax.get_ylim() for ax in panels)]
    panels[0].get_gridspec().set_height_ratios(lines)
    figure.set_size_inches(WIDTH, 0.9 + sum(0.3 + 0.27 * n for n in lines))
    bar = figure.colorbar(LOGP.scale, ax=panels, location="bottom", shrink=0.6, aspect=40)
    bar.set_label(f"{LOGP.label}; white, dotted: not the agent's words", fontsize=SMALL)
    return figure


def table(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Display a Markdown table."""
    cells = [[str(value) for value in row] for row in rows]
    display(Markdown(markdown_table(tuple(map(str, heads)), cells)))


def replay(arm: str) -> LiveLab:
    """A lab that plays the demo's recorded run of an arm; training goes on from any batch of it."""
    from lldlib.train.live import Replay

    KEPT.append(tempfile.TemporaryDirectory(prefix="lldlib-course-"))
    return LiveLab({ARMS[arm]: Replay(demo(arm), Path(KEPT[-1].name) / "lab")})


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


def train_with(term: Callable[..., torch.Tensor], batches: int, problems: int = 64) -> list[float]:
    """The reward of each batch of a hot GRPO run whose loss has 0.5 `term` added.

    `term(logp, old_logp, advantages, action_mask)` is a scalar, such as an LLDS of your own. The
    loop is that of notebook 3: 16 updates per batch of `problems` questions with 5 answers each.
    """
    from lldlib.policy.score import score
    from lldlib.rollout.batch import collate

    policy, rewards = load_policy("half_taught"), []
    optimizer = torch.optim.AdamW(policy.model.parameters(), weight_decay=0.0)
    for number in range(batches):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (number + 1) / 5)
        batch = collate(roll_out(policy, planet=number, problems=problems, seed=number))
        with torch.no_grad():
            old = score(policy.model, batch, 1.0).logp
        A = losses.group_advantages(batch.rewards, batch.group, scale=True)
        draws = torch.Generator().manual_seed(number)
        order = torch.randperm(len(A), generator=draws, device="cpu")
        for rows in order.tensor_split(16):
            part = batch.rows(rows)
            new = score(policy.model, part, 1.0).logp
            given = new, old[rows, : new.shape[1]], A[rows], part.action_mask
            gain = losses.aggregate(losses.policy_gradient(*given), part.action_mask, "token-mean")
            optimizer.zero_grad()
            (gain + 0.5 * term(*given)).backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
        rewards.append(batch.rewards.mean().item())
    return rewards


def __getattr__(name: str) -> ModuleType:
    """`checks`, read when it is asked for: see `_graders`."""
    if name == "checks":
        return _graders()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
