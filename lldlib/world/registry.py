"""Every world by its name."""

from collections.abc import Callable

from lldlib.config import TrainConfig
from lldlib.world import atlas, from_files, shuffled, sparks
from lldlib.world.environment import Environment

ENVIRONMENTS: dict[str, Callable[[TrainConfig], Environment]] = {
    "atlas": atlas.environment,
    "shuffled": shuffled.environment,
    "sparks": sparks.environment,
    "qa": from_files.qa,
    "maths": from_files.maths,
}


def open_environment(config: TrainConfig) -> Environment:
    """The one that the config names: `data.kind` where there are files to train on, else `world`.

    Raises ValueError for an unknown world, and what opening raises.
    """
    name = config.data.kind if config.data.train else config.data.world
    if name not in ENVIRONMENTS:
        raise ValueError(f"unknown world {name!r}: use one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name](config)
