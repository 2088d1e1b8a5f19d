"""LLDS as verl's policy loss `llds`: verl's own loss plus the term, chosen by configuration alone.

Installing lldlib with jaxtyping on every node registers it (entry point `verl.plugins`) and leaves
the versions that verl pins as they are. Select it with
`actor_rollout_ref.actor.policy_loss.loss_mode=llds`, and set the term with
`actor_rollout_ref.actor.policy_loss._target_=lldlib.adapters.verl.LLDSPolicyLossConfig` and
`+actor_rollout_ref.actor.policy_loss.llds_coef=0.2`.

Not here, because verl hands a policy loss neither tokens nor logits: LLDS-MA, which needs the
answer span, and Lp-Reg, whose proxy needs the whole distribution (it would take a subclass of the
engine). verl tells no preserved-token count of the whole minibatch either, so the divisor is that
of the official code: all action tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from lldlib.adapters.likelihood import advantage_likelihood
from lldlib.config import Gate, Preserve
from lldlib.losses import aggregate, llds_parts
from lldlib.losses.term import token_share


@dataclass
class LLDSPolicyLossConfig(PolicyLossConfig):
    """verl's policy-loss settings and those of LLDS."""

    loss_mode: str = "llds"
    llds_base: str = "vanilla"  # the registered policy loss that LLDS is added to
    llds_coef: float = 0.0  # lambda of LLDS
    llds_gate: Gate = "action"  # where LLDS may act
    llds_preserve: Preserve = "nonnegative"  # rows LLDS keeps: A >= 0 (paper) or A > 0

    def __post_init__(self):
        if self.llds_base == "llds":
            raise ValueError(
                "llds_base is the loss that LLDS is added to: give 'vanilla' or another"
            )


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

    `response_mask` is 0 on tool results, so its runs are the actions. LLDS needs several updates
    per rollout batch: `ppo_mini_batch_size` under `train_batch_size`, or `ppo_epochs` over 1; on
    the first update only rounding opens a gate. LLDS is a token mean whatever `loss_agg_mode` is,
    and the base loss mean length times one under "seq-mean-token-sum", mean length /
    loss_scale_factor times under its "-norm": lambda wants that factor there. Raises TypeError
    where `config.policy_loss` is not an LLDSPolicyLossConfig, ValueError for an unknown base, gate
    or set.
    """
    settings = config.policy_loss
    if not isinstance(settings, LLDSPolicyLossConfig):
        raise TypeError(
            "loss_mode=llds needs its settings: add actor_rollout_ref.actor.policy_loss._target_="
            "lldlib.adapters.verl.LLDSPolicyLossConfig"
        )
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
        }
    return loss + settings.llds_coef * value, metrics | told
