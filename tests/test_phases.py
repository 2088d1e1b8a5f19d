"""Collapse, phases and the alarm: hand-made runs, missing values, and no look into the future."""

import math
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lldlib.runs.phases import (
    AlarmRule,
    Collapse,
    Monitor,
    PhaseRule,
    alarm,
    alarm_report,
    collapse_batch,
    collapsed_for_good,
    find_collapse,
    phase_labels,
    trailing_mean,
)

NAN, LOST, RARE = float("nan"), "displacement/correct_token", "low_prob/mass"
PHASES = PhaseRule(span=20, decay_drop=0.1)
ALARM = AlarmRule(start=2, lost=0.4, rare=2.0)


def nan_equal(left, right):
    return left == pytest.approx(right, nan_ok=True)


def test_trailing_mean_by_hand():
    # windows of 2: (1+3)/2, (3+5)/2, then the one value that was measured, then none
    series = [1.0, 3.0, 5.0, None, NAN, 7.0]
    assert nan_equal(trailing_mean(series, 2), [NAN, 2.0, 4.0, 5.0, NAN, 7.0])


def test_trailing_mean_of_a_short_series_and_a_wrong_window():
    assert nan_equal(trailing_mean([1.0, 2.0], 3), [NAN, NAN])
    assert trailing_mean([], 3) == []
    with pytest.raises(ValueError, match="window"):
        trailing_mean([1.0], 0)


def test_collapse_batch_by_hand():
    # windows of 2 over 1 1 1 0.2 0 0: 1, 1, 0.6, 0.1 -> batch 4 is the first under 0.3 * 1
    assert collapse_batch([1.0, 1.0, 1.0, 0.2, 0.0, 0.0], window=2, ratio=0.3) == 4


def test_the_line_is_strict_and_the_best_is_the_best_so_far():
    # 1.0 is exactly 0.25 * 4, and the first 1.0s are not judged by the later 4.0
    rewards = [1.0, 1.0, 4.0, 4.0, 1.0, 1.0, 0.5]
    assert collapse_batch(rewards, window=1, ratio=0.25) == 6


def test_no_collapse_without_a_reward_or_a_full_window():
    assert collapse_batch([0.0] * 50) is None
    assert collapse_batch([1.0] * 5 + [0.0] * 4) is None
    assert find_collapse([]) == Collapse(None, False)


def test_default_window_and_ratio():
    # 10 batches of 1, then 0: 8 zeros leave a mean of 0.2 in the window of 10, 7 exactly 0.3
    assert collapse_batch([1.0] * 10 + [0.0] * 20) == 17


def test_collapse_skips_batches_without_a_reward():
    rewards = [1.0] * 10 + [None] * 10 + [0.0] * 10
    # batches 19: nothing measured; 20: only the 0 in the window
    assert collapse_batch(rewards) == 20


def test_collapse_for_good_and_collapse_with_recovery():
    dead = [1.0] * 20 + [0.0] * 40
    assert find_collapse(dead) == Collapse(27, True)
    assert find_collapse([1.0] * 20 + [0.0] * 40 + [1.0] * 40) == Collapse(27, False)


def test_one_climb_above_the_line_near_the_end_denies_a_lasting_collapse():
    # four batches of 1 in a window of 10 give 0.4 > 0.3; the mean of the last 20 is still 0.2
    assert collapsed_for_good([1.0] * 20 + [0.0] * 40)
    assert not collapsed_for_good([1.0] * 20 + [0.0] * 26 + [1.0] * 4 + [0.0] * 10)


def test_a_collapse_within_the_last_20_batches_is_not_yet_for_good():
    # under the line from batch 27: 47 batches hold 20 of them, 46 do not
    assert collapsed_for_good([1.0] * 20 + [0.0] * 27)
    assert not collapsed_for_good([1.0] * 20 + [0.0] * 26)


def test_a_run_that_stops_logging_rewards_is_not_said_to_have_died_for_good():
    assert find_collapse([1.0] * 20 + [0.0] * 20 + [None] * 30) == Collapse(27, False)


def test_the_line_for_good_is_that_of_the_collapse_not_of_a_later_height():
    # dead at 1.0, back to 0.5 (over 0.3), later 10.0 and again 0.5: over its own line to the end
    rewards = [1.0] * 20 + [0.0] * 20 + [10.0] * 20 + [0.5] * 40
    assert find_collapse(rewards) == Collapse(27, False)


def test_a_flat_likelihood_is_stagnation():
    assert set(phase_labels([0.5] * 40, [-1.0] * 40, PHASES)) == {"stagnation"}


def test_the_three_phases_in_order():
    # The probe holds for 30 batches, falls by 1/64 for 40, then by 1/8, when the reward goes too.
    probe = [-1.0] * 30 + [-1 - (t + 1) / 64 for t in range(40)]
    probe += [-1.625 - (t + 1) / 8 for t in range(20)]
    reward = [1.0] * 70 + [0.125] * 20
    labels = phase_labels(reward, probe, PHASES)
    # 7/64 > 0.1 at batch 36; the trailing mean is (1 + 9/8) / 10 = 0.2125 at 78, 0.3 before
    assert labels == ["stagnation"] * 36 + ["decay"] * 42 + ["collapse"] * 12
    assert labels.index("collapse") == collapse_batch(reward)


@pytest.mark.parametrize("hold", [1, 10])
def test_decay_ends_where_the_probe_has_held_for_long_enough(hold):
    # It loses 1/64 in each of the batches 10 to 50 and then holds. Of the 20 batches up to 66, 4
    # fell (4/64 > 0.05), of those up to 67 only 3 (3/64 < 0.05). Before batch 20 no fall is known.
    probe = [-1.0] * 10 + [-1 - (t + 1) / 64 for t in range(41)] + [-1 - 41 / 64] * 40
    labels = phase_labels([0.5] * 91, probe, replace(PHASES, hold=hold))
    assert labels == ["stagnation"] * 20 + ["decay"] * (46 + hold) + ["stagnation"] * (25 - hold)


def test_a_short_rest_of_the_probe_does_not_end_a_decay():
    steps = [0.0] * 5 + [0.2] + [0.0] * 9 + [0.2] + [0.0] * 20
    probe = [-1 - lost for lost in accumulate(steps)]  # 9 calm batches are a rest, 10 an end
    labels = phase_labels([0.5] * len(probe), probe, replace(PHASES, span=1))
    assert labels == ["stagnation"] * 5 + ["decay"] * 20 + ["stagnation"] * 11


def test_a_reward_that_drops_and_comes_back_begins_no_phase_and_ends_none():
    # batches 40 to 59 at 40 % of the best: fallen for long, never under the line of a collapse
    reward = [0.5] * 40 + [0.2] * 20 + [0.5] * 30
    assert set(phase_labels(reward, [-1.0] * 90, PHASES)) == {"stagnation"}
    sinking = [-1 - t / 64 for t in range(90)]
    assert phase_labels(reward, sinking, PHASES) == ["stagnation"] * 20 + ["decay"] * 70


def test_a_likelihood_that_falls_with_the_reward_is_no_decay_before_the_reward_holds():
    reward = [1.0] * 30 + [1 - t / 40 for t in range(20)] + [0.5] * 40
    probe = [-1.0] * 30 + [-1 - t / 16 for t in range(60)]
    # The probe has lost 2/16 > 0.1 at batch 32, when the trailing mean is still 0.9925 of what it
    # was: decay. With a start 10 batches later it is 0.81 and falling; it is 0.5 from batch 59 on,
    # which is over 0.9 of the mean 20 batches before, from 73 on.
    assert phase_labels(reward, probe, PHASES).index("decay") == 32
    late = [-1.0] * 40 + [-1 - t / 16 for t in range(50)]
    assert phase_labels(reward, late, PHASES).index("decay") == 73


def test_a_dead_reward_is_collapse_and_recovery_ends_it():
    reward = [1.0] * 20 + [0.0] * 20 + [1.0] * 20
    labels = phase_labels(reward, [-1.0] * 60, PHASES)
    # 2 of 10 left is 20 % of the best: batch 27; over 80 % again when 9 of 10 are back: batch 48
    assert labels.index("collapse") == 27
    assert labels[27:48] == ["collapse"] * 21 and labels[48] == "stagnation"


def test_phases_of_an_unmeasured_probe_and_of_unequal_lengths():
    empty = [None] * 30
    assert phase_labels(empty, empty, PHASES) == ["stagnation"] * 30
    with pytest.raises(ValueError, match="1 rewards and 0 probe"):
        phase_labels([0.5], [], PHASES)


def test_a_probe_scored_now_and_then_is_carried_forward():
    probe = [-1 - 0.02 * t if t % 5 == 0 else None for t in range(60)]
    labels = phase_labels([0.5] * 60, probe, PHASES)
    assert set(labels[30:]) == {"decay"}


def test_alarm_rings_on_a_batch_that_costs_its_correct_responses():
    assert alarm({LOST: [0.02, -0.1, -0.39, -0.41]}, ALARM) == 3
    assert (
        alarm({LOST: [-0.1] * 60}, ALARM) is None
    )  # what is given back each batch is not added up


def test_alarm_rings_when_unlikely_tokens_become_more():
    # start: the median of the first three, 0.04; the line is 0.08
    assert alarm({RARE: [0.04, 0.01, 0.05, 0.08, 0.081]}, ALARM) == 4
    assert alarm({RARE: [0.04, None, 0.01, 0.09, 0.07, NAN, 0.081]}, ALARM) == 3
    assert alarm({RARE: [0.0] * 3 + [0.5] * 10}, ALARM) is None  # nothing to compare with


def test_alarm_does_not_watch_the_start_and_skips_missing_values():
    assert alarm({LOST: [-1.0] * 2 + [0.01] * 20}, ALARM) is None
    assert alarm({LOST: [0.0, 0.0, None, NAN, -0.6]}, ALARM) == 4


def test_the_earlier_of_the_two_signs_rings():
    lost, rare = [0.01] * 30 + [-0.6] * 10, [0.04] * 20 + [0.2] * 20
    assert alarm({RARE: rare, LOST: lost}, ALARM) == 20
    assert alarm({RARE: [0.04] * 40, LOST: lost}, ALARM) == 30


def test_alarm_wants_something_to_watch():
    with pytest.raises(ValueError, match=LOST):
        alarm({"reward/mean": [1.0]}, ALARM)


def test_alarm_rings_before_the_reward_falls():
    reward = [0.6] * 60 + [0.0] * 30
    lost = [0.01] * 40 + [-0.5] * 50
    assert alarm({LOST: lost}, ALARM) < 60 < collapse_batch(reward)


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


VALUES = st.one_of(st.none(), st.just(NAN), st.floats(-3, 3, width=16))
REWARDS = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.5, 1.0]))


@st.composite
def recorded(draw):
    rows = draw(st.lists(st.tuples(REWARDS, VALUES, VALUES, VALUES), min_size=1, max_size=60))
    return [list(column) for column in zip(*rows, strict=True)], draw(st.integers(0, len(rows)))


SHORT = PhaseRule(window=3, span=4)


@settings(max_examples=50, deadline=None)
@given(recorded())
def test_the_future_never_changes_a_label(case):
    (reward, _, probe, _), cut = case
    whole = phase_labels(reward, probe, SHORT)
    assert phase_labels(reward[:cut], probe[:cut], SHORT) == whole[:cut]


@settings(max_examples=50, deadline=None)
@given(recorded())
def test_the_phase_of_collapse_begins_where_the_reward_collapsed(case):
    (reward, _, probe, _), _ = case
    labels = phase_labels(reward, probe, SHORT)
    first = labels.index("collapse") if "collapse" in labels else None
    assert first == collapse_batch(reward, SHORT.window, SHORT.dead)


@settings(max_examples=50, deadline=None)
@given(recorded())
def test_the_future_never_changes_an_alarm_or_a_collapse(case):
    (reward, lost, probe, _), cut = case
    for ring in (
        lambda n: alarm({LOST: lost[:n], RARE: probe[:n]}, ALARM),
        lambda n: collapse_batch(reward[:n], window=3),
    ):
        whole, part = ring(len(reward)), ring(cut)
        assert part == (whole if whole is not None and whole < cut else None)


@settings(max_examples=50, deadline=None)
@given(recorded(), st.sampled_from([2.0, 0.5, 8.0]))
def test_a_collapse_does_not_depend_on_the_reward_scale(case, scale):
    rewards = case[0][0]
    scaled = [None if r is None else r * scale for r in rewards]
    assert find_collapse(rewards, window=3) == find_collapse(scaled, window=3)


def test_the_inputs_are_left_as_they_were():
    columns = [0.5, None, 0.1] * 10, [-1.0] * 30
    copies = [list(c) for c in columns]
    phase_labels(*columns, PHASES)
    alarm({LOST: columns[0]}, ALARM)
    assert list(columns) == copies


def test_lp_reg_on_its_limit_is_told_once(caplog):
    """Five batches in a row over 5 nats a protected token; a resumed run has been told."""
    rows = [{"lp_reg/saturation": value} for value in (6, 6, 4, 6, 6, None, 6, 6, 6, 6)]
    on = {"lp_reg/saturation": 5.1}
    live = Monitor()
    for row in rows:
        live.add(row)
    assert not caplog.records
    for row in (on, on, {}, *[on] * 6):
        live.add(row)
    assert len(caplog.records) == 1 and "Lp-Reg sits on its limit" in caplog.text
    resumed = Monitor([*rows, on])
    for _ in range(6):
        resumed.add(on)
    assert len(caplog.records) == 1
