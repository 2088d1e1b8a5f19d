"""What a notebook of the course needs: `from lldlib.course import *` brings the names of `__all__`.

Recorded runs, a lab on one of them, figures with their alt text, tables; and from `train.by_hand`
what is trained in a notebook.
What only some notebooks need is imported inside, so that the first picture comes soon.
"""

import importlib.util
import io
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev
from types import ModuleType
from typing import Any

import pandas as pd
import torch
from IPython.display import Markdown, display
from matplotlib.axes import Axes
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
from lldlib.train.by_hand import (
    charges,
    gradients_by_author,
    load_policy,
    open_planet,
    roll_out,
    third_batch,
    third_update,
    train_at,
    train_masked,
    train_with,
)
from lldlib.types import TokenInfo

__all__ = [
    "ARMS", "BATCH", "COLOUR", "COOLER_COLOUR", "FAST", "GRPO_COLOUR", "LLDS_COLOUR",
    "SMOLLM_COLOUR", "DrawPrediction", "Figure", "Path", "Predict", "Run", "charges",
    "checks", "data_dir", "demo", "display", "early_rewards", "fate", "first_under", "fmean",
    "gradients_by_author", "label_ends", "ladder", "last_five", "limited_runs",
    "load_policy", "losses", "median", "open_planet", "pd", "random", "recorded", "replay",
    "rings_at", "roll_out", "seed_digits", "seed_dots", "show", "smollm_runs", "stdev", "style",
    "table", "tempfile", "third_batch", "third_update", "torch", "train_at", "train_masked",
    "train_with", "transcript_figure",
]  # fmt: skip

checks: ModuleType  # the graders of the exercises: see `__getattr__`
FAST = os.environ.get("LLDLIB_FAST") == "1"  # a few live batches: for tests and the impatient
GRPO_COLOUR, LLDS_COLOUR, COOLER_COLOUR = COLOURS[:3]
ARMS = {"grpo": "GRPO", "llds": "GRPO + LLDS", "cooler": "GRPO, cooler"}
COLOUR = dict(zip(ARMS, COLOURS, strict=False))
SMOLLM_COLOUR = {"GRPO, 3e-4": GRPO_COLOUR, "GRPO + LLDS, 3e-4": LLDS_COLOUR}
SMOLLM_COLOUR |= {"GRPO matched, 3e-4": "#882255", "GRPO, 2e-4": "0.45"}
SMOLLM_COLOUR |= {"GRPO, 1e-4": COOLER_COLOUR, "GRPO + LLDS, 1e-4": COLOURS[3]}
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


def transcript_figure(
    records: Mapping[str, Mapping[str, Any]],
    longest: int = 80,
    *,
    darkest: float = -5.0,
    mark: str = "",
) -> Figure:
    """Lines of rollouts.jsonl or questions.jsonl under names of your own, painted by log-prob.

    Of each at most the first `longest` words are shown. The scale of colours begins at `darkest`;
    the word `mark` is framed where a search found it.
    """
    figure = Figure(layout="constrained")
    panels = figure.subplots(len(records), 1, squeeze=False)[:, 0]
    by = replace(LOGP, ends=(darkest, 0.0))
    for ax, (name, record) in zip(panels, records.items(), strict=True):
        words = [
            replace(t, marked=t.role == "environment" and t.text == mark)
            for t in record_tokens(record)
        ]
        end = [TokenInfo("...", words[-1].role)] * (len(words) > longest)
        token_panel(ax, [words[:longest] + end], by)
        ax.set_title(f"{name}: {outcome(record)}", fontsize=TEXT, loc="left", weight="bold")
    lines = [abs(top - bottom) for bottom, top in (ax.get_ylim() for ax in panels)]
    panels[0].get_gridspec().set_height_ratios(lines)
    figure.set_size_inches(WIDTH, 0.9 + sum(0.3 + 0.27 * n for n in lines))
    bar = figure.colorbar(by.scale, ax=panels, location="bottom", shrink=0.6, aspect=40)
    bar.set_label(f"{LOGP.label}; white, dotted: not the agent's words", fontsize=SMALL)
    return figure


def smollm_runs() -> dict[str, list[Run]]:
    """SmolLM2's recorded runs of 60 batches by the names of `SMOLLM_COLOUR`, each arm by seed.

    Seeds 0 to 2 ran on a processor, 3 to 8 on a graphics card; LLDS keeps rows of A >= 0. "Matched"
    is GRPO whose updates move no further than those of LLDS's run of its seed. Not every arm has
    every seed.
    """
    arms: dict[str, list[Run]] = {name: [] for name in SMOLLM_COLOUR}
    for folder in ("smollm2_two_hops", "smollm2_card", "smollm2_moves"):
        for path in sorted((data_dir() / "atlas" / folder).iterdir()):
            config = (run := Run(path)).config
            matched = " matched" * path.name.startswith("matched")
            remedy = " + LLDS" if config["loss"]["llds_coef"] else matched
            if config["loss"]["llds_preserve"] == "nonnegative" or remedy != " + LLDS":
                arms[f"GRPO{remedy}, {1e4 * config['lr']:g}e-4"].append(run)
    return arms


def last_five(run: Run) -> float:
    """The mean reward of batches 55 to 59, 0 for those that a dead run was not given.

    A run that was cut off before 60 batches and lived counts with its last five.
    """
    reward = run.column("reward/mean")
    return sum(reward[55:60] if max(reward[-3:]) < 0.02 else reward[:60][-5:]) / 5


def fate(run: Run, fall: float = 0.25) -> str:
    """How a run of `smollm_runs` ended: "died", "fell" or "lived".

    Died: the last five batches earn under .3 of the best five in a row. Fell: `fall` or more less.
    With 60 answers a batch .1 less is often chance, .25 hardly ever (data/atlas/steady.py).
    """
    five = pd.Series(run.column("reward/mean")).rolling(5).mean()
    best, last = five.max(), five.iloc[-1]
    return "died" if last < 0.3 * best else "fell" if last <= best - fall else "lived"


def table(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Display a Markdown table."""
    cells = [[str(value) for value in row] for row in rows]
    display(Markdown(markdown_table(tuple(map(str, heads)), cells)))


def seed_digits(ax: Axes, arms: Mapping[str, list[Run]], value: Callable[[Run], float]) -> Axes:
    """A column an arm of `SMOLLM_COLOUR`; each run is the digit of its seed, at its value."""
    for place, (name, runs) in enumerate(arms.items()):
        for run in runs:
            seed = run.config["seed"]
            look = {"marker": f"${seed}$", "color": SMOLLM_COLOUR[name], "clip_on": False}
            ax.plot(place + 0.095 * (seed - 4), value(run), markersize=6.5, **look)
    ax.set(ylim=(0, 1), xlim=(-0.5, len(arms) - 0.5))
    ax.set_xticks(range(len(arms)), [name.replace(", ", "\n") for name in arms])
    return ax


def seed_dots(ax: Axes, frame: pd.DataFrame, key: str, won: str, rows: Mapping[str, str]) -> Axes:
    """A row of dots an arm, one a seed; how many have `won` on the right.

    `frame` has a row a seed, with the columns `arm`, `key` and `won`; `rows` names the arms, from
    below. Dots are hollow where the arm ends in a star, which says that it was not planned, and lie
    a little apart, so that equal ones can be counted.
    """
    for place, arm in enumerate(rows.values()):
        part = frame[frame.arm == arm]
        kinds = {"GRPO": COLOURS[0], "LLDS": COLOURS[1], "Lp-Reg": COLOURS[3]}
        kinds |= {"entropy": COLOURS[6]}
        look = {"color": next((ink for kind, ink in kinds.items() if kind in arm), "0.4")}
        look |= {"fillstyle": "none" if arm.endswith(" *") else "full"}
        shift = [0.11 * (n - (len(part) - 1) / 2) for n in range(len(part))]
        ax.plot(part[key], [place + s for s in shift], "o", ms=4, **look)
        beside = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": SMALL}
        ax.text(1.02, place, f"{int(part[won].sum())} of {len(part)}", **beside)
    ax.set_yticks(range(len(rows)), rows)
    return ax


def replay(arm: str) -> LiveLab:
    """A lab that plays the demo's recorded run of an arm; training goes on from any batch of it."""
    from lldlib.train.live import Replay

    KEPT.append(tempfile.TemporaryDirectory(prefix="lldlib-course-"))
    return LiveLab({ARMS[arm]: Replay(demo(arm), Path(KEPT[-1].name) / "lab")})


def early_rewards(batches: int) -> pd.DataFrame:
    """Of the recorded ladder of rates: the reward after so many batches, mean of the last two.

    A line a rate, a column an arm of `ARMS`; means of seeds 0 to 2.
    """
    rows = pd.read_csv(data_dir() / "atlas/early.csv")
    rows = rows[rows.batch.isin((batches - 2, batches - 1))]
    return rows.groupby(["rate", "arm"]).reward.mean().unstack()


def ladder(runs: pd.DataFrame) -> Axes:
    """The ends of GRPO and of GRPO + LLDS by rate: lines of means over three seeds, and dots.

    `runs` are lines of `data/atlas/map.csv` that differ in rate, lambda and seed alone.
    """
    ax = Figure(figsize=(8.5, 3.8), layout="constrained").subplots()
    style(ax, "rate, in units of 1e-4", "right at the end")
    for weight, arm, aside in ((0, "grpo", 0.975), (0.5, "llds", 1.025)):
        own = runs[(runs["lambda"] == weight) & (runs.seed < 3)]
        ax.plot(own.rate * aside, own.end, "o", color=COLOUR[arm], alpha=0.5, markersize=5)
        ax.plot(own.groupby("rate").end.mean(), linewidth=2, label=ARMS[arm], color=COLOUR[arm])
    ax.axhline(own.start.max(), color="grey", linestyle=":", label="the start")
    ax.set(xscale="log", ylim=(-0.03, 1.1), xlim=(0.9e-4, 3.4e-3), yticks=(0, 0.25, 0.5, 0.75, 1))
    ax.set_xticks(rates := sorted(own.rate.unique()), [f"{1e4 * rate:g}" for rate in rates])
    ax.minorticks_off()
    return ax


def first_under(values: pd.Series, limit: float) -> float:
    """The first batch, from 2 on, whose value is under the limit; nan where none is."""
    under = values.iloc[2:] < limit
    return float(under[under].index.min())


def rings_at(run: Run, limit: float, window: int) -> float:
    """The first batch at which notebook 7's alarm on the reward rings; nan where it never does."""
    mean = pd.Series(run.column("reward/mean")).rolling(window, min_periods=1).mean()
    return first_under(mean / mean.cummax(), limit)


def limited_runs() -> pd.DataFrame:
    """Batches of 42 runs at the hot rate: updates that are limited, and what stands beside them.

    `arm` is "grpo" or "llds", which are not limited, "matched", "capped" or "brake", or one of nine
    other changes of GRPO and of LLDS; `seed` is 0, 1 or 2. All arms of a seed meet the same
    questions. The metrics have a column each.
    """
    files = ("smaller_step.jsonl.gz", "other_steps.jsonl.gz")
    rows = pd.concat([pd.read_json(data_dir() / "atlas" / f, lines=True) for f in files])
    named = rows.run.str.extract(r"arm=(?P<arm>[^,]+),seed=(?P<seed>\d)")
    return rows.assign(arm=named.arm.replace("plain", "grpo"), seed=named.seed.astype(int))


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
