"""How recorded runs ended, by the scripts of the atlas: alarms by hand, strips, survival."""

import math

from helpers import script
from test_figures import BATCHES, assert_readable, make_run, texts

from lldlib.runs.phases import AlarmRule

fates = script("atlas/fates.py")
alarm_report, phase_strips = fates.alarm_report, fates.phase_strips
survival_figure = fates.survival_figure
LOST, ALARM = "displacement/correct_token", AlarmRule(start=2, lost=0.4, rare=2.0)


def runs(path, *, dies, number=2):
    name = "grpo" if dies else "llds"
    return {f"{name} {s}": make_run(path / f"{name}{s}", dies=dies, seed=s) for s in range(number)}


def test_alarm_report_by_hand():
    dies, lives = [1.0] * 40 + [0.0] * 20, [1.0] * 60  # the first collapses at batch 47
    early = {LOST: [0.01] * 20 + [-0.5] * 40}  # rings at 20: lead 27
    later = {LOST: [0.01] * 40 + [-0.5] * 20}  # at 40: lead 7
    late = {LOST: [0.01] * 47 + [-0.5] * 13}  # at the collapse itself: missed
    quiet = {LOST: [0.01] * 60}
    runs = [
        (dies, early),
        (dies, later),
        (dies, late),
        (dies, quiet),
        (lives, early),
        (lives, quiet),
    ]
    report = alarm_report(runs, ALARM)
    assert report.rung == (20, 40, 47, None, 20, None)
    assert report.leads == (7, 27)
    assert (report.misses, report.false_alarms) == (2, 1)
    assert (report.collapses, report.survivors) == (4, 2)
    assert report.median_lead == 17 and report.worst_lead == 7


def test_alarm_report_without_a_warned_collapse():
    report = alarm_report([([1.0] * 30, {LOST: [0.01] * 30})], ALARM)
    assert math.isnan(report.median_lead) and math.isnan(report.worst_lead)


def test_phase_strips_cover_every_batch_and_mark_the_collapse(tmp_path):
    figure = phase_strips(runs(tmp_path, dies=True) | runs(tmp_path, dies=False))
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


def test_survival_figure_steps_down_where_seeds_collapse(tmp_path):
    arms = {
        "GRPO": list(runs(tmp_path, dies=True).values()),
        "LLDS": list(runs(tmp_path, dies=False).values()),
    }
    ax = survival_figure(arms).axes[0]
    dead, alive = (list(line.get_ydata()) for line in ax.lines)
    assert dead[0] == 1 and dead[-1] == 0 and set(alive) == {1.01}
    assert texts(ax) == ["GRPO, 2 seeds", "LLDS, 2 seeds"]
    assert_readable(ax.figure)
