"""The objective: pure functions of tensors, one file a term; `objective.TERMS` lists the terms.

No models, no sampling and no state here. May import: config.
"""

from lldlib.losses.entropy import entropy_bonus
from lldlib.losses.kl import kl_to_reference
from lldlib.losses.kl_cov import kl_cov_penalty, token_covariance
from lldlib.losses.llds import (
    answer_weight_schedule,
    llds_gate,
    llds_parts,
    llds_penalty,
    preserved_mask,
)
from lldlib.losses.lp_reg import (
    forward_kl,
    low_log_prob,
    lp_reg_mask,
    lp_reg_penalty,
    proxy_log_prob,
    proxy_logits,
)
from lldlib.losses.masks import clip_cov_mask, top_entropy_mask
from lldlib.losses.nthr import nthr_scores, nthr_weights, prediction_error
from lldlib.losses.objective import TERMS, compute_loss, needs, regularizers
from lldlib.losses.policy_gradient import (
    clipped_tokens,
    group_advantages,
    importance_ratio,
    mixed_group_share,
    most_mixed,
    policy_gradient,
    sampler_weight,
)
from lldlib.losses.sapo import sapo_penalty
from lldlib.losses.term import Counts, LossInputs, Metric, Term, action_ids, aggregate

__all__ = [
    "TERMS",
    "Counts",
    "LossInputs",
    "Metric",
    "Term",
    "action_ids",
    "aggregate",
    "answer_weight_schedule",
    "clip_cov_mask",
    "clipped_tokens",
    "compute_loss",
    "entropy_bonus",
    "forward_kl",
    "group_advantages",
    "importance_ratio",
    "kl_cov_penalty",
    "kl_to_reference",
    "llds_gate",
    "llds_parts",
    "llds_penalty",
    "low_log_prob",
    "lp_reg_mask",
    "lp_reg_penalty",
    "mixed_group_share",
    "most_mixed",
    "needs",
    "nthr_scores",
    "nthr_weights",
    "policy_gradient",
    "prediction_error",
    "preserved_mask",
    "proxy_log_prob",
    "proxy_logits",
    "regularizers",
    "sampler_weight",
    "sapo_penalty",
    "token_covariance",
    "top_entropy_mask",
]
