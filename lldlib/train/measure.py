"""What is measured of a batch and its updates: nothing here moves a weight or a draw."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib.config import QUESTIONS, TrainConfig
from lldlib.losses import LossInputs, compute_loss, group_advantages
from lldlib.losses.objective import policy_only
from lldlib.policy.optimizer import trainable
from lldlib.policy.score import Scores, backward_through, next_probability
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.runs import measures
from lldlib.train.experience import Experience, scored
from lldlib.types import Batch, Episode, Question, StopReason, Turn, WatchedWords

# -- before the updates --------------------------------------------------------------------------


def negative_share(model: nn.Module, experience: Experience, config: TrainConfig) -> float:
    """Share of negative-advantage rows in the policy term's gradient: of two norms' sum.

    Over all rows, where old and new policy are one.
    """
    batch, old, bare = experience.batch, experience.old, policy_only(config.loss)
    norms = []
    known = experience.advantages.where(experience.finite, 0.0)
    for kept in (known.clamp(max=0), known.clamp(min=0)):
        inputs = LossInputs(
            logp=old.logp.clone().requires_grad_(),
            old_logp=old.logp,
            advantages=kept,
            action_mask=batch.action_mask & experience.finite[:, None],
            answer_mask=batch.answer_mask,
            entropy=old.entropy,
            negative_token_weights=experience.negative_token_weights,
            generator=torch.Generator(),  # of its own: that of the updates stays as it is
            sampler_logp=batch.sampler_logp,
        )
        compute_loss(bare, inputs)[0].backward()
        norms.append(_norm_through(model, batch, inputs.logp, config))
    return measures.grad_share(*norms)


def _norm_through(
    model: nn.Module, batch: Batch, leaf: Float[Tensor, "B T"], config: TrainConfig
) -> float:
    """Norm of the weights' gradient that a gradient by log-probs implies; none is left."""
    rows = leaf.grad.any(1).nonzero()[:, 0]  # the others have no part in it
    if not len(rows):
        return 0.0
    part = batch.rows(rows)
    # no more at a time than a minibatch has, for which there is memory
    size = config.micro_rows or math.ceil(len(leaf) / config.updates_per_batch)
    chosen = leaf.detach()[rows, : part.tokens.shape[1]]
    chosen.grad = leaf.grad[rows, : part.tokens.shape[1]]
    model.zero_grad(set_to_none=True)
    model.train()  # where gradient checkpointing acts; nothing drops out
    backward_through(model, part, Scores(chosen), config.rollout.temperature, size)
    model.eval()
    grads = [p.grad for p in trainable(model).values() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return float(sum(g.square().sum() for g in grads) ** 0.5)


# -- after them ----------------------------------------------------------------------------------


@torch.no_grad()
def of_batch(
    model: nn.Module, experience: Experience, episodes: Sequence[Episode], config: TrainConfig
) -> dict[str, float]:
    """What a batch earned and how likely it was, and what its updates did to it."""
    batch, scores, advantages = experience.batch, experience.old, experience.advantages
    new, mask = scored(model, batch, config).logp, batch.action_mask
    std = batch.rewards.view(-1, config.rollout.group_size).std(1)
    std = std[std.isfinite()]  # a group that is left out has none
    served = [e for e in episodes if e.stop is not StopReason.TOOL_ERROR]
    return {
        "reward/mean": measures.known(
            float(torch.tensor([e.reward for e in served], device="cpu").mean())
        ),
        "reward/std": float(std.mean()),
        "reward/mixed_groups": float((std > 0).float().mean()),
        "policy/entropy": measures.masked_mean(scores.entropy, mask),
        **measures.likelihood(scores.logp, batch.rewards, mask),
        **measures.official_likelihood(scores.logp, advantages, mask),
        **measures.displacement(scores.logp, new, batch.rewards, mask),
        **measures.token_displacement(scores.logp, new, advantages, mask),
        **measures.low_probability(
            scores.logp,
            scores.proxy_logp,
            advantages,
            mask,
            config.loss.lp_reg_quantile,
            config.loss.lp_reg_selection,
        ),
        **measures.sampler_gap(batch.sampler_logp, scores.logp, mask),
        **measures.episode_stats(episodes),
    }


@torch.no_grad()
def of_fresh(
    model: nn.Module,
    batch: Batch,
    old_logp: Float[Tensor, "B T"],
    config: TrainConfig,
    *,
    trained_on: float,
) -> dict[str, float]:
    """What the updates did to rollouts of the old policy that were not trained on."""
    new = scored(model, batch, config).logp
    advantages = group_advantages(batch.rewards, batch.group, scale=False)
    return measures.fresh_displacement(
        old_logp, new, batch.rewards, advantages, batch.action_mask, trained_on=trained_on
    )


@torch.no_grad()
def of_probe(model: nn.Module, probe: Batch, config: TrainConfig) -> dict[str, float]:
    """The fixed probe set of correct trajectories, scored under the current policy."""
    logp = scored(model, probe, config).logp
    return measures.probe_report(logp, probe.action_mask, probe.span)


def of_words(
    model: nn.Module,
    watches: Mapping[str, WatchedWords],
    encode: Callable[[str], list[int]],
    temperature: float,
) -> dict[str, float]:
    """How probable the words are that the environment watches."""
    found = {}
    for name, watch in watches.items():
        rows = [encode(text) for text in watch.texts]
        tokens = [token for word in watch.words for token in encode(word)]
        chance = next_probability(model, rows, tokens, temperature)
        found[f"watch/{name}"] = measures.known(chance)
    return found


# -- the same few questions, again and again -----------------------------------------------------


def fixed_questions(questions: Sequence[Question]) -> list[Question]:
    """The first questions of each number of hops in turn, QUESTIONS in all: the same every time."""
    hops = sorted({question.hops for question in questions})
    groups = [[question for question in questions if question.hops == n] for n in hops]
    return [one for one in chain(*zip_longest(*groups)) if one is not None][:QUESTIONS]


def answers(
    model: nn.Module, rollout: Rollout, questions: Sequence[Question], config: TrainConfig
) -> list[Episode]:
    """Greedy answers; the log-probs of their tokens are at the temperature of training."""
    episodes = rollout.run(model, list(questions), temperature=0.0)
    batch = collate(episodes).to(next(model.parameters()).device)
    with torch.no_grad():
        logp = scored(model, batch, config).logp
    return [
        dataclasses.replace(one, turns=_with_logp(one, row.tolist()))
        for one, row in zip(episodes, logp, strict=True)
    ]


def _with_logp(episode: Episode, logp: Sequence[float]) -> list[Turn]:
    """The turns of an episode with the log-probs of its row."""
    turns, end = [], 0
    for turn in episode.turns:
        start, end = end, end + len(turn.tokens)
        turns.append(dataclasses.replace(turn, logp=list(logp[start:end])))
    return turns
