"""A grid of runs at the collapse setting: one folder a cell, resumed, finished ones skipped."""

import dataclasses
import itertools
import json
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lldlib.config import LossConfig, RolloutConfig, TrainConfig
from lldlib.recipes import collapse_config, method
from lldlib.runs.folder import CONFIG, Run
from lldlib.runs.summary import summarise
from lldlib.train.workers import Cell, train_with_bar

SUMMARY = "sweep.json"
TYPES = {
    name: kind
    for config in (TrainConfig, RolloutConfig, LossConfig)
    for name, kind in typing.get_type_hints(config).items()
    if not dataclasses.is_dataclass(kind)
}
# settings that begin so mean nothing to a method without the term
REGULARIZERS = ("llds", "lp_reg")

Grid = Mapping[str, Sequence[Any]]
Settings = dict[str, Any]


def sweep(grid: Grid, out: Path, jobs: int) -> dict[Path, str]:
    """Train every cell of the grid in its own folder of `out`; returns what went wrong, by folder.

    `out`/sweep.json has a row for every whole run in `out`, also those of earlier grids: `cell`,
    the folder's name, and `summary.summarise`. It is written anew after each run.
    """
    rows = {path: _row(path) for path in sorted(out.glob("*")) if _is_whole(path)}

    def on_end(cell: Cell, error: str | None) -> None:
        if error is None:
            rows[cell.path] = _row(cell.path)
        _write(out / SUMMARY, [rows[path] for path in sorted(rows)])

    return train_with_bar(grid_cells(grid, out), jobs, keep_checkpoints=False, on_end=on_end)


def parse_grid(items: Sequence[str]) -> dict[str, list[Any]]:
    """From ["method=grpo,llds", "lr=2e-4,4e-4"] to the values of each setting.

    Raises ValueError, naming the item, for one that is not NAME=VALUE,VALUE, a name twice, an
    unknown name, or a value of the wrong kind.
    """
    grid: dict[str, list[Any]] = {}
    for item in items:
        name, equals, values = item.partition("=")
        if not equals or not values:
            raise ValueError(f"grid item {item!r} is not of the form name=value,value")
        if name in grid:
            raise ValueError(f"the grid names {name} twice: list all its values in one item")
        if name not in TYPES:
            raise ValueError(f"unknown setting {name!r} in the grid: use a field of config.py")
        grid[name] = list(dict.fromkeys(_value(name, text) for text in values.split(",")))
    return grid


def grid_cells(grid: Grid, out: Path) -> list[Cell]:
    """A cell per combination; combinations that come to the same run make one.

    A setting of LLDS or Lp-Reg is left out for a method without that term, so that GRPO stays GRPO.
    Raises ValueError if the grid lacks method or seed, or no method has the term of a setting.
    """
    for name in ("method", "seed"):
        if name not in grid:
            raise ValueError(f"the grid names no {name}: add {name}=...")
    names, cells, used = _ordered(grid), {}, set()
    for values in itertools.product(*(grid[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        kept = {k: v for k, v in chosen.items() if _applies(k, chosen["method"])}
        used |= kept.keys()
        path = out / cell_name(kept)
        cells[path] = Cell(path, collapse_config(**kept))
    if idle := [name for name in names if name not in used]:
        raise ValueError(
            f"no method of the grid has {', '.join(idle)}: add one that has, or drop it"
        )
    return list(cells.values())


def cell_name(settings: Settings) -> str:
    """The folder of a cell, such as "method=llds,lr=0.0004,seed=1"; the keys' order is fixed."""
    parts = (f"{name}={_text(settings[name])}" for name in _ordered(settings))
    return re.sub(r"[^\w.,=+-]", "-", ",".join(parts))


def _ordered(names: Mapping[str, Any]) -> list[str]:
    """Method first, seed last, the rest by name."""
    return sorted(names, key=lambda name: (name == "seed", name != "method", name))


def _applies(name: str, method_name: str) -> bool:
    """Whether the setting means anything to the method."""
    preset = method(method_name)
    terms = [term for term in REGULARIZERS if name.startswith(f"{term}_")]
    return all(getattr(preset, f"{term}_coef") for term in terms)


def _value(name: str, text: str) -> Any:
    """The text as a value of the setting's type."""
    kind = TYPES[name]
    options = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        if text not in options:
            raise ValueError(f"{name}={text}: use one of {', '.join(options)}")
        return text
    if isinstance(kind, types.UnionType):  # a number or none
        if text == "none":
            return None
        kind = options[0]
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{name}={text}: use true or false")
        return text == "true"
    if kind not in (int, float, str):
        raise ValueError(f"{name} cannot be swept: it takes more than one value at a time")
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name}={text}: give a value of type {kind.__name__}") from None


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _is_whole(path: Path) -> bool:
    if not (path / CONFIG).is_file():
        return False
    run = Run(path)
    return len(run.metrics) >= run.config["steps"]


def _row(path: Path) -> dict[str, Any]:
    return {"cell": path.name} | summarise(Run(path))


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    os.replace(fresh, path)
