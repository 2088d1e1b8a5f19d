"""The graders of the notebooks' exercises: what they call right, wrong and open, and why."""

import math

import exercises as checks
import pytest


@pytest.mark.parametrize(
    ("name", "attempt", "state", "part"),
    [
        ("check_action_mask", lambda turns: [True] * 7, "wrong", "only the policy's turns"),
        ("check_action_mask", lambda turns: None, "open", "returned None"),
        (
            "check_holds",
            lambda p, top, delta, kappa, kept, beta, a: kappa * top < p < delta,
            "wrong",
            "The push up is",
        ),
        ("check_pass_at_k", lambda n, c, k: c / n, "wrong", "C(n - c, k)"),
        ("check_action_mask", lambda turns: turns[9], "wrong", "it raised IndexError"),
        ("check_updates", lambda every, cuts, again: cuts * again / every, "right", "all 4"),
        ("check_updates", lambda every, cuts, again: cuts, "wrong", "it gave 4, and 1 is right"),
        ("check_exact_match", lambda said, right: float(said in right), "wrong", "Lower case"),
    ],
)
def test_a_verdict_says_how_to_go_on(name, attempt, state, part):
    verdict = getattr(checks, name)(attempt)
    assert verdict.state == state and part in repr(verdict)


def window(rewards):
    means = [sum(rewards[t : t + 4]) / 4 for t in range(len(rewards) - 3)]
    return len(means) > 1 and means[-1] < 0.3 * max(means[:-1])


RUN = {"method": "GRPO", "rate": 1e-3, "start": "half-taught", "seed": 0}


@pytest.mark.parametrize(
    ("name", "attempt", "state", "part"),
    [
        # notebooks 1 to 5
        ("check_dead", lambda rewards: rewards[-1] == 0, "wrong", "nearly nothing"),
        ("check_dead", lambda rewards: min(rewards) < 0.05, "wrong", "A single bad batch"),
        ("check_dead", window, "right", "all 4"),
        ("check_one_difference", None, "open", "Not filled in yet"),
        ("check_one_difference", {"method": "GRPO"}, "wrong", "say its rate, start, seed"),
        ("check_one_difference", RUN | {"method": "LLDS"}, "wrong", "it has LLDS too"),
        ("check_one_difference", RUN | {"rate": 2e-4, "seed": 1}, "wrong", "in rate and seed"),
        ("check_one_difference", RUN, "right", "in nothing else"),
        ("check_loose_reward", "Lima and Rome", "wrong", "1 on 2 of 5"),
        ("check_loose_reward", "Quito, Oslo, Cairo, Rome, Lima", "right", "on all five"),
        ("check_least_advantage", [1, 1, 1, 1, 1], "wrong", "every advantage is 0"),
        ("check_least_advantage", [1, 0, 0, 0, 0], "wrong", "has 1.79 there"),
        ("check_least_advantage", [2, 0, 0, 0, 0], "wrong", "each 0 or 1"),
        ("check_least_advantage", [1, 1, 0, 1, 1], "right", "0.45, the wrong one -1.79"),
        ("check_token_loss", lambda new, old, A: -math.exp(new - old) * A, "wrong", "past 1.2"),
        (
            "check_token_loss",
            lambda new, old, A: -math.exp(new) * A,
            "wrong",
            "for 0.4055, 0.0, 1.0",
        ),
        ("check_paid", lambda logps: [0.0 for _ in logps], "wrong", "when written"),
        ("check_spared_token", [-0.5, 0.0, 1.0, -0.25], "wrong", "the response gate is shut"),
        ("check_spared_token", [-0.5, 0.0, 0.5, 0.5], "wrong", "spares nobody"),
        ("check_spared_token", [-0.5, 0.0, -1.0, 0.5], "wrong", "spares nobody"),
        ("check_spared_token", [-2.0, 0.0, 1.0, -0.5], "right", "charges 0.5 more"),
        ("check_pays", lambda old, new: [0.0 for _ in old], "wrong", "its falling token pays"),
        ("check_control_pair", (2, 3), "wrong", "in LLDS and in the rate"),
        ("check_control_pair", (1, 4), "wrong", "which run moves as far"),
        ("check_control_pair", (4, 3), "right", "equally far"),
        ("check_verdict", lambda grpo, llds: "ahead", "wrong", "4.30 standard errors"),
    ],
)
def test_a_verdict_of_the_course_says_how_to_go_on(name, attempt, state, part):
    verdict = getattr(checks, name)(attempt)
    assert verdict.state == state and part in repr(verdict)


PATIENTS = [{"reward/mean": [0.1]}, {"reward/mean": [0.9]}, {"reward/mean": [0.8]}]
LABELS = ["plain", "protected", "protected"]


def by_reward(metrics):
    return "plain" if metrics["reward/mean"][-1] < 0.5 else "protected"


def stub(metrics):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("attempt", "state", "part"),
    [
        (by_reward, "right", "1.00 on 3 runs; guessing earns 0.50"),
        (lambda metrics: "protected", "wrong", "0.50 on 3 runs"),
        (lambda metrics: "llds", "wrong", "give one of plain, protected"),
        (lambda metrics: metrics["no/such"], "wrong", "it raised KeyError"),
        (stub, "open", "Not filled in yet"),
    ],
)
def test_a_diagnosis_is_scored(attempt, state, part):
    verdict = checks.check_diagnosis(attempt, PATIENTS, LABELS)
    assert verdict.state == state and part in repr(verdict)


def test_balanced_accuracy_by_hand():
    # of "a" 1 in 3 is right, of "b" 1 in 1
    assert checks.balanced_accuracy(["a", "b", "b", "b"], ["a", "a", "a", "b"]) == 2 / 3


@pytest.mark.parametrize(
    ("name", "right", "wrong", "part"),
    [
        ("check_falling", {1, 2, 3, 4, 5}, {2}, "0.26"),
        ("check_falling", [5, 4, 3, 2, 1], {0, 1, 2, 3, 4, 5}, "gains only if"),
        ("check_late", 27, 20, "how many of the ten"),
        ("check_search_controls", {"b", "c"}, {"a", "b"}, "two of the four"),
        ("check_standing", {"b", "d"}, {"b", "c"}, "two things differ"),
    ],
)
def test_a_single_answer_is_open_right_or_wrong(name, right, wrong, part):
    check = getattr(checks, name)
    assert check(None).state == "open" and "Not filled in yet" in repr(check(None))
    assert check(right).state == "right" and repr(check(right)) == "Right."
    assert check(wrong).state == "wrong" and part in repr(check(wrong))


def fell_by_single_batches(rewards, window=5):
    return rewards[-1] < 0.5 * max(rewards)


def fell_by_a_mean_at_the_end_alone(rewards, window=5):
    return sum(rewards[-window:]) / window < 0.5 * max(rewards)


@pytest.mark.parametrize(
    ("name", "attempt", "part"),
    [
        ("check_fell", fell_by_single_batches, "take a mean there"),
        ("check_fell", fell_by_a_mean_at_the_end_alone, "the best must be a mean"),
        ("check_fell", lambda rewards: False, "a mean of 0.18"),
        ("check_llds_sum", lambda lost, total: sum(lost) / len(lost), "whole update"),
        ("check_llds_sum", lambda lost, total: sum(lost), "plain mean"),
    ],
)
def test_a_wrong_function_of_notebooks_6_to_10_is_told_why(name, attempt, part):
    verdict = getattr(checks, name)(attempt)
    assert verdict.state == "wrong" and part in repr(verdict)
