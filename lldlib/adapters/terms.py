"""LLDS and Lp-Reg of one micro-batch, divided by the token counts of a whole optimiser update."""

import torch
from jaxtyping import Float
from torch import Tensor

from lldlib.config import LossConfig
from lldlib.losses import (
    aggregate,
    answer_weight_schedule,
    llds_gate,
    llds_penalty,
    lp_reg_mask,
    lp_reg_penalty,
    preserved_mask,
)
from lldlib.losses.objective import LossInputs, Stats

Count = Float[Tensor, ""]


def regularizers(
    config: LossConfig, x: LossInputs, preserved: Count, actions: Count
) -> tuple[Float[Tensor, ""], Stats]:
    """The weighted LLDS and Lp-Reg terms of a micro-batch, and detached statistics.

    `preserved` and `actions` count the tokens that LLDS keeps and all action tokens of the update
    that the micro-batch belongs to, over all its micro-batches and processes, divided by the number
    of processes. Losses and statistics then add up over micro-batches, and average over processes,
    to `compute_loss` of the whole minibatch; but Lp-Reg's quantile is taken within
    each micro-batch. Raises ValueError for an unknown gate, set, schedule or selection.
    """
    loss, stats = x.logp.new_zeros((), dtype=torch.float32), {}
    if config.llds_coef:
        value, stats = _llds(config, x, preserved, actions)
        loss = loss + config.llds_coef * value
    if config.lp_reg_coef:
        value, lp_reg_stats = _lp_reg(config, x, actions)
        loss, stats = loss + config.lp_reg_coef * value, stats | lp_reg_stats
    return loss, {name: number.detach() for name, number in stats.items()}


def _llds(
    config: LossConfig, x: LossInputs, preserved: Count, actions: Count
) -> tuple[Float[Tensor, ""], Stats]:
    rows, weight = (x.logp, x.old_logp, x.advantages, x.action_mask), 1.0
    if config.llds_answer != "none":
        weight = answer_weight_schedule(x.mean_valid_searches, config.llds_answer)
    where = {"gate": config.llds_gate, "preserve": config.llds_preserve}
    term = llds_penalty(*rows, **where, answer_mask=x.answer_mask, answer_weight=weight)
    kept = preserved_mask(x.advantages, x.action_mask, config.llds_preserve)
    if config.llds_normalizer == "preserved":
        value = aggregate(term, kept, "token-mean", preserved)
    else:
        value = aggregate(term, x.action_mask, "token-mean", actions)
    is_open = llds_gate(*rows, **where).float()
    share = aggregate(is_open, kept, "token-mean", preserved)
    return value, {"llds/value": value, "llds/open_gate_share": share}


def _lp_reg(config: LossConfig, x: LossInputs, actions: Count) -> tuple[Float[Tensor, ""], Stats]:
    settings = {"quantile": config.lp_reg_quantile, "selection": config.lp_reg_selection}
    term = lp_reg_penalty(x.logp, x.old_logp, x.proxy_logp, x.advantages, x.action_mask, **settings)
    value = aggregate(term, x.action_mask, "token-mean", actions)
    chosen = lp_reg_mask(x.logp, x.proxy_logp, x.advantages, x.action_mask, **settings)
    share = aggregate(chosen.float(), x.action_mask, "token-mean", actions)
    return value, {"lp_reg/value": value, "lp_reg/protected_share": share}
