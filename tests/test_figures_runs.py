"""Figures that compare runs: the right marks, and room for every name."""

from test_figures import BATCHES, assert_readable, make_run, texts

from lldlib.runs.onsets import SPIRAL, BandRule
from lldlib.show import compare

RULE = BandRule(window=3, hold=3)


def runs(path, *, dies, number=2):
    name = "grpo" if dies else "llds"
    return {f"{name} {s}": make_run(path / f"{name}{s}", dies=dies, seed=s) for s in range(number)}


def test_phase_strips_cover_every_batch_and_mark_the_collapse(tmp_path):
    figure = compare.phase_strips(runs(tmp_path, dies=True) | runs(tmp_path, dies=False))
    ax = figure.axes[0]
    lengths = {}
    for bar in ax.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        lengths[row] = lengths.get(row, 0) + bar.get_width()
    assert lengths == dict.fromkeys(range(4), BATCHES)
    crosses = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "X"]
    assert crosses == [0, 1]  # the two that die
    assert ax.get_yticklabels()[0].get_text() == "grpo 0"
    assert_readable(figure)


def test_band_figure_dots_where_a_dying_run_leaves(tmp_path):
    lived = list(runs(tmp_path, dies=False).values())
    figure = compare.band_figure(lived, runs(tmp_path, dies=True), RULE)
    assert len(figure.axes) == len(SPIRAL) == 4
    for ax in figure.axes:
        dots = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"]
        assert len(dots) == 2 and all(40 <= dot < 50 for dot in dots)  # they break at 40
    assert figure.axes[2].get_yscale() == "log"
    assert_readable(figure)


def test_survival_figure_steps_down_where_seeds_collapse(tmp_path):
    arms = {
        "GRPO": list(runs(tmp_path, dies=True).values()),
        "LLDS": list(runs(tmp_path, dies=False).values()),
    }
    ax = compare.survival_figure(arms).axes[0]
    dead, alive = (list(line.get_ydata()) for line in ax.lines)
    assert dead[0] == 1 and dead[-1] == 0 and set(alive) == {1.01}
    assert texts(ax) == ["GRPO, 2 seeds", "LLDS, 2 seeds"]
    assert_readable(ax.figure)


def test_an_unlabelled_figure_names_no_method_and_hides_the_rest(tmp_path):
    patients = dict(zip("AB", runs(tmp_path, dies=True).values(), strict=True))
    figure = compare.unlabelled_figure(patients, ["reward/mean", "grad/norm"], 30)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["A", "B"]
    assert all(len(line.get_xdata()) == 30 for ax in figure.axes for line in ax.lines)
    said = [text.get_text() for text in figure.findobj() if hasattr(text, "get_text")]
    assert not any("grpo" in word.lower() for word in said)
    assert_readable(figure)
