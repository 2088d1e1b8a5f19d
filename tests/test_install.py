"""The package outside a clone: what pip brings, what a wheel holds, commands in an empty folder."""

import inspect
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lldlib.cli import TRAIN, commands, main
from lldlib.config import data_dir

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
HEAVY = {
    *("torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "pandas"),
    *("scipy", "numpy", "matplotlib", "jaxtyping", "rank_bm25", "ipywidgets"),
}
# by hand: each command as far as its first import
NEED_TRAIN = {
    "demo": [],
    "train": ["--steps", "1"],
    "evaluate": ["--policy", "tiny"],
    "report": ["x", "--out", "y"],
    "explore": ["x", "--out", "y"],
    "sweep": ["--grid", "method=grpo", "seed=0", "--out", "y"],
    "warmstart": [],
    "sft": ["--files", "x"],
    "fit": ["--policy", "tiny", "--gpu", "1"],
    "serve": ["--corpus", "x"],
    "prepare": ["nq", "--out", "y", "--from", "x"],
    "check-llds": ["x:y"],
}
BLOCK = """
import sys
class Without:  # blocked modules look as if they were not installed
    finders = sys.meta_path[:]
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in {blocked!r}:
            specs = (finder.find_spec(name, path, target) for finder in Without.finders)
            return next(filter(None, specs), None)
sys.meta_path[:] = [Without]
from lldlib.cli import main
for arguments in {arguments!r}:
    print(main(arguments))
"""


def python(code: str, where: Path, **environment: str) -> subprocess.CompletedProcess:
    """A fresh python in the folder `where`, which has to end well."""
    return ran([sys.executable, "-c", code], where, **environment)


def ran(command: list[str], where: Path, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        command, cwd=where, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def requirements(lines: list[str]) -> dict[str, Requirement]:
    wanted = [Requirement(line) for line in lines]
    return {canonicalize_name(one.name): one for one in wanted}


# -- what is imported when ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import lldlib",
        "import lldlib.config, lldlib.recipes, lldlib.files, lldlib.seeds",
        "from lldlib.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from lldlib.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass",
        "from lldlib.cli import main\nmain(['--version'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, tmp_path):
    told = python(f"{code}\nimport sys\nprint(*sys.modules)", tmp_path, PYTHONPATH=str(ROOT))
    modules = {name.partition(".")[0] for name in told.stdout.splitlines()[-1].split()}
    assert "lldlib" in modules and not modules & HEAVY


def test_no_module_reads_data_when_it_is_imported(tmp_path):
    """Every module of a copy without data/ but those of engines, which may be missing."""
    shutil.copytree(
        ROOT / "lldlib", tmp_path / "lldlib", ignore=shutil.ignore_patterns("__pycache__")
    )
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in sorted((ROOT / "lldlib").rglob("*.py"))
        if not file.stem.startswith(("__", "trl", "verl"))
    ]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    python(f"{code}\nprint(importlib.import_module('lldlib').__file__)", tmp_path, PYTHONPATH="")


# -- what is missing ------------------------------------------------------------------------------


def blocked_run(blocked: set[str], arguments: list[list[str]], where: Path):
    """Exit codes and stderr of commands where some modules cannot be imported."""
    code = BLOCK.format(blocked=blocked, arguments=arguments)
    done = python(code, where, PYTHONPATH=str(ROOT))
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_without_pytorch_a_command_says_what_to_install(tmp_path):
    assert NEED_TRAIN.keys() | {"diagnose", "script"} == commands([]).keys()
    arguments = [[name, *flags] for name, flags in NEED_TRAIN.items()]
    codes, told = blocked_run(TRAIN, arguments, tmp_path)
    assert codes == ["2"] * len(arguments)
    line = "error: this command needs PyTorch and more: pip install 'lldlib[train]'"
    assert told == [line] * len(arguments)
    assert list(tmp_path.iterdir()) == []


def test_other_extras_are_named_too(tmp_path):
    arguments = [["serve", "--corpus", "x"]]
    codes, told = blocked_run({"fastapi"}, arguments, tmp_path)
    assert (codes, told) == (
        ["2"],
        ["error: serving needs fastapi and uvicorn: pip install 'lldlib[benchmarks]'"],
    )


def test_4_bits_name_their_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    arguments = ["train", "--policy", "tiny", "--load.quantize", "nf4", "--load.lora-rank", "2"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert told == "error: 4-bit weights need bitsandbytes: pip install 'lldlib[qlora]'\n"


def test_another_missing_module_is_not_hidden(monkeypatch):
    def fail(*_):
        raise ModuleNotFoundError("No module named 'nosuch'", name="nosuch")

    monkeypatch.setattr("lldlib.show.compare.write_report", fail)
    with pytest.raises(ModuleNotFoundError, match="nosuch"):
        main(["report", "x", "--out", "y"])


def test_the_doctor_needs_no_extra(tmp_path):
    log = growing_log(tmp_path)
    codes, told = blocked_run(TRAIN, [["diagnose", str(log)]], tmp_path)
    assert codes[0] == "log.jsonl" and codes[-1] == "0" and told == []


def growing_log(folder: Path) -> Path:
    """A log whose reward rises."""
    rows = [{"step": i, "reward": 0.2 + i / 100 + math.sin(i) / 50} for i in range(40)]
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return log


# -- where data/ is, and what may write there -----------------------------------------------------


def test_another_projects_data_folder_is_not_taken(tmp_path):
    (tmp_path / "lldlib").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("__init__", "config"):
        shutil.copy(ROOT / "lldlib" / f"{name}.py", tmp_path / "lldlib")
    code = "from lldlib.config import data_dir\ntry: print(data_dir())\nexcept OSError as e: "
    told = python(f"{code}print(e)", tmp_path, PYTHONPATH="")
    assert told.stdout.startswith("no data folder in ") and "install lldlib again" in told.stdout
    (tmp_path / "lldlib" / "data").mkdir()
    (tmp_path / "lldlib" / "data" / "models.json").write_text("{}")
    told = python(f"{code}print(e)", tmp_path, PYTHONPATH="")
    assert told.stdout == f"{tmp_path / 'lldlib' / 'data'}\n"


def test_no_command_writes_into_the_repository_unasked():
    """Every folder that a command writes to by itself lies under runs/, which git ignores."""
    assert "/runs/" in (ROOT / ".gitignore").read_text().split()
    for name, command in commands([]).items():
        out = inspect.signature(command).parameters.get("out")
        if out is not None and isinstance(out.default, Path):
            assert out.default.parts[0] == "runs", f"{name} writes to {out.default}"


def test_the_start_of_a_clone_is_where_it_was():
    assert data_dir() == ROOT / "data"


# -- what pip installs ----------------------------------------------------------------------------


def test_the_base_is_three_packages_in_ranges():
    assert set(requirements(PROJECT["project"]["dependencies"])) == {"numpy", "matplotlib", "tyro"}
    for extra, lines in EXTRAS.items():
        for one in requirements(lines).values():
            exact = any(part.operator == "==" for part in one.specifier)
            assert exact == (extra == "dev"), f"{extra}: {one}"


def test_the_error_knows_what_the_extra_brings():
    assert {name.replace("-", "_") for name in requirements(EXTRAS["train"])} == TRAIN


@pytest.mark.parametrize(
    ("name", "version"),
    [  # what verl 0.9.1 pins for its engines, and the least that it and TRL 1.16 take
        ("torch", "2.11.0"),
        ("transformers", "5.9.0"),
        ("transformers", "5.5.3"),
        ("accelerate", "1.10.1"),
        ("torch", "2.13.0"),
        ("transformers", "5.23.0"),
    ],
)
def test_the_ranges_hold_the_engines_versions(name, version):
    assert requirements(EXTRAS["train"])[name].specifier.contains(version)


def test_the_notebooks_exact_versions_are_within_the_ranges():
    pins = requirements((ROOT / "requirements.txt").read_text().split())
    asked = {"torch", "transformers", "peft", "bitsandbytes", "ipywidgets", "matplotlib"}
    assert asked | {"jupyterlab", "rank-bm25"} <= pins.keys()
    exact = {name: str(one.specifier).removeprefix("==") for name, one in pins.items()}
    exact |= {
        name: str(one.specifier).removeprefix("==")
        for name, one in requirements(EXTRAS["dev"]).items()
    }
    assert all(re.fullmatch(r"[\w.]+", version) for version in exact.values())
    lines = PROJECT["project"]["dependencies"] + [
        line for extra in EXTRAS if extra not in ("trl", "verl", "wandb") for line in EXTRAS[extra]
    ]
    for line in lines:
        one = Requirement(line)
        name = canonicalize_name(one.name)
        if name not in ("lldlib", "datasets"):  # datasets: of the hub, which no test asks
            assert one.specifier.contains(exact[name]), line


# -- the wheel ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, whose build folder holds nothing of before."""
    copy, made = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("lldlib", "data", "notebooks"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    ran([*pip, "--no-build-isolation", "--wheel-dir", str(made), "."], copy)
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """A folder with the installed wheel and its script."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    ran([*pip, "--target", str(folder), str(wheel)], folder)
    return folder


def lldlib(site: Path, where: Path, *arguments: str) -> str:
    """What the installed script prints, run in the folder `where`."""
    return ran([str(site / "bin" / "lldlib"), *arguments], where, PYTHONPATH=str(site)).stdout


def test_the_wheel_holds_every_module_and_what_commands_read(wheel):
    assert wheel.stat().st_size < 12e6
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "lldlib").rglob("*.py")}
    beside = {f"lldlib/notebooks/{file.name}" for file in (ROOT / "notebooks").glob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules | beside
    assert "lldlib/doctor/evidence.json" in names
    assert {"lldlib/show/picture.js", "lldlib/show/predict.js"} <= set(names)
    for pattern in PROJECT["tool"]["setuptools"]["package-data"]["lldlib.data"]:
        files = [file for file in (ROOT / "data").glob(pattern) if file.is_file()]
        assert files, pattern
        assert {f"lldlib/data/{file.relative_to(ROOT / 'data')}" for file in files} <= names


def test_the_script_tells_its_version_and_its_commands(site, tmp_path):
    assert lldlib(site, tmp_path, "--version") == "lldlib 0.1.0\n"
    text = lldlib(site, tmp_path, "--help")
    assert all(command in text for command in commands([])) and "usage: lldlib" in text


def test_the_installed_package_finds_its_data(site, tmp_path):
    code = """
from lldlib.config import data_dir
from lldlib.evaluate.published import maths_rows, qa_rows
from lldlib.policy.load import BUILT_IN, load_policy
from lldlib.policy.memory import known_models
from lldlib.world.atlas import World
print(data_dir(), len(qa_rows()), len(maths_rows()), len(World.load().facts))
print(len(known_models()) > 3, *(load_policy(name).model.num_parameters() for name in BUILT_IN))
"""
    told = python(code, tmp_path, PYTHONPATH=str(site)).stdout.split()
    assert told[:4] == [str(site / "lldlib" / "data"), "40", "20", "431"]
    assert told[4:] == ["True", "417312", "417312", "61632"]


def test_the_installed_package_has_what_the_course_needs(site, tmp_path):
    code = """
from lldlib.course import *
print(checks.__file__, *(len(recorded(arm)) for arm in ARMS), len(demo("grpo").metrics))
"""
    told = python(code, tmp_path, PYTHONPATH=str(site)).stdout.split()
    assert told == [str(site / "lldlib/notebooks/exercises.py"), "10", "10", "9", "25"]


@pytest.mark.long
def test_commands_run_from_an_empty_folder(site, tmp_path):
    """From nothing to a report, with no clone on the path."""
    log = growing_log(tmp_path)
    assert lldlib(site, tmp_path, "diagnose", str(log)).startswith("log.jsonl\n")
    demo = ["demo", "--policy", "sparks", "--steps", "1", "--jobs", "1"]
    assert "figure:  runs/demo/figure.png" in lldlib(site, tmp_path, *demo)

    train = "train --steps 1 --rollout.problems 2 --updates-per-batch 1 --eval-every 0"
    arguments = [
        [*train.split(), "--probe-every", "0"],
        ["fit", "--policy", "Qwen/Qwen2.5-0.5B", "--gpu", "16", "--tokens", "64"],
        ["report", "runs/train", "runs/demo/llds-seed0", "--out", "report"],
        ["report", str(site / "lldlib/data/atlas/main/grpo-seed0"), "--out", "recorded"],
    ]
    code = f"from lldlib.cli import main\nfor one in {arguments!r}: assert main(one) == 0, one"
    told = python(code, tmp_path, PYTHONPATH=str(site)).stdout
    assert "run folder: runs/train" in told and "fits in 16.0 GB" in told
    assert (tmp_path / "report" / "table.md").is_file()
    summary = json.loads((tmp_path / "recorded" / "summary.json").read_text())
    assert summary[0]["arm"] == "grpo"
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "runs", "report", "recorded"}
