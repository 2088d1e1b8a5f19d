"""Graders of the notebooks' exercises: each takes the reader's function and says how to go on."""

from lldlib.checks.benchmarks import check_block, check_exact_match
from lldlib.checks.budget import check_cache_bytes, check_lora_parameters
from lldlib.checks.episodes import (
    check_action_mask,
    check_answer_mask,
    check_last_batch_above,
    check_masked_mean,
    check_read_action,
    check_training_bytes,
)
from lldlib.checks.grading import Case, Verdict, grade
from lldlib.checks.llds import check_action_gate, check_displacement, check_nthr_score
from lldlib.checks.lp_reg import (
    check_entropy,
    check_floor_ratio,
    check_protected,
    check_proxy,
    check_rare_and_wrong,
)
from lldlib.checks.maths import check_last_box, check_pass_at_k
from lldlib.checks.runs import (
    balanced_accuracy,
    check_diagnosis,
    check_lost_likelihood,
    check_order_of,
    check_paired_difference,
    check_probe_loss,
    check_rows_and_lag,
    check_seeds_needed,
    check_sign_test,
)
from lldlib.checks.scale import check_divisor, check_updates

__all__ = [
    "Case",
    "Verdict",
    "balanced_accuracy",
    "check_action_gate",
    "check_action_mask",
    "check_answer_mask",
    "check_block",
    "check_cache_bytes",
    "check_diagnosis",
    "check_displacement",
    "check_divisor",
    "check_entropy",
    "check_exact_match",
    "check_floor_ratio",
    "check_last_batch_above",
    "check_last_box",
    "check_lora_parameters",
    "check_lost_likelihood",
    "check_masked_mean",
    "check_nthr_score",
    "check_order_of",
    "check_paired_difference",
    "check_pass_at_k",
    "check_probe_loss",
    "check_protected",
    "check_proxy",
    "check_rare_and_wrong",
    "check_read_action",
    "check_rows_and_lag",
    "check_seeds_needed",
    "check_sign_test",
    "check_training_bytes",
    "check_updates",
    "grade",
]
