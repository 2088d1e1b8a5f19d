"""Figures of the lab and of the explorers: right marks, right colours, room for every text."""

import math

import pytest
import torch
from matplotlib.figure import Figure
from test_explore import case
from test_figures import BATCHES, assert_readable, make_run, texts

from lldlib.recipes import train_config
from lldlib.runs.folder import Run, RunWriter
from lldlib.show.steered import PALE, Panel, curves_text, knob_changes, lab_figure
from lldlib.show.style import COLOURS, label_ends
from lldlib.show.widgets import gate_figure, gate_values, proxy_figure, proxy_values
from lldlib.train.run import describe


def turned(path, **config) -> Run:
    writer = RunWriter.create(path, describe(train_config("grpo", 0, **config)))
    loss = describe(train_config("llds", 0))["loss"]
    writer.metrics(0, {"reward/mean": 0.5})
    writer.event(1, "knob", lr=1e-4, loss=loss | {"llds_gate": "token"})
    writer.event(2, "knob", loss=loss | {"llds_gate": "token", "kl_coef": 0.0})
    writer.event(2, "checkpoint")
    writer.event(3, "knob", method="lp_reg", updates_per_batch=4)
    writer.close()
    return Run(path)


def test_knobs_are_named_by_what_changed(tmp_path):
    changes = knob_changes(turned(tmp_path / "run"))
    assert changes == [
        (1, "lr 1e-4, λ 0.5, gate token"),
        (2, "1 more"),
        (3, "lp_reg, updates 4"),
    ]


def test_the_lab_shows_runs_side_by_side(tmp_path):
    runs = {"A": make_run(tmp_path / "A", dies=True), "B": turned(tmp_path / "B")}
    figure = lab_figure(runs)
    first, second, *panels = figure.axes
    assert {"A", "learning", "collapse", "! alarm"} <= set(texts(first))
    shown = [text for text in texts(second) if text.startswith("▾")]
    changes = [f"▾ {text}" for _, text in knob_changes(runs["B"])]
    assert shown == changes[:2]  # the third would touch the second: its line alone is there
    assert len(panels) == 4 and panels[-1].get_yscale() == "log"
    dashed = [line for line in panels[0].lines if line.get_color() == COLOURS[1]]
    assert {line.get_xdata()[0] for line in dashed} >= {1, 2, 3}


@pytest.mark.parametrize("width", [3.6, 8.5, 11.0])
def test_no_text_of_the_lab_touches_another(tmp_path, width):
    runs = {
        name: make_run(tmp_path / name, dies=name == "GRPO", seed=seed)
        for seed, name in enumerate(("GRPO", "GRPO + LLDS", "GRPO, cooler"))
    }
    figure = lab_figure(runs, ghost=make_run(tmp_path / "ghost", dies=True), width=width)
    assert figure.get_figwidth() == width
    assert_readable(figure)


def lines(ax, colour) -> list[list[float]]:
    """The heights of each curve of one colour; a vertical mark is none."""
    found = [line for line in ax.lines if line.get_color() == colour]
    return [list(line.get_ydata()) for line in found if len(line.get_ydata()) > 2]


def test_two_branches_are_one_line_up_to_the_knob(tmp_path):
    """No mean over neighbours: it would look ahead of the knob."""
    rewards = {"A": [0.4, 0.5, 0.6, 0.1, 0.0], "B": [0.4, 0.5, 0.6, 0.9, 1.0]}
    for name, values in rewards.items():
        writer = RunWriter.create(tmp_path / name, describe(train_config("grpo", 0)))
        for step, value in enumerate(values):
            writer.metrics(step, {"reward/mean": value})
        writer.close()
    figure = lab_figure({name: Run(tmp_path / name) for name in rewards})
    reward = figure.axes[2]
    assert lines(reward, COLOURS[0]) == [rewards["A"]] and lines(reward, COLOURS[1]) == [
        rewards["B"]
    ]
    first = next(n for n, line in enumerate(reward.lines) if line.get_color() == COLOURS[0])
    second = next(n for n, line in enumerate(reward.lines) if line.get_color() == COLOURS[1])
    assert second < first  # the source lies over the branch, where they are one


def test_axes_are_fixed_until_the_numbers_leave_them():
    panel = Panel("probe/content", "probe", -3, 0)
    assert panel.limits([]) == panel.limits([-0.1, -2.9]) == (-3, 0)
    low, high = panel.limits([-4.0])
    assert (low, high) == (pytest.approx(-4.2), 0)
    norms = Panel("grad/norm", "norm", 0.01, 100, log=True)
    assert norms.limits([0.0, 3.0]) == (0.01, 100)
    assert norms.limits([0.002, 150.0]) == (pytest.approx(0.001), 1000)


def test_a_run_that_has_just_begun_has_its_axes(tmp_path):
    writer = RunWriter.create(tmp_path / "new", describe(train_config("grpo", 0, steps=25)))
    writer.close()
    figure = lab_figure({"A": Run(tmp_path / "new")})
    reward = figure.axes[1]
    assert reward.get_xlim() == (0, 25) and reward.get_ylim() == (0, 1)
    assert [texts(ax) for ax in figure.axes[1:]] == [["no batch yet"]] * 4
    assert "no batch yet" in curves_text({"A": Run(tmp_path / "new")})


def test_the_axis_goes_to_where_a_run_was_told_to_end(tmp_path):
    """As a rescue tells its branches: a few batches past their checkpoint."""
    writer = RunWriter.create(tmp_path / "run", describe(train_config("grpo", 0, steps=40)))
    writer.metrics(0, {"reward/mean": 0.5})
    assert lab_figure({"A": Run(tmp_path / "run")}).axes[1].get_xlim() == (0, 40)
    writer.event(1, "knob", steps=18)
    writer.close()
    run = Run(tmp_path / "run")
    assert lab_figure({"A": run}).axes[1].get_xlim() == (0, 18) and knob_changes(run) == []


def test_the_ghost_lies_pale_behind_and_is_there_before_any_run(tmp_path):
    ghost = make_run(tmp_path / "ghost", dies=True)
    for runs in ({}, {"A": make_run(tmp_path / "A", dies=False, batches=9)}):
        figure = lab_figure(runs, ghost=ghost)
        reward = figure.axes[len(runs)]
        (pale,) = lines(reward, PALE)
        assert pale == ghost.column("reward/mean") and reward.lines[0].get_color() == PALE
        assert reward.get_xlim() == (0, BATCHES) and "grey: recorded" in reward.get_xlabel()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("norms", [[0.0, 0.0], [0.0, 3.0, 20.0]])
def test_gradient_norms_of_zero_lie_at_the_foot(tmp_path, norms):
    """No group of a first batch need have a contrast; a log axis would warn of the zeros."""
    writer = RunWriter.create(tmp_path / "run", describe(train_config("grpo", 0)))
    for step, norm in enumerate(norms):
        writer.metrics(step, {"reward/mean": 0.0, "grad/norm": norm})
    writer.close()
    figure = lab_figure({"A": Run(tmp_path / "run")})
    figure.draw_without_rendering()
    ax = figure.axes[-1]
    assert ax.get_ylim() == (0.01, 100)
    assert list(ax.lines[1].get_ydata()) == [max(norm, 0.01) for norm in norms]


def test_end_labels_of_lines_that_leave_the_axis_or_stop():
    ax = Figure().subplots()
    ends = {"off": [0.5, -9.0], "stops": [0.5, math.nan], "never": [math.nan, math.nan]}
    for label, values in ends.items():
        ax.plot([0, 1], values, label=label)
    ax.set_ylim(0, 1)
    label_ends(ax)
    assert {t.get_text(): t.get_position()[1] for t in ax.texts} == {"off": 0, "stops": 0.5}


def test_gates_are_shaded():
    small = case([-0.3, 0.4, 0.0, -0.2])
    figure = gate_figure(small, gate_values(small, gate="action", answer_weight=1, coef=0.5))
    change, penalty, gradient = figure.axes[:3]
    heights = [[p.get_height() for p in ax.containers[0]] for ax in (change, penalty, gradient)]
    assert heights[0] == pytest.approx([-0.3, 0.4, 0, -0.2], abs=1e-6)
    assert heights[1] == pytest.approx([0, 0, 0, 0.2], abs=1e-6)
    assert heights[2] == pytest.approx([0, 0, 0, -1 / 6], abs=1e-6)
    assert len(change.patches) == 5 and len(figure.axes[3].patches) == 4  # bars, and one shade


def test_the_proxy_figure_hatches_what_is_dropped():
    probs = torch.tensor([0.6, 0.3, 0.09, 0.01])
    values = proxy_values(probs.log(), filtering="min-p", threshold=0.1)
    ax, pulls = proxy_figure(["a", "b", "c", "d"], values).axes
    policy, proxy = ax.containers
    assert [bool(bar.get_hatch()) for bar in policy][:4] == [False, False, False, True]
    assert [bar.get_width() for bar in proxy][:4] == pytest.approx(
        [0.606, 0.303, 0.0909, 0], abs=1e-3
    )
    # proxy less policy: what is kept is lifted, what is dropped goes down
    assert [bar.get_width() for bar in pulls.containers[0]][:4] == pytest.approx(
        [0.00606, 0.00303, 0.00091, -0.01], abs=1e-5
    )
