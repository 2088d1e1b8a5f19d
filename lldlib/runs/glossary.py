"""What every logged key means: its name, formula, unit, and what a healthy run shows.

Signs and masks are those of `lldlib.types` and `lldlib.runs.measures`; "batch" is a rollout batch.
`k` stands for the number of an action or of answers, `<reason>` for a StopReason, `<exam>` for a
held-out set.
"""

import re

from lldlib.losses import TERMS
from lldlib.losses.term import NATS, SHARE, Metric
from lldlib.runs.phases import Phase
from lldlib.types import StopReason

SECONDS = "seconds"

PHASES: dict[Phase, str] = {  # the rule: `runs.phases.phase_labels`
    "steady": "nothing happens: the reward neither rises nor falls, no likelihood was lost",
    "learning": "the reward rises",
    "stagnation": "the reward holds, but the likelihood of the probe's right answers is under its "
    "best: it falls slowly, or has fallen and stays",
    "decay": "the likelihood of the probe's right answers falls fast, or the reward falls or is "
    "under half of its best",
    "collapse": "the reward falls to under .3 of its best mean of ten batches: from the batch at "
    "which the fall began (with hindsight), or at which that mean was so low (live)",
}

GLOSSARY: dict[str, Metric] = {
    "step": Metric("batch", "rollout batches done before this one", "batches", "counts up by 1"),
    # -- reward --------------------------------------------------------------------------------
    "reward/mean": Metric(
        "reward", "mean of the rollouts' rewards", "reward", "rises, then holds; noise of one batch"
    ),
    "reward/std": Metric(
        "reward spread",
        "mean over groups of the standard deviation of their rewards",
        "reward",
        "above 0: where it is 0 there is no advantage and nothing to learn from",
    ),
    "reward/mixed_groups": Metric(
        "mixed groups", "groups with unequal rewards / groups", SHARE, "most groups early on"
    ),
    # -- policy --------------------------------------------------------------------------------
    "policy/entropy": Metric(
        "entropy",
        "mean over action tokens of -sum_v p_v log p_v",
        NATS,
        "falls slowly or holds; a sudden rise can come with a collapse, near 0 exploration is over",
    ),
    "policy/sampler_gap": Metric(
        "sampler gap",
        "max |sampler_logp - logp| over action tokens, same weights",
        "nats",
        "rounding alone: under 1e-3 in float32",
    ),
    "policy/sampler_kl": Metric(
        "sampler KL", "mean of sampler_logp - logp over action tokens", NATS, "0 within rounding"
    ),
    # -- gradient ------------------------------------------------------------------------------
    "grad/norm": Metric(
        "gradient norm",
        "largest L2 norm before clipping over the batch's updates",
        "norm",
        "steady, with single peaks, in runs that live too",
    ),
    "grad/norm_mean": Metric(
        "mean gradient norm",
        "mean L2 norm before clipping over the batch's updates",
        "norm",
        "steady; near 0 once a run is dead",
    ),
    "grad/negative_share": Metric(
        "negative gradient",
        "n / (n + p), the policy gradient's norms from tokens of advantage < 0 and > 0: all rows, "
        "before the first update",
        SHARE,
        "near 0.5; close to 1 the incorrect responses steer the update",
    ),
    # -- likelihood of the batch's own responses -----------------------------------------------
    "likelihood/correct": Metric(
        "correct responses",
        "token mean of logp over the batch's correct responses, before its updates",
        NATS,
        "rises as the policy sharpens; it hides displacement, see probe/*",
    ),
    "likelihood/incorrect": Metric(
        "incorrect responses",
        "token mean of logp over the batch's incorrect responses, before its updates",
        NATS,
        "rises with the correct ones, which stay above it",
    ),
    "likelihood/official": Metric(
        "likelihood as the official code logs it",
        "sum of logp over the tokens of rows with A >= 0 / tokens of all rows, before the updates;"
        " likelihood/correct is by reward, and over its own rows' tokens",
        NATS,
        "rises as the policy sharpens; rises as well where fewer tokens have A >= 0",
    ),
    "likelihood/action_k": Metric(
        "correct responses, action k",
        "token mean of logp over the k-th action of correct responses, before the updates",
        NATS,
        "either action may lie higher, in runs that live too",
    ),
    # -- displacement by the batch's updates ---------------------------------------------------
    "displacement/correct": Metric(
        "displacement, correct",
        "mean over correct responses of sum_t (new_logp - old_logp)",
        "nats per response",
        "around 0, late in a run a few tenths under it; many nats under 0 in a collapse",
    ),
    "displacement/incorrect": Metric(
        "displacement, incorrect",
        "mean over incorrect responses of sum_t (new_logp - old_logp)",
        "nats per response",
        "under 0, and bounded",
    ),
    "displacement/correct_token": Metric(
        "displacement, correct, per token",
        "token mean of new_logp - old_logp over correct responses",
        NATS,
        "around 0 or above; the alarm rings under -0.45",
    ),
    "displacement/incorrect_token": Metric(
        "displacement, incorrect, per token",
        "token mean of new_logp - old_logp over incorrect responses",
        NATS,
        "under 0, and bounded",
    ),
    "displacement/all_token": Metric(
        "displacement, all rows, per token",
        "token mean of new_logp - old_logp over all rows",
        NATS,
        "about -KL(old || new): under 0 by any change of the policy, the more the larger it is",
    ),
    "displacement/mixed_token": Metric(
        "displacement, A > 0, per token",
        "token mean of new_logp - old_logp over rows with A > 0, so of groups of unequal rewards",
        NATS,
        "above displacement/fresh_mixed_token, see displacement/trained",
    ),
    "displacement/fresh_token": Metric(
        "displacement, not trained on",
        "the same over all rows of fresh rollouts of the old policy on the batch's questions, "
        "which were not trained on",
        NATS,
        "-KL(old || new) in expectation, so under 0; the size of the step",
    ),
    "displacement/fresh_correct_token": Metric(
        "displacement, correct, not trained on",
        "the same over the correct ones of the fresh rollouts",
        NATS,
        "a little under 0",
    ),
    "displacement/fresh_mixed_token": Metric(
        "displacement, A > 0, not trained on",
        "the same over the fresh rollouts with A > 0 in their own groups",
        NATS,
        "a little under 0",
    ),
    "displacement/trained": Metric(
        "trained displacement",
        "displacement/mixed_token - displacement/fresh_mixed_token",
        NATS,
        "above 0: responses that were rewarded fare better than like ones not trained on",
    ),
    "displacement/action_k": Metric(
        "displacement, action k",
        "mean over correct responses with a k-th action of its mean new_logp - old_logp",
        NATS,
        "around 0; in our runs the first action lost least",
    ),
    "displacement/share_fallen": Metric(
        "fallen responses",
        "correct responses with sum_t (new_logp - old_logp) < 0 / correct responses",
        SHARE,
        "about 0.5, in runs that live and in runs that die: how much they lose is the sign",
    ),
    # -- the fixed probe set -------------------------------------------------------------------
    "probe/logp": Metric(
        "probe",
        "token mean of logp over a fixed set of correct trajectories, after the updates",
        NATS,
        "holds or falls slowly and levels off; part of a fall is sharpening",
    ),
    "probe/action_k": Metric(
        "probe, action k",
        "token mean of logp over the k-th action of the probe set",
        NATS,
        "as probe/logp",
    ),
    "probe/free": Metric(
        "probe, wording",
        "token mean of logp over the probe set's reasoning tokens",
        NATS,
        "falls as the policy settles on other wordings: sharpening",
    ),
    "probe/content": Metric(
        "probe, content",
        "token mean of logp over the probe set's query and answer tokens",
        NATS,
        "falls slowly, by up to about 1 nat in 40 batches of the atlas; fast in a collapse",
    ),
    # -- rare tokens ---------------------------------------------------------------------------
    "low_prob/mass": Metric(
        "rare tokens",
        "action tokens with probability < 0.05 / action tokens",
        SHARE,
        "falls; the alarm rings over 1.5 times its start",
    ),
    "low_prob/threshold": Metric(
        "rare threshold",
        "delta of Lp-Reg: the rho-quantile of the batch's action tokens",
        "probability",
        "falls slowly; at once to near 0 it says that noise is sampled",
    ),
    "low_prob/negative_share": Metric(
        "rare tokens, negative",
        "tokens under delta in responses of advantage < 0 / tokens under delta",
        SHARE,
        "near the share of negative tokens; higher, rare tokens are being pushed out",
    ),
    "low_prob/protected_share": Metric(
        "rare tokens, protected",
        "tokens under delta that Lp-Reg selects (A < 0, kept by the proxy) / tokens under delta",
        SHARE,
        "above 0, falling slowly as fewer rare tokens are worth keeping",
    ),
    # -- terms of the loss: each declares its own ----------------------------------------------
    **{key: metric for term in TERMS for key, metric in term.metrics.items()},
    # -- updates -------------------------------------------------------------------------------
    "update/zero_gradient": Metric(
        "updates without a gradient",
        "share of the batch's updates whose gradient is exactly 0, as their rows have no mixed "
        "group and no term acts; Adam's momentum moves the policy all the same",
        SHARE,
        "near 0",
    ),
    "update/skipped": Metric(
        "skipped updates", "updates with a non-finite loss or gradient so far", "updates", "0"
    ),
    "update/left_out": Metric(
        "rows left out",
        "rows of the batch that no update sees, as a reward of their group or a log-prob of theirs "
        "is not finite, or the search tool was down for one of their group",
        "rows",
        "0",
    ),
    "update/move": Metric(
        "move of an update",
        "half of the mean squared change of an action token's log-prob on an update's own rows, "
        "mean over the batch's updates; logged where move_limit is set",
        NATS,
        "at most the limit",
    ),
    "update/kept": Metric(
        "share of an update kept",
        "what move_limit leaves of an update, mean over the batch's updates",
        SHARE,
        "near 1; low, the limit does the work of a lower learning rate",
    ),
    "update/lr": Metric("learning rate", "AdamW's step size", "per update", "as set"),
    "sft/loss": Metric(
        "warm-start loss", "mean -log-prob of gold tokens", "nats per token", "falls"
    ),
    "sft/tokens": Metric("warm-start tokens", "gold tokens of an update", "tokens", "as drawn"),
    # -- evaluation ----------------------------------------------------------------------------
    "eval/heldout_em": Metric(
        "held-out EM",
        "sampled answers that match an accepted one exactly (maths: are equal to it) / questions",
        SHARE,
        "rises with the reward, and lags it",
    ),
    "eval/heldout_em_greedy": Metric(
        "greedy held-out EM",
        "greedy answers that match an accepted one exactly / held-out questions",
        SHARE,
        "rises, in the shuffled atlas from 0.33; falls in a collapse",
    ),
    "eval/heldout_f1": Metric(
        "held-out F1",
        "mean over held-out questions of the best word F1 with an accepted answer; not for maths",
        SHARE,
        "at least the held-out EM",
    ),
    **{
        f"eval/{exam}_{key}": Metric(f"{title} {name}", f"{what}, {how}", SHARE, healthy)
        for exam, title, what, healthy in (
            ("start", "start", "the held-out questions, before any training", "as the start is"),
            (
                "missing",
                "missing",
                "the held-out questions, asked of a library that misses",
                "follows held-out EM",
            ),
            (
                "further",
                "one hop more",
                "questions of one hop more than training asks",
                "follows held-out EM",
            ),
            ("easy", "easy", "short sums of the world of sparks", "near 1"),
            (
                "checked",
                "checked",
                "long sums of the world of sparks in which somebody has said the spark",
                "rises: it tells how well adding up is learned",
            ),
        )
        for key, name, how in (
            ("em", "EM", "share of sampled answers that match exactly"),
            ("f1", "F1", "mean word F1 of sampled answers"),
            ("em_greedy", "greedy EM", "share of greedy answers that match exactly"),
        )
    },
    "eval/<exam>_pass_k": Metric(
        "pass@k",
        "how likely one of k sampled answers is right, in the mean over the exam's questions",
        SHARE,
        "at k = 1 the sampled EM; falling at large k while EM rises: less is tried",
    ),
    # -- words that the environment watches ----------------------------------------------------
    **{
        f"watch/{word}_{kind}": Metric(
            f"{word}, {kind} sums",
            f"mean probability of {what} right after the quick answer to held-out {kind} sums",
            SHARE,
            healthy,
        )
        for kind in ("easy", "hard")
        for word, what, healthy in (
            ("spark", "the spark", "holds at its start, and rises once adding up is learned"),
            ("noise", "any noise word", "falls"),
        )
    },
    # -- what the policy did -------------------------------------------------------------------
    "length/tokens": Metric(
        "length",
        "mean over episodes of the tokens that the policy chose",
        "tokens per episode",
        "steady; it soars when the policy babbles",
    ),
    "search/valid": Metric(
        "valid searches",
        "mean over episodes of searches that were run",
        "searches per episode",
        "near the hops that the questions need",
    ),
    "search/invalid": Metric(
        "invalid actions",
        "mean over episodes of actions with no readable tag",
        "actions per episode",
        "near 0",
    ),
    "stop/<reason>": Metric(
        "episodes that ended so",
        "episodes that ended for this reason / episodes",
        SHARE,
        "answer near 1, token_budget near 0, tool_error 0",
    ),
    # -- time ----------------------------------------------------------------------------------
    "time/rollout": Metric("rollout", "wall time of generation and search", SECONDS, "steady"),
    "time/score": Metric(
        "scoring", "wall time of scoring the batch before its updates", SECONDS, "steady"
    ),
    "time/update": Metric("updates", "wall time of the batch's updates", SECONDS, "steady"),
    "time/step": Metric(
        "batch time", "wall time of the batch, measurements included", SECONDS, "steady"
    ),
}

_ACTION = re.compile(r"/action_[1-9]\d*$")
_PASS = re.compile(r"^eval/[a-z]+_pass_[1-9]\d*$")
_STOPS = {f"stop/{reason.value}" for reason in StopReason}


def describe(key: str) -> Metric:
    """The Metric of a logged key; `.../action_2`, `stop/answer` and the like give their pattern.

    Raises KeyError for a key that is not in the glossary.
    """
    pattern = "stop/<reason>" if key in _STOPS else _ACTION.sub("/action_k", key)
    pattern = "eval/<exam>_pass_k" if _PASS.match(key) else pattern
    if pattern not in GLOSSARY:
        raise KeyError(f"{key!r} is in no glossary: add it to lldlib/runs/glossary.py")
    return GLOSSARY[pattern]
