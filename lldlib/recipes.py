"""The methods, one LossConfig each, and the one setting from which demo and sweeps start."""

import dataclasses
from dataclasses import replace

from lldlib.config import LossConfig, RolloutConfig, TrainConfig

_GRPO = LossConfig()
_LLDS = {"llds_coef": 0.2}  # lambda of 2512.04220 (0.3 for Qwen2.5-7B-Instruct)
_LP_REG = {"lp_reg_coef": 1.0, "ratio_cap": 10.0, "kl_coef": 0.0}  # 2510.03222 Eq. 6
_GSPO = {  # 2507.18071
    "ratio_level": "sequence",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "aggregation": "seq-mean-token-mean",
    "kl_coef": 0.0,
}

METHODS: dict[str, LossConfig] = {
    # Search-R1's GRPO, 2503.09516: symmetric clip 0.2, KL 0.001, token mean
    "grpo": _GRPO,
    # the entropy-loss baseline of Lp-Reg, 2510.03222
    "grpo_entropy": replace(_GRPO, entropy_coef=0.002),
    # DAPO, 2503.14476
    "clip_higher": replace(_GRPO, clip_low=0.2, clip_high=0.28),
    # 80/20, 2506.01939, here on GRPO (the paper's base is DAPO)
    "top_entropy": replace(_GRPO, top_entropy=0.2),
    # 2505.22617; its policy term has no clip, so the range is opened until it never binds
    "kl_cov": replace(_GRPO, kl_cov_coef=1.0, kl_cov_share=0.002, clip_low=1.0, clip_high=1e9),
    # 2505.22617
    "clip_cov": replace(_GRPO, clip_cov_share=2e-4),
    # 2507.18071
    "gspo": replace(_GRPO, **_GSPO),
    # 2503.20783: no deviation, no length in the divisor
    "dr_grpo": replace(_GRPO, scale_advantage=False, aggregation="seq-mean-token-sum"),
    # 2512.04220v2 Eq. 4, the default gate of the paper
    "llds": replace(_GRPO, **_LLDS),
    # 2512.04220v2 Eq. 10
    "llds_response": replace(_GRPO, **_LLDS, llds_gate="response"),
    # 2512.04220v2 Eq. 9
    "llds_token": replace(_GRPO, **_LLDS, llds_gate="token"),
    # LLDS-MA, 2512.04220v2 Eq. 5
    "llds_ma": replace(_GRPO, **_LLDS, llds_answer="paper"),
    # LLDS-MA as the official code does it: another schedule and divisor
    "llds_ma_code": replace(_GRPO, **_LLDS, llds_answer="code", llds_normalizer="all"),
    # 2510.03222 with the min-p proxy (main experiments)
    "lp_reg": replace(_GRPO, **_LP_REG),
    # 2510.03222 with a fixed threshold (ablation)
    "lp_reg_fixed": replace(_GRPO, **_LP_REG, lp_reg_filter="fixed"),
    # 2505.18830, with beta 1 and eta 2|0.5 - p|
    "nthr": replace(_GRPO, nthr=True),
    # 2512.04220v2 Table 1 (its code keeps GRPO's clip range of 0.2)
    "gspo_llds": replace(_GRPO, **_GSPO, **_LLDS),
    # both papers' terms together: in neither
    "lp_reg_llds": replace(_GRPO, **_LP_REG, **_LLDS),
    # causal control: is it the negative gradient? (PosOnly of 2505.18830)
    "positive_only": replace(_GRPO, negative_weight=0.0),
    # causal control: half of the negative gradient
    "half_negative": replace(_GRPO, negative_weight=0.5),
    # causal control: LLDS's weight, but a pull to the old policy on every token
    "old_kl": replace(_GRPO, old_kl_coef=0.2),
}


def method(name: str, **overrides: object) -> LossConfig:
    """The preset `name` with some fields replaced; ValueError, naming the presets, if unknown."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}: use one of {', '.join(METHODS)}")
    return replace(METHODS[name], **overrides)


# fields of TrainConfig and RolloutConfig
SETTING: dict[str, object] = {
    "steps": 80,
    "updates_per_batch": 64,
    "lr": 4e-4,
    "warmup_batches": 5,
    "grad_clip": 1.0,
    "eval_every": 10,
    "problems": 32,
    "group_size": 5,
    "max_tokens": 112,  # a correct episode needs 60 to 90; endless thoughts must not fit
}
# fields of LossConfig on the built-in world; a weight only for the methods that have that term
WEIGHTS: dict[str, float] = {"llds_coef": 1.0}
# the paper keeps rows with advantage 0 too, which here are mostly groups that are all wrong
PRESERVE = "positive"


def collapse_config(method: str, seed: int, **overrides: object) -> TrainConfig:
    """The run of one method (see `METHODS`) at the collapse setting.

    `overrides` are fields of TrainConfig, RolloutConfig or LossConfig, by their bare names.
    Raises ValueError for an unknown method or field.
    """
    preset = loss_here(method)
    given = SETTING | overrides
    known = {kind: field_names(kind) & given.keys() for kind in (RolloutConfig, LossConfig)}
    train = (field_names(TrainConfig) - {"method", "seed", "rollout", "loss"}) & given.keys()
    if unknown := given.keys() - train.union(*known.values()):
        raise ValueError(f"unknown setting {', '.join(sorted(unknown))}: use a field of config.py")
    return TrainConfig(
        method=method,
        seed=seed,
        rollout=RolloutConfig(**{name: given[name] for name in known[RolloutConfig]}),
        loss=dataclasses.replace(preset, **{name: given[name] for name in known[LossConfig]}),
        **{name: given[name] for name in train},
    )


def loss_here(name: str) -> LossConfig:
    """The preset of a method at the weights that suit the built-in world."""
    preset = method(name, llds_preserve=PRESERVE)
    weights = {name: value for name, value in WEIGHTS.items() if getattr(preset, name)}
    return dataclasses.replace(preset, **weights)


def field_names(kind: type) -> set[str]:
    """The names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(kind)}
