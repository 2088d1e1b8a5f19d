import json
from pathlib import Path

import pytest

from lldlib.recipes import METHODS, SHUFFLED, WORLD, train_config
from lldlib.runs.folder import Run
from lldlib.train.sweep import (
    Cell,
    cell_name,
    grid_cells,
    is_finished,
    parse_grid,
    sweep,
    train_cell,
    train_cells,
)


def train(cell: Cell, *, batches: int, keep_checkpoints: bool = True) -> list[int]:
    """Train a cell for at most `batches` batches; returns what it reported."""
    done, asked = [], iter(range(batches))
    train_cell(
        cell,
        keep_checkpoints=keep_checkpoints,
        report=lambda news: done.append(news[0]),
        should_stop=lambda: next(asked, None) is None,
    )
    return done


def names(grid: dict) -> list[str]:
    return [cell.path.name for cell in grid_cells(grid, Path("out"))]


def grid_of(micro: dict, **more) -> dict:
    return {name: [value] for name, value in micro.items()} | {"seed": [0]} | more


# -- the preset ----------------------------------------------------------------------------------


def test_overrides_reach_the_field_of_their_name():
    config = train_config("llds", 3, lr=1e-5, problems=2, llds_gate="token")
    assert (config.method, config.seed, config.lr) == ("llds", 3, 1e-5)
    assert (config.rollout.problems, config.loss.llds_gate) == (2, "token")
    assert config.rollout.group_size == train_config("llds", 3).rollout.group_size


def test_arms_differ_in_the_regularizer_alone():
    grpo, llds = train_config("grpo", 0), train_config("llds", 0)
    assert grpo.loss.llds_coef == 0 < llds.loss.llds_coef
    assert train_config("llds", 0, llds_coef=0.0).loss == grpo.loss
    assert (grpo.rollout, grpo.lr, grpo.steps) == (llds.rollout, llds.lr, llds.steps)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_setting(method):
    assert train_config(method, 0).method == method


def test_bad_overrides_are_named():
    with pytest.raises(ValueError, match="unknown setting lambda"):
        train_config("llds", 0, **{"lambda": 1})
    with pytest.raises(ValueError, match="unknown method 'ppo'"):
        train_config("ppo", 0)


def test_the_built_in_worlds_and_every_other_policy_have_a_recipe_each():
    atlas, world = train_config("llds", 0), train_config("llds", 0, policy="tiny")
    paper = train_config("llds", 0, policy="some/model")
    assert (atlas.policy, atlas.data.world, atlas.lr) == ("half_taught", "shuffled", 1e-3)
    assert (atlas.loss.llds_coef, atlas.loss.llds_preserve) == (0.5, "positive")
    assert (world.lr, world.updates_per_batch, world.rollout.max_tokens) == (4e-4, 64, 112)
    assert (world.loss.llds_coef, world.loss.llds_preserve) == (1.0, "positive")
    assert paper.policy == "some/model" and paper.loss == METHODS["llds"]
    assert (paper.loss.llds_coef, paper.loss.llds_preserve) == (0.2, "nonnegative")
    assert (paper.lr, paper.updates_per_batch, paper.rollout.problems) == (1e-6, 10, 512)
    assert train_config("llds", 0, policy="some/model", lr=1e-5).lr == 1e-5
    same = train_config("llds", 0, policy="some/model", recipe=WORLD)
    assert (same.policy, same.loss, same.rollout) == ("some/model", world.loss, world.rollout)


# -- the grid ------------------------------------------------------------------------------------


def test_values_take_the_type_of_their_field():
    items = ["method=grpo,llds", "seed=0,1", "lr=2e-4,1", "nthr=true", "ratio_cap=none,10"]
    assert parse_grid(items) == {
        "method": ["grpo", "llds"],
        "seed": [0, 1],
        "lr": [2e-4, 1.0],
        "nthr": [True],
        "ratio_cap": [None, 10.0],
    }


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["seed"], "not of the form"),
        (["seed="], "not of the form"),
        (["seed=0", "seed=1"], "twice"),
        (["lambda=1"], "unknown setting of the grid 'lambda'"),
        (["loss=1"], "cannot vary 'loss'"),
        (["seed=x"], "seed=x: use a whole number"),
        (["llds_gate=word"], "llds_gate=word: use action, response, token"),
        (["nthr=1"], "use true or false"),
        (["betas=0.9"], "cannot vary 'betas'"),
    ],
)
def test_bad_grid_items_are_named(items, message):
    with pytest.raises(ValueError, match=message):
        parse_grid(items)


def test_a_grid_is_the_product_of_its_values():
    grid = {"seed": [0, 1], "lr": [2e-4, 4e-4], "method": ["llds"]}
    assert names(grid) == [
        "method=llds,lr=0.0002,seed=0",
        "method=llds,lr=0.0002,seed=1",
        "method=llds,lr=0.0004,seed=0",
        "method=llds,lr=0.0004,seed=1",
    ]


def test_a_weight_of_llds_leaves_grpo_alone():
    grid = {"method": ["grpo", "llds"], "seed": [0], "llds_coef": [0.1, 0.2]}
    cells = grid_cells(grid, Path("out"))
    assert [cell.path.name for cell in cells] == [
        "method=grpo,seed=0",
        "method=llds,llds_coef=0.1,seed=0",
        "method=llds,llds_coef=0.2,seed=0",
    ]
    assert [cell.config.loss.llds_coef for cell in cells] == [0, 0.1, 0.2]


def test_rows_that_llds_keeps_are_a_setting_of_sapo_too():
    grid = {"method": ["grpo", "sapo"], "seed": [0], "llds_preserve": ["positive", "nonnegative"]}
    assert [c.config.loss.llds_preserve for c in grid_cells(grid, Path("out"))][1:] == [
        "positive",
        "nonnegative",
    ]


def test_a_term_that_is_no_method_can_be_added_to_any():
    grid = {"method": ["grpo", "llds"], "seed": [0], "entropy_coef": [0.0, 0.1]}
    assert [cell.config.loss.entropy_coef for cell in grid_cells(grid, Path("out"))] == [0, 0.1] * 2


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"seed": [0]}, "names no method"),
        ({"method": ["grpo"]}, "names no seed"),
        ({"method": ["grpo"], "seed": [0], "llds_coef": [0.1]}, "no method .* has llds_coef"),
        ({"method": ["ppo"], "seed": [0]}, "unknown method 'ppo'"),
    ],
)
def test_bad_grids_are_named(grid, message):
    with pytest.raises(ValueError, match=message):
        grid_cells(grid, Path("out"))


def test_a_cell_name_is_a_folder_whatever_the_order():
    settings = {"seed": 1, "policy": "a/b c", "method": "llds", "ratio_cap": None}
    assert cell_name(settings) == "method=llds,policy=a-b-c,ratio_cap=none,seed=1"
    assert cell_name(dict(reversed(settings.items()))) == cell_name(settings)


# -- the runs ------------------------------------------------------------------------------------


def test_an_interrupted_cell_goes_on_and_leaves_no_checkpoint(micro, tmp_path):
    cell = Cell(tmp_path / "a", train_config("llds", 0, recipe=WORLD, **micro | {"steps": 3}))
    assert train(cell, batches=2, keep_checkpoints=False) == [1, 2]
    assert not is_finished(cell)
    assert [step for step, _ in Run(cell.path).checkpoints] == [2]
    assert train(cell, batches=9, keep_checkpoints=False) == [3]
    assert is_finished(cell)
    assert Run(cell.path).checkpoints == []

    whole = Cell(tmp_path / "b", cell.config)
    assert train(whole, batches=9) == [1, 2, 3]
    assert [step for step, _ in Run(whole.path).checkpoints] == [0, 3]
    for key in ("reward/mean", "likelihood/incorrect", "policy/entropy", "eval/heldout_em"):
        assert Run(cell.path).column(key) == Run(whole.path).column(key)


def test_a_run_killed_before_its_first_checkpoint_starts_again(micro, tmp_path):
    cell = Cell(tmp_path / "a", train_config("grpo", 0, recipe=WORLD, **micro | {"steps": 1}))
    train(cell, batches=0)
    ((_, folder),) = Run(cell.path).checkpoints
    (folder / "state.json").unlink()
    assert train(cell, batches=9) == [1]
    assert is_finished(cell)


def test_a_folder_of_other_settings_is_refused(micro, tmp_path):
    cell = Cell(tmp_path / "a", train_config("grpo", 0, recipe=WORLD, **micro))
    train(cell, batches=0)
    other = Cell(
        cell.path, train_config("grpo", 0, recipe=WORLD, **micro | {"lr": 1e-6, "steps": 7})
    )
    with pytest.raises(ValueError, match=r"steps 2, not 7, lr 0\.0\d+, not 1e-06: use another"):
        is_finished(other)


def test_jobs_under_one_are_refused():
    with pytest.raises(ValueError, match="jobs is 0"):
        train_cells([], 0, keep_checkpoints=True, on_batch=print, on_end=print)


@pytest.mark.long
def test_a_sweep_survives_a_failed_cell_and_skips_what_is_done(micro, tmp_path):
    grid = grid_of(micro, method=["grpo"], problems=[4, 10**6])  # more than there are questions
    failures = sweep(grid, tmp_path, 2)
    ((path, error),) = failures.items()
    assert "problems=1000000" in path.name and "questions for batches of 1000000" in error
    assert "\n" not in error and "Error" not in error
    (row,) = json.loads((tmp_path / "sweep.json").read_text())
    assert "problems=4" in row["cell"]
    assert (row["arm"], row["batches"]) == ("grpo", 2) and 0 <= row["heldout_em"] <= 1

    metrics = tmp_path / row["cell"] / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    assert sweep(grid | {"problems": [4]}, tmp_path, 1) == {}
    assert metrics.stat().st_mtime_ns == before


def test_a_grid_may_vary_the_world_and_a_policy_brings_its_recipe(tmp_path):
    grid = parse_grid(
        ["method=grpo,llds", "seed=0", "policy=half_taught", "misses=0,0.35", "world=shuffled"]
    )
    cells = grid_cells(grid, tmp_path)
    assert len(cells) == 4
    assert {cell.config.data.misses for cell in cells} == {0.0, 0.35}
    assert {cell.config.data.world for cell in cells} == {"shuffled"}
    assert {cell.config.updates_per_batch for cell in cells} == {
        SHUFFLED.settings["updates_per_batch"]
    }


def test_a_real_model_in_the_atlas_has_a_recipe_of_its_own(tmp_path):
    (cell,) = grid_cells(
        {"method": ["llds"], "seed": [0], "policy": ["x"], "world": ["shuffled"]}, tmp_path
    )
    assert cell.config.load.lora_rank == 32 and cell.config.rollout.top_k == 1
    assert cell.config == train_config("llds", 0, "x", world="shuffled")
    assert train_config("llds", 0, "x").rollout.top_k == 3  # the papers' own
