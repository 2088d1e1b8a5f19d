"""Diagnostics: hand-worked values, empty selections, and what padding may not change."""

import math

import pytest
import torch

from lldlib.losses import lp_reg_mask
from lldlib.runs import measures as diagnostics
from lldlib.runs.glossary import GLOSSARY, Metric, describe
from lldlib.types import Episode, Question, Span, StopReason, Turn

# Three rows of six tokens; column 0 has no prefix. Row 0: actions of 2 and 1 tokens; row 1: one
# of 3; row 2: actions of 1 and 1.
MASK = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 0, 1, 1, 1, 0], [0, 1, 0, 1, 0, 0]]).bool()
OLD = torch.tensor(
    [
        [0.0, -1.0, -2.0, -9.0, -0.5, -9.0],
        [0.0, -9.0, -1.0, -1.0, -4.0, -9.0],
        [0.0, -3.0, -9.0, -1.0, -9.0, -9.0],
    ]
)
CHANGE = torch.tensor(
    [
        [0.0, -0.5, 0.25, 7.0, -0.75, 7.0],
        [0.0, 7.0, -1.0, -1.0, -1.0, 7.0],
        [0.0, 0.5, 7.0, 0.25, 7.0, 7.0],
    ]
)
REWARDS = torch.tensor([1.0, 0.0, 1.0])


def is_nan(value):
    return math.isnan(value)


def test_masked_mean_counts_masked_tokens_only():
    # (-1 - 2 - 0.5) / 3 in row 0
    row = MASK & torch.tensor([[True], [False], [False]])
    assert diagnostics.masked_mean(OLD, row) == pytest.approx(-3.5 / 3)
    assert is_nan(diagnostics.masked_mean(OLD, torch.zeros_like(MASK)))


def test_displacement_by_hand():
    report = diagnostics.displacement(OLD, OLD + CHANGE, REWARDS, MASK)
    # sums: row 0 -0.5 + 0.25 - 0.75 = -1; row 1 -3; row 2 0.5 + 0.25 = 0.75
    assert report["displacement/correct"] == pytest.approx((-1 + 0.75) / 2)
    assert report["displacement/incorrect"] == pytest.approx(-3)
    assert report["displacement/correct_token"] == pytest.approx((-1 + 0.75) / 5)
    assert report["displacement/incorrect_token"] == pytest.approx(-1)
    assert report["displacement/share_fallen"] == pytest.approx(1 / 2)
    # first action: row 0 (-0.5 + 0.25) / 2 = -0.125, row 2 0.5; second: -0.75 and 0.25
    assert report["displacement/action_1"] == pytest.approx((-0.125 + 0.5) / 2)
    assert report["displacement/action_2"] == pytest.approx((-0.75 + 0.25) / 2)
    assert is_nan(report["displacement/action_3"]) and is_nan(report["displacement/action_4"])


def test_displacement_action_skips_the_responses_that_lack_it():
    # only row 0 is correct and has two actions; row 1, correct too, has a single one
    report = diagnostics.displacement(OLD, OLD + CHANGE, torch.tensor([1.0, 1.0, 0.0]), MASK)
    assert report["displacement/action_1"] == pytest.approx((-0.125 - 1) / 2)
    assert report["displacement/action_2"] == pytest.approx(-0.75)


def test_displacement_threshold_is_strict():
    half = torch.tensor([0.5, 0.4, 0.0])
    assert is_nan(diagnostics.displacement(OLD, OLD + CHANGE, half, MASK)["displacement/correct"])
    over = diagnostics.displacement(OLD, OLD + CHANGE, half + 0.01, MASK)
    assert over["displacement/correct"] == pytest.approx(-1)


def test_displacement_without_a_correct_row_is_nan_there_alone():
    report = diagnostics.displacement(OLD, OLD + CHANGE, torch.zeros(3), MASK)
    assert is_nan(report["displacement/correct"]) and is_nan(report["displacement/share_fallen"])
    assert is_nan(report["displacement/action_1"])
    assert report["displacement/incorrect"] == pytest.approx((-1 - 3 + 0.75) / 3)


def test_a_row_without_action_tokens_is_no_response():
    mask = MASK.clone()
    mask[2] = False
    report = diagnostics.displacement(OLD, OLD + CHANGE, REWARDS, mask)
    assert report["displacement/correct"] == pytest.approx(-1)
    assert report["displacement/share_fallen"] == pytest.approx(1)
    nothing = diagnostics.displacement(OLD, OLD + CHANGE, REWARDS, torch.zeros_like(MASK))
    assert all(is_nan(v) for v in nothing.values())


def test_displacement_ignores_what_lies_outside_the_mask_even_nan():
    noisy = torch.where(MASK, OLD, float("nan"))
    clean = diagnostics.displacement(OLD, OLD + CHANGE, REWARDS, MASK)
    assert diagnostics.displacement(noisy, OLD + CHANGE, REWARDS, MASK) == pytest.approx(
        clean, nan_ok=True
    )


def test_displacement_of_what_was_trained_on_and_of_what_was_not():
    # sums of change: row 0 -1 over 3 tokens, row 1 -3 over 3, row 2 0.75 over 2
    row = diagnostics.token_displacement(OLD, OLD + CHANGE, torch.tensor([1.0, -1.0, 0.0]), MASK)
    assert row["displacement/all_token"] == pytest.approx(-3.25 / 8)
    assert row["displacement/mixed_token"] == pytest.approx(-1 / 3)
    fresh = diagnostics.fresh_displacement(
        OLD, OLD + CHANGE, REWARDS, torch.tensor([0.0, -1.0, 1.0]), MASK, trained_on=0.5
    )
    assert fresh == {
        "displacement/fresh_token": pytest.approx(-3.25 / 8),
        "displacement/fresh_correct_token": pytest.approx(-0.25 / 5),  # rows 0 and 2
        "displacement/fresh_mixed_token": pytest.approx(0.375),  # row 2
        "displacement/trained": pytest.approx(0.5 - 0.375),
    }


def test_displacement_without_a_row_of_positive_advantage_is_unknown():
    row = diagnostics.token_displacement(OLD, OLD, torch.zeros(3), MASK)
    assert row["displacement/all_token"] == 0 and is_nan(row["displacement/mixed_token"])
    none = (OLD, OLD, torch.zeros(3), torch.zeros(3), MASK)
    assert is_nan(diagnostics.fresh_displacement(*none, trained_on=0.5)["displacement/trained"])


def test_likelihood_by_hand():
    report = diagnostics.likelihood(OLD, REWARDS, MASK)
    # correct tokens: -1 -2 -0.5 (row 0), -3 -1 (row 2); incorrect: -1 -1 -4
    assert report["likelihood/correct"] == pytest.approx(-7.5 / 5)
    assert report["likelihood/incorrect"] == pytest.approx(-2)
    assert report["likelihood/action_1"] == pytest.approx((-1 - 2 - 3) / 3)
    assert report["likelihood/action_2"] == pytest.approx((-0.5 - 1) / 2)
    assert is_nan(report["likelihood/action_3"])


def test_a_row_without_a_reward_is_neither_right_nor_wrong():
    """Its rollout lost its search tool."""
    lost = REWARDS.clone()
    lost[1] = float("nan")
    assert is_nan(diagnostics.likelihood(OLD, lost, MASK)["likelihood/incorrect"])
    moved = diagnostics.displacement(OLD, OLD - 1, lost, MASK)
    assert is_nan(moved["displacement/incorrect"]) and moved["displacement/correct"] < 0


def test_likelihood_with_only_correct_rows():
    report = diagnostics.likelihood(OLD, torch.ones(3), MASK)
    assert is_nan(report["likelihood/incorrect"])
    assert report["likelihood/action_1"] == pytest.approx((-1 - 2 - 1 - 1 - 4 - 3) / 6)


def test_the_official_likelihood_is_over_the_tokens_of_all_rows():
    # rows with A >= 0: -1 -2 -0.5 (row 0) and -3 -1 (row 2, A = 0); 8 tokens with those of row 1
    report = diagnostics.official_likelihood(OLD, torch.tensor([1.0, -1.0, 0.0]), MASK)
    assert report == {"likelihood/official": pytest.approx(-7.5 / 8)}
    every = diagnostics.official_likelihood(OLD, torch.zeros(3), MASK)
    assert every == {"likelihood/official": pytest.approx(-13.5 / 8)}
    assert diagnostics.official_likelihood(OLD, -torch.ones(3), MASK)["likelihood/official"] == 0
    none = diagnostics.official_likelihood(OLD, torch.zeros(3), torch.zeros_like(MASK))
    assert is_nan(none["likelihood/official"])


def test_probe_report_separates_wording_from_content():
    span = torch.tensor([[0, 1, 2, 0, 3, 0], [0, 0, 1, 1, 3, 0], [0, 2, 0, 1, 0, 0]])
    report = diagnostics.probe_report(OLD, MASK, span)
    assert (Span.FREE, Span.QUERY, Span.ANSWER) == (1, 2, 3)
    assert report["probe/free"] == pytest.approx((-1 - 1 - 1 - 1) / 4)
    assert report["probe/content"] == pytest.approx((-2 - 0.5 - 4 - 3) / 4)
    assert report["probe/logp"] == pytest.approx(-13.5 / 8)
    assert report["probe/action_1"] == pytest.approx(-12 / 6)
    assert report["probe/action_2"] == pytest.approx(-1.5 / 2)


def test_probe_report_keeps_to_the_action_mask():
    span = torch.full((3, 6), int(Span.FREE))  # a label outside the mask must not count
    report = diagnostics.probe_report(OLD, MASK, span)
    assert report["probe/free"] == report["probe/logp"]
    assert is_nan(report["probe/content"])


def probabilities(*rows):
    return torch.tensor(rows).log()


def test_low_probability_by_hand():
    mask = torch.tensor([[False, True, True], [False, True, True]])
    logp = probabilities([1.0, 0.9, 0.04], [1.0, 0.01, 0.5])
    proxy = probabilities([1.0, 0.9, 0.0], [1.0, 0.02, 0.6])
    advantages = torch.tensor([1.0, -1.0])
    report = diagnostics.low_probability(logp, proxy, advantages, mask, 0.5, "paper")
    # 0.04 and 0.01 are rare: 2 of 4. The median lies between 0.04 and 0.5. One of the two under it
    # is in a negative row, and the proxy keeps it.
    assert report["low_prob/mass"] == pytest.approx(0.5)
    assert report["low_prob/threshold"] == pytest.approx(0.5)
    assert report["low_prob/negative_share"] == pytest.approx(0.5)
    assert report["low_prob/protected_share"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("proxy", "selection", "share"),
    [(0.02, "paper", 2 / 4), (0.02, "code", 1 / 4), (0.0, "paper", 1 / 4), (0.0, "code", 0.0)],
)
def test_low_probability_protects_what_the_rule_of_the_config_selects(proxy, selection, share):
    """Under delta, at rank 3.5, lie four tokens; the two of A < 0 are protected or not."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    logp = probabilities([0.01, 0.02, 0.9], [0.03, 0.8, 0.7])
    kept = probabilities([proxy, 0.005, 0.9], [0.9, 0.9, 0.9])  # the code wants logp < proxy
    rows = (logp, kept, torch.tensor([-1.0, 1.0]), mask)
    report = diagnostics.low_probability(*rows, 0.7, selection)
    assert report["low_prob/protected_share"] == pytest.approx(share)
    assert report["low_prob/negative_share"] == pytest.approx(0.5)


def test_low_probability_has_the_delta_of_the_loss():
    """Of 140 tokens the quantile 0.01 lies at rank 1.39: two are under delta, not one."""
    logp = torch.arange(1, 141).float().div(200).log()[None]
    mask, rows = torch.ones(1, 140, dtype=torch.bool), torch.tensor([-1.0])
    report = diagnostics.low_probability(logp, logp, rows, mask, 0.01, "paper")
    assert report["low_prob/threshold"] == pytest.approx(3 / 200)
    assert lp_reg_mask(logp, logp, rows, mask, quantile=0.01).sum() == 2
    assert report["low_prob/protected_share"] == 1


def test_low_probability_smallest_quantile_is_the_minimum_and_no_proxy_no_key():
    rows = (OLD, None, torch.tensor([0.0, -1.0, 0.0]), MASK)
    report = diagnostics.low_probability(*rows, 0.001, "paper")
    least, second = OLD[MASK].sort().values[:2]
    assert least < second and report["low_prob/threshold"] == pytest.approx(float(second.exp()))
    assert report["low_prob/negative_share"] == 1
    assert "low_prob/protected_share" not in report


def test_low_probability_of_no_token_and_of_a_wrong_quantile():
    empty = (OLD, OLD, torch.ones(3), torch.zeros_like(MASK))
    report = diagnostics.low_probability(*empty, 0.01, "paper")
    assert len(report) == 4 and all(is_nan(v) for v in report.values())
    for quantile in (0.0, 1.5):
        with pytest.raises(ValueError, match="quantile"):
            diagnostics.low_probability(OLD, None, torch.ones(3), MASK, quantile, "paper")


def test_sampler_gap_by_hand():
    sampler = OLD.clone()
    sampler[0, 1] += 0.5
    sampler[1, 4] -= 2.0
    sampler[0, 3] += 50.0  # outside the mask
    report = diagnostics.sampler_gap(sampler, OLD, MASK)
    assert report["policy/sampler_gap"] == pytest.approx(2.0)
    assert report["policy/sampler_kl"] == pytest.approx((0.5 - 2.0) / 8)
    empty = diagnostics.sampler_gap(sampler, OLD, torch.zeros_like(MASK))
    assert all(is_nan(v) for v in empty.values())


def test_grad_share():
    assert diagnostics.grad_share(3.0, 1.0) == 0.75
    assert is_nan(diagnostics.grad_share(0.0, 0.0))


def episode(stop, valid, invalid, actions):
    turns = [Turn.given("prompt", [7] * 9)]
    for n in actions:
        turns.append(Turn("action", [1] * n, [-1.0] * n, [Span.FREE] * n))
        turns.append(Turn.given("environment", [2] * 5))
    question = Question("q", "who?", ("me",))
    return Episode(question, turns, stop, None, valid, invalid, 0.0, 0)


def test_episode_stats_by_hand():
    episodes = [
        episode(StopReason.ANSWER, 2, 0, [3, 4]),
        episode(StopReason.ANSWER, 1, 1, [2]),
        episode(StopReason.TOKEN_BUDGET, 0, 2, [6]),
        episode(StopReason.EOS, 0, 0, []),
    ]
    report = diagnostics.episode_stats(episodes)
    assert report["length/tokens"] == (7 + 2 + 6 + 0) / 4
    assert report["search/valid"] == 3 / 4 and report["search/invalid"] == 3 / 4
    assert report["stop/answer"] == 0.5 and report["stop/token_budget"] == 0.25
    assert sum(v for k, v in report.items() if k.startswith("stop/")) == 1
    assert all(is_nan(v) for v in diagnostics.episode_stats([]).values())


def every_report():
    span = torch.ones(3, 6, dtype=torch.long)
    advantages = torch.tensor([1.0, -1.0, 0.0])
    return (
        diagnostics.displacement(OLD, OLD + CHANGE, REWARDS, MASK)
        | diagnostics.token_displacement(OLD, OLD + CHANGE, advantages, MASK)
        | diagnostics.fresh_displacement(
            OLD, OLD + CHANGE, REWARDS, advantages, MASK, trained_on=0.0
        )
        | diagnostics.likelihood(OLD, REWARDS, MASK)
        | diagnostics.official_likelihood(OLD, advantages, MASK)
        | diagnostics.probe_report(OLD, MASK, span)
        | diagnostics.low_probability(OLD, OLD, advantages, MASK, 0.1, "paper")
        | diagnostics.sampler_gap(OLD, OLD, MASK)
        | diagnostics.episode_stats([episode(StopReason.ANSWER, 1, 0, [2])])
    )


def test_padding_and_the_order_of_rows_change_nothing():
    wide = [torch.cat([x, torch.zeros_like(x[:, :2])], 1).flip(0) for x in (OLD, CHANGE, MASK)]
    old, change, mask = wide
    report = diagnostics.displacement(old, old + change, REWARDS.flip(0), mask)
    report |= diagnostics.likelihood(old, REWARDS.flip(0), mask)
    advantages = torch.tensor([0.0, -1.0, 1.0])
    report |= diagnostics.official_likelihood(old, advantages, mask)
    expected = every_report()
    assert report == pytest.approx({k: expected[k] for k in report}, nan_ok=True)


def test_inputs_are_left_as_they_were():
    before = [x.clone() for x in (OLD, CHANGE, MASK, REWARDS)]
    every_report()
    assert all(torch.equal(a, b) for a, b in zip(before, (OLD, CHANGE, MASK, REWARDS), strict=True))


def test_the_glossary_covers_every_key_and_holds_no_empty_field():
    assert all(isinstance(describe(key), Metric) for key in every_report())
    for metric in GLOSSARY.values():
        assert all((metric.name, metric.formula, metric.unit, metric.healthy))


@pytest.mark.parametrize(
    "key",
    [
        "step",
        "reward/mean",
        "reward/std",
        "reward/mixed_groups",
        "policy/entropy",
        "policy/clip_share",
        "policy/ratio_max",
        "grad/norm",
        "grad/norm_mean",
        "grad/negative_share",
        "llds/value",
        "llds/open_gate_share",
        "lp_reg/value",
        "lp_reg/protected_share",
        "lp_reg/saturation",
        "kl/reference",
        "kl/old",
        "update/skipped",
        "update/lr",
        "eval/heldout_em",
        "eval/heldout_f1",
        "time/rollout",
        "time/score",
        "time/update",
        "time/step",
        "eval/heldout_em_greedy",
    ],
)
def test_the_glossary_covers_what_the_trainer_logs(key):
    assert describe(key) is GLOSSARY[key]


def test_describe_resolves_patterns_and_refuses_strangers():
    assert describe("probe/action_2") is describe("probe/action_11") is GLOSSARY["probe/action_k"]
    assert describe("stop/tool_error") is GLOSSARY["stop/<reason>"]
    for stranger in (
        "stop/boredom",
        "probe/action_0",
        "probe/action_x",
        "reward",
        "length/action_1",
    ):
        with pytest.raises(KeyError, match="glossary") as caught:
            describe(stranger)
        assert "\n" not in str(caught.value)
