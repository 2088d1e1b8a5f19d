"""The methods, one LossConfig each, and the recipes that runs start from."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lldlib.config import (
    DataConfig,
    DemonstrationConfig,
    LoadConfig,
    LossConfig,
    RolloutConfig,
    TrainConfig,
    WarmstartConfig,
    unknown,
)

_GRPO = LossConfig()
_LLDS = {"llds_coef": 0.2}  # lambda of 2512.04220 (0.3 for Qwen2.5-7B-Instruct)
_LP_REG = {"lp_reg_coef": 1.0, "ratio_cap": 10.0, "kl_coef": 0.0}  # 2510.03222 Eq. 6
# Where the official code of Search-R1 (a14dc3a) and LLDS (c19a094) does otherwise than the papers
# print: an entropy bonus that their scripts leave on, and a ratio of at most 100. Their scripts
# leave top_p = 0.95 on too, which is a setting of the rollout here (data/atlas/mismatch.md).
_CODE = {"entropy_coef": 0.001, "ratio_limit": 100.0}
_GSPO = {  # 2507.18071
    "ratio_level": "sequence",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "aggregation": "seq-mean-token-mean",
    "kl_coef": 0.0,
}

# In the built-in worlds a recipe sets LLDS's weight and its rows in every preset, those of the
# official code included (WORLD, SHUFFLED below); neither code's weight decay, 0.01, is here.
METHODS: dict[str, LossConfig] = {
    # Search-R1's GRPO, 2503.09516: symmetric clip 0.2, KL 0.001, token mean
    "grpo": _GRPO,
    # the same as its official code does it
    "grpo_code": replace(_GRPO, **_CODE),
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
    # the same as its official code does it: the divisor is all action tokens
    "llds_code": replace(_GRPO, **_CODE, **_LLDS, llds_normalizer="all"),
    # 2512.04220v2 Eq. 10
    "llds_response": replace(_GRPO, **_LLDS, llds_gate="response"),
    # 2512.04220v2 Eq. 9
    "llds_token": replace(_GRPO, **_LLDS, llds_gate="token"),
    # LLDS-MA, 2512.04220v2 Eq. 5
    "llds_ma": replace(_GRPO, **_LLDS, llds_answer="paper"),
    # LLDS-MA with the official code's schedule and divisor (without its entropy bonus and limit of
    # the ratio: the recorded runs have neither)
    "llds_ma_code": replace(_GRPO, **_LLDS, llds_answer="code", llds_normalizer="all"),
    # 2510.03222 with the min-p proxy (main experiments); with many updates per batch the missing
    # clip can kill a run, and ratio_cap=None brings GRPO's back (data/atlas/methods.md)
    "lp_reg": replace(_GRPO, **_LP_REG),
    # the same as its official code (33b27e2) does it: another selection, and r within [0, 10] by
    # the clip, whose upper side binds for A > 0 only; its scripts have no entropy bonus, no limit
    # of the ratio and top_p = 1
    "lp_reg_code": replace(
        _GRPO,
        lp_reg_coef=1.0,
        lp_reg_selection="code",
        clip_low=1.0,
        clip_high=9.0,
        kl_coef=0.0,
    ),
    # 2510.03222 with a fixed threshold (ablation)
    "lp_reg_fixed": replace(_GRPO, **_LP_REG, lp_reg_filter="fixed"),
    # 2505.18830, with beta 1 and eta 2|0.5 - p|
    "nthr": replace(_GRPO, nthr=True),
    # 2512.04220v2 Table 1 (its code keeps GRPO's clip range of 0.2)
    "gspo_llds": replace(_GRPO, **_GSPO, **_LLDS),
    # both papers' terms together: in neither
    "lp_reg_llds": replace(_GRPO, **_LP_REG, **_LLDS),
    # SAPO for search agents, 2603.10069; its weight and threshold could not be had, so these are
    # LLDS's weight of the atlas and the lower edge of the clip
    "sapo": replace(_GRPO, sapo_coef=0.5),
    # CISPO, 2506.13585, without KL; the cap of 5 is TRL's advice, since the paper gives none
    "cispo": replace(_GRPO, surrogate="cispo", clip_high=4.0, kl_coef=0.0),
    # REINFORCE with the group's mean as baseline: no deviation, no ratio, no clip
    "reinforce": replace(_GRPO, surrogate="reinforce", scale_advantage=False),
    # causal control: is it the negative gradient? (PosOnly of 2505.18830)
    "positive_only": replace(_GRPO, negative_weight=0.0),
    # causal control: half of the negative gradient
    "half_negative": replace(_GRPO, negative_weight=0.5),
    # causal control: LLDS's weight, but a pull to the old policy on every token
    "old_kl": replace(_GRPO, old_kl_coef=0.2),
}


def method(name: str, **overrides: object) -> LossConfig:
    """The preset `name` with some fields replaced; ValueError, naming presets, if unknown."""
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return replace(METHODS[name], **overrides)


@dataclass(frozen=True)
class Recipe:
    """A setting to start from, by the bare names of the configs' fields."""

    settings: Mapping[str, object]  # of TrainConfig, RolloutConfig and DataConfig
    loss: Mapping[str, object] = field(default_factory=dict)  # what changes in every method
    weights: Mapping[str, float] = field(default_factory=dict)  # in methods that have the term
    best_rate: float | None = None  # of GRPO alone: the best learning rate of those tried
    demo_rate: float | None = None  # of the demo, where GRPO dies within its 25 batches

    def loss_of(self, name: str) -> LossConfig:
        """A method's LossConfig by this recipe; ValueError for an unknown method."""
        preset = method(name, **self.loss)
        weights = {key: value for key, value in self.weights.items() if getattr(preset, key)}
        return replace(preset, **weights)


# the first world, of fixed facts, where training only makes the searcher worse (data/first_world)
WORLD = Recipe(
    settings={
        "steps": 80,
        "updates_per_batch": 64,
        "lr": 4e-4,
        "warmup_batches": 5,
        "grad_clip": 1.0,
        "eval_every": 10,
        "fresh_every": 10,
        "problems": 32,
        "group_size": 5,
        "max_tokens": 112,  # a correct episode needs 60 to 90; endless thoughts must not fit
    },
    # the paper keeps rows with advantage 0 too, which here are mostly groups that are all wrong
    loss={"llds_preserve": "positive"},
    weights={"llds_coef": 1.0},
)

# the shuffled atlas, where a half-taught searcher learns: minibatches of 20 rows
SHUFFLED = Recipe(
    settings={
        "world": "shuffled",
        "steps": 40,
        "updates_per_batch": 16,
        "lr": 1e-3,
        "warmup_batches": 5,
        "grad_clip": 1.0,
        "eval_every": 5,
        "problems": 64,
        "group_size": 5,
        "max_tokens": 160,
    },
    loss={"llds_preserve": "positive"},
    weights={"llds_coef": 0.5},  # the paper's 0.2 lives here too, and ended lower (data/atlas)
    best_rate=2e-4,
    demo_rate=1.2e-3,
)

# the shuffled atlas for a real model with adapters, after its start (`start_config` below): short
# episodes of about 100 tokens, one passage a search, no KL. Its rate is the first one planned; the
# runs that data/atlas/smollm2.md counts have lower ones by a flag: --lr 3e-4, 2e-4 or 1e-4
ADAPTERS = Recipe(
    settings={
        "world": "shuffled",
        "steps": 60,
        "updates_per_batch": 6,
        "lr": 1e-3,
        "warmup_batches": 5,
        "grad_clip": 1.0,
        "eval_every": 10,
        "probe_every": 0,
        "heldout_limit": 8,
        "problems": 12,
        "group_size": 5,
        "max_searches": 4,
        "max_tokens": 200,
        "top_k": 1,
        "micro_rows": 5,  # in most groups all answers are right or wrong: no gradient, no pass
        "load": LoadConfig(lora_rank=32, lora_alpha=64, dtype="bfloat16"),
    },
    loss={"kl_coef": 0.0},
    weights={"llds_coef": 0.5},
)

# the world of sparks, on-policy: one update a batch, as in the main results of Lp-Reg (2510.03222),
# which has no KL to a reference
SPARKS = Recipe(
    settings={
        "world": "sparks",
        "steps": 300,
        "updates_per_batch": 1,
        "lr": 1e-3,
        "warmup_batches": 5,
        "grad_clip": 1.0,
        "eval_every": 25,
        "probe_every": 0,
        "problems": 32,
        "group_size": 8,
        "max_searches": 0,
        "max_tokens": 24,
    },
    loss={"kl_coef": 0.0},
)

# What the papers print for a search agent: [S] Search-R1, 2503.09516v5; [L] LLDS, 2512.04220v2
# B.2.1, which trains in the setting of [S]; [C] where both are silent, the training script of LLDS.
# Losses are those of METHODS, as printed. They had 4 (L) or 8 (S) H100s: on one GPU lower
# problems (say 8 to 32), micro_rows (1 to 8) and max_tokens (2048). Lp-Reg's maths runs differ
# (2510.03222 section 2.2): 256 questions of 8 rollouts, 1 update on-policy or 8 off-policy, no
# warm-up, 8192 tokens of response.
PAPER = Recipe(
    settings={
        "steps": 500,  # [S]; [C] stops at 1005
        "updates_per_batch": 10,  # [S, L] minibatches of 256 of the 512 x 5 rows
        "lr": 1e-6,  # [S, L], constant after the warm-up
        "warmup_batches": 142,  # [S] 0.285 of its 500 steps
        "grad_clip": 1.0,  # [C]
        "betas": (0.9, 0.999),  # [C]
        "eval_every": 50,  # [C]
        "checkpoint_every": 100,  # [S]
        "micro_rows": 64,  # [S, L], over all GPUs; bounds memory
        "problems": 512,  # [S, L]
        "group_size": 5,  # [S, L]
        "max_searches": 3,  # [L]; [S] counts 4 actions, the answer included
        "max_tokens": 4096,  # [S, L]; their limit of 500 tokens a turn is not there
        "top_k": 3,  # [S, L]
        "passage_tokens": 166,  # [S, L] cut what 3 passages say to 500 tokens
        "temperature": 1.0,  # [S, L]; top_p is 1, but 0.95 in [C] (--rollout.top-p 0.95)
    }
)


NESTED = ("rollout", "loss", "data")  # fields of TrainConfig that are configs of their own
_OF_POLICY = {"half_taught": SHUFFLED, "sparks": SPARKS, "tiny": WORLD}


def built_in(policy: str, world: str | None = None) -> Recipe:
    """The recipe of a policy in a built-in world.

    SHUFFLED for half_taught, SPARKS for sparks; for any other policy ADAPTERS in the world
    "shuffled", else WORLD.
    """
    return _OF_POLICY.get(policy, ADAPTERS if world == "shuffled" else WORLD)


def start_config(start: str | None) -> WarmstartConfig:
    """The warm start of a tiny searcher, or with `start` "smollm2" that of SmolLM2.

    The latter looks up one thing and answers, as half_taught does: 40 updates of 12 demonstrations,
    thoughts in plain English. 24 s on an H200, 264 s on a processor core (data/results/gpu). From
    this start (`stop_early` .85) reward taught little; the runs that data/atlas/smollm2.md counts
    begin at .5 (`--demonstrations.stop-early .5`).
    """
    if start != "smollm2":
        return WarmstartConfig(start=start)
    half = DemonstrationConfig(corrupt=0.15, stop_early=0.85, give_up=0.5)
    return WarmstartConfig(
        start=start,
        plain_steps=0,
        steps=40,
        batch=12,
        lr=1.5e-4,
        warmup=10,
        hop_weights=(0.34, 0.33, 0.33),
        rows=8,
        autocast=True,
        demonstrations=half,
    )


def train_config(
    method: str,
    seed: int,
    policy: str = TrainConfig.policy,
    *,
    recipe: Recipe | None = None,
    **overrides: object,
) -> TrainConfig:
    """The run of one method (see `METHODS`) by a recipe.

    Without `recipe`: SHUFFLED for "half_taught", SPARKS for "sparks", WORLD for "tiny", the
    searcher of the first world; for every other policy ADAPTERS with `world` "shuffled", else
    PAPER. `overrides` are fields of the
    configs, by their bare names. Raises ValueError for an unknown method or field.
    """
    if recipe is None:
        real = ADAPTERS if overrides.get("world") == "shuffled" else PAPER
        recipe = _OF_POLICY.get(policy, real)
    given = {**recipe.settings, "policy": policy, **overrides}
    kinds = (RolloutConfig, LossConfig, DataConfig)
    known = {kind: field_names(kind) & given.keys() for kind in kinds}
    train = (field_names(TrainConfig) - {"method", "seed", *NESTED}) & given.keys()
    if strange := given.keys() - train.union({"data"}, *known.values()):
        names = ", ".join(sorted(strange))
        raise ValueError(f"unknown setting {names}: use a field of config.py")
    return TrainConfig(
        method=method,
        seed=seed,
        rollout=RolloutConfig(**{name: given[name] for name in known[RolloutConfig]}),
        loss=replace(recipe.loss_of(method), **{name: given[name] for name in known[LossConfig]}),
        data=replace(
            given.get("data", DataConfig()), **{name: given[name] for name in known[DataConfig]}
        ),
        **{name: given[name] for name in train},
    )


def field_names(kind: type) -> set[str]:
    """The names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(kind)}
