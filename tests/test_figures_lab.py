"""Figures of the lab and of the explorers: right marks, right colours, room for every text."""

import math

import pytest
import torch
from matplotlib.figure import Figure
from test_explore import case
from test_figures import assert_readable, make_run, texts

from lldlib.recipes import train_config
from lldlib.runs.folder import Run, RunWriter
from lldlib.show.lab import knob_changes, lab_figure
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
    assert [first.get_ylabel(), second.get_ylabel()] == ["A", "B"]
    assert {"learning", "collapse", "! alarm"} <= set(texts(first))
    shown = [text for text in texts(second) if text.startswith("▾")]
    assert shown == [f"▾ {text}" for _, text in knob_changes(runs["B"])]
    assert len(panels) == 4 and panels[-1].get_yscale() == "log"
    low, high = panels[-1].get_ylim()
    assert math.log10(low) % 1 == math.log10(high) % 1 == 0
    dashed = [line for line in panels[0].lines if line.get_color() == COLOURS[1]]
    assert {line.get_xdata()[0] for line in dashed} >= {1, 2, 3}
    assert_readable(lab_figure({"A": runs["A"]}))


def test_a_run_that_has_just_begun(tmp_path):
    writer = RunWriter.create(tmp_path / "new", describe(train_config("grpo", 0)))
    writer.close()
    figure = lab_figure({"A": Run(tmp_path / "new")})
    assert figure.axes[-1].get_xlim() == (0, 10)
    assert [texts(ax) for ax in figure.axes[1:]] == [["no batch yet"]] * 4
    assert not any(len(ax.get_yticks()) for ax in figure.axes)


@pytest.mark.parametrize(
    ("norms", "scale", "limits"),
    [([0.0, 0.0], "linear", (0, 1)), ([0.0, 3.0, 20.0], "log", (1, 100))],
)
@pytest.mark.filterwarnings("error")
def test_gradient_norms_of_zero(tmp_path, norms, scale, limits):
    """No group of a first batch need have a contrast; a log axis would warn of the zeros."""
    writer = RunWriter.create(tmp_path / "run", describe(train_config("grpo", 0)))
    for step, norm in enumerate(norms):
        writer.metrics(step, {"reward/mean": 0.0, "grad/norm": norm})
    writer.close()
    figure = lab_figure({"A": Run(tmp_path / "run")})
    figure.draw_without_rendering()
    ax = figure.axes[-1]
    assert ax.get_yscale() == scale and ax.get_ylim() == limits
    assert texts(ax) == ["A"]


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
    ax = proxy_figure(["a", "b", "c", "d"], values).axes[0]
    policy, proxy = ax.containers
    assert [bool(bar.get_hatch()) for bar in policy][:4] == [False, False, False, True]
    assert [bar.get_width() for bar in proxy][:4] == pytest.approx(
        [0.606, 0.303, 0.0909, 0], abs=1e-3
    )
