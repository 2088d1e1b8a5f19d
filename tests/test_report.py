"""The report: rows, tables and figures from run folders alone."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from lldlib.config import LossConfig, TrainConfig
from lldlib.runs.folder import CONFIG, Run, RunWriter
from lldlib.runs.summary import arm_labels, paired, share_interval, summarise, summary_table
from lldlib.show import compare
from lldlib.show.compare import write_report


def make_run(path, *, dies=False, batches=100, without=(), **settings):
    """A run folder that rises to a reward of 0.7 and, if it `dies`, breaks from batch 50 on."""
    config = TrainConfig(**({"method": "grpo"} | settings))
    writer = RunWriter.create(path, dataclasses.asdict(config) | {"created": path.name})
    for step in range(batches):
        late = max(0, step - 50) if dies else 0
        probe = -1.0 - 0.01 * max(0, step - 10) - 0.3 * late
        row = {
            "reward/mean": max(0.0, min(0.7, 0.4 + step / 50) - 0.1 * late),
            "likelihood/correct": -1.0 + step / 200,
            "likelihood/incorrect": -1.2 - late / 10,
            "policy/entropy": 0.8 + late / 5,
            "low_prob/mass": 0.05 + late / 100,
            "grad/norm": 1.0 + late**2,
            "probe/logp": probe,
            "probe/free": 1.1 * probe,
            "probe/content": 0.6 * probe,
            "probe/action_1": 1.2 * probe,
            "time/step": 2.0 if step else 4.0,
            "update/skipped": late // 10,
        }
        if step % 10 == 9:
            row["eval/heldout_em"] = 0.0 if late else (step + 1) / 100
        writer.metrics(step, {key: value for key, value in row.items() if key not in without})
    writer.close()
    return Run(path)


def llds(coef):
    return {"method": "llds", "loss": LossConfig(llds_coef=coef)}


def test_the_row_of_a_run_that_dies(tmp_path):
    row = summarise(make_run(tmp_path / "a", dies=True, seed=3, lr=1e-4))
    assert (row["arm"], row["seed"], row["lr"], row["llds_coef"]) == ("grpo", 3, 1e-4, 0.0)
    assert row["peak_reward"] == pytest.approx(0.7)  # ten batches in a row at 0.7
    assert row["end_reward"] == 0.0
    # 0.7 up to batch 50, 0.6 at 51, 0 from 57 on; a line turns down a batch before the corner
    assert row["collapsed_at"] == 50
    # means of ten: 2.1 / 10 at batch 60, on the line 0.3 * 0.7 but for rounding; 1.5 / 10 at 61
    assert row["known_at"] in (60, 61)
    assert row["for_good"] is True
    assert row["alarm_at"] is not None and row["alarm_at"] <= row["known_at"]
    assert row["heldout_em"] == 0.0
    assert row["heldout_em_best_before_collapse"] == 0.5  # at batch 49
    assert row["seconds"] == 202.0  # 4 + 99 * 2
    assert row["seconds_per_batch"] == 202.0 / 100
    assert row["skipped_updates"] == 4  # 49 // 10, a running count


def test_the_row_of_a_run_that_lives(tmp_path):
    row = summarise(make_run(tmp_path / "a"))
    keys = ("collapsed_at", "known_at", "for_good", "alarm_at")
    assert [row[key] for key in keys] == [None] * 4
    assert row["end_reward"] == pytest.approx(0.7)
    assert row["heldout_em"] == row["heldout_em_best_before_collapse"] == 1.0


def test_reward_means_span_ten_batches(tmp_path):
    writer = RunWriter.create(tmp_path / "a", dataclasses.asdict(TrainConfig()))
    for step, reward in enumerate([0.0, 1.0] + [0.5] * 9 + [0.2]):
        writer.metrics(step, {"reward/mean": reward})
    writer.close()
    row = summarise(Run(tmp_path / "a"))
    # batches 0-9: (0 + 1 + 8*.5)/10 = .5; 1-10: (1 + 9*.5)/10 = .55; 2-11: (9*.5 + .2)/10 = .47
    assert (row["peak_reward"], row["end_reward"]) == (pytest.approx(0.55), pytest.approx(0.47))


def test_a_short_run_is_averaged_whole_and_missing_metrics_are_none(tmp_path):
    gone = ("eval/heldout_em", "time/step", "update/skipped", "probe/logp", "grad/norm")
    row = summarise(make_run(tmp_path / "a", batches=2, without=gone))
    assert row["peak_reward"] == row["end_reward"] == pytest.approx(0.41)  # (0.40 + 0.42) / 2
    missing = ("heldout_em", "heldout_em_best_before_collapse", "seconds", "skipped_updates")
    assert [row[key] for key in missing] == [None] * 4


def test_a_run_killed_before_its_first_batch(tmp_path):
    row = summarise(make_run(tmp_path / "a", batches=0))
    assert (row["peak_reward"], row["end_reward"], row["collapsed_at"]) == (None, None, None)


def test_arms_are_named_by_method_and_by_what_differs_within_it(tmp_path):
    runs = [
        make_run(tmp_path / "a", batches=1, seed=0, checkpoint_every=5),
        make_run(tmp_path / "b", batches=1, seed=1, checkpoint_every=9),
        make_run(tmp_path / "c", batches=1, **llds(0.2)),
        make_run(tmp_path / "d", batches=1, **llds(0.5), lr=1e-4),
    ]
    assert arm_labels(runs) == ["grpo", "grpo", "llds lr=3e-4 λ=0.2", "llds lr=1e-4 λ=0.5"]
    assert arm_labels(runs[:3]) == ["grpo", "grpo", "llds"]
    older = make_run(tmp_path / "e", batches=1, seed=2)
    config = older.config
    del config["lr"]  # recorded before there was such a setting
    (older.path / CONFIG).write_text(json.dumps(config))
    assert arm_labels([older, *runs[:2]]) == ["grpo"] * 3


def row_of(arm, seed, **values):
    return {"arm": arm, "seed": seed} | values


def test_paired_difference_by_hand():
    rows = [row_of("llds", s, end=v) for s, v in ((0, 0.5), (1, 0.7), (2, 0.9), (7, 9.0))]
    rows += [row_of("grpo", s, peak=v) for s, v in ((2, 0.5), (0, 0.4), (1, 0.3), (8, 9.0))]
    result = paired(rows, "llds", "grpo", "end", "peak")
    # gaps 0.1, 0.4, 0.4: mean 0.3, sd sqrt((0.04 + 0.01 + 0.01) / 2) = sqrt(0.03),
    # standard error sqrt(0.03 / 3) = 0.1
    assert result["seeds"] == [0, 1, 2]
    assert result["difference"] == pytest.approx(0.3)
    assert result["standard_error"] == pytest.approx(0.1)
    assert result["relative"] == pytest.approx(0.75)  # 0.3 over mean(0.4, 0.3, 0.5) = 0.4


def test_paired_with_one_seed_or_a_zero_base():
    rows = [
        row_of("a", 0, x=0.5),
        row_of("b", 0, x=0.0),
        row_of("a", 1, x=1.0),
        row_of("b", 1, x=None),
    ]
    result = paired(rows, "a", "b", "x", "x")
    assert result == {"seeds": [0], "difference": 0.5, "standard_error": None, "relative": None}


def test_paired_without_a_common_seed_is_an_error():
    with pytest.raises(ValueError, match="share no seed") as error:
        paired([row_of("a", 0, x=1.0), row_of("b", 1, x=1.0)], "a", "b", "x", "x")
    assert "\n" not in str(error.value)


def test_the_table_shows_hyphens_and_three_digits(tmp_path):
    table = summary_table([summarise(make_run(tmp_path / "a"))])
    head, rule, row = table.splitlines()
    assert head.startswith("| arm | seed | peak reward |")
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith("| grpo | 0 | 0.700 | 0.700 | - | - | - |")


def test_a_report_needs_nothing_but_run_folders(tmp_path):
    paths = [make_run(tmp_path / f"g{seed}", dies=True, seed=seed).path for seed in (0, 1)]
    paths += [make_run(tmp_path / f"l{seed}", seed=seed, **llds(0.5)).path for seed in (0, 1)]
    files = write_report(paths, tmp_path / "out")
    names = {path.name for path in files}
    assert names == {
        "table.md", "summary.json", "collapse.png", "probe.png", "methods.png", "lambda.png"
    }  # fmt: skip
    assert all(path.stat().st_size > 0 for path in files)
    rows = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    assert [(row["arm"], row["seed"]) for row in rows] == [
        ("grpo", 0), ("grpo", 1), ("llds", 0), ("llds", 1)
    ]  # fmt: skip
    assert (tmp_path / "out" / "table.md").read_text("utf-8") == summary_table(rows)


def test_a_sweep_draws_the_phase_diagram(tmp_path):
    paths = [
        make_run(tmp_path / f"{lr}-{n}", lr=lr, updates_per_batch=n, batches=12).path
        for lr in (1e-4, 3e-4)
        for n in (2, 10)
    ]
    files = write_report(paths, tmp_path / "out")
    assert "sweep_grpo.png" in {path.name for path in files}


def test_of_many_arms_the_curves_show_the_first_and_the_best(tmp_path, monkeypatch):
    shown = []
    draw = compare.collapse_figure
    monkeypatch.setattr(compare, "collapse_figure", lambda arms: shown.extend(arms) or draw(arms))
    paths = [make_run(tmp_path / "grpo", dies=True).path]
    paths += [make_run(tmp_path / m, dies=m != "b", method=m).path for m in "abcd"]
    write_report(paths, tmp_path / "out")
    assert shown == ["grpo", "b"]


def test_the_lambda_figure_leaves_other_methods_out(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(compare, "lambda_figure", lambda rows: drawn.extend(rows) or Figure())
    paths = [make_run(tmp_path / "a").path, make_run(tmp_path / "b", **llds(0.2)).path]
    paths += [make_run(tmp_path / "c", method="gspo").path]
    write_report(paths, tmp_path / "out")
    assert [row["method"] for row in drawn] == ["grpo", "llds"]


def test_a_report_with_gaps(tmp_path):
    bare = make_run(tmp_path / "a", without=("probe/logp", "likelihood/correct", "time/step"))
    empty = make_run(tmp_path / "b", batches=0, **llds(0.5))
    names = {path.name for path in write_report([bare.path, empty.path], tmp_path / "out")}
    assert {"table.md", "summary.json", "collapse.png", "methods.png"} <= names
    assert "probe.png" not in names


def test_a_half_written_last_line_does_not_stop_the_report(tmp_path):
    run = make_run(tmp_path / "a")
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert summarise(run)["batches"] == 99


def test_bad_input_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="no run folders given"):
        write_report([], tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="no run folder at") as error:
        write_report([tmp_path / "nowhere"], tmp_path / "out")
    assert "\n" not in str(error.value)
    warm = RunWriter.create(tmp_path / "sft", {"policy": "smollm2", "steps": 300}).path
    with pytest.raises(ValueError, match=r"sft is no GRPO run: its config\.json has no method"):
        write_report([make_run(tmp_path / "a", batches=1).path, warm], tmp_path / "out")
    with pytest.raises(ValueError, match="no GRPO run"):
        summarise(Run(warm))
    assert not (tmp_path / "out").exists()


def test_a_dead_run_logs_no_not_a_number(tmp_path):
    run = make_run(tmp_path / "a", dies=True)
    assert all(math.isfinite(value) for row in run.metrics for value in row.values())


def test_the_interval_of_a_share_by_hand():
    # 5 of 10: 0.5 -+ 1.96 sqrt(0.025 + 0.0096) / 1.384, about the middle
    assert share_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-4)
    # nobody of n: z^2 / (n + z^2) at most, and never under 0
    assert share_interval(0, 5) == pytest.approx((0.0, 3.8415 / 8.8415), abs=1e-5)
    assert share_interval(5, 5) == pytest.approx((5 / 8.8415, 1.0), abs=1e-5)
    with pytest.raises(ValueError, match="no share"):
        share_interval(3, 2)


def test_a_summary_needs_no_matplotlib():
    code = "import sys, lldlib.runs.summary; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
