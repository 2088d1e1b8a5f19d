"""Figures that compare runs: the right marks, and room for every name."""

from test_figures import assert_readable, make_run

from lldlib.show import compare


def runs(path, *, dies, number=2):
    name = "grpo" if dies else "llds"
    return {f"{name} {s}": make_run(path / f"{name}{s}", dies=dies, seed=s) for s in range(number)}


def test_an_unlabelled_figure_names_no_method_and_hides_the_rest(tmp_path):
    patients = dict(zip("AB", runs(tmp_path, dies=True).values(), strict=True))
    figure = compare.unlabelled_figure(patients, {"reward/mean": "reward", "grad/norm": "norm"}, 30)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["A", "B"]
    assert [ax.get_ylabel() for ax in figure.axes[::2]] == ["reward", "norm"]
    assert all(len(line.get_xdata()) == 30 for ax in figure.axes for line in ax.lines)
    said = [text.get_text() for text in figure.findobj() if hasattr(text, "get_text")]
    assert not any("grpo" in word.lower() for word in said)
    assert_readable(figure)
