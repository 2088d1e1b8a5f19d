"""One table: the names that frameworks give their numbers, and ours.

A new framework is one line for each signal that it names otherwise, and a sample log in the tests.
Names are compared without case, and with `/`, `.`, `-` and blanks read as `_`, because a CSV export
often writes them so; a leading `train/` is left out. The first name of a row that a log holds wins.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Unit = Literal[
    *("reward", "nats per token", "nats per answer", "norm", "tokens", "share", "count", "seconds"),
    "number",
]


@dataclass(frozen=True)
class Signal:
    """One thing that a training log may tell."""

    title: str  # what a page and an axis say
    unit: Unit
    names: tuple[str, ...]  # the first that a log holds is read
    needed_for: str  # what cannot be said without it


SIGNALS: dict[str, Signal] = {
    "reward": Signal(
        "reward",
        "reward",
        (
            "critic/score/mean",  # verl, Search-R1, rllm, ROLL; without the KL penalty
            "reward/mean",  # this project, prime-rl
            "reward",  # TRL, Unsloth, ms-swift, OpenRLHF, verifiers, NeMo-RL
            "objective/scores",  # TRL's PPO and RLOO
            "rollout/raw_reward",  # slime
            "reward/avg_raw_reward",  # SkyRL
            "grpo_actor/task_reward/avg",  # AReaL
            "ppo_actor/task_reward/avg",
            "env/all/reward/total",  # Tinker
            "reward/selected_mean",
            "mean_reward",
            "reward_mean",
            "avg_reward",
            "average_reward",
            "rewards/mean",
            "rollout/reward/mean",
            "rollout/reward_mean",
            "rollout/reward",
            "episode/reward/mean",
            "rollout/ep_rew_mean",
            "episode_reward",
            "score/mean",
            "mean_score",
            "score",
            "objective/rlhf_reward",
            "episode/success_rate",
            "success_rate",
            "total_reward/total_num",
            "reward_score",
            "average_reward_score",  # DeepSpeed-Chat
            "critic/rewards/mean",  # the last choice: it may hold the KL penalty
        ),
        "any verdict",
    ),
    "shaped_reward": Signal(
        "reward with penalties",
        "reward",
        ("critic/rewards/mean", "objective/rlhf_reward"),
        "a KL penalty that hides inside the reward",
    ),
    "reward_std": Signal(
        "reward spread",
        "reward",
        ("reward_std", "reward/std", "group_reward_std", "critic/score/std", "reward_std_mean"),
        "no signal: all answers of a group score alike",
    ),
    "reward_min": Signal(
        "lowest reward", "reward", ("critic/score/min", "reward/min"), "the floor"
    ),
    "reward_max": Signal("highest reward", "reward", ("critic/score/max", "reward/max"), "the top"),
    "no_contrast": Signal(
        "groups of one reward",
        "share",
        (
            *("frac_reward_zero_std", "frac_zero_std", "skipped (true)", "skip (true)"),
            *("zero_std_groups", "zero_std_ratio", "zero_std_frac", "frac_zero_std_groups"),
            *("zero_variance_groups", "frac_zero_variance", "zero_variance_ratio"),
        ),
        "no signal: all answers of a group score alike",
    ),
    "contrast": Signal(
        "groups with contrast",
        "share",
        ("env/all/by_group/frac_mixed", "frac_mixed", "mixed_group_rate"),  # Tinker
        "",
    ),
    "entropy": Signal(
        "entropy",
        "nats per token",
        (
            "actor/entropy",
            "actor/entropy_loss",  # verl up to 0.4; its value is the entropy itself
            "policy/entropy",
            "entropy",
            "policy/entropy_avg",  # TRL's PPO
            "policy_entropy",
            "actor/entropy/mean",
            "actor_train/entropy",
            "mean_token_entropy",
            "entropy/mean",
            "mean_entropy",
            "rollout/entropy",
            "policy/policy_entropy",
            "loss/entropy",
            "grpo_actor/entropy/avg",
            "approx_entropy",
            "entropy_loss",
            "optim/entropy",  # Tinker
            "token_entropy",
            "avg_entropy",
        ),
        "entropy explosion, entropy death",
    ),
    "grad_norm": Signal(
        "gradient norm",
        "norm",
        (
            "actor/grad_norm",
            "grad/norm",
            "grad_norm",
            "actor_train/grad_norm",  # ROLL
            "policy/grad_norm",
            "policy/raw_grad_norm",
            "optim/grad_norm",
            "gradient_norm",
            "grad_norm/mean",
            "actor/gradient_norm",
            "update/grad_norm",
            "actor_grad_norm",
            "grpo_actor/update/grad_norm",
            "l2_norm",
        ),
        "gradient spikes, numerical blow-up",
    ),
    "kl": Signal(
        "KL to the reference",
        "nats per token",
        (
            "actor/kl_loss",
            "kl/reference",
            "kl",
            "kl_divergence",
            "kl_loss",
            "policy/kl",
            "policy_kl",
            "actor/kl",
            "kl_mean",
            "kl/mean",
            "mean_kl",
            "actor/reward_kl_penalty",
            "critic/kl",
            "loss/kl",
            "actor/token_kl/mean",
            "rollout/kl",
            "kl_ref",
            "ref_kl",
            "kl_div",
        ),
        "KL run-away",
    ),
    "kl_sum": Signal(
        "KL to the reference, summed over an answer",
        "nats per answer",
        ("objective/kl",),  # TRL's PPO and RLOO
        "",
    ),
    "kl_old": Signal(
        "KL to the old policy",
        "nats per token",
        ("actor/ppo_kl", "kl/old", "approx_kl", "policy/approxkl_avg", "actor/approx_kl", "ppo_kl"),
        "updates that are too large",
    ),
    "kl_penalty": Signal(
        "KL penalty in the reward",
        "nats per token",
        ("actor/reward_kl_penalty", "critic/kl", "objective/kl_reward"),
        "a KL penalty that hides inside the reward",
    ),
    "length": Signal(
        "answer length",
        "tokens",
        (
            "response_length/mean",
            "length/tokens",
            "completions/mean_length",
            "completion_length",
            "response_length",
            "avg_gen_tokens",
            "rollout/response_len/mean",
            "rollout/response_lengths",
            "tokens/response_length/mean",
            "generate/avg_num_tokens",
            "mean_gen_tokens_per_sample",
            "seq_len/mean",
            "seq_length",  # prime-rl
            "avg_response_len",
            "mean_response_len",
            "completion_length/mean",
            "mean_completion_length",
            "avg_completion_length",
            "avg_response_length",
            "mean_response_length",
            "mean_length",
            "generation_length",
            "gen_len",
            "resp_len",
            "episode/response_length",
            "env/all/ac_tokens_per_turn",
            *("length/mean", "mean_response_tokens", "avg_response_tokens"),
            *("response_tokens/mean", "mean_completion_tokens", "avg_completion_tokens"),
        ),
        "length explosion, one-token answers",
    ),
    "clipped": Signal(
        "answers cut off",
        "share",
        (
            "response_length/clip_ratio",
            "completions/clipped_ratio",
            "stop/token_budget",
            "length/cap_hit_rate",
            "rollout/truncated_ratio",
            "truncated_ratio",
            "truncation_rate",
            "clip_ratio/length",
            "rollout/truncated",  # slime
            "truncated",
            "truncated_fraction",
            "frac_truncated",
            "trunc",
            "response_clip_ratio",  # OpenRLHF
            *("length/truncated", "response_length/truncated", "length/clip_ratio"),
        ),
        "length explosion, a start that is broken",
    ),
    "loss": Signal(
        "loss",
        "number",
        (
            *("actor/pg_loss", "loss", "actor/loss", "policy_loss", "loss/policy", "pg_loss"),
            *("actor_loss", "rl_loss", "total_loss", "loss_actor", "optim/loss"),
        ),
        "",
    ),
    "clip_share": Signal(
        "clipped tokens",
        "share",
        (
            "actor/pg_clipfrac",
            "policy/clip_share",
            "clip_ratio/region_mean",
            "clip_ratio",
            "clipfrac",
        ),
        "",
    ),
    "learning_rate": Signal(
        "learning rate",
        "number",
        ("actor/lr", "update/lr", "learning_rate", "lr", "actor_train/lr", "optim/lr"),
        "",
    ),
    "turns": Signal(
        "turns",
        "count",
        (
            "num_turns/mean",
            "training/num_turns/mean",
            "env/number_of_actions/mean",  # Search-R1
            "episode/length/mean",
            "turns/mean",
        ),
        "a tool that died",
    ),
    "searches": Signal(
        "tool calls",
        "count",
        (
            "search/valid",
            "env/number_of_valid_search",  # Search-R1
            "episode/tool_call_count/mean",
            "rollout/tool_calls_avg",
            "tools/call_frequency",
            "tool_calls/mean",
        ),
        "a tool that died",
    ),
    "tool_success": Signal(
        "tool calls that worked",
        "share",
        ("rollout/tool_success_rate", "tool_success_rate", "tools/success_rate"),
        "a tool that died",
    ),
    "tool_failure": Signal(
        "tool failures",
        "share",
        (
            *("stop/tool_error", "tools/failure_frequency"),
            *("tool_error_rate", "tool_failure_rate", "tools/error_rate", "tools/failure_rate"),
        ),
        "a tool that died",
    ),
    "valid_format": Signal(
        "answers in the right format",
        "share",
        (
            "env/ratio_of_valid_action",
            "episode/valid_action_ratio",
            "format_rate",
            "format_reward",
            "reward/format",
            "format_accuracy",
            "valid_format_rate",
            "rewards/format_reward/mean",
            "rewards/format_reward",
            "rewards/format_reward_func/mean",
            "rewards/format_reward_func",
            "rewards/soft_format_reward_func",
            "rewards/soft_format_reward_func/mean",
        ),
        "format loss",
    ),
    "invalid": Signal(
        "unreadable actions",
        "count",
        ("search/invalid", "invalid_action_rate", "invalid_rate"),
        "format loss",
    ),
    "displacement": Signal(
        "change of correct answers by the updates",
        "nats per token",
        ("displacement/correct_token", "actor/displacement_positive"),
        "likelihood displacement",
    ),
    "probe": Signal(
        "log-probability of fixed correct answers",
        "nats per token",
        ("probe/content", "probe/logp"),
        "likelihood displacement",
    ),
    "likelihood": Signal(
        "log-probability of the batch's correct answers",
        "nats per token",
        ("likelihood/correct", "logps/chosen", "logp/correct", "actor/likelihood_positive"),
        "likelihood displacement",
    ),
    "llds": Signal(
        "value of LLDS",
        "nats per token",
        (
            *("llds/value", "actor/llds"),
            *("actor/llds_loss", "actor/lld_loss", "actor/llds_penalty", "actor/lld_penalty"),
            *("llds_loss", "lld_loss", "llds_penalty", "lld_penalty", "loss/llds", "loss/lld"),
        ),
        "",
    ),
    "llds_active": Signal(
        "share of tokens on which LLDS acts",
        "share",
        (
            *("llds/open_gate_share", "actor/llds_open_gate_share"),
            *("actor/llds_active_ratio", "actor/lld_active_ratio"),
            *("llds_active_ratio", "lld_active_ratio", "llds/active_ratio", "lld/active_ratio"),
        ),
        "",
    ),
    "sampler_gap": Signal(
        "sampler and trainer disagree",
        "nats per token",
        (
            "rollout_corr/kl",
            "training/rollout_probs_diff_mean",
            "sampling/sampling_logp_difference/mean",
            "policy/sampler_kl",
            "optim/kl_sample_train_v1",  # Tinker: sampler against trainer, no reference
            "optim/kl_sample_train_v2",
            *("mismatch_kl", "mismatch_kl/mean", "mismatch/mismatch_kl"),  # prime-rl, verl
            *("gen_kl_error", "generation_kl_error", "policy/gen_kl_error"),  # NeMo-RL
            *("vllm_kl", "rollout_is_kl", "rollout_is/kl", "sampler_kl"),
            *("train_rollout_logprob_abs_diff", "rollout_train_logprobs_abs_diff_mean"),  # slime
        ),
        "a sampler that is not the policy",
    ),
    "epoch": Signal("epoch", "count", ("training/epoch", "epoch", "epochs"), ""),
    "rollout_time": Signal(
        "time to sample",
        "seconds",
        ("timing_s/gen", "timing/gen", "time/rollout", "timing_s/rollout", "rollout_time"),
        "a tool that died",
    ),
    "clock": Signal(
        "time of the clock",
        "seconds",
        ("_timestamp", "_runtime", "wall_time", "elapsed_time", "time_elapsed", "elapsed"),
        "",
    ),
    "step_time": Signal(
        "time of a step",
        "seconds",
        (
            "timing_s/step",
            "time/step",
            "perf/time_per_step",
            "step_time",
            "time/total",
            "iter_time",
        ),
        "",
    ),
}

STEPS = (  # the number of an update or a batch, the best first
    "training/global_step",
    "train/global_step",
    "global_step",
    "global_step/max_steps",  # ms-swift writes "2/4389"
    "step",
    "_step",
    "system/step",
    "steps",
    "current_steps",  # LLaMA-Factory
    "iteration",
    "iter",
    "batch",
    "update",
    "rollout/step",
    "rollout_step",
)
_SET = r"(?:test|eval|val|valid|validation|heldout|held_out|dev)"
_SCORE = r"(?:reward|score|accuracy|acc|success_rate|pass_rate|win_rate|solve_rate|em|f1|correct)"
_OF_ANSWERS = (  # an evaluation of answers, and of none of these
    r"(?!.*(?:entropy|kl|std|min|max|best|worst|clip|trunc|ratio|frac|format|valid|rate|fail|error|"
    r"penal|false|violat|refus|cost|lr|grad|prob|logp|len|freq|every|turn|search|tool|call|temp|"
    r"coef|weight|var|adv|margin|chosen|rejected|nll|ppl|perplex|token|size|interval|seed|rank|"
    r"time|per_second|sample|step|\Wn_|_n_|num|epoch|loss|count))"
)
# held-out scores, the best first; what stands in the brackets is the data set
HELDOUT = (
    r"eval/heldout_em",
    r"val_core/(.+)/(?:acc|reward|score|em|f1)/mean@\d+",
    r"val/test_score/(.+)",
    r"val/(.+)/test_score",
    r"val/success_rate()",
    r"val_aux/(.+)/(?:score|reward|acc)/mean@\d+",
    r"eval_reward()",
    r"eval/(?:reward|score|accuracy|acc|success_rate)(?:/mean)?()",
    r"eval_(?:reward_mean|accuracy|score|acc|em)()",
    r"val(?:idation)?/(?:reward|score|accuracy|acc|em)(?:/mean)?()",
    r"(?:test|heldout|held_out)/(?:reward|score|accuracy|acc|em)(?:/mean)?()",
    rf"{_SET}/env/(.+)/reward/(?:total|mean)",  # Tinker
    rf"{_SET}/(.+)/{_SCORE}(?:/mean)?",
    rf"{_SET}/{_SCORE}(?:/(?:mean|avg))?()",
    rf"{_SET}/(?:mean|avg)/{_SCORE}()",
    rf"{_SET}/pass(?:@|_at_)\d+()",
    rf"{_SET}/(?!aux/){_OF_ANSWERS}(.+)/(?:avg|mean)(?:@|_at_)\d+",
    rf"{_SET}/(?!aux/){_OF_ANSWERS}(.+)/(?:(?:maj|pass)(?:@|_at_)|pass)\d+",
    r"val_core/(.+)/(?:acc|reward|score|em|f1)/maj@\d+/mean",
)
# an evaluation by the name of its data set, such as slime's eval/aime: a score if its numbers are
# shares, and used only where a log has nothing better
MAY_BE_HELDOUT = re.compile(rf"(?:{_SET}/|eval_){_OF_ANSWERS}[a-z][\w/.@-]+")
# other numbers of an evaluation: not scores, but a dead policy shows in them too
EVALUATED = re.compile(rf"(?:{_SET}[_/].*|accuracy|test_acc|val_acc)")
NO_SCORE = re.compile(r".*(?:time|per_second|samples|step|[/_]n_|num|epoch|loss|count|tokens).*")
# what a name that stands nowhere above may still be; used only where a log has nothing better
GUESSES = {
    "reward": r".*(?:reward|return|score|success|accuracy|pass_rate|solve_rate).*|mean_r_.+|r_mean",
    "entropy": r".*entropy.*",
    "grad_norm": r".*grad\w*_norm.*",
    "kl": r"(?!.*(?:mismatch|error|rollout_is|vllm))(?:.*_)?kl(?:_.*)?",
    "length": r".*(?:completion|response|generation|gen|output|answer)\w*_(?:len|length|tokens).*",
}
_NO_SCORE_WORDS = (
    r"std|max|min|loss|penalty|margin|chosen|rejected|advantage|val|eval|test|critic_(?!score)"
)
NOT_GUESSED = re.compile(
    rf".*(?:{_NO_SCORE_WORDS}|coef|best|worst|pass_at|time|timing|per_second|perf|mfu|threshold|"
    r"target|weight|zero|clip|limit|total_tokens|num_|ratio|theta|delta|span|range|gap|diff|var(?!i)|"
    r"beta|horizon|token_acc|accuracies|objective|sample_train|ppo_kl|approx|sampler|rollout_corr|"
    r"trace|scale|bonus|baseline|corr|raw_(?!reward)|skipped|count|cumulative).*"
)
ACCURACY = re.compile(
    r".*(?:accuracy|pass_rate|solve_rate|success).*"
)  # other trainings log it too
GUESSED = 900  # rank of a guess
PART = re.compile(r"rewards/(?!mean$|std$|max$|min$|chosen|rejected|margins)([^/]+?)(?:/mean)?")
TOOL_TROUBLE = re.compile(
    r".*(?:timeout|failed|failure|(?:tools?|search)[_/.]error)[a-z_]*(?:[/.].*)?"
)
_UNIT = re.compile(r"(.+?)\(([-+.\deE]+)\)")


def canonical(name: str) -> str:
    """The name as the table compares it: `train/Reward` is `reward`, `a/b.c-d` is `a_b_c_d`."""
    bare = name.strip().lower()
    for lead in ("train/", "train_", "training/train/"):
        if bare.startswith(lead) and bare not in _KEPT:
            bare = bare[len(lead) :]
    return re.sub(r"[/.\-\s]+", "_", bare)


_KEPT = frozenset({"train/global_step", "train_runtime"})
_PLACE = {  # canonical name -> (signal, rank) of every signal that may read it
    spelled: [
        (signal, place)
        for signal, entry in SIGNALS.items()
        for place, name in enumerate(entry.names)
        if canonical(name) == spelled
    ]
    for spelled in {canonical(n) for entry in SIGNALS.values() for n in entry.names}
}
# signals whose names are theirs alone, wherever in a nested path they stand
_ANYWHERE = ("no_contrast", "length", "clipped", "tool_success", "tool_failure", "valid_format")
_NESTED = 500  # rank of a name behind a group that says nothing; a guess has a higher one
_OF_TOOLS = ("tool_success", "tool_failure")  # behind whatever group
_OTHER_GROUP = re.compile(
    r"(?:.*_)?(?:eval|val|valid[a-z]*|test|heldout|dev|tim(?:e|ing)[a-z]*|max|min|std)_.*"
)
_GROUPS = re.compile(
    r"(?:(?:rollouts?|actor|policy|agent|env|environment|episode|metrics|stats|generation|tools?|"
    r"training|train|data|batch)_)+"
)
_STEP = {canonical(name): place for place, name in reversed(list(enumerate(STEPS)))}
_HELDOUT = [re.compile(re.sub(r"(?<!\?)/", "[/_]", pattern)) for pattern in HELDOUT]


# verl takes a mean over all micro-batches, of which some hold no such row: the share that does
PER_SHARE = {
    "actor/likelihood_positive": "actor/positive_here",
    "actor/displacement_positive": "actor/positive_here",
    "actor/llds_open_gate_share": "actor/llds_kept_here",
}


@dataclass(frozen=True)
class Name:
    """What a column may be: the signals that it can be read as, and the factor of its unit."""

    signals: tuple[tuple[str, int], ...] = ()  # (signal, rank of the name)
    step: int | None = None  # rank among the names of a step
    heldout: int | None = None  # rank among the held-out scores
    part: str | None = None  # the part of the reward that it is
    trouble: bool = False  # it counts a tool's failures
    scale: float = 1.0  # `actor/lr(1e-4)` carries a unit in its name
    evaluated: bool = False  # a number of an evaluation that is no score by its name
    may_be_heldout: bool = False  # but may be one by its values
    share: bool = False  # of micro-batches, by which another column is divided

    def __bool__(self) -> bool:
        known = self.step is not None or self.heldout is not None or self.part is not None
        return bool(self.signals) or known or self.trouble or self.evaluated or self.share


@lru_cache(maxsize=20_000)
def read_name(column: str) -> Name:
    """What the table says of a column; a `Name` that is false says nothing."""
    scale, unit = 1.0, _UNIT.fullmatch(column.strip())
    if unit:
        try:
            column, scale = unit[1], float(unit[2])
        except ValueError:
            return Name()
    column = re.sub(r"\s*/\s*", "/", column)  # a notebook's table has "completions / mean_length"
    bare = canonical(column)
    spelled = column.strip().lower().replace("-", "_")
    joined = re.sub(r"\s+", "_", spelled)  # a console's "Val Reward"
    held = next((i for i, p in enumerate(_HELDOUT) if p.fullmatch(joined)), None)
    part = PART.fullmatch(re.sub(r"^train/", "", column.strip()))
    found = tuple(_PLACE.get(bare) or _averaged(bare)) if held is None else ()
    trouble = bool(TOOL_TROUBLE.fullmatch(spelled)) and not spelled.startswith("timing")
    return Name(
        found or (_nested(bare) or _guess(bare) if held is None and bare not in _STEP else ()),
        _STEP.get(bare),
        held,
        part[1] if part and held is None else None,
        trouble,
        scale,
        held is None and bool(EVALUATED.fullmatch(spelled)) and not NO_SCORE.fullmatch(spelled),
        held is None and bool(MAY_BE_HELDOUT.fullmatch(spelled)),
        spelled in PER_SHARE.values(),
    )


def _averaged(bare: str) -> list[tuple[str, int]]:
    """What a name with `avg` in it is: the same with `mean` in its place."""
    names = (re.sub(r"^avg_|^average_", "mean_", bare), re.sub(r"_(?:avg|average)$", "_mean", bare))
    names += (re.sub(r"_(?:avg|average)$", "", bare),)
    return next((_PLACE[name] for name in names if name != bare and name in _PLACE), [])


def _nested(bare: str) -> tuple[tuple[str, int], ...]:
    """What a name is behind the groups of a nested path, and before a /mean."""
    short = re.sub(r"_(?:mean|avg|average)$", "", bare)
    lead = _GROUPS.match(bare)
    said = lead.end() if lead else 0
    for at in [0, *(found.end() for found in re.finditer("_", bare))]:
        known = _PLACE.get(bare[at:]) or _PLACE.get(short[at:]) or ()
        of = _ANYWHERE if at <= said else _OF_TOOLS
        found = [(signal, _NESTED + place) for signal, place in known if signal in of]
        if found and not _OTHER_GROUP.fullmatch(bare[:at]):
            return tuple(found)
    return ()


def _guess(bare: str) -> tuple[tuple[str, int], ...]:
    """What a name resembles; a mean is a better guess than one that says nothing."""
    if NOT_GUESSED.fullmatch(bare):
        return ()
    mean = 0 if re.search("mean|avg|average|total", bare) else 2
    part = int(re.search("step|sample|part|turn|token", bare) is not None)  # of one thing, not all
    return tuple(
        (signal, GUESSED + mean + part + 4 * (signal == "reward" and "reward" not in bare))
        for signal, pattern in GUESSES.items()
        if re.fullmatch(pattern, bare)
    )
