"""Each draw has a seed of its own: hand-worked values, and no planet is met twice."""

import pytest

from lldlib.config import WarmstartConfig
from lldlib.recipes import SHUFFLED, train_config
from lldlib.seeds import DRAWS, WHOLES, seed_for
from lldlib.world.registry import open_environment

STUDIES = range(64)  # seeds of recorded runs are 0 to 19
LONGEST = 600  # batches of the longest run


def test_hand_worked_values():
    assert seed_for("questions", 0, 0) == 0
    assert seed_for("order", 2, 5) == (2 * 1_000_003 + 5) * 8 + 2 == 16_000_090
    assert seed_for("warm-start planet", 7, 4) == 7_000_025  # half_taught was made with these
    assert seed_for("training planet", 7, 4) == 1_000_000_007_000_025
    assert DRAWS[:5] == (
        "questions",
        "sampling",
        "order",
        "dropped",
        "fresh",
    )  # new ones at the end


def test_every_draw_has_a_seed_of_its_own():
    seeds = [seed_for(p, s, t) for p in DRAWS for s in range(20) for t in range(LONGEST)]
    assert len({seed % 2**32 for seed in seeds}) == len(seeds)  # all that a CPU generator reads


def test_no_run_of_a_study_meets_a_planet_of_a_warm_start_or_of_a_control():
    kinds = [name for name in WHOLES if "planet" in name]
    assert len(kinds) == 3
    steps = WarmstartConfig().steps
    planets = [
        seed_for(k, s, t) for k in kinds for s in STUDIES for t in range(max(steps, LONGEST))
    ]
    assert len(set(planets)) == len(planets)


def test_the_world_draws_its_planets_by_that_rule(monkeypatch):
    drawn = []
    monkeypatch.setattr("lldlib.world.shuffled.planet", lambda seed: drawn.append(seed) or STOP)
    environment = open_environment(train_config("grpo", seed=7, recipe=SHUFFLED))
    with pytest.raises(AttributeError):
        environment.training(4)
    assert drawn == [1_000_000_007_000_025]


STOP = None


@pytest.mark.parametrize(
    ("purpose", "seed", "index"), [("luck", 0, 0), ("order", -1, 0), ("order", 0, 1_000_003)]
)
def test_what_would_meet_is_refused(purpose, seed, index):
    with pytest.raises(ValueError, match="use"):
        seed_for(purpose, seed, index)
