"""Warnings: rules that can ring before the score falls, with their record over recorded runs."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from lldlib.doctor.judging.statistics import means, trailing, values_of
from lldlib.doctor.reading.series import Array, LoggedRun


@dataclass(frozen=True)
class EarlyWarning:
    """A rule that can ring before the score falls; it looks back only."""

    name: str
    says: str  # with {x} for the threshold
    strength: Callable[[LoggedRun], Array]  # a row's size of the sign; it rings over the threshold
    grid: tuple[float, ...]  # thresholds that were tried


START = 5  # rows at the start that no warning watches


def _over_lowest(values: Array) -> Array:
    mean = trailing(values)
    mean[:START] = np.nan
    lowest = np.fmin.accumulate(mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(lowest > 0, mean / lowest, np.nan)


def _under_highest(values: Array) -> Array:
    mean = trailing(values)
    mean[:START] = np.nan
    highest = np.fmax.accumulate(mean)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(mean > 0, highest / mean, np.where(highest > 0, np.inf, np.nan))


def _over_median(values: Array, held: int = 1) -> Array:
    """Trailing mean of `held` rows over the median of the rows up to 5 before it.

    The median is taken anew whenever a twentieth more rows are known, to be fast on long logs.
    """
    now, out = trailing(values, held), np.full(len(values), np.nan)
    known = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    counts = np.concatenate([[0], np.cumsum(~np.isnan(known))])
    taken, usual = 0, math.nan
    for t in range(2 * START, len(values)):
        count = int(counts[t - START + 1])
        if count >= START and count >= 1.05 * taken:
            taken, usual = count, float(np.nanmedian(known[: t - START + 1]))
        out[t] = now[t] / usual
    return out


def _over_early(values: Array) -> Array:
    """Trailing mean over the median of the first 10 rows."""
    out = np.full(len(values), np.nan)
    early = values[:10][np.isfinite(values[:10])]
    if len(early) >= START and np.median(early) != 0:
        out[10:] = (trailing(values) / np.median(early))[10:]
    return out


def _probe_fall(run: LoggedRun) -> Array:
    """Nats a token that fixed correct answers lost within 10 rows, by means of 3."""
    mean, out = trailing(values_of(run, "probe"), 3), np.full(len(run.steps), np.nan)
    out[10:] = mean[:-10] - mean[10:]
    return out


def _reward_fall(run: LoggedRun) -> Array:
    """Standard errors that the last 5 scores lie under the best 5 so far, from row 15 on."""
    out, rows = np.full(len(run.steps), np.nan), run.scored
    if len(rows) < 15:
        return out
    scores = run.signals["reward"][rows]
    gaps = np.abs(np.diff(scores)) / 1.128  # mean range of two -> standard deviation
    spread = np.cumsum(gaps)[3:] / np.arange(4, len(scores))
    mean = means(scores, 5)
    fall = np.maximum.accumulate(mean) - mean
    out[rows[4:]] = fall / np.maximum(spread * math.sqrt(2 / 5), 1e-12)
    out[: rows[14]] = np.nan
    return out


WARNINGS = (
    EarlyWarning(
        "probe falls",
        "fixed correct answers lost {x:g} nats per token within 10 rows",
        _probe_fall,
        (0.5, 0.7, 0.85, 1.0, 1.5),
    ),
    EarlyWarning(
        "updates cost",
        "the updates took {x:g} nats per token from correct answers, mean of 5 rows",
        lambda run: -trailing(values_of(run, "displacement")),
        (0.04, 0.06, 0.08, 0.1, 0.15),
    ),
    EarlyWarning(
        "too sure",
        "the batch's correct answers are surer than at the start: 1/{x:g} of the nats",
        lambda run: 1 / np.maximum(_over_early(values_of(run, "likelihood")), 1e-12),
        (3.0, 4.0, 5.0, 6.0, 8.0),
    ),
    EarlyWarning(
        "entropy up",
        "entropy is {x:g} times its lowest so far",
        lambda run: _over_lowest(values_of(run, "entropy")),
        (1.3, 1.5, 2.0, 3.0, 4.0),
    ),
    EarlyWarning(
        "entropy down",
        "entropy is 1/{x:g} of its highest so far",
        lambda run: _under_highest(values_of(run, "entropy")),
        (3.0, 4.0, 5.0, 7.0, 10.0, 30.0),
    ),
    EarlyWarning(
        "gradient spike",
        "a gradient norm is {x:g} times the median of all before",
        lambda run: _over_median(values_of(run, "grad_norm")),
        (3.0, 5.0, 10.0, 20.0, 50.0),
    ),
    EarlyWarning(
        "KL up",
        "the KL is {x:g} times the median of all before",
        lambda run: _over_median(values_of(run, "kl"), 3),
        (5.0, 10.0, 20.0, 50.0, 100.0),
    ),
    EarlyWarning(
        "longer answers",
        "answers are {x:g} times as long as at the start",
        lambda run: _over_early(values_of(run, "length")),
        (1.2, 1.3, 1.5, 2.0, 3.0),
    ),
    EarlyWarning(
        "shorter answers",
        "the longest answers so far were {x:g} times as long",
        lambda run: _under_highest(values_of(run, "length")),
        (1.3, 1.5, 2.0, 3.0),
    ),
    EarlyWarning(
        "reward slips",
        "the reward is {x:g} standard errors under its best",
        _reward_fall,
        (4.0, 5.0, 6.0, 7.0, 8.0, 10.0),
    ),
)


@cache
def evidence() -> dict[str, Any]:
    """The table that travels with the package: thresholds, odds and what remedies did."""
    text = files("lldlib.doctor").joinpath("evidence.json").read_text(encoding="utf-8")
    return json.loads(text)


@dataclass(frozen=True)
class Ring:
    """A warning that rang."""

    name: str
    says: str
    row: int
    odds: str


def first_row(strength: Array, threshold: float) -> int | None:
    """The first row whose sign is over the threshold."""
    over = np.flatnonzero(strength > threshold)
    return int(over[0]) if len(over) else None


WHILE_LEARNING = ("entropy up", "entropy down", "longer answers", "shorter answers", "too sure")
NOW = 10  # rows at the end in which a warning must ring to be said of a run that lives


def useful() -> list[EarlyWarning]:
    """The warnings that on recorded runs rang before falls more often than chance."""
    odds = evidence()["warnings"]
    return [warning for warning in WARNINGS if odds.get(warning.name, {"use": False})["use"]]


def watched(run: LoggedRun) -> bool:
    """Whether the log has a series that a useful warning reads."""
    return any(np.isfinite(warning.strength(run)).any() for warning in useful())


def rings(run: LoggedRun, verdict: str, fall: int | None) -> list[Ring]:
    """The warnings that rang, the earliest first.

    Of a run that fell those ahead of the row of the fall; of one that lives only those that ring
    now and have seldom rung in runs that lived.
    """
    fell = verdict in ("degrading", "collapsed")
    found = []
    for warning in useful() if verdict != "unknown" else ():
        if verdict == "healthy" and warning.name in WHILE_LEARNING:
            continue
        kept = evidence()["warnings"][warning.name]
        if not (fell or kept["rare"]):
            continue
        strength = warning.strength(run)
        row = first_row(strength, kept["threshold"])
        loud = np.nanmax(strength[-NOW:], initial=-np.inf) > kept["threshold"]
        ahead = fall is not None and row is not None and row < fall
        if row is not None and (ahead if fell else loud):
            says = warning.says.format(x=kept["threshold"])
            found.append(Ring(warning.name, says, row, odds_of(kept)))
    return sorted(found, key=lambda ring: ring.row)


def odds_of(kept: dict[str, Any]) -> str:
    """What a warning's record says, each run left out when its threshold was set."""
    return (
        f"over {kept['fell'] + kept['lived']} recorded runs, each left out in turn: it rang before "
        f"{kept['warned']} of {kept['fell']} falls (median lead {kept['lead']:g} rows), and in "
        f"{kept['false']} of {kept['lived']} runs that lived"
    )
