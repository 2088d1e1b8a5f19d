"""Which logged series warns of a collapse? Candidates by ROC, thresholds chosen on seeds 0 to 2.

    python data/atlas/alarm.py [FOLDER ...]

Thresholds are chosen on the runs of search.jsonl.gz (seeds 0 to 2, every setting): at most a tenth
of the runs that live may ring. The folders (by default seeds 3 to 9 of data/atlas/main) are the
test. Prints a Markdown row for each candidate and for each pair of which either may ring.
"""

import gzip
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from lldlib.runs.folder import Run
from lldlib.runs.phases import collapse_batch

HERE = Path(__file__).parent
FIRST = 2  # the batch from which on an alarm may ring
FALSE = 0.1  # the share of living runs that may ring, where thresholds are chosen
STEPS = 33  # thresholds tried of each of a pair
SHOWN = 10  # pairs printed


def smooth(series: pd.Series) -> pd.Series:
    """Means over a batch and the two before it."""
    return series.rolling(3, min_periods=1).mean()


def of_start(key: str) -> Callable[[pd.DataFrame], pd.Series]:
    """A series over its median in batches 0 to 2."""
    return lambda frame: frame[key] / frame[key].iloc[:3].median()


CANDIDATES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {  # higher is worse
    "correct rows' loss by a batch's updates": lambda f: -f["displacement/correct_token"],
    "the same, added up (CUSUM)": lambda f: cusum(-f["displacement/correct_token"] - 0.01),
    "share of correct rows that fell": lambda f: smooth(f["displacement/share_fallen"]),
    "fall of likelihood/correct from its best": lambda f: under_best(f["likelihood/correct"]),
    "fall of the official likelihood from its best": lambda f: under_best(f["likelihood/official"]),
    "fall of the probe from its best": lambda f: under_best(f["probe/logp"]),
    "entropy over its first batch": lambda f: f["policy/entropy"] / f["policy/entropy"].iloc[0],
    "gradient norm over its start": of_start("grad/norm"),
    "length over its start": of_start("length/tokens"),
    "largest ratio (log)": lambda f: np.log(f["policy/ratio_max"]),
    "share of clipped tokens": lambda f: f["policy/clip_share"],
    "invalid searches an episode": lambda f: f["search/invalid"],
    "episodes cut off": lambda f: f["stop/token_budget"],
    "KL to the start": lambda f: f["kl/reference"],
    "mass of rare tokens over its start": of_start("low_prob/mass"),
}
CONTROL = {"the reward's own fall": lambda f: -smooth(f["reward/mean"]) / best_reward(f)}


def cusum(change: pd.Series) -> pd.Series:
    """S_t = max(0, S_{t-1} + change_t)."""
    sums = itertools.accumulate(change.fillna(0.0), lambda s, x: max(0.0, s + x), initial=0.0)
    return pd.Series(list(sums)[1:], index=change.index)


def under_best(series: pd.Series) -> pd.Series:
    """How far a series lies under its best so far."""
    return series.cummax() - series


def best_reward(frame: pd.DataFrame) -> pd.Series:
    """The best mean of three batches so far."""
    return smooth(frame["reward/mean"]).cummax()


@dataclass(frozen=True)
class Watched:
    """A run: the worst value so far of each candidate, its collapse, and its halved reward."""

    worst: dict[str, np.ndarray]
    collapse: int | None
    halved: int | None

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Watched":
        """From a run's metrics."""
        low = smooth(frame["reward/mean"]) < 0.5 * best_reward(frame)
        every = (CANDIDATES | CONTROL).items()
        worst = {
            name: np.maximum.accumulate(series(frame).fillna(-np.inf)[FIRST:])
            for name, series in every
        }
        halved = int(low.idxmax()) if low.any() else None
        return cls(
            {name: np.asarray(values) for name, values in worst.items()},
            collapse_batch(frame["reward/mean"].tolist()),
            halved,
        )

    def peak(self, name: str) -> float:
        """The worst value before the collapse, or of the whole run."""
        values = self.worst[name]
        return float(values[-1] if self.collapse is None else values[self.collapse - FIRST - 1])

    def rings(self, thresholds: dict[str, float]) -> int | None:
        """The first batch at which one of the series is over its threshold."""
        over = np.any([self.worst[name] > high for name, high in thresholds.items()], axis=0)
        return FIRST + int(over.argmax()) if over.any() else None


@dataclass(frozen=True)
class Score:
    """What an alarm did on some runs."""

    warned: int
    collapses: int
    lead: float  # batches ahead of the collapse rule, median
    early: float  # batches ahead of the halved reward, median
    false: int
    alive: int

    def __str__(self) -> str:
        return (
            f"{self.warned} of {self.collapses} | {self.lead:g} | {self.early:g} | "
            f"{self.false} of {self.alive}"
        )


def score(runs: Iterable[Watched], thresholds: dict[str, float]) -> Score:
    """Warned collapses, leads and false alarms."""
    found = [(run, run.rings(thresholds)) for run in runs]
    dead = [(run, rung) for run, rung in found if run.collapse is not None]
    warned = [(run, rung) for run, rung in dead if rung is not None and rung < run.collapse]
    alive = [rung for run, rung in found if run.collapse is None]
    return Score(
        len(warned),
        len(dead),
        median(run.collapse - rung for run, rung in warned) if warned else 0.0,
        median(run.halved - rung for run, rung in warned) if warned else 0.0,
        sum(rung is not None for rung in alive),
        len(alive),
    )


def area(runs: list[Watched], name: str) -> float:
    """Area under the ROC curve of the peaks: dead runs against runs that live."""
    dead = [run.peak(name) for run in runs if run.collapse is not None]
    alive = [run.peak(name) for run in runs if run.collapse is None]
    wins = [(x > y) + 0.5 * (x == y) for x in dead for y in alive]
    return float(np.mean(wins))


def alone(runs: list[Watched], name: str) -> dict[str, float]:
    """The lowest threshold at which at most FALSE of the living runs ring."""
    peaks = sorted(run.peak(name) for run in runs if run.collapse is None)
    return {name: peaks[-1 - int(FALSE * len(peaks))]}


def together(runs: list[Watched], pair: tuple[str, str]) -> tuple[Score, dict[str, float]]:
    """The two thresholds that warn of most collapses, then earliest, at no more false alarms."""
    levels = [
        np.unique(np.quantile([run.peak(name) for run in runs], np.linspace(0, 1, STEPS)))
        for name in pair
    ]
    best: tuple[Score, dict[str, float]] | None = None
    for highs in itertools.product(*levels):
        thresholds = dict(zip(pair, map(float, highs), strict=True))
        now = score(runs, thresholds)
        rank = (now.warned, now.lead)
        if now.false <= FALSE * now.alive and (
            best is None or rank > (best[0].warned, best[0].lead)
        ):
            best = now, thresholds
    if best is None:
        raise ValueError(f"no thresholds of {pair} keep false alarms under {FALSE:.0%}")
    return best


def recorded() -> list[Watched]:
    """The runs of search.jsonl.gz that collapse, or that lasted 24 batches without."""
    with gzip.open(HERE / "search.jsonl.gz", "rt") as file:
        rows = pd.DataFrame(map(json.loads, file))
    frames = [frame.set_index("step").sort_index() for _, frame in rows.groupby("run")]
    runs = [(frame, Watched.of(frame)) for frame in frames]
    return [run for frame, run in runs if run.collapse is not None or len(frame) >= 24]


def row(name: str, high: str, areas: str, train: Score, test: Score) -> None:
    """Print a row of the table."""
    print(f"| {name} | {high} | {areas} | {train} | {test} |")


def main() -> None:
    """Print the table."""
    test = sorted((HERE / "main").glob("*-seed[3-9]"))
    folders = [Path(path) for path in sys.argv[1:]] or test
    train, other = recorded(), [Watched.of(Run(path).frame) for path in folders]
    head = "warned | ahead of the rule | ahead of the halved reward | false"
    print(f"| candidate | rings over | ROC area | test: ROC area | {head} | test: {head} |")
    print("|---" * 12 + "|")
    for name in CANDIDATES | CONTROL:
        high = alone(train, name)
        areas = f"{area(train, name):.2f} | {area(other, name):.2f}"
        row(name, f"{high[name]:.3g}", areas, score(train, high), score(other, high))
    pairs = [together(train, pair) for pair in itertools.combinations(CANDIDATES, 2)]
    pairs.sort(key=lambda found: (-found[0].warned, -found[0].lead))
    for found, highs in pairs[:SHOWN]:
        levels = ", ".join(f"{high:.3g}" for high in highs.values())
        row(" or ".join(highs), levels, "- | -", found, score(other, highs))


if __name__ == "__main__":
    main()
