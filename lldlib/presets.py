"""The one setting from which demo and sweeps start; data/README.md says how it was found."""

import dataclasses

from lldlib import methods
from lldlib.config import LossConfig, RolloutConfig, TrainConfig

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
    """The run of one method (see `lldlib.methods`) at the collapse setting.

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


def loss_here(method: str) -> LossConfig:
    """The preset of a method at the weights that suit the built-in world."""
    preset = methods.method(method, llds_preserve=PRESERVE)
    weights = {name: value for name, value in WEIGHTS.items() if getattr(preset, name)}
    return dataclasses.replace(preset, **weights)


def field_names(kind: type) -> set[str]:
    """The names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(kind)}
