"""One batch, or one update, taken apart: what it did to each token of each of its trajectories."""

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses import (
    TERMS,
    LossInputs,
    aggregate,
    answer_weight_schedule,
    clipped_tokens,
    group_advantages,
    importance_ratio,
    llds_gate,
    llds_parts,
    lp_reg_mask,
    policy_gradient,
)
from lldlib.losses.policy_gradient import scaled_advantages
from lldlib.policy.load import Policy
from lldlib.policy.score import score_sorted
from lldlib.rollout.batch import collate
from lldlib.train.experience import Experience, make_experience
from lldlib.train.trainer import Trainer
from lldlib.types import Batch, Episode, TokenInfo, TokenStep


@dataclass(frozen=True)
class Dissected:
    """One trajectory of the batch."""

    question: str
    reward: float
    advantage: float
    tokens: Sequence[TokenInfo]


def dissect(trainer: Trainer, loss: LossConfig) -> list[Dissected]:
    """Train one batch and say what its updates did to each token of each of its trajectories.

    The batch is trained by the trainer's own settings; gates and protection are those of `loss`.
    Nothing is logged: use a run that may be thrown away.
    """
    config, policy = trainer.config, trainer.policy
    before, temperature = copy.deepcopy(policy.model), config.rollout.temperature
    _, episodes = trainer.step()
    batch = collate(episodes).to(trainer.device)
    advantages = group_advantages(batch.rewards, batch.group, scale=config.loss.scale_advantage)
    with torch.no_grad():
        old = score_sorted(before, batch, temperature, proxy=loss)
        new = score_sorted(policy.model, batch, temperature)
    texts, roles = _written(episodes, policy)
    rows = batch_tokens(texts, roles, batch, old.logp, new.logp, old.proxy_logp, advantages, loss)
    return [
        Dissected(e.question.text, e.reward, float(a), tokens)
        for e, a, tokens in zip(episodes, advantages, rows, strict=True)
    ]


def batch_tokens(
    texts: Sequence[Sequence[str]],
    roles: Sequence[Sequence[str]],
    batch: Batch,
    old_logp: Float[Tensor, "B T"],
    new_logp: Float[Tensor, "B T"],
    proxy_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    config: LossConfig,
) -> list[list[TokenInfo]]:
    """Every row token by token: its change over the updates, LLDS's gate, Lp-Reg's protection.

    `texts` and `roles` are row by row and as long as the row. Gate and protection follow `config`,
    whatever its weights; a gate is known on rows with advantage >= 0 and a protection on the rest,
    since each term acts there alone. `old_logp` is of the sampling policy, as is `proxy_logp`.
    """
    mask = batch.action_mask
    gate_open = llds_gate(
        new_logp, old_logp, advantages, mask, config.llds_gate, config.llds_preserve
    )
    protected = lp_reg_mask(
        old_logp,
        proxy_logp,
        advantages,
        mask,
        quantile=config.lp_reg_quantile,
        selection=config.lp_reg_selection,
    )
    rows = []
    for b, (words, authors) in enumerate(zip(texts, roles, strict=True)):
        good = bool(advantages[b] >= 0)
        rows.append([TokenInfo(word, role) for word, role in zip(words, authors, strict=True)])
        for t in mask[b].nonzero()[:, 0].tolist():
            rows[b][t] = TokenInfo(
                text=words[t],
                role="action",
                logp=float(old_logp[b, t]),
                change=float(new_logp[b, t] - old_logp[b, t]),
                gate_open=bool(gate_open[b, t]) if good else None,
                protected=None if good else bool(protected[b, t]),
            )
    return rows


def _written(episodes: Sequence[Episode], policy: Policy) -> tuple[list[list[str]], ...]:
    """Text and author of every token, row by row."""
    decode = policy.tokenizer.decode
    texts = [[decode([t]) for turn in e.turns for t in turn.tokens] for e in episodes]
    return texts, [[turn.role for turn in e.turns for _ in turn.tokens] for e in episodes]


# -- one update -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DissectedUpdate:
    """One update of a batch, by number from 0, and the loss that it took a step on."""

    batch: int
    number: int
    loss: LossConfig
    rows: list[Dissected]  # whose tokens are TokenSteps where the policy chose them


def dissect_update(trainer: Trainer, number: int) -> DissectedUpdate:
    """Train a copy up to update `number` of the trainer's next batch, and take that one apart.

    The trainer itself stays as it is. Raises ValueError where a batch has fewer updates.
    """
    made = _Stopping(trainer, number)
    episodes, after = made.train()
    chosen = [episodes[row] for row in made.rows.tolist()]
    texts, roles = _written(chosen, made.policy)
    steps = token_steps(texts, roles, made.read, after, made.objective)
    rows = [
        Dissected(e.question.text, e.reward, float(a), tokens)
        for e, a, tokens in zip(chosen, made.read.advantages, steps, strict=True)
    ]
    return DissectedUpdate(trainer.step_index, number, made.objective, rows)


class _Done(Exception):
    """The update that was asked for has been made."""


class _Stopping(Trainer):
    """A copy of a trainer that stops after one update and keeps what that update read."""

    def __init__(self, other: Trainer, number: int):
        model = copy.deepcopy(other.policy.model)
        bare = replace(other.config, loss=replace(other.config.loss, kl_coef=0.0))
        super().__init__(bare, Policy(model, other.policy.tokenizer), other.environment)
        self.config = other.config
        # adapters have no other reference than their own model
        own = other.reference is other.policy.model
        self.reference = model if own else other.reference
        self.load_state(*other.state())
        self.number = number
        self.rows: Int[Tensor, " n"] | None = None
        self.read: LossInputs | None = None

    def train(self) -> tuple[list[Episode], Float[Tensor, "B T"]]:
        """All episodes, and the log-probs after the update of the rows that it was made on.

        ValueError where the batch has no such update.
        """
        episodes, batch = self.collect()
        searches = sum(e.valid_searches for e in episodes) / len(episodes)
        model = self.policy.model
        experience = make_experience(model, self.reference, batch, searches, self.config)
        count = self._trained_rows(experience)[1]
        if not 0 <= self.number < count:
            has = f"updates 0 to {count - 1}" if count else "none, since no group of it is mixed"
            raise ValueError(f"update {self.number}: this batch has {has}")
        with suppress(_Done):
            self._update(experience)
        model.eval()
        with torch.no_grad():
            part = batch.rows(self.rows)
            after = score_sorted(model, part, self.config.rollout.temperature).logp
        return episodes, after

    def _inputs(
        self,
        experience: Experience,
        rows: Int[Tensor, " n"],
        number: int,
        draws: torch.Generator,
    ) -> LossInputs:
        inputs = super()._inputs(experience, rows, number, draws)
        if number == self.number:
            twin = torch.Generator()
            twin.set_state(draws.get_state())
            self.rows, self.read = rows, replace(inputs, generator=twin)
        return inputs

    def _apply(self, *given) -> float | None:
        norm = super()._apply(*given)
        if self.read is not None:
            raise _Done
        return norm


def token_steps(
    texts: Sequence[Sequence[str]],
    roles: Sequence[Sequence[str]],
    inputs: LossInputs,
    after: Float[Tensor, "B T"],
    config: LossConfig,
) -> list[list[TokenInfo]]:
    """Every row of an update token by token; `after` holds the log-probs after it.

    Gradients are those of the terms themselves, by autograd. Gate and charge of LLDS are told
    whatever its weight. `texts` and `roles` are row by row and as long as the row.
    """
    still = {  # their gradient goes elsewhere than through the log-probs
        name: getattr(inputs, name).detach()
        for name in ("entropy", "proxy_kl")
        if getattr(inputs, name) is not None
    }
    x = replace(inputs, logp=inputs.logp.detach().clone().requires_grad_(), **still)
    by_term = _gradients(x, config)
    now, numbers = x.logp.detach(), _numbers(x, config) | {"gradient": sum(by_term.values())}
    rows = []
    for b, (words, authors) in enumerate(zip(texts, roles, strict=True)):
        rows.append([TokenInfo(word, role) for word, role in zip(words, authors, strict=True)])
        for t in x.action_mask[b].nonzero()[:, 0].tolist():
            found = {name: values[b, t].item() for name, values in numbers.items()}
            kept, opened = found.pop("preserved"), found.pop("gate_open")
            rows[b][t] = TokenStep(
                text=words[t],
                role="action",
                logp=float(x.old_logp[b, t]),
                now=float(now[b, t]),
                change=float(after[b, t] - now[b, t]),
                gate_open=opened if kept else None,
                gradients=tuple((name, float(values[b, t])) for name, values in by_term.items()),
                **found,
            )
    return rows


def _gradients(x: LossInputs, config: LossConfig) -> dict[str, Float[Tensor, "B T"]]:
    """The gradient of each weighted term in the log-probs, 0 where it does not read them."""
    found = {}
    for term in TERMS:
        if weight := term.weight(config):
            value = weight * term.value(config, x, None)[0]
            gradient = None
            if value.requires_grad:
                (gradient,) = torch.autograd.grad(value, x.logp, allow_unused=True)
            found[term.name] = torch.zeros_like(x.logp) if gradient is None else gradient
    return found


@torch.no_grad()
def _numbers(x: LossInputs, config: LossConfig) -> dict[str, Tensor]:
    """What the policy term and LLDS make of each token, by the field of TokenStep."""
    clip = {
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
        "ratio_cap": config.ratio_cap,
        "ratio_limit": config.ratio_limit,
        "surrogate": config.surrogate,
    }
    mask, advantages = x.action_mask, scaled_advantages(config, x)
    rows = (x.logp, x.old_logp, advantages, mask)
    ratio = importance_ratio(x.logp, x.old_logp, mask, config.ratio_level)
    answer = 1.0
    if config.llds_answer != "none":
        answer = answer_weight_schedule(x.mean_valid_searches, config.llds_answer)
    llds = llds_parts(
        x.logp,
        x.old_logp,
        x.advantages,
        mask,
        gate=config.llds_gate,
        preserve=config.llds_preserve,
        answer_mask=x.answer_mask,
        answer_weight=answer,
    )
    whole = llds.preserved if config.llds_normalizer == "preserved" else mask
    return {
        "advantage": advantages,
        "ratio": ratio,
        "clipped": clipped_tokens(ratio, advantages, mask, **clip),
        "policy": policy_gradient(*rows, level=config.ratio_level, **clip),
        "policy_share": _shares(mask, config.aggregation),
        "preserved": llds.preserved,
        "gate_open": llds.gate,
        "charge": llds.penalty,
        "llds_share": _shares(whole, "token-mean") * llds.preserved,
    }


@torch.enable_grad()
def _shares(mask: Tensor, how: str) -> Float[Tensor, "B T"]:
    """What a token counts for in the mean over `mask`."""
    ones = torch.zeros(mask.shape, device=mask.device, requires_grad=True)
    (shares,) = torch.autograd.grad(aggregate(ones, mask, how), ones)
    return shares
