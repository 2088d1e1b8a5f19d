"""LLDS as verl's policy loss `llds`: verl's own loss plus the term, chosen by configuration alone.

`pip install lldlib-*.whl jaxtyping` on every node registers it (entry point `verl.plugins`) and
leaves the versions that verl pins as they are; `pip wheel --no-deps .` in a clone makes the wheel.
Select it with
`actor_rollout_ref.actor.policy_loss.loss_mode=llds`, and set the term with
`actor_rollout_ref.actor.policy_loss._target_=lldlib.adapters.verl.LLDSPolicyLossConfig` and
`+actor_rollout_ref.actor.policy_loss.llds_coef=0.2`.

Not here, because verl hands a policy loss neither tokens nor logits: LLDS-MA, which needs the
answer span, and Lp-Reg, whose proxy needs the whole distribution (it would take a subclass of the
engine). verl tells no preserved-token count of the whole minibatch either, so the divisor is that
of the official code: all action tokens. Nor does it tell groups: where equal rewards are no whole
numbers, verl's own rounding gives their rows an advantage of either sign, and LLDS follows it.

Rejected tokens look like tool results there. `validate_config`, which verl calls before it starts,
refuses what would make the term meaningless (see `check`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, get_type_hints

import torch
import verl.utils
import verl.utils.config
from jaxtyping import Float
from torch import Tensor
from verl.trainer.ppo.core_algos import (
    POLICY_LOSS_REGISTRY,
    agg_loss,
    get_policy_loss_fn,
    register_policy_loss,
)
from verl.workers.config import ActorConfig, PolicyLossConfig

from lldlib.adapters.likelihood import advantage_likelihood
from lldlib.config import Gate, LossConfig, Preserve, require, unknown
from lldlib.losses import aggregate, llds_parts
from lldlib.losses.term import token_share

logger = logging.getLogger(__name__)
# by loss_agg_mode: how many times a token mean the base loss is
NO_TOKEN_MEAN = {
    "token-sum": "the tokens of a minibatch",
    "seq-mean-token-sum": "mean length",
    "seq-mean-token-sum-norm": "mean length / loss_scale_factor",
}
SETTINGS = get_type_hints(LossConfig, include_extras=True)  # what each setting of LLDS may be
ROLLOUT = (
    "gives the loss the rollout engine's log-probs, so LLDS would charge for what the engines "
    "differ by"
)


NO_TARGET = (
    "loss_mode=llds needs its settings: add actor_rollout_ref.actor.policy_loss._target_="
    "lldlib.adapters.verl.LLDSPolicyLossConfig"
)


@dataclass
class LLDSPolicyLossConfig(PolicyLossConfig):
    """verl's policy-loss settings and those of LLDS."""

    loss_mode: str = "llds"
    llds_base: str = "vanilla"  # the registered policy loss that LLDS is added to
    llds_coef: float = 0.0  # lambda of LLDS
    llds_gate: Gate = "action"  # where LLDS may act
    llds_preserve: Preserve = "nonnegative"  # rows LLDS keeps: A >= 0 (paper) or A > 0

    def __post_init__(self):
        if self.llds_base in ("llds", "bypass_mode"):
            raise ValueError(
                f"llds_base={self.llds_base!r}: LLDS is added to another loss, and needs log-probs "
                "of the policy; give 'vanilla' or another"
            )
        _check_settings(vars(self))
        _check_bypass(self.llds_coef, self.rollout_correction)


def check(config: Mapping[str, Any]) -> None:
    """ValueError, in one line, for a verl configuration under which LLDS would mean nothing.

    `config` is verl's whole one. Refused: a setting of LLDS out of its range, or its weight beside
    another policy loss. Refused while `llds_coef` is not 0: log-probs of the rollout engine in
    place of the policy's; rejection of single tokens, whose holes in `response_mask` look like tool
    results, with a gate that sums over actions; one update per rollout batch. Warned of: no weight
    at all; a base loss that is a sum over tokens, beside which a token mean vanishes.
    """
    actor = config["actor_rollout_ref"]["actor"]
    loss, correction = actor["policy_loss"], config["algorithm"].get("rollout_correction") or {}
    coef = loss.get("llds_coef", 0.0)
    if (mode := loss["loss_mode"]) != "llds":
        if coef:
            raise ValueError(
                f"llds_coef={coef} with loss_mode={mode}: LLDS would be off; set "
                "actor_rollout_ref.actor.policy_loss.loss_mode=llds, or llds_coef=0"
            )
        return
    if str(loss.get("_target_", "")).startswith("verl."):
        raise ValueError(NO_TARGET)
    _check_settings(loss)
    base = loss.get("llds_base", "vanilla")
    library = config["actor_rollout_ref"]["model"].get("external_lib")  # it may bring a base
    if base not in POLICY_LOSS_REGISTRY and not library:
        raise ValueError(f"llds_base: {unknown('policy loss', base, POLICY_LOSS_REGISTRY)}")
    if "llds_coef" not in loss:
        logger.warning(
            "no llds_coef: LLDS is off, and likelihoods are logged alone; add "
            "+actor_rollout_ref.actor.policy_loss.llds_coef=0.2"
        )
    if not coef:
        return
    _check_bypass(coef, correction)
    rejects = correction.get("rollout_rs") or ""
    if "token_" in rejects and loss.get("llds_gate", "action") == "action":
        raise ValueError(
            f"rollout_rs={rejects} leaves holes in an action, which LLDS cannot tell from tool "
            "results: set llds_gate=response (the same gate where a response is one action), or "
            "reject whole responses (seq_mean_k1)"
        )
    questions, mini = config["data"]["train_batch_size"], actor["ppo_mini_batch_size"]
    if questions <= mini and actor.get("ppo_epochs", 1) == 1:
        raise ValueError(
            f"LLDS would be 0 at every update: ppo_mini_batch_size={mini} of train_batch_size="
            f"{questions} is one update a rollout batch; set it to {max(questions // 8, 1)}, or "
            "ppo_epochs to 2"
        )
    if (mode := actor["loss_agg_mode"]) in NO_TOKEN_MEAN:
        logger.warning(
            "loss_agg_mode=%r is no token mean, and LLDS is: to keep its weight as under "
            "'token-mean', multiply llds_coef by %s",
            mode,
            NO_TOKEN_MEAN[mode],
        )


def _check_settings(loss: Mapping[str, Any]) -> None:
    for name in ("llds_coef", "llds_gate", "llds_preserve"):
        if name in loss:
            require(name, loss[name], SETTINGS[name])


def _check_bypass(coef: float, correction: Mapping[str, Any]) -> None:
    if coef and correction.get("bypass_mode", False):
        raise ValueError(f"rollout_correction.bypass_mode=True {ROLLOUT}: set it to False")


def _check_engine(config: ActorConfig) -> None:
    # verl's fully asynchronous trainer says so here alone: it never calls validate_config
    if getattr(config, "use_rollout_log_probs", False):
        raise ValueError(
            f"actor.use_rollout_log_probs=True {ROLLOUT}: set it to False, and "
            "rollout_correction.bypass_mode too"
        )


def _checked(validate):
    @wraps(validate)
    def both(config, *args, **kwargs):
        check(config)
        return validate(config, *args, **kwargs)

    return both


# verl imports its plugins before its trainers import this function
verl.utils.config.validate_config = _checked(verl.utils.config.validate_config)
verl.utils.validate_config = verl.utils.config.validate_config


@register_policy_loss("llds")
def llds_policy_loss(
    old_log_prob: Float[Tensor, "B T"],
    log_prob: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: ActorConfig | None = None,
    rollout_is_weights: Float[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Any]]:
    """The base policy loss plus lambda times LLDS, a mean over all action tokens of the minibatch.

    At lambda 0 it is the base loss alone, and logs the likelihoods that verl does not
    (`advantage_likelihood`).

    `response_mask` is 0 on tool results, so its runs are the actions; whole responses may be
    rejected by verl's rollout correction, single tokens only under the gates "response" and
    "token". LLDS needs several updates per rollout batch: `ppo_mini_batch_size` under
    `train_batch_size`, or `ppo_epochs` over 1; on the first update only rounding opens a gate.
    LLDS is a token mean whatever `loss_agg_mode` is, and under those of NO_TOKEN_MEAN the base loss
    is the factor there times one: lambda wants that factor too. Raises TypeError where
    `config.policy_loss` is not an LLDSPolicyLossConfig, ValueError for an unknown base, gate or
    set, and for log-probs of the rollout engine.
    """
    settings = config.policy_loss
    if not isinstance(settings, LLDSPolicyLossConfig):
        raise TypeError(NO_TARGET)
    loss, metrics = get_policy_loss_fn(settings.llds_base)(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    mask = response_mask.bool()
    with torch.no_grad():
        metrics = metrics | advantage_likelihood(log_prob, old_log_prob, advantages, mask)
    if not settings.llds_coef:
        return loss, metrics
    _check_engine(config)
    where = {"gate": settings.llds_gate, "preserve": settings.llds_preserve}
    parts = llds_parts(log_prob, old_log_prob, advantages, mask, **where)
    value = agg_loss(
        loss_mat=parts.penalty,
        loss_mask=mask,
        loss_agg_mode="token-mean",
        **config.global_batch_info,
    )
    with torch.no_grad():  # verl averages metrics over micro-batches, so these are local means
        told = {
            "actor/llds": aggregate(parts.penalty, mask, "token-mean").item(),
            "actor/llds_open_gate_share": token_share(parts.gate, parts.preserved).item(),
            "actor/llds_kept_here": float(parts.preserved.any()),  # divides the share's mean
        }
    return loss + settings.llds_coef * value, metrics | told
