"""Controls of a run: rewards by coin, or shuffled within their groups."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers import MICRO, micro_trainer

pytestmark = pytest.mark.usefixtures("answering_pays")


def trained_on(rewards: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the episodes earned, what is trained on) of the first batch, a row per group."""
    trainer = micro_trainer(replace(MICRO, rewards=rewards))
    episodes, batch = trainer.collect()
    earned = torch.tensor([e.reward for e in episodes])
    size = MICRO.rollout.group_size
    return earned.view(-1, size), batch.rewards.view(-1, size)


def test_a_coin_has_nothing_to_do_with_the_reward_and_falls_the_same_again():
    earned, coin = trained_on("coin")
    assert set(coin.unique().tolist()) == {0.0, 1.0} and not torch.equal(earned, coin)
    assert torch.equal(coin, trained_on("coin")[1])


def test_rollouts_that_are_only_measured_get_a_coin_of_their_own():
    trainer = micro_trainer(replace(MICRO, rewards="coin"))
    _, trained = trainer.collect()
    questions = [e.question for e in trainer.collect()[0][:: MICRO.rollout.group_size]]
    _, fresh = trainer._ask(questions, "fresh")
    assert set(fresh.rewards.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(fresh.rewards, trained.rewards)


def test_shuffled_rewards_stay_in_their_group():
    earned, shuffled = trained_on("shuffled")
    assert not torch.equal(earned, shuffled)
    for one, other in zip(earned.tolist(), shuffled.tolist(), strict=True):
        assert Counter(one) == Counter(other)
    assert torch.equal(*trained_on("true"))


def test_the_logged_reward_is_the_true_one_in_a_control():
    rows = [micro_trainer(replace(MICRO, rewards=name)).step()[0] for name in ("true", "coin")]
    assert rows[0]["reward/mean"] == rows[1]["reward/mean"]
