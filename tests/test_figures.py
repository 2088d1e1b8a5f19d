"""Figures of synthetic runs: the right lines, labels and marks, and room for every name."""

from typing import get_args

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.runs.folder import Run, RunWriter
from lldlib.runs.phases import Phase, Phases
from lldlib.runs.summary import value_text
from lldlib.show import compare, curves, style

BATCHES = 60


def make_run(path, *, dies, seed=0, batches=BATCHES, without=()):
    """A run folder that rises to a reward of 0.7 and, if it `dies`, breaks from batch 40 on."""
    writer = RunWriter.create(path, {"method": "grpo" if dies else "llds", "seed": seed})
    for step in range(batches):
        late = max(0, step - 40) if dies else 0
        probe = -1.0 - 0.01 * max(0, step - 10) - 0.2 * late
        row = {
            "reward/mean": max(0.0, min(0.7, 0.4 + step / 50) - 0.1 * late)
            + 0.01 * (step + seed) % 0.02,
            "likelihood/correct": -1.0 + step / 200,
            "likelihood/incorrect": -1.2 - late / 10,
            "policy/entropy": 0.8 + late / 5,
            "low_prob/mass": 0.05 + late / 100,
            "grad/norm": 1.0 + late**2,
            "probe/logp": probe,
            "probe/free": 1.1 * probe,
            "probe/content": 0.6 * probe,
            "probe/action_1": 1.2 * probe,
            "probe/action_2": 0.9 * probe,
        }
        writer.metrics(step, {key: value for key, value in row.items() if key not in without})
    writer.close()
    return Run(path)


@pytest.fixture
def arms(tmp_path):
    return {
        arm: [make_run(tmp_path / f"{arm}{seed}", dies=arm == "GRPO", seed=seed) for seed in (0, 1)]
        for arm in ("GRPO", "LLDS")
    }


def named(ax):
    return [line.get_label() for line in ax.lines if not line.get_label().startswith("_")]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def bounds(figure):
    """Every visible text's box in pixels."""
    figure.draw_without_rendering()
    found = [t for ax in figure.axes for t in [*ax.texts, ax.xaxis.label, ax.yaxis.label, ax.title]]
    return {t: t.get_window_extent() for t in found if t.get_text() and t.get_visible()}


def assert_readable(figure):
    """No text leaves the canvas and no two of them touch."""
    boxes = list(bounds(figure).items())
    for text, box in boxes:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, text.get_text()
        assert box.y0 >= 0 and box.y1 <= figure.bbox.y1, text.get_text()
    for i, (one, box) in enumerate(boxes):
        for other, other_box in boxes[:i]:
            assert not box.padded(-1).overlaps(other_box.padded(-1)), (one, other)


def test_collapse_figure_has_four_panels_with_units_on_shared_batches(arms):
    figure = curves.collapse_figure(arms)
    assert isinstance(figure, Figure)
    assert [ax.get_ylabel().replace("\n", " ") for ax in figure.axes] == [
        "mean reward",
        "log-prob (nats per token)",
        "entropy (nats per token)",
        "gradient norm before clipping",
    ]
    assert figure.axes[-1].get_xlabel().startswith("batch")
    assert {ax.get_xlim() for ax in figure.axes} == {figure.axes[0].get_xlim()}
    assert [ax.get_yscale() for ax in figure.axes] == ["linear", "linear", "linear", "log"]
    assert_readable(figure)


def test_collapse_figure_draws_seeds_thin_and_means_bold(arms):
    reward, likelihood, *_ = curves.collapse_figure(arms).axes
    assert named(reward) == ["GRPO", "LLDS"]
    thin = [line for line in reward.lines if line.get_linewidth() < 1]
    assert len(thin) == 4  # 2 arms x 2 seeds
    assert named(likelihood) == ["GRPO", "LLDS"] * 3
    styles = [line.get_linestyle() for line in likelihood.lines if line.get_linewidth() == 2]
    assert styles == ["-", "-", "--", "--", ":", ":"]


def test_collapse_figure_marks_the_death_of_the_first_run(arms):
    reward, _, _, gradient = curves.collapse_figure(arms).axes
    assert {"collapse", "alarm", "GRPO", "LLDS"} <= set(texts(reward))
    assert "alarm" not in texts(gradient)
    assert len(gradient.patches) == len(reward.patches) >= 2  # the shades run through all panels


def test_a_living_run_has_no_alarm(tmp_path):
    figure = curves.collapse_figure({"LLDS": [make_run(tmp_path / "a", dies=False)]})
    assert not {"collapse", "alarm"} & set(texts(figure.axes[0]))


def test_missing_metrics_are_named(tmp_path):
    missing = ("policy/entropy", "probe/logp", "grad/norm")
    run = make_run(tmp_path / "a", dies=True, without=missing)
    _, likelihood, entropy, gradient = curves.collapse_figure({"GRPO": [run]}).axes
    assert "policy/entropy was not logged" in texts(entropy)
    assert "grad/norm was not logged" in texts(gradient)
    assert len(named(likelihood)) == 2


@pytest.mark.filterwarnings("error")
def test_gradients_that_are_all_zero_are_drawn(tmp_path):
    writer = RunWriter.create(tmp_path / "a", {"method": "grpo", "seed": 0})
    for step in range(3):
        writer.metrics(step, {"reward/mean": 0.0, "grad/norm": 0.0})
    writer.close()
    gradient = curves.collapse_figure({"GRPO": [Run(tmp_path / "a")]}).axes[3]
    low, high = gradient.get_ylim()
    assert low < 0 < high and any(line.get_ydata()[0] == 0 for line in gradient.lines)


def test_a_run_without_a_batch_can_be_drawn(tmp_path):
    figure = curves.collapse_figure({"GRPO": [make_run(tmp_path / "a", dies=True, batches=0)]})
    assert "reward/mean was not logged" in texts(figure.axes[0])


def test_no_runs_is_an_error():
    with pytest.raises(ValueError, match="no runs to draw: give every arm"):
        curves.collapse_figure({"GRPO": []})


def test_more_arms_than_colours_is_an_error():
    with pytest.raises(ValueError, match="8 arms but only 7 colours"):
        style.colours([str(i) for i in range(8)])


def test_an_arm_has_one_colour_everywhere_and_no_other_run_takes_it():
    orange, blue, green, pink, *_ = style.COLOURS
    assert style.colours(["A", "B"]) == {"A": orange, "B": blue}
    shown = style.colours(["GRPO + LLDS", "B", "GRPO, cooler"])
    assert shown == {"GRPO + LLDS": blue, "B": pink, "GRPO, cooler": green}
    rescue = style.colours(["nothing changed", "a fifth of the rate", "more rows per update"])
    assert list(rescue.values()) == [orange, green, pink]
    assert len(set(style.colours(["GRPO", *"123456"]).values())) == 7


def small_run(path, values):
    writer = RunWriter.create(path, {})
    for step, value in enumerate(values):
        writer.metrics(step, {"a/b": value})
    writer.close()
    return Run(path)


def panel(runs, scale="linear"):
    ax = Figure().subplots()
    ax.set_yscale(scale)
    shown = curves.metric_panel(ax, {"arm": runs}, "a/b", "a (units)", seeds=False, line="-")
    assert shown is ax
    return [list(axis) for axis in ax.lines[0].get_data()]


def test_the_bold_line_is_a_mean_over_seeds_smoothed_over_five_batches(tmp_path):
    one = small_run(tmp_path / "1", [0, 0, 0, 10, 0, 0, 0])
    two = small_run(tmp_path / "2", [2, 2, 2, 2, 2, 2, 2])
    # the mean of both is 1 1 1 6 1 1 1; the 6 lies in the window of batches 1 to 5.
    # batch 0: (1+1+1)/3 = 1; batch 1: (1+1+1+6)/4 = 2.25; batch 2, 3, 4: (4*1+6)/5 = 2
    assert panel([one, two]) == [[0, 1, 2, 3, 4, 5, 6], [1, 2.25, 2, 2, 2, 2.25, 1]]


def test_no_thin_line_spans_a_gap(tmp_path):
    run, ax = small_run(tmp_path / "1", [1, 2, None, None, 5, 6]), Figure().subplots()
    curves.metric_panel(ax, {"arm": [run]}, "a/b", "a (units)", seeds=True, line="-")
    thin = [list(axis) for axis in ax.lines[0].get_data()]
    assert thin[0] == [0, 1, 4, 4, 5]
    assert np.array_equal(thin[1], [1, 2, np.nan, 5, 6], equal_nan=True)


def test_the_mean_ends_with_the_shortest_run(tmp_path):
    runs = [small_run(tmp_path / "1", [1.0] * 3), small_run(tmp_path / "2", [5.0] * 9)]
    assert panel(runs) == [[0, 1, 2], [3, 3, 3]]


def test_a_log_axis_averages_logarithms_and_skips_zero(tmp_path):
    runs = [small_run(tmp_path / "1", [1.0, 0.0]), small_run(tmp_path / "2", [100.0, 10.0])]
    # batch 0: sqrt(1 * 100) = 10; batch 1: 10 alone; their mean is 10
    assert panel(runs, "log") == [[0, 1], pytest.approx([10, 10])]


def test_end_labels_keep_their_order_and_do_not_touch():
    figure = Figure(layout="constrained")
    ax = figure.subplots()
    for label, end in (("c", 0.52), ("a", 0.5), ("b", 0.51), ("top", 1.0)):
        ax.plot([0, 1], [0, end], label=label)
    style.label_ends(ax)
    boxes = {text.get_text(): box for text, box in bounds(figure).items()}
    for low, high in (("a", "b"), ("b", "c"), ("c", "top")):
        assert boxes[low].y1 <= boxes[high].y0 + 1


def test_phases_shade_their_batches_and_are_named_once():
    ax = Figure().subplots()
    ax.plot([0, 100], [0, 1])
    names = (
        ["decay"] * 10
        + ["stagnation"] * 40
        + ["decay"] * 2
        + ["stagnation"] * 8
        + ["collapse"] * 40
    )
    assert style.mark_phases(ax, Phases(tuple(names), "live"), None, names=True) is ax
    spans = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches]
    assert spans == [(0, 10), (10, 50), (50, 52), (52, 60), (60, 100)]
    assert texts(ax) == ["decay", "stagnation", "collapse"]  # each at its longest stretch
    assert len(ax.lines) == 1  # no alarm, no line


def test_probe_figure_sets_wording_against_content_and_splits_actions(arms):
    figure = curves.probe_figure({arm: runs[0] for arm, runs in arms.items()})
    top_left, top_right, low_left, low_right = figure.axes
    assert (top_left.get_title(), top_right.get_title()) == ("GRPO", "LLDS")
    assert named(top_left) == named(top_right) == ["wording", "content"]
    assert named(low_left) == ["action 1", "action 2"]
    assert top_left.get_ylabel() == "log-prob (nats per token)"
    assert low_right.get_xlabel() == "batch"
    assert top_left.get_ylim() == top_right.get_ylim()
    assert_readable(figure)


def test_heatmap_averages_seeds_per_cell_and_leaves_gaps():
    rows = [
        {"lr": 1e-4, "updates_per_batch": 2, "end_reward": 0.2},
        {"lr": 1e-4, "updates_per_batch": 2, "end_reward": 0.6},
        {"lr": 3e-4, "updates_per_batch": 10, "end_reward": 0.9},
        {"lr": 3e-4, "updates_per_batch": 2, "end_reward": None},
    ]
    ax = compare.sweep_heatmap(rows, "lr", "updates_per_batch", "end_reward")
    assert isinstance(ax, Axes)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("learning rate", "updates per batch")
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1e-4", "3e-4"]
    assert sorted(texts(ax)) == ["0.40\nn=2", "0.90\nn=1"]  # (0.2 + 0.6) / 2
    grid = ax.images[0].get_array()
    assert grid.tolist() == [[0.4, None], [None, 0.9]]
    assert_readable(ax.figure)


def test_heatmap_without_values_is_an_error():
    with pytest.raises(ValueError, match="no row has a 'end_reward'"):
        compare.sweep_heatmap([{"lr": 1, "u": 2, "end_reward": None}], "lr", "u", "end_reward")


def result(arm, seed, weight, end, collapsed_at):
    return {
        "arm": arm,
        "seed": seed,
        "llds_coef": weight,
        "peak_reward": 0.7,
        "end_reward": end,
        "collapsed_at": collapsed_at,
        "heldout_em": None,
        "seconds_per_batch": 1.5 + weight,
    }


ROWS = [result("grpo", s, 0.0, 0.02 + s / 10, 40 + s) for s in (0, 1)]
ROWS += [result("llds", s, 0.5, 0.6 + s / 10, None) for s in (0, 1)]


def test_lambda_figure_crosses_out_the_dead():
    figure = compare.lambda_figure(ROWS)
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "0.5"]
    assert [line.get_marker() for line in ax.lines[2:]] == ["x", "x", "o", "o"]
    assert named(ax) == ["peak reward", "end reward"]
    assert list(ax.lines[1].get_ydata()) == pytest.approx(
        [0.07, 0.65]
    )  # (0.02 + 0.12)/2, (0.6 + 0.7)/2
    assert_readable(figure)


def test_methods_figure_counts_the_collapsed_and_copes_with_nothing_logged():
    figure = compare.methods_figure(ROWS)
    peak, _, collapsed, heldout, _ = figure.axes
    assert [t.get_text() for t in peak.get_yticklabels()] == ["grpo", "llds"]
    assert texts(collapsed) == ["2/2", "0/2"]
    assert sum(len(line.get_xdata()) for line in heldout.lines) == 0
    assert collapsed.get_xlabel() == "collapsed at"
    assert_readable(figure)


@pytest.mark.parametrize(
    "value, text", [(0, "0"), (10, "10"), (0.2, "0.2"), (3e-4, "3e-4"), (1.5e-5, "1.5e-5")]
)
def test_settings_are_written_as_one_writes_them(value, text):
    assert value_text(value) == text


def test_save_makes_a_png_and_no_figure_touches_global_settings(tmp_path, arms):
    before = dict(matplotlib.rcParams)
    path = style.save(curves.collapse_figure(arms), tmp_path / "deep" / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before


def test_a_phase_name_that_would_touch_another_is_left_out():
    ax = Figure().subplots()
    ax.plot([0, 100], [0, 1])
    labels = ("stagnation",) * 50 + ("decay",) * 2 + ("collapse",) * 4
    style.mark_phases(ax, Phases(labels, "live"), None, names=True)
    # centres 25, 51 and 54, about 1.2 batches a letter: decay ends at 54.0, collapse starts at 49.1
    assert texts(ax) == ["stagnation", "decay"]


def test_every_phase_has_its_shade_and_every_arm_its_colour():
    assert set(style.SHADES) == set(get_args(Phase))
    assert len(set(style.COLOURS)) == len(style.COLOURS)
