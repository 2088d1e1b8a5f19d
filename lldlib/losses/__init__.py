"""The loss terms: pure functions of tensors, each a per-token (B, T) float32, zero off its mask.

`aggregate` turns a term into a scalar; `lldlib.losses.objective` puts a whole objective together.
Not here: models, sampling, advantages (`lldlib.losses.advantages`) and any state.
"""

from lldlib.losses.aggregate import action_ids, aggregate
from lldlib.losses.entropy import (
    clip_cov_mask,
    entropy_bonus,
    kl_cov_penalty,
    kl_to_reference,
    token_covariance,
    top_entropy_mask,
)
from lldlib.losses.llds import answer_weight_schedule, llds_gate, llds_penalty, preserved_mask
from lldlib.losses.lp_reg import (
    forward_kl,
    lp_reg_mask,
    lp_reg_penalty,
    proxy_log_prob,
    proxy_logits,
)
from lldlib.losses.nthr import nthr_scores, nthr_weights, prediction_error
from lldlib.losses.policy import clipped_tokens, importance_ratio, policy_gradient

__all__ = [
    "action_ids",
    "aggregate",
    "answer_weight_schedule",
    "clip_cov_mask",
    "clipped_tokens",
    "entropy_bonus",
    "forward_kl",
    "importance_ratio",
    "kl_cov_penalty",
    "kl_to_reference",
    "llds_gate",
    "llds_penalty",
    "lp_reg_mask",
    "lp_reg_penalty",
    "nthr_scores",
    "nthr_weights",
    "policy_gradient",
    "prediction_error",
    "preserved_mask",
    "proxy_log_prob",
    "proxy_logits",
    "token_covariance",
    "top_entropy_mask",
]
