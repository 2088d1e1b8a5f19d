"""Kill a run at any moment: resumed, it gives the numbers of an unbroken one, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import tiny_policy
from resume_worker import KNOBS, PATCHES, config
from safetensors.torch import load_file, save_file

from lldlib.evaluate.heldout import policy_of
from lldlib.policy.load import save_policy
from lldlib.runs import folder as runlog
from lldlib.runs.folder import METRICS, ROLLOUTS, Run
from lldlib.train.run import TrainingRun

HERE = Path(__file__).parent
LINES = 5  # of metrics.jsonl, after which the run is killed


def start(policy: Path, out: Path, *args: str) -> subprocess.Popen:
    paths = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "resume_worker.py"), str(policy), str(out), *args]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths})


def logged(out: Path) -> int:
    path = out / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(process: subprocess.Popen, out: Path, lines: int) -> None:
    """SIGKILL as soon as the log has that many lines."""
    while logged(out) < lines:
        try:
            pytest.fail(f"the run ended by itself with code {process.wait(timeout=0.01)}")
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random policy, an unbroken run of it, and two runs that were killed."""
    base = tmp_path_factory.mktemp("runs")
    save_policy(tiny_policy(3), base / "policy")
    killed = start(base / "policy", base / "killed")
    halved = start(base / "policy", base / "halved", "8")
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        kill_after(killed, base / "killed", LINES)
        TrainingRun(config(base / "policy"), base / "unbroken").run()
    assert killed.wait() == halved.wait() == -signal.SIGKILL
    return base


def apply(patch) -> None:
    for owner, name, value in PATCHES:
        patch.setattr(owner, name, value)


@pytest.fixture(autouse=True)
def micro(monkeypatch):
    apply(monkeypatch)


def numbers(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in run.metrics]


def assert_same_run(one: Run, other: Run) -> None:
    assert numbers(one) == numbers(other)
    assert (one.path / ROLLOUTS).read_bytes() == (other.path / ROLLOUTS).read_bytes()
    alarms = [[row for row in run.events if row["kind"] == "alarm"] for run in (one, other)]
    assert alarms[0] == alarms[1]
    (tensors, state), (others, other_state) = (r.load_checkpoint(None) for r in (one, other))
    assert state == other_state and tensors.keys() == others.keys()
    assert any(name.startswith("optimizer.exp_avg.") for name in tensors)
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def resumed(folder: Path, name: str) -> Run:
    return TrainingRun(config(folder / "policy"), folder / name, resume=True).run()


def test_the_alarm_watches_what_the_log_holds(folder, tmp_path):
    """Six digits, as a resumed run reads them, so that an alarm never depends on a kill."""
    run = TrainingRun(config(folder / "policy"), tmp_path / "run")
    run.step()
    assert run.monitor.columns["probe/content"][0] is not None
    for key, series in run.monitor.columns.items():
        assert series == Run(run.out).column(key)


def test_the_unbroken_run_is_one_worth_comparing(folder):
    rows = numbers(Run(folder / "unbroken"))
    assert [row["step"] for row in rows] == list(range(16))
    assert sum(row["grad/norm"] > 0 for row in rows) > 8
    assert max(row["llds/value"] for row in rows) > 0
    assert max(row["kl/reference"] for row in rows) > 0
    assert len({row["probe/logp"] for row in rows}) > 8
    assert [row["step"] for row in rows if "eval/heldout_em" in row] == [4, 9, 14, 15]
    assert [n for n, _ in Run(folder / "unbroken").checkpoints] == list(range(0, 17, 2))


def test_a_run_killed_while_training(folder):
    assert LINES <= logged(folder / "killed") < 16
    run = resumed(folder, "killed")
    assert_same_run(run, Run(folder / "unbroken"))
    (event,) = [row for row in run.events if row["kind"] == "resume"]
    assert event["step"] % 2 == 0 and event["step"] <= 16


def test_a_run_killed_while_writing_a_checkpoint(folder):
    before = Run(folder / "halved")
    assert len(before.metrics) == 8  # batches 0 to 7, of which 6 and 7 have no whole checkpoint
    assert [number for number, _ in before.checkpoints] == [0, 2, 4, 6]
    assert any(p.name.endswith(".tmp") for p in (before.path / "checkpoints").iterdir())
    run = resumed(folder, "halved")
    assert_same_run(run, Run(folder / "unbroken"))
    assert not any(p.name.endswith(".tmp") for p in (run.path / "checkpoints").iterdir())


class Killed(BaseException):
    """Ends a run where it stands; nothing in the library catches or cleans up after it."""


def die(*args, **kwargs):
    raise Killed


def break_off(folder: Path, name: str, at: str, monkeypatch) -> None:
    """A run of 4 batches that dies in the writing of checkpoint 2, at a given place."""
    run = TrainingRun(replace(config(folder / "policy"), steps=4), folder / name)
    run.step()
    if at == "in a line of the log":
        line = run.writer._files[METRICS]
        monkeypatch.setattr(
            run.writer, "_line", lambda *args: (line.write(b'{"step": 1, "rew'), die())
        )
    elif at == "before the line":
        monkeypatch.setattr(run.writer, "rollout", die)
    elif at == "before the rename":
        monkeypatch.setattr(runlog.os, "replace", die)
    elif at == "after the checkpoint":
        monkeypatch.setattr(run.writer, "event", die)
    with pytest.raises(Killed):
        run.step()
    monkeypatch.undo()
    apply(monkeypatch)


@pytest.mark.parametrize(
    "at", ["in a line of the log", "before the line", "before the rename", "after the checkpoint"]
)
def test_a_run_broken_off_at_any_place(folder, at, monkeypatch):
    name = at.replace(" ", "_")
    break_off(folder, name, at, monkeypatch)
    run = resumed(folder, name)
    assert numbers(run) == numbers(Run(folder / "unbroken"))[:3] + numbers(run)[3:]
    assert [row["step"] for row in run.metrics] == [0, 1, 2, 3]
    tensors, _ = Run(folder / "unbroken").load_checkpoint(4)
    again, _ = run.load_checkpoint(4)
    assert all(torch.equal(tensors[key], again[key]) for key in tensors)


def test_a_run_killed_before_its_first_checkpoint_starts_again(folder, monkeypatch):
    settings = replace(config(folder / "policy"), steps=2)
    monkeypatch.setattr(runlog, "save_file", die)
    with pytest.raises(Killed):
        TrainingRun(settings, folder / "early")
    monkeypatch.undo()
    apply(monkeypatch)
    run = resumed(folder, "early")
    assert [row["step"] for row in run.metrics] == [0, 1]
    assert numbers(run)[0] == numbers(Run(folder / "unbroken"))[0]


def test_a_whole_run_resumed_does_nothing_more(folder):
    before = (folder / "unbroken" / METRICS).read_bytes()
    run = resumed(folder, "unbroken")
    assert (run.path / METRICS).read_bytes() == before


def test_knobs_turned_before_the_checkpoint_hold_after_it(folder):
    settings = replace(config(folder / "policy"), steps=4)
    loss = replace(settings.loss, llds_coef=1.0, kl_coef=0.0)
    rollout = replace(settings.rollout, max_tokens=30)
    run = TrainingRun(settings, folder / "turned")
    run.step()
    run.turn(lr=5e-3, loss=loss, rollout=rollout)
    run.step()  # its end is checkpoint 2
    run.writer.close()
    whole = TrainingRun(settings, folder / "turned_unbroken")
    whole.step()
    whole.turn(lr=5e-3, loss=loss, rollout=rollout)
    whole.run()
    again = resumed(folder, "turned")
    assert_same_run(again, Run(folder / "turned_unbroken"))
    assert Run(folder / "turned").load_checkpoint(4)[1]["config"]["lr"] == 5e-3


def knobs(run: Run) -> list[dict]:
    return [event for event in run.events if event["kind"] == "knob"]


@pytest.fixture(scope="module")
def turned(folder) -> Path:
    """An unbroken run whose knobs are turned after batch 3."""
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        run = TrainingRun(config(folder / "policy"), folder / "knobs")
        for _ in range(3):
            run.step()
        run.turn(**KNOBS)
        run.run()
    return folder / "knobs"


def test_a_run_killed_right_after_a_knob_keeps_it(folder, turned):
    """Between two checkpoints: without one of its own the knob would be lost."""
    process = start(folder / "policy", folder / "knob_killed", "turn")
    assert process.wait() == -signal.SIGKILL
    assert len(Run(folder / "knob_killed").metrics) == 3
    run = resumed(folder, "knob_killed")
    assert_same_run(run, Run(turned))
    (event,) = knobs(run)
    assert event == knobs(Run(turned))[0]
    assert event["step"] == 3 and event["lr"] == 5e-3 and event["loss"]["llds_coef"] == 0
    assert "seed" not in event and "rollout" not in event  # only what changed


def test_a_branch_shares_the_past_and_keeps_its_knobs(folder, turned):
    """Branched with the same knobs at the same batch, it is the run that turned them there."""
    source = folder / "branch_source"
    run = TrainingRun(config(folder / "policy"), source)
    for _ in range(3):
        run.step()
    run.checkpoint()
    run.step()
    branch = TrainingRun.branch(Run(source), 3, folder / "branch", **KNOBS)
    assert [number for number, _ in Run(folder / "branch").checkpoints] == [3]
    branch.writer.close()  # as if killed here
    assert_same_run(resumed(folder, "branch"), Run(turned))
    assert knobs(Run(folder / "branch")) == knobs(Run(turned))
    assert len(Run(source).metrics) == 4
    with pytest.raises(FileExistsError, match="branch into a new folder"):
        TrainingRun.branch(Run(source), 3, folder / "branch")
    with pytest.raises(ValueError, match=r"no checkpoint at batch 1: .* has 0, 2, 3, 4"):
        TrainingRun.branch(Run(source), 1, folder / "other")
    assert not (folder / "other").exists()


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_batch_that_was_broken_off_is_never_trained_on(folder, monkeypatch, error):
    """Its updates may be done and its row not logged."""
    out = folder / f"broken_{type(error).__name__}"
    run = TrainingRun(config(folder / "policy"), out)
    run.step()
    run.step()
    with monkeypatch.context() as patch:
        patch.setattr(run.writer, "rollout", lambda *_: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            run.step()
    for call in (run.step, run.checkpoint, lambda: run.turn(lr=5e-3)):
        with pytest.raises(ValueError, match=r"batch 3 of .* was broken off: rewind"):
            call()
    run.rewind(2)
    run.run()
    assert_same_run(Run(out), Run(folder / "unbroken"))


@pytest.mark.parametrize("lacks", ["step", "config", "skipped"])
def test_a_checkpoint_of_another_version_is_refused_in_one_line(folder, lacks):
    out = folder / f"older_{lacks}"
    shutil.copytree(folder / "unbroken", out)
    for state in out.glob("checkpoints/*/state.json"):
        held = json.loads(state.read_text())
        del held[lacks]
        state.write_text(json.dumps(held))
    with pytest.raises(ValueError, match="of another version: start a new run"):
        TrainingRun(replace(config(folder / "policy"), steps=20), out, resume=True)


def test_weights_of_another_policy_are_refused(folder):
    """Under other names the policy that is asked would be the untrained one."""
    out = folder / "renamed"
    shutil.copytree(folder / "unbroken", out)
    policy_of(Run(out), None)
    file = max(out.glob("checkpoints/*/tensors.safetensors"))
    tensors = {k.replace("model.", "model.base."): v for k, v in load_file(file).items()}
    save_file(tensors, file)
    with pytest.raises(ValueError, match="weights are not this policy's"):
        policy_of(Run(out), None)
    with pytest.raises(ValueError, match="weights are not this policy's"):
        TrainingRun(replace(config(folder / "policy"), steps=20), out, resume=True)


def test_a_rewound_run_goes_the_same_way_again(folder):
    run = TrainingRun(config(folder / "policy"), folder / "rewound")
    for _ in range(5):
        run.step()
    run.turn(**KNOBS)
    run.step()
    with pytest.raises(FileNotFoundError, match="no checkpoint 3, only 0, 2, 4, 5"):
        run.rewind(3)
    assert run.trainer.step_index == 6
    run.rewind(2)
    assert [number for number, _ in Run(run.out).checkpoints] == [0, 2]
    assert run.trainer.config.lr == 1e-3 and not knobs(Run(run.out))
    assert_same_run(run.run(), Run(folder / "unbroken"))


def test_a_run_without_checkpoints_is_not_overwritten(folder):
    without = shutil.ignore_patterns("checkpoints")
    shutil.copytree(folder / "unbroken", folder / "recorded", ignore=without)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint") as error:
        resumed(folder, "recorded")
    assert "\n" not in str(error.value)
    assert len(Run(folder / "recorded").metrics) == 16


def test_a_new_run_does_not_overwrite_an_old_one(folder):
    with pytest.raises(FileExistsError, match="--resume"):
        TrainingRun(config(folder / "policy"), folder / "unbroken")
    with pytest.raises(FileNotFoundError, match="no run folder"):
        resumed(folder, "never")
