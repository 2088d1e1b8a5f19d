"""From run folders to a row each: summaries, arms, and comparisons between arms."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from lldlib.config import require
from lldlib.files import markdown_table
from lldlib.runs.folder import LARGEST, Run
from lldlib.runs.phases import alarm_of, find_collapse

WINDOW = 10  # rollout batches in a mean reward
LOGGING = (
    *("eval_every", "probe_every", "fresh_every", "checkpoint_every", "rollouts_logged"),
    "questions_every",
)
UNLIKE = ("seed", "created", "versions", "device", *LOGGING)  # in which runs of one arm may differ
KINDS = {"method": str, "seed": int, "lr": float, "updates_per_batch": int, "steps": int}
SHORT = {"llds_coef": "λ", "updates_per_batch": "updates", "lp_reg_coef": "β"}
COLUMNS = {
    "arm": "arm",
    "seed": "seed",
    "peak_reward": "peak reward",
    "end_reward": "end reward",
    "collapsed_at": "collapsed at",
    "known_at": "known at",
    "for_good": "for good",
    "alarm_at": "alarm at",
    "heldout_em": "held-out EM",
    "heldout_em_best_before_collapse": "best EM before",
    "seconds_per_batch": "s/batch",
    "skipped_updates": "skipped updates",
}

Row = Mapping[str, Any]


def arm_labels(runs: Sequence[Run]) -> list[str]:
    """A label per run: its method, and the settings in which runs of that method differ.

    A setting that one of them does not hold, because it was recorded before there was one, is no
    difference. Raises ValueError for a run of another kind than GRPO's.
    """
    configs = [flat(_config(run), UNLIKE) for run in runs]
    labels = []
    for config in configs:
        peers = [peer for peer in configs if peer["method"] == config["method"]]
        keys = [k for k, v in config.items() if any(peer.get(k, v) != v for peer in peers)]
        settings = (f"{SHORT.get(key, key)}={value_text(config[key])}" for key in keys)
        labels.append(" ".join([config["method"], *settings]))
    return labels


def summarise(run: Run) -> dict[str, Any]:
    """One row of the table; None stands for what the run did not log or do.

    Rewards are means over 10 batches (the highest, the last). Batches: `collapsed_at`, at which the
    fall of a collapse began, `known_at`, at which it could be known, `alarm_at`. Held-out EM is the
    last one and the best one before a collapse was known, EM at start that before any training;
    sampled as in training, and greedy. The settings that sweeps vary come along. Raises ValueError
    for a run of another kind than GRPO's.
    """
    config = _config(run, "seed", "lr", "updates_per_batch")
    rewards = pd.Series(run.series("reward/mean")[1], dtype=float)
    # of whole windows alone; a run that is shorter is averaged whole
    means = rewards.rolling(min(WINDOW, max(1, len(rewards)))).apply(fmean, raw=True).dropna()
    collapse = find_collapse(run.column("reward/mean"))
    exams = list(zip(*run.series("eval/heldout_em"), strict=True))
    before = [em for step, em in exams if collapse.known is None or step < collapse.known]
    seconds, skipped = run.series("time/step")[1], run.series("update/skipped")[1]
    return {
        "arm": config["method"],
        "method": config["method"],
        "seed": config["seed"],
        "peak_reward": None if means.empty else float(means.max()),
        "end_reward": None if means.empty else float(means.iloc[-1]),
        "collapsed_at": collapse.began,
        "known_at": collapse.known,
        "for_good": None if collapse.known is None else collapse.for_good,
        "alarm_at": alarm_of(run),
        "start_em": _last(run, "eval/start_em"),
        "start_em_greedy": _last(run, "eval/start_em_greedy"),
        "heldout_em": _last(run, "eval/heldout_em"),
        "heldout_em_greedy": _last(run, "eval/heldout_em_greedy"),
        "heldout_em_best_before_collapse": max(before, default=None),
        "seconds": sum(seconds) if seconds else None,
        "seconds_per_batch": fmean(seconds) if seconds else None,
        "skipped_updates": skipped[-1] if skipped else None,
        "batches": len(rewards),
        "lr": config["lr"],
        "updates_per_batch": config["updates_per_batch"],
        "llds_coef": config["loss"]["llds_coef"],
    }


def _config(run: Run, *needed: str) -> dict[str, Any]:
    config = run.config
    if "method" not in config:
        raise ValueError(f"{run.path} is no GRPO run: its config.json has no method; leave it out")
    for name in (KINDS.keys() & config.keys()) | set(needed):
        require(f"{run.path}: {name}", config.get(name), KINDS[name])
    if needed:
        loss = config.get("loss")
        coef = loss.get("llds_coef") if isinstance(loss, dict) else None
        require(f"{run.path}: loss.llds_coef", coef, float)
    return config


def _last(run: Run, key: str) -> float | None:
    values = run.series(key)[1]
    return values[-1] if values else None


def summary_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; a hyphen stands for None."""
    cells = [[_cell(row[key]) for key in COLUMNS] for row in rows]
    return markdown_table(list(COLUMNS.values()), cells) + "\n"


def paired(rows: Sequence[Row], arm_a: str, arm_b: str, key_a: str, key_b: str) -> dict[str, Any]:
    """`key_a` of `arm_a` minus `key_b` of `arm_b`, paired by seed.

    difference = mean(a - b); standard_error = sd(a - b) / sqrt(n), None for one pair; relative =
    difference / mean(b), None if that mean is 0. Seeds that lack either value are left out.
    Raises ValueError if no seed has both.
    """
    a, b = (
        {row["seed"]: row[key] for row in rows if row["arm"] == arm and row[key] is not None}
        for arm, key in ((arm_a, key_a), (arm_b, key_b))
    )
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        raise ValueError(
            f"{arm_a!r} and {arm_b!r} share no seed with {key_a} and {key_b}: run both"
        )
    gaps, base = [a[seed] - b[seed] for seed in seeds], fmean(b[seed] for seed in seeds)
    return {
        "seeds": seeds,
        "difference": fmean(gaps),
        "standard_error": stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None,
        "relative": fmean(gaps) / base if base else None,
    }


def share_interval(hits: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which is sound for a handful of runs.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), p = hits/n, n = total, z = 1.96.
    Raises ValueError unless 0 <= hits <= total and total > 0.
    """
    from scipy.stats import binomtest  # a second to load, which all else here can do without

    if not 0 <= hits <= total or total == 0:
        raise ValueError(f"{hits} of {total} is no share: give 0 <= hits <= total, total over 0")
    interval = binomtest(hits, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def value_text(value: Any) -> str:
    """A setting as one writes it: 10, 0.2, 3e-4, a name."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and abs(value) > LARGEST):
        return str(value)
    if value and abs(value) < 1e-3:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    return f"{value:g}"


def flat(config: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a run's config.json, the nested ones beside the outer ones."""
    found = {}
    for key, value in config.items():
        if key not in without:
            found |= flat(value, without) if isinstance(value, Mapping) else {key: value}
    return found


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
