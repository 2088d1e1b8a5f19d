"""The graders of the notebooks' exercises: what they call right, wrong and open, and why."""

from functools import partial
from operator import ge, gt
from statistics import fmean, median, pstdev, stdev

import exercises as checks
import pytest
import torch

from lldlib.losses.llds import llds_parts


@pytest.mark.parametrize(
    ("name", "attempt", "state", "part"),
    [
        ("check_action_mask", lambda turns: [True] * 7, "wrong", "only the agent's own are True"),
        ("check_action_mask", lambda turns: None, "open", "returned None"),
        ("check_works", "c", "wrong", "both lines"),
        ("check_action_mask", lambda turns: turns[9], "wrong", "it raised IndexError"),
    ],
)
def test_a_verdict_says_how_to_go_on(name, attempt, state, part):
    verdict = getattr(checks, name)(attempt)
    assert verdict.state == state and part in repr(verdict)


def clipped(new, old, A):
    ratio, A = (new - old).exp(), A[:, None]
    return -torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)


def cut_grpo(new, old, A, mask):
    return checks.package_grpo(new.detach(), old, A, mask)


def last_above_a_number(rewards):
    return max((i for i, reward in enumerate(rewards) if reward >= 0.4), default=1)


def last_above_the_higher(rewards):
    return max(i for i, reward in enumerate(rewards) if reward >= max(rewards[:2]))


def last_from_the_mean(over, rewards):
    return max(i for i, reward in enumerate(rewards) if over(reward, fmean(rewards[:2])))


def told_apart(error, grpo, llds):
    gaps = [b - a for a, b in zip(grpo, llds, strict=True)]
    return "ahead" if fmean(gaps) > 4.30 * error(gaps) else "not told apart"


def unclipped(new, old, A, mask):
    return -((new - old).exp() * A[:, None] * mask).sum() / mask.sum()


def unmasked(new, old, A, mask):
    return clipped(new, old, A).mean()


def by_answer(new, old, A, mask):
    return ((clipped(new, old, A) * mask).sum(1) / mask.sum(1)).mean()


def llds_sum(new, old, A, mask, gate="action"):
    return llds_parts(new, old, A, mask, gate=gate, preserve="positive").penalty.sum()


def good(A, mask):
    return (mask & (A > 0)[:, None]).sum()


def ungated(new, old, A, mask):
    return llds_sum(new, old, A, mask, "token") / good(A, mask).clamp(min=1)


def by_answer_alone(new, old, A, mask):
    return llds_sum(new, old, A, mask, "response") / good(A, mask).clamp(min=1)


def by_all_tokens(new, old, A, mask):
    return llds_sum(new, old, A, mask) / mask.sum()


def without_a_floor(new, old, A, mask):
    return llds_sum(new, old, A, mask) / good(A, mask)


def cut_off(new, old, A, mask):
    return checks.package_llds(new.detach(), old, A, mask)


def good_change(new, old, A, mask):
    return (new - old)[mask & (A > 0)[:, None]].mean()


def of_all_authors(new, old, A, mask):
    return (new - old)[A > 0].mean()


def of_all_answers(new, old, A, mask):
    return (new - old)[mask].mean()


def of_undecided_too(new, old, A, mask):
    return (new - old)[mask & (A >= 0)[:, None]].mean()


def answer_by_answer(new, old, A, mask):
    rows = ((new - old) * mask).sum(1) / mask.sum(1)
    return rows[A > 0].mean()


def last_above_the_first(rewards):
    return max(t for t, reward in enumerate(rewards) if reward >= rewards[0])


def before_the_first_dip(rewards):
    start = sum(rewards[:2]) / 2
    return next((t for t in range(1, len(rewards) - 1) if rewards[t + 1] < start), len(rewards) - 1)


RUN = {"method": "GRPO", "rate": 1e-3, "start": "half-taught", "seed": 0}


@pytest.mark.parametrize(
    ("name", "attempt", "state", "part"),
    [
        # notebooks 1 to 5
        ("check_go_back", lambda rewards: None, "open", "Not filled in yet"),
        ("check_go_back", lambda rewards: rewards.index(max(rewards)), "wrong", "start is 0.35"),
        ("check_go_back", last_above_the_first, "wrong", "start is 0.35"),
        ("check_go_back", before_the_first_dip, "wrong", "The first dip passed"),
        ("check_go_back", last_above_a_number, "wrong", "Its start is 0.1875"),
        ("check_go_back", last_above_the_higher, "wrong", "Its start is 0.1875"),
        ("check_go_back", partial(last_from_the_mean, gt), "wrong", "exactly at it counts"),
        ("check_go_back", partial(last_from_the_mean, ge), "right", "all 5 cases"),
        ("check_one_difference", None, "open", "Not filled in yet"),
        ("check_one_difference", {"method": "GRPO"}, "wrong", "say its rate, start, seed"),
        ("check_one_difference", RUN | {"method": "LLDS"}, "wrong", "it has LLDS too"),
        ("check_one_difference", RUN | {"rate": 2e-4, "seed": 1}, "wrong", "in rate and seed"),
        ("check_one_difference", RUN, "right", "in nothing else"),
        ("check_loose_reward", "Lima and Rome", "wrong", "1 on 2 of 5"),
        ("check_loose_reward", "Quito, Oslo, Cairo, Rome, Lima", "right", "on all five"),
        ("check_grpo", lambda new, old, A, mask: None, "open", "Not filled in yet"),
        ("check_grpo", unclipped, "wrong", "A good token rose by half"),
        ("check_grpo", unmasked, "wrong", "Nothing has moved"),
        ("check_grpo", by_answer, "wrong", "Nothing has moved"),
        ("check_grpo", cut_grpo, "wrong", "it has no gradient"),
        ("check_grpo", checks.package_grpo, "right", "all 6 cases"),
        ("check_my_llds", lambda new, old, A, mask: None, "open", "Not filled in yet"),
        ("check_my_llds", ungated, "wrong", "This action gained"),
        ("check_my_llds", by_answer_alone, "wrong", "the whole table"),
        ("check_my_llds", by_all_tokens, "wrong", "Only the first answer"),
        ("check_my_llds", without_a_floor, "wrong", "mind the divisor"),
        ("check_my_llds", cut_off, "wrong", "it has no gradient"),
        ("check_my_llds", checks.package_llds, "right", "all 5 cases"),
        ("check_good_change", lambda new, old, A, mask: None, "open", "Not filled in yet"),
        ("check_good_change", lambda *given: -good_change(*given), "wrong", "It is new - old"),
        ("check_good_change", of_all_authors, "wrong", "not the agent's"),
        ("check_good_change", of_all_answers, "wrong", "Only the first answer"),
        ("check_good_change", of_undecided_too, "wrong", "A = 0 is not good"),
        ("check_good_change", answer_by_answer, "wrong", "Every token counts alike"),
        ("check_good_change", good_change, "right", "all 5 cases"),
        ("check_payers", "acg", "wrong", "whose action gained"),
        ("check_payers", "aeg", "wrong", "no A > 0"),
        ("check_payers", "ab", "wrong", "that rose"),
        ("check_payers", "a", "wrong", "somebody is missing"),
        ("check_payers", "g, a", "right", "equally hard"),
        ("check_control_pairs", None, "open", "Not filled in yet"),
        ("check_control_pairs", {"a": (1, 4)}, "wrong", "a pair for b, c"),
        ("check_control_pairs", {"a": (1, 4), "b": (2, 3), "c": (5, 2)}, "wrong", "yet, for b:"),
        ("check_control_pairs", {"a": (1, 4), "b": (4, 3), "c": (5, 2)}, "right", "each pair"),
        ("check_verdict", lambda grpo, llds: "ahead", "wrong", "one by one"),
        ("check_verdict", partial(told_apart, lambda gaps: stdev(gaps)), "wrong", "square root"),
        ("check_verdict", partial(told_apart, lambda g: pstdev(g) / 3**0.5), "wrong", "n - 1"),
        ("check_verdict", partial(told_apart, lambda g: stdev(g) / 3**0.5), "right", "all 6"),
    ],
)
def test_a_verdict_of_the_course_says_how_to_go_on(name, attempt, state, part):
    verdict = getattr(checks, name)(attempt)
    assert verdict.state == state and part in repr(verdict)


@pytest.mark.parametrize(
    ("own", "right"), [("own_grpo", "package_grpo"), ("own_llds", "package_llds")]
)
def test_a_right_loss_of_ones_own_trains_and_another_does_not(own, right, capsys):
    choose, package = getattr(checks, own), getattr(checks, right)
    mine = partial(package)
    assert choose(mine) is mine and "your own" in capsys.readouterr().out
    assert choose(lambda *given: None) is package and "the package's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "right", "wrong", "part"),
    [
        ("check_falling", {1, 2, 3, 4, 5}, {2}, "one sum is shared"),
        ("check_falling", [5, 4, 3, 2, 1], {0, 1, 2, 3, 4, 5}, "who gains"),
        ("check_late", 27, 20, "how many of the ten"),
        ("check_rate", 3e-6, 1e-5, "under its best"),
        ("check_search_controls", {"b", "c"}, {"a", "b"}, "two of the four"),
        ("check_curve", "c", "b", "very first update"),
        ("check_enough", 0.03 * 0.06 / 0.4, 0.03, "both pushes"),
        ("check_standing", {"b", "c"}, {"a", "b"}, "goes beyond"),
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
        ("check_fell", fell_by_single_batches, "Draw this run"),
        ("check_fell", fell_by_a_mean_at_the_end_alone, "taken for its best"),
        ("check_fell", lambda rewards: False, "a mean of 0.18"),
        ("check_fell", lambda r: fmean(r[-5:]) < 0.5 * fmean(r[:5]), "Its best level is 0.8"),
        ("check_fell", lambda r: fmean(r[-5:]) < 0.5 * fmean(r), "Its best level is 0.8"),
        ("check_fell", lambda r: fmean(r[-5:]) < 0.5 * median(r), "Its best level is 0.8"),
    ],
)
def test_a_wrong_function_of_notebooks_6_to_10_is_told_why(name, attempt, part):
    verdict = getattr(checks, name)(attempt)
    assert verdict.state == "wrong" and part in repr(verdict)


def dead_llds(logp, old_logp, advantages, action_mask):
    return (logp - logp.detach()).clamp(min=0).sum()


def test_a_broken_llds_is_told_its_promises():
    verdict = checks.check_mended(dead_llds)
    assert verdict.state == "wrong" and "0 at every update" in repr(verdict)
    assert "cannot be called" in repr(checks.check_mended(lambda logp: logp))


def test_a_report_begins_with_what_the_exercise_left_out():
    def unfinished(logp, old_logp, advantages, action_mask):
        return ((old_logp.float() - logp.float()).relu() * action_mask).sum()

    head, *told = repr(checks.check_mended(unfinished)).splitlines()
    assert head.startswith("Not yet: 11 of 25") and told[3] == "and 8 more"
    begins = ("- which answers", "- the gate", "- the divisor")
    assert all(line.startswith(begin) for line, begin in zip(told, begins, strict=False))


def test_either_choice_of_protected_answers_can_be_asked_for():
    from lldlib.losses import llds_penalty

    assert checks.check_mended(partial(llds_penalty, preserve="positive")).state == "right"
    papers = partial(llds_penalty, preserve="nonnegative")
    assert checks.check_mended(papers).state == "wrong"
    assert checks.check_mended(papers, "nonnegative").state == "right"
