"""Graders of the notebooks' exercises: each takes the reader's function and says how to go on."""

from lldlib.checks.collapse import check_action_gate, check_displacement, check_nthr_score
from lldlib.checks.episodes import (
    check_action_mask,
    check_answer_mask,
    check_last_batch_above,
    check_masked_mean,
    check_read_action,
    check_training_bytes,
)
from lldlib.checks.grading import Case, Verdict, grade
from lldlib.checks.lp_reg import (
    check_entropy,
    check_floor_ratio,
    check_protected,
    check_proxy,
    check_rare_and_wrong,
)
from lldlib.checks.scale import check_divisor, check_updates

__all__ = [
    "Case",
    "Verdict",
    "check_action_gate",
    "check_action_mask",
    "check_answer_mask",
    "check_displacement",
    "check_divisor",
    "check_entropy",
    "check_floor_ratio",
    "check_last_batch_above",
    "check_masked_mean",
    "check_nthr_score",
    "check_protected",
    "check_proxy",
    "check_rare_and_wrong",
    "check_read_action",
    "check_training_bytes",
    "check_updates",
    "grade",
]
