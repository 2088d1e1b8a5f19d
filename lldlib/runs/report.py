"""From run folders alone to a table and figures."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from lldlib.runs.folder import Run
from lldlib.runs.phases import alarm_of, find_collapse
from lldlib.show import curves as figures

WINDOW = 10  # rollout batches in a mean reward
LOGGING = ("eval_every", "probe_every", "checkpoint_every", "rollouts_logged")
UNLIKE = ("seed", "created", "versions", "device", *LOGGING)  # in which runs of one arm may differ
MAX_ARMS = 4  # whose curves one figure can hold
SHORT = {"llds_coef": "λ", "updates_per_batch": "updates", "lp_reg_coef": "β"}
COLUMNS = {
    "arm": "arm",
    "seed": "seed",
    "peak_reward": "peak reward",
    "end_reward": "end reward",
    "collapsed_at": "collapsed at",
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
    difference.
    """
    configs = [_flat(run.config) for run in runs]
    labels = []
    for config in configs:
        peers = [peer for peer in configs if peer["method"] == config["method"]]
        keys = [k for k, v in config.items() if any(peer.get(k, v) != v for peer in peers)]
        labels.append(" ".join([config["method"], *(_setting(k, config[k]) for k in keys)]))
    return labels


def summarise(run: Run) -> dict[str, Any]:
    """One row of the table; None stands for what the run did not log or do.

    Rewards are means over 10 batches (the highest, the last), `collapsed_at` and `alarm_at` are
    batches, held-out EM is the last one and the best one before the collapse. The settings that
    sweeps vary come along.
    """
    config, rewards = run.config, run.series("reward/mean")[1]
    starts = range(max(1, len(rewards) - WINDOW + 1)) if rewards else ()
    means = [fmean(rewards[start : start + WINDOW]) for start in starts]
    collapse = find_collapse(run.column("reward/mean"))
    exams = list(zip(*run.series("eval/heldout_em"), strict=True))
    before = [em for step, em in exams if collapse.batch is None or step < collapse.batch]
    seconds, skipped = run.series("time/step")[1], run.series("update/skipped")[1]
    return {
        "arm": config["method"],
        "method": config["method"],
        "seed": config["seed"],
        "peak_reward": max(means, default=None),
        "end_reward": means[-1] if means else None,
        "collapsed_at": collapse.batch,
        "for_good": None if collapse.batch is None else collapse.for_good,
        "alarm_at": alarm_of(run),
        "heldout_em": exams[-1][1] if exams else None,
        "heldout_em_best_before_collapse": max(before, default=None),
        "seconds": sum(seconds) if seconds else None,
        "seconds_per_batch": fmean(seconds) if seconds else None,
        "skipped_updates": skipped[-1] if skipped else None,
        "batches": len(rewards),
        "lr": config["lr"],
        "updates_per_batch": config["updates_per_batch"],
        "llds_coef": config["loss"]["llds_coef"],
    }


def markdown_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; a hyphen stands for None."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    lines += [[_cell(row[key]) for key in COLUMNS] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
    if not 0 <= hits <= total or total == 0:
        raise ValueError(f"{hits} of {total} is no share: give 0 <= hits <= total, total over 0")
    p, z2 = hits / total, 1.96**2
    half = math.sqrt(z2 * (p * (1 - p) / total + z2 / (4 * total * total)))
    middle, scale = p + z2 / (2 * total), 1 + z2 / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def write_report(run_paths: Sequence[Path | str], out: Path | str) -> list[Path]:
    """Write table.md, summary.json and the figures these runs allow to `out`; returns the files.

    Curves show every arm, or of more than 4 the first and the one with the highest end reward.

    Raises ValueError without runs, FileNotFoundError for a folder that is no run.
    """
    if not run_paths:
        raise ValueError("no run folders given: name at least one")
    runs = [Run(path) for path in run_paths]
    arms, rows = defaultdict(list), []
    for label, run in zip(arm_labels(runs), runs, strict=True):
        arms[label].append(run)
        rows.append(summarise(run) | {"arm": label})
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    table, summary = out / "table.md", out / "summary.json"
    table.write_text(markdown_table(rows), encoding="utf-8")
    summary.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    drawn = _figures(arms, rows)
    return [
        table,
        summary,
        *(figures.save(figure, out / f"{n}.png") for n, figure in drawn.items()),
    ]


def _figures(arms: dict[str, list[Run]], rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """The figures for which the runs hold enough."""
    finished = [row for row in rows if row["end_reward"] is not None]
    shown = _shown(arms, finished)
    drawn = {"collapse": figures.collapse_figure(shown)}
    probed = {arm: runs[0] for arm, runs in shown.items() if runs[0].series("probe/logp")[0]}
    if probed:
        drawn["probe"] = figures.probe_figure(probed)
    if len(arms) > 1 and finished:
        drawn["methods"] = figures.methods_figure(finished)
    weighed = [row for row in finished if row["method"] in ("grpo", "llds")]
    if len({row["llds_coef"] for row in weighed}) > 1:
        drawn["lambda"] = figures.lambda_figure(weighed)
    for method in sorted({row["method"] for row in finished}):
        swept = [row for row in finished if row["method"] == method]
        if all(len({row[key] for row in swept}) > 1 for key in ("lr", "updates_per_batch")):
            ax = figures.sweep_heatmap(swept, "lr", "updates_per_batch", "end_reward")
            drawn[f"sweep_{method}"] = ax.figure
    return drawn


def _shown(arms: dict[str, list[Run]], rows: list[dict[str, Any]]) -> dict[str, list[Run]]:
    """The arms whose curves are drawn."""
    if len(arms) <= MAX_ARMS:
        return arms
    first, *others = arms
    ends = {arm: [row["end_reward"] for row in rows if row["arm"] == arm] for arm in others}
    best = max(others, key=lambda arm: fmean(ends[arm]) if ends[arm] else -math.inf)
    return {arm: arms[arm] for arm in (first, best)}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make an arm, the nested ones with the outer ones."""
    flat = {}
    for key, value in config.items():
        if key not in UNLIKE:
            flat |= _flat(value) if isinstance(value, Mapping) else {key: value}
    return flat


def _setting(key: str, value: Any) -> str:
    text = figures.tick(value) if isinstance(value, (int, float)) else str(value)
    return f"{SHORT.get(key, key)}={text}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
