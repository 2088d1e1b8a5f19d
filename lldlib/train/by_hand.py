"""Runs that a reader of the course trains in a notebook, short enough to be changed by hand.

What takes seconds to import is imported inside, so that a notebook's first picture comes soon.
"""

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import torch

from lldlib import losses
from lldlib.types import Batch, Episode

if TYPE_CHECKING:
    from lldlib.policy.load import Policy
    from lldlib.train.dissect import Dissected, DissectedUpdate
    from lldlib.train.trainer import Trainer
    from lldlib.world.environment import Split


def load_policy(name: str) -> "Policy":
    """A policy with its tokenizer: `policy.load.load_policy`, which takes seconds to import."""
    from lldlib.policy import load

    return load.load_policy(name)


def open_planet(number: int) -> "Split":
    """The questions and the search of one shuffle of the atlas: what batch `number` trains on."""
    from lldlib.recipes import train_config
    from lldlib.world.registry import open_environment

    return open_environment(train_config("grpo", 0, "half_taught")).training(number)


def roll_out(
    policy: "Policy", planet: int, problems: int, *, group_size: int = 5, seed: int = 0
) -> list[Episode]:
    """The answers of a policy, at temperature 1, to questions of the planet of batch `planet`."""
    from lldlib.config import RolloutConfig
    from lldlib.recipes import train_config
    from lldlib.rollout.loop import Rollout
    from lldlib.world.registry import open_environment

    environment = open_environment(train_config("grpo", 0, "half_taught"))
    split = environment.training(planet)
    rollout = Rollout(policy.tokenizer, environment.rules, split.tool, RolloutConfig())
    questions = random.Random(seed).sample(split.questions, problems)
    draw = torch.Generator().manual_seed(seed)
    return rollout.run(policy.model, questions, samples=group_size, temperature=1.0, generator=draw)


def gradients_by_author(
    policy: "Policy", answers: Sequence[Episode]
) -> list[tuple[str, str, str, str]]:
    """What a GRPO loss without an action mask is made of, at the answers' first update.

    A line an author of what follows the question: its share of the words, their mean log-prob,
    and the length of the gradient of its part of the loss, a mean over all those words.
    """
    from lldlib.policy.score import score
    from lldlib.rollout.batch import collate

    batch = collate(answers)
    first = batch.action_mask.int().argmax(1, keepdim=True)  # where the question ends
    place = torch.arange(batch.tokens.shape[1], device=first.device)
    after = batch.attention_mask & (place >= first)
    logp = score(policy.model, replace(batch, action_mask=after), 1.0).logp
    A = losses.group_advantages(batch.rewards, batch.group, scale=True)
    authors = {"the agent": batch.action_mask, "the environment": after & ~batch.action_mask}
    rows, weights = [], list(policy.model.parameters())
    for author, mask in authors.items():
        loss = losses.policy_gradient(logp, logp.detach(), A, mask).sum() / after.sum()
        pulls = torch.autograd.grad(loss, weights, retain_graph=True)
        length = sum(pull.square().sum() for pull in pulls).sqrt()
        share, mean = mask.sum() / after.sum(), logp[mask].mean()
        rows.append((author, f"{share:.0%}", f"{mean:.1f}", f"{length:.2f}"))
    return rows


def charges(
    terms: Mapping[str, Callable[..., torch.Tensor]], batches: int = 3, updates: int = 6
) -> dict[str, list[float]]:
    """What each term would charge before every update of one hot GRPO run, which has none of them.

    A term is called as in `train_with`; one that has `ref_logp` is given those of the start too.
    """
    from lldlib.policy.score import score
    from lldlib.rollout.batch import collate

    policy, start = load_policy("half_taught"), load_policy("half_taught")
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3, weight_decay=0.0)
    told: dict[str, list[float]] = {name: [] for name in terms}
    for number in range(batches):
        batch = collate(roll_out(policy, planet=number, problems=24, seed=number))
        A = losses.group_advantages(batch.rewards, batch.group, scale=True)
        with torch.no_grad():
            old, ref = (score(one.model, batch, 1.0).logp for one in (policy, start))
        for _ in range(updates):
            logp = score(policy.model, batch, 1.0).logp
            for name, term in terms.items():
                more = [ref] if "ref_logp" in inspect.signature(term).parameters else []
                told[name].append(float(term(logp.detach(), old, A, batch.action_mask, *more)))
            gain = losses.policy_gradient(logp, old, A, batch.action_mask)
            optimizer.zero_grad()
            losses.aggregate(gain, batch.action_mask, "token-mean").backward()
            optimizer.step()
    return told


def train_with(
    term: Callable[..., torch.Tensor],
    batches: int,
    problems: int = 64,
    seed: int = 0,
    rate: float = 1e-3,
) -> list[float]:
    """The reward of each batch of a GRPO run, hot unless told otherwise, with 0.5 `term` added.

    `term(logp, old_logp, advantages, action_mask)` is a scalar, such as an LLDS of your own. The
    loop is that of notebook 3: 16 updates per batch of `problems` questions with 5 answers each.
    Each `seed` has its own planets and draws.
    """
    from lldlib.policy.score import score
    from lldlib.rollout.batch import collate

    policy, rewards = load_policy("half_taught"), []
    optimizer = torch.optim.AdamW(policy.model.parameters(), weight_decay=0.0)
    for step in range(batches):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 5)
        number = step + 1000 * seed
        batch = collate(roll_out(policy, planet=number, problems=problems, seed=number))
        with torch.no_grad():
            old = score(policy.model, batch, 1.0).logp
        A = losses.group_advantages(batch.rewards, batch.group, scale=True)
        draws = torch.Generator().manual_seed(number)
        order = torch.randperm(len(A), generator=draws, device="cpu")
        for rows in order.tensor_split(16):
            part = batch.rows(rows)
            new = score(policy.model, part, 1.0).logp
            given = new, old[rows, : new.shape[1]], A[rows], part.action_mask
            gain = losses.aggregate(losses.policy_gradient(*given), part.action_mask, "token-mean")
            optimizer.zero_grad()
            (gain + 0.5 * term(*given)).backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
        rewards.append(batch.rewards.mean().item())
    return rewards


def train_at(
    rate: float, *, llds: bool = False, limit: float = 0.0, batches: int = 8, seed: int = 20
) -> pd.DataFrame:
    """GRPO, or GRPO + LLDS, trained here and now as the recorded runs were: a line a batch.

    Its column is `reward`. With a `limit` no update moves the agent further, in nats.
    """
    from lldlib.recipes import train_config
    from lldlib.train.trainer import Trainer
    from lldlib.world.registry import open_environment

    method, quiet = "llds" if llds else "grpo", {"eval_every": 0, "probe_every": 0}
    config = train_config(method, seed, "half_taught", lr=rate, move_limit=limit, **quiet)
    trainer = Trainer(config, load_policy(config.policy), open_environment(config))
    return pd.DataFrame({"reward": [trainer.step()[0]["reward/mean"] for _ in range(batches)]})


def third_batch(llds: float = 0.0, without: Sequence[int] = ()) -> list["Dissected"]:
    """The answers of the third batch of a small hot run, with what its updates did to each token.

    80 answers and four updates a batch. GRPO trains the first two; the third has LLDS of weight
    `llds` beside it, and trains on no word of the answers whose numbers are in `without`.
    """
    from lldlib.train.dissect import dissect

    trainer = _before_the_third_batch(llds, without)
    return dissect(trainer, replace(trainer.config.loss, llds_coef=0.0))


def third_update(number: int, llds: float) -> "DissectedUpdate":
    """One of the four updates of `third_batch`, token by token, for the step inspector."""
    from lldlib.train.dissect import dissect_update

    return dissect_update(_before_the_third_batch(llds), number)


def _before_the_third_batch(llds: float, without: Sequence[int] = ()) -> "Trainer":
    """The trainer of `third_batch`, which has trained two batches."""
    from lldlib.recipes import train_config
    from lldlib.train.trainer import Trainer
    from lldlib.world.registry import open_environment

    class Third(Trainer):
        def collect(self) -> tuple[list[Episode], Batch]:
            episodes, batch = super().collect()
            if self.step_index == 2:
                batch.action_mask[list(without)] = False
            return episodes, batch

    small = {"problems": 16, "updates_per_batch": 4, "warmup_batches": 0}
    config = train_config("grpo", 0, "half_taught", eval_every=0, probe_every=0, **small)
    trainer = Third(config, load_policy(config.policy), open_environment(config))
    for _ in range(2):
        trainer.step()
    trainer.config = replace(config, loss=replace(config.loss, llds_coef=llds))
    return trainer


def train_masked(mask_of: Callable[[Batch], torch.Tensor], batches: int) -> list[float]:
    """The reward of each batch of a cooler GRPO run of seed 0 that takes `mask_of(batch)` for its
    action mask: 16 questions with 5 answers each in 4 updates, as in atlas/unmasked.csv.
    """
    from lldlib.recipes import train_config
    from lldlib.train.trainer import Trainer
    from lldlib.world.registry import open_environment

    class Masked(Trainer):
        def collect(self) -> tuple[list[Episode], Batch]:
            episodes, batch = super().collect()
            return episodes, replace(batch, action_mask=mask_of(batch))

    small = {"problems": 16, "updates_per_batch": 4, "lr": 2e-4, "warmup_batches": 0}
    small |= {"kl_coef": 0.0, "eval_every": 0, "probe_every": 0}
    config = train_config("grpo", 0, "half_taught", **small)
    trainer = Masked(config, load_policy(config.policy), open_environment(config))
    return [trainer.step()[0]["reward/mean"] for _ in range(batches)]
