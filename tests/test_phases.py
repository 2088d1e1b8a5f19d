"""Collapse, phases and the alarm: hand-made runs, missing values, and no look into the future."""

from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lldlib.runs.folder import Run, RunWriter
from lldlib.runs.phases import (
    AlarmRule,
    Collapse,
    Monitor,
    PhaseRule,
    alarm,
    collapse_batch,
    collapsed_for_good,
    find_collapse,
    live_labels,
    live_phase,
    phase_labels,
    phases_of,
    trailing_mean,
)

NAN, LOST, RARE = float("nan"), "displacement/correct_token", "low_prob/mass"
RULE = PhaseRule()
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
    assert find_collapse([]) == Collapse(None, None, False)


def test_default_window_and_ratio():
    # 10 batches of 1, then 0: 8 zeros leave a mean of 0.2 in the window of 10, 7 exactly 0.3
    assert collapse_batch([1.0] * 10 + [0.0] * 20) == 17


def test_collapse_skips_batches_without_a_reward():
    rewards = [1.0] * 10 + [None] * 10 + [0.0] * 10
    # batches 19: nothing measured; 20: only the 0 in the window
    assert collapse_batch(rewards) == 20


def test_collapse_for_good_and_collapse_with_recovery():
    dead = [1.0] * 20 + [0.0] * 40
    assert find_collapse(dead) == Collapse(19, 27, True)
    assert find_collapse([1.0] * 20 + [0.0] * 40 + [1.0] * 40) == Collapse(19, 27, False)


def test_one_climb_above_the_line_near_the_end_denies_a_lasting_collapse():
    # four batches of 1 in a window of 10 give 0.4 > 0.3; the mean of the last 20 is still 0.2
    assert collapsed_for_good([1.0] * 20 + [0.0] * 40)
    assert not collapsed_for_good([1.0] * 20 + [0.0] * 26 + [1.0] * 4 + [0.0] * 10)


def test_a_collapse_within_the_last_20_batches_is_not_yet_for_good():
    # under the line from batch 27: 47 batches hold 20 of them, 46 do not
    assert collapsed_for_good([1.0] * 20 + [0.0] * 27)
    assert not collapsed_for_good([1.0] * 20 + [0.0] * 26)


def test_a_run_that_stops_logging_rewards_is_not_said_to_have_died_for_good():
    assert find_collapse([1.0] * 20 + [0.0] * 20 + [None] * 30) == Collapse(19, 27, False)


def test_the_line_for_good_is_that_of_the_collapse_not_of_a_later_height():
    # dead at 1.0, back to 0.5 (over 0.3), later 10.0 and again 0.5: over its own line to the end
    rewards = [1.0] * 20 + [0.0] * 20 + [10.0] * 20 + [0.5] * 40
    assert find_collapse(rewards) == Collapse(19, 27, False)


def line(*corners: tuple[int, float]) -> list[float]:
    """A series that goes straight from corner to corner, each (batch, value)."""
    values = []
    for (a, u), (b, w) in pairwise(corners):
        values += [u + (w - u) * t / (b - a) for t in range(b - a)]
    return [*values, corners[-1][1]]


FLAT = [-0.1] * 61  # a likelihood that holds


def test_nothing_happens_in_a_steady_run():
    assert phase_labels([0.5] * 61, FLAT, RULE) == ["steady"] * 61
    assert phase_labels([0.0] * 61, FLAT, RULE) == ["steady"] * 61  # it had nothing to lose


def test_a_reward_that_climbs_is_learning_until_it_holds():
    reward = line((0, 0.3), (20, 0.9), (60, 0.9))
    labels = phase_labels(reward, FLAT, RULE)
    assert labels == ["learning"] * 21 + ["steady"] * 40


def test_a_climb_under_the_line_is_not_learning():
    # from .8 to .9 is .11 of the best, under .15; to 1 it is .2
    assert set(phase_labels(line((0, 0.8), (60, 0.9)), FLAT, RULE)) == {"steady"}
    assert set(phase_labels(line((0, 0.8), (60, 1.0)), FLAT, RULE)) == {"learning"}


def test_a_slow_loss_under_a_reward_that_holds_is_stagnation():
    # a nat in 60 batches is slow (.17 in ten); .1 nats are lost at batch 6, more from batch 7 on
    probe = line((0, -0.1), (60, -1.1))
    labels = phase_labels([0.5] * 61, probe, RULE)
    assert set(labels[:6]) == {"steady"} and set(labels[8:]) == {"stagnation"}
    # what was lost and stays so is stagnation too
    rests = line((0, -0.1), (30, -0.6), (60, -0.6))
    assert set(phase_labels([0.5] * 61, rests, RULE)[8:]) == {"stagnation"}
    # under a reward that climbs it is learning
    assert set(phase_labels(line((0, 0.3), (60, 0.9)), probe, RULE)) == {"learning"}


def test_a_fast_loss_of_likelihood_is_decay_also_while_the_reward_climbs():
    probe = line((0, -0.1), (30, -0.1), (40, -0.7), (60, -0.7))  # .6 nats in ten batches
    for reward in ([0.5] * 61, line((0, 0.3), (60, 0.9))):
        labels = phase_labels(reward, probe, RULE)
        assert set(labels[32:40]) == {"decay"}
        assert "decay" not in labels[:29] + labels[42:]


def test_a_reward_that_falls_without_collapsing_is_decay_and_its_return_learning():
    reward = line((0, 0.8), (20, 0.8), (30, 0.5), (40, 0.8), (60, 0.8))
    labels = phase_labels(reward, [None] * 61, RULE)
    stretches = [(label, len(list(group))) for label, group in groupby(labels)]
    assert [label for label, _ in stretches] == ["steady", "decay", "learning", "steady"]
    by_hand = (21, 10, 10, 20)
    assert all(abs(n - k) <= 2 for (_, n), k in zip(stretches, by_hand, strict=True))


def test_a_reward_that_stays_under_half_of_its_best_does_not_hold():
    reward = line((0, 0.8), (20, 0.8), (22, 0.3), (60, 0.3))  # .375 of its best: no collapse
    assert collapse_batch(reward) is None
    assert phase_labels(reward, [None] * 61, RULE)[21:] == ["decay"] * 40


def test_a_collapse_begins_with_its_fall_and_is_known_later():
    reward = line((0, 0.3), (10, 0.8), (30, 0.8), (34, 0.0), (60, 0.0))
    found = find_collapse(reward)
    # trailing means at 39: (.8 + .6 + .4 + .2) / 10 = .2 < .24; at 38: .28. A line ends in a mean
    # of three, so it turns down at 29, a batch before the corner
    assert found == Collapse(30, 39, True)
    labels = phase_labels(reward, FLAT, RULE)
    assert labels[30:] == ["collapse"] * 31 and set(labels[15:30]) == {"steady"}
    assert set(labels[:9]) == {"learning"}
    live = live_labels(reward, FLAT, RULE)
    assert live.index("collapse") == 39 and set(live[34:39]) == {"decay"}


def test_a_slow_wear_before_a_steep_fall_is_not_the_fall():
    reward = line((0, 0.8), (30, 0.6), (34, 0.0), (60, 0.0))  # .0067 a batch, then .15
    assert find_collapse(reward).began == 30
    bent = line((0, 0.8), (30, 0.8), (34, 0.5), (38, 0.0), (60, 0.0))  # .075, then .125: one fall
    assert find_collapse(bent).began == 31


def test_a_reward_that_comes_back_ends_a_collapse_where_it_began_to_climb():
    reward = [1.0] * 20 + [0.0] * 20 + [1.0] * 20
    labels = phase_labels(reward, [None] * 60, RULE)
    # known from 27 (2 of 10 left) to 48 (9 of 10 back); lines begin a batch before the corners
    assert labels.index("collapse") == find_collapse(reward).began == 19
    last = max(t for t, label in enumerate(labels) if label == "collapse")
    assert 37 <= last <= 40 and labels[last + 1] == "learning" and labels[-1] == "steady"
    live = live_labels(reward, [None] * 60, RULE)
    assert live[27:48] == ["collapse"] * 21 and "collapse" not in live[:27] + live[48:]


def test_noise_alone_is_steady():
    reward = [0.5 + (0.1 if t * 7 % 5 < 2 else -0.1) for t in range(61)]  # a fixed jagged line
    assert set(phase_labels(reward, [None] * 61, RULE)) == {"steady"}


def test_phases_of_an_unmeasured_probe_and_of_unequal_lengths():
    empty = [None] * 30
    assert phase_labels(empty, empty, RULE) == live_labels(empty, empty, RULE) == ["steady"] * 30
    for tell in (phase_labels, live_labels, live_phase):
        with pytest.raises(ValueError, match="1 rewards and 0 probe"):
            tell([0.5], [], RULE)
    assert phase_labels([], [], RULE) == live_labels([], [], RULE) == []
    with pytest.raises(ValueError, match="no batch yet"):
        live_phase([], [], RULE)


def test_a_probe_scored_now_and_then_is_read_between_its_values():
    probe = [-0.1 - 0.01 * t if t % 5 == 0 else None for t in range(60)]
    labels = phase_labels([0.5] * 60, probe, RULE)
    assert set(labels[15:]) == {"stagnation"} and labels[0] == "steady"


def test_a_run_of_thousands_of_batches_is_read_in_blocks():
    reward = line((0, 0.3), (500, 0.9), (2000, 0.9))
    labels = phase_labels(reward, [None] * 2001, RULE)
    knee = labels.index("steady")
    assert 480 < knee < 520 and set(labels[:knee]) == {"learning"}
    assert set(labels[knee:]) == {"steady"}


@pytest.mark.parametrize(("steps", "how"), [(60, "live"), (40, "with hindsight")])
def test_a_run_says_how_its_phases_were_told(tmp_path, steps, how):
    writer = RunWriter.create(tmp_path / "run", {"steps": steps})
    reward = line((0, 0.8), (20, 0.8), (24, 0.0), (39, 0.0))
    for step, value in enumerate(reward):
        writer.metrics(step, {"reward/mean": value})
    writer.close()
    found = phases_of(Run(tmp_path / "run"))
    assert found.told == how
    assert found.labels.index("collapse") == (29 if how == "live" else 20)


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


VALUES = st.one_of(st.none(), st.just(NAN), st.floats(-3, 3, width=16))
REWARDS = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.5, 1.0]))


@st.composite
def recorded(draw):
    rows = draw(st.lists(st.tuples(REWARDS, VALUES, VALUES, VALUES), min_size=1, max_size=60))
    return [list(column) for column in zip(*rows, strict=True)], draw(st.integers(0, len(rows)))


SHORT = PhaseRule(window=3)


@settings(max_examples=50, deadline=None)
@given(recorded())
def test_a_live_label_is_the_last_word_of_what_was_known(case):
    (reward, _, probe, _), cut = case
    live = live_labels(reward, probe, SHORT)
    assert live_labels(reward[:cut], probe[:cut], SHORT) == live[:cut]
    if cut:
        past = reward[:cut], probe[:cut]
        assert phase_labels(*past, SHORT)[-1] == live_phase(*past, SHORT) == live[cut - 1]


@settings(max_examples=50, deadline=None)
@given(recorded())
def test_a_collapse_begins_before_it_is_known_and_the_labels_agree(case):
    (reward, _, probe, _), _ = case
    found, live = find_collapse(reward, SHORT), live_labels(reward, probe, SHORT)
    assert found.known == (live.index("collapse") if "collapse" in live else None)
    assert found.known == collapse_batch(reward, SHORT.window, SHORT.dead)
    if found.known is not None:
        assert found.began <= found.known
        assert phase_labels(reward, probe, SHORT)[found.began] == "collapse"


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
    assert find_collapse(rewards, SHORT) == find_collapse(scaled, SHORT)


def test_the_inputs_are_left_as_they_were():
    columns = [0.5, None, 0.1] * 10, [-1.0] * 30
    copies = [list(c) for c in columns]
    phase_labels(*columns, RULE)
    alarm({LOST: columns[0]}, ALARM)
    assert list(columns) == copies


def test_lp_reg_on_its_limit_is_told_once(caplog):
    """Five batches in a row over 5 nats per protected token; a resumed run has been told."""
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
