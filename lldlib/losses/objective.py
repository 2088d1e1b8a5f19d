"""One scalar to minimise: the policy term and its weighted regularizers, read top to bottom.

A weight of 0 leaves a term out altogether, so that training is bit for bit the same without it.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses import (
    aggregate,
    answer_weight_schedule,
    clip_cov_mask,
    clipped_tokens,
    entropy_bonus,
    importance_ratio,
    kl_cov_penalty,
    kl_to_reference,
    llds_gate,
    llds_penalty,
    lp_reg_mask,
    lp_reg_penalty,
    policy_gradient,
    preserved_mask,
    top_entropy_mask,
)

Stats = dict[str, Tensor]


@dataclass(frozen=True)
class LossInputs:
    """What `compute_loss` reads; `needs` names the optional tensors that a config calls for."""

    logp: Float[Tensor, "B T"]  # of the policy in training, with gradient
    old_logp: Float[Tensor, "B T"]  # of the policy that sampled
    advantages: Float[Tensor, " B"]
    action_mask: Bool[Tensor, "B T"]
    answer_mask: Bool[Tensor, "B T"]
    entropy: Float[Tensor, "B T"] | None = None  # nats, with gradient
    ref_logp: Float[Tensor, "B T"] | None = None
    proxy_logp: Float[Tensor, "B T"] | None = None  # losses.proxy_log_prob of the sampling policy
    negative_token_weights: Float[Tensor, "B T"] | None = None  # losses.nthr_weights
    mean_valid_searches: float | None = None  # a rollout, over the rollout batch (LLDS-MA)
    generator: torch.Generator | None = None  # of Clip-Cov's draw


def needs(config: LossConfig) -> frozenset[str]:
    """Which of {"entropy", "ref_logp", "proxy_logp", "nthr"} the config's terms read."""
    wanted = {
        "entropy": config.entropy_coef != 0 or config.top_entropy < 1,
        "ref_logp": config.kl_coef != 0,
        "proxy_logp": config.lp_reg_coef != 0,
        "nthr": config.nthr,
    }
    return frozenset(name for name, is_wanted in wanted.items() if is_wanted)


def compute_loss(config: LossConfig, x: LossInputs) -> tuple[Float[Tensor, ""], Stats]:
    """The loss of one minibatch, and detached statistics of its terms (0-dim tensors).

    Policy, entropy, KL and Lp-Reg terms are averaged by `config.aggregation` over ALL action
    tokens, also where 80/20 or Clip-Cov silence some (as in their papers); LLDS is a token mean
    over the tokens that `config.llds_normalizer` names. Raises ValueError on a missing input.
    """
    _check(config, x)
    average = partial(aggregate, mask=x.action_mask, how=config.aggregation)
    loss, stats = _policy(config, x)
    if config.entropy_coef:
        loss = loss + config.entropy_coef * average(entropy_bonus(x.entropy, x.action_mask))
    if config.kl_coef:
        reference = average(kl_to_reference(x.logp, x.ref_logp, x.action_mask, config.kl_estimator))
        loss, stats["kl/reference"] = loss + config.kl_coef * reference, reference
    if config.old_kl_coef:
        old = average(kl_to_reference(x.logp, x.old_logp, x.action_mask, config.kl_estimator))
        loss, stats["kl/old"] = loss + config.old_kl_coef * old, old
    if config.kl_cov_coef:
        term = kl_cov_penalty(
            x.logp, x.old_logp, x.advantages, x.action_mask, share=config.kl_cov_share
        )
        loss = loss + config.kl_cov_coef * average(term)
    if config.llds_coef:
        llds, llds_stats = _llds(config, x)
        loss, stats = loss + config.llds_coef * llds, stats | llds_stats
    if config.lp_reg_coef:
        lp_reg, lp_reg_stats = _lp_reg(config, x)
        loss, stats = loss + config.lp_reg_coef * lp_reg, stats | lp_reg_stats
    return loss, {name: value.detach() for name, value in stats.items()}


def _check(config: LossConfig, x: LossInputs) -> None:
    given = {
        "entropy": x.entropy,
        "ref_logp": x.ref_logp,
        "proxy_logp": x.proxy_logp,
        "nthr": x.negative_token_weights,
    }
    missing = sorted(name for name in needs(config) if given[name] is None)
    if config.clip_cov_share and x.generator is None:
        missing.append("generator")
    if config.llds_coef and config.llds_answer != "none" and x.mean_valid_searches is None:
        missing.append("mean_valid_searches")
    if missing:
        raise ValueError(f"this loss reads {', '.join(missing)}: pass it in LossInputs")


def _policy(config: LossConfig, x: LossInputs) -> tuple[Float[Tensor, ""], Stats]:
    """The policy term; only here are negative advantages scaled and tokens silenced."""
    clip = {
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
        "ratio_cap": config.ratio_cap,
    }
    advantages = _policy_advantages(config, x)
    term = policy_gradient(
        x.logp, x.old_logp, advantages, x.action_mask, level=config.ratio_level, **clip
    )
    if config.top_entropy < 1:
        loud = top_entropy_mask(x.entropy, x.action_mask, config.top_entropy)
        term = torch.where(loud, term, 0.0)
    if config.clip_cov_share:
        dropped = clip_cov_mask(
            x.logp,
            x.advantages,
            x.action_mask,
            share=config.clip_cov_share,
            generator=x.generator,
        )
        term = torch.where(dropped, 0.0, term)
    with torch.no_grad():
        ratio = importance_ratio(x.logp, x.old_logp, x.action_mask, config.ratio_level)
        clipped = clipped_tokens(ratio, advantages, x.action_mask, **clip)
        stats = {
            "policy/clip_share": _share(clipped, x.action_mask),
            "policy/ratio_max": torch.where(x.action_mask, ratio, 0.0).amax(),
        }
    return aggregate(term, x.action_mask, config.aggregation), stats


def _policy_advantages(config: LossConfig, x: LossInputs) -> Float[Tensor, "B T"]:
    advantages = x.advantages[:, None].expand(x.logp.shape)
    weight = x.negative_token_weights if config.nthr else 1.0
    return torch.where(advantages < 0, config.negative_weight * weight * advantages, advantages)


def _llds(config: LossConfig, x: LossInputs) -> tuple[Float[Tensor, ""], Stats]:
    rows = (x.logp, x.old_logp, x.advantages, x.action_mask)
    weight = 1.0
    if config.llds_answer != "none":
        weight = answer_weight_schedule(x.mean_valid_searches, config.llds_answer)
    where = {"gate": config.llds_gate, "preserve": config.llds_preserve}
    term = llds_penalty(*rows, **where, answer_mask=x.answer_mask, answer_weight=weight)
    preserved = preserved_mask(x.advantages, x.action_mask, config.llds_preserve)
    counted = preserved if config.llds_normalizer == "preserved" else x.action_mask
    value = aggregate(term, counted, "token-mean")
    open_gate = llds_gate(*rows, **where)
    return value, {"llds/value": value, "llds/open_gate_share": _share(open_gate, preserved)}


def _lp_reg(config: LossConfig, x: LossInputs) -> tuple[Float[Tensor, ""], Stats]:
    term = lp_reg_penalty(
        x.logp,
        x.old_logp,
        x.proxy_logp,
        x.advantages,
        x.action_mask,
        quantile=config.lp_reg_quantile,
        selection=config.lp_reg_selection,
    )
    value = aggregate(term, x.action_mask, config.aggregation)
    protected = lp_reg_mask(
        x.logp,
        x.proxy_logp,
        x.advantages,
        x.action_mask,
        quantile=config.lp_reg_quantile,
        selection=config.lp_reg_selection,
    )
    share = _share(protected, x.action_mask)
    return value, {"lp_reg/value": value, "lp_reg/protected_share": share}


def _share(part: Bool[Tensor, "B T"], whole: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    return part.sum() / whole.sum().clamp(min=1)
