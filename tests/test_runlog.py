"""The run folder: round trips, kills in the middle of a write, resume, bad input."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from lldlib.runs import folder as folder_module
from lldlib.runs.folder import Run, RunWriter


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


EPISODE = {"question": "?", "answers": ["a"], "reward": 0.0, "stop": "length", "turns": []}


def write_run(folder, steps):
    writer = RunWriter.create(folder, {"seed": 3, "method": "grpo"})
    for step in range(steps):
        writer.metrics(step, {"reward/mean": step / 10})
        writer.rollout(step, EPISODE | {"answer": f"episode {step}"})
    writer.event(0, "knob", lr=1e-4)
    writer.close()
    return writer


def cut(path, nbytes):
    path.write_bytes(path.read_bytes()[:-nbytes])


def one_line(error):
    return "\n" not in str(error.value)


def test_round_trip(folder):
    write_run(folder, 3)
    run = Run(folder)
    assert run.config == {"seed": 3, "method": "grpo"}
    assert run.metrics[2] == {"step": 2, "reward/mean": 0.2}
    assert run.series("reward/mean") == ([0, 1, 2], [0.0, 0.1, 0.2])
    assert run.rollouts[1] == {"step": 1} | EPISODE | {"answer": "episode 1"}
    assert run.events == [{"step": 0, "kind": "knob", "lr": 1e-4}]
    assert run.series("no/such") == ([], [])


def test_the_first_batches_of_a_run(folder):
    write_run(folder, 3)
    run = Run(folder, batches=2)
    assert run.column("reward/mean") == [0.0, 0.1]
    assert [row["step"] for row in run.rollouts] == [0, 1] and len(run.events) == 1
    assert Run(folder, batches=9).metrics == Run(folder).metrics


def test_lines_are_readable_before_close(folder):
    writer = RunWriter.create(folder, {})
    writer.metrics(0, {"reward/mean": 1.0})
    assert Run(folder).series("reward/mean") == ([0], [1.0])
    writer.close()


def test_metrics_drop_what_was_not_measured_and_round_to_six_digits(folder):
    writer = RunWriter.create(folder, {})
    row = {"a/nan": math.nan, "a/inf": math.inf, "a/none": None, "a/third": 1 / 3, "a/n": 1234567}
    told = writer.metrics(0, row | {"a/tensor": torch.tensor(2.5), "a/big": 1234567.8})
    writer.close()
    expected = {
        "a/inf": None,
        "a/third": 0.333333,
        "a/n": 1234567,
        "a/tensor": 2.5,
        "a/big": 1234570.0,
    }
    assert told == expected and Run(folder).metrics == [{"step": 0} | expected]
    assert row["a/third"] == 1 / 3  # the caller's row keeps its digits


def test_series_skips_the_steps_that_lack_the_key(folder):
    writer = RunWriter.create(folder, {})
    writer.metrics(0, {"grad/norm": 1.0})
    writer.metrics(1, {"grad/norm": math.nan})
    writer.metrics(2, {"grad/norm": 3.0})
    writer.close()
    assert Run(folder).series("grad/norm") == ([0, 2], [1.0, 3.0])
    assert Run(folder).column("grad/norm") == [1.0, None, 3.0]


def test_the_frame_holds_the_numbers_of_the_file(folder):
    writer = RunWriter.create(folder, {})
    writer.metrics(0, {"grad/norm": 0.1, "update/skipped": 0})
    writer.metrics(1, {"update/skipped": 2})
    writer.close()
    frame = Run(folder).frame
    assert frame.index.name == "step" and frame.index.tolist() == [0, 1]
    assert frame["grad/norm"][0] == 0.1 and math.isnan(frame["grad/norm"][1])
    assert Run(folder).column("update/skipped") == [0, 2]
    assert isinstance(Run(folder).column("update/skipped")[0], int)
    assert Run(folder).column("no/such") == [None, None]


def test_the_metrics_are_read_once(folder):
    write_run(folder, 2)
    run = Run(folder)
    assert len(run.frame) == 2
    (folder / "metrics.jsonl").unlink()
    assert len(run.frame) == 2 and Run(folder).frame.empty


def test_every_line_is_strict_json_and_keeps_unicode(folder):
    writer = RunWriter.create(folder, {})
    said = {"role": "action", "text": "São\u2028Tomé", "logp": [math.nan, -math.inf, 1 / 3]}
    writer.rollout(0, EPISODE | {"turns": [said], "more": [math.nan, [-math.inf]]})
    writer.event(0, "alarm", value=math.nan)
    writer.close()
    for name in ("rollouts.jsonl", "events.jsonl"):
        json.loads((folder / name).read_text("utf-8"), parse_constant=pytest.fail)
    (record,) = Run(folder).rollouts
    assert record["turns"] == [said | {"logp": [None, None, 0.333333]}]
    assert record["more"] == [None, [None]] and record["answer"] is None


def test_a_bad_metric_key_is_refused(folder):
    writer = RunWriter.create(folder, {})
    with pytest.raises(ValueError, match="'reward' is not of the form") as error:
        writer.metrics(0, {"reward": 1.0})
    assert one_line(error)
    writer.close()
    assert Run(folder).metrics == []


def test_create_refuses_a_folder_with_a_run(folder):
    write_run(folder, 1)
    with pytest.raises(FileExistsError, match="--resume, or another --out") as error:
        RunWriter.create(folder, {"seed": 4})
    assert one_line(error)
    assert Run(folder).config["seed"] == 3


def test_create_takes_an_empty_folder(folder):
    folder.mkdir()
    RunWriter.create(folder, {"seed": 1}).close()
    assert Run(folder).config == {"seed": 1}


@pytest.mark.parametrize("lost", [1, 2, 10])
def test_a_half_written_last_line_is_ignored(folder, lost):
    # the last line is '{"step": 2, "reward/mean": 0.2}\n': losing 1 byte leaves it whole
    write_run(folder, 3)
    cut(folder / "metrics.jsonl", lost)
    assert Run(folder).series("reward/mean")[0] == ([0, 1, 2] if lost == 1 else [0, 1])


def test_a_last_line_cut_inside_a_letter_is_ignored(folder):
    writer = RunWriter.create(folder, {})
    writer.rollout(0, EPISODE | {"answer": "a"})
    writer.rollout(1, EPISODE | {"answer": "é"})
    writer.close()
    cut(folder / "rollouts.jsonl", len(b'\xa9"}\n'))
    assert [row["step"] for row in Run(folder).rollouts] == [0]


@pytest.mark.parametrize("broken", ['{"step": 1, "rew', "[1, 2]", '{"reward/mean": 1}', ""])
def test_a_broken_line_in_the_middle_names_file_and_line(folder, broken):
    write_run(folder, 3)
    path = folder / "metrics.jsonl"
    first, _, third = path.read_text().splitlines()
    path.write_text("\n".join([first, broken, third]) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2") as error:
        _ = Run(folder).metrics
    assert one_line(error)


def test_a_missing_folder_and_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run folder at"):
        Run(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        Run(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run folder at"):
        RunWriter.resume(tmp_path / "nowhere", 0)


def test_a_broken_config_names_the_file(folder):
    write_run(folder, 1)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON") as error:
        _ = Run(folder).config
    assert one_line(error)


def test_resume_drops_later_lines_and_appends(folder):
    write_run(folder, 5)
    cut(folder / "metrics.jsonl", 4)
    writer = RunWriter.resume(folder, 3)
    writer.metrics(3, {"reward/mean": 9.0})
    writer.close()
    run = Run(folder)
    assert run.series("reward/mean") == ([0, 1, 2, 3], [0.0, 0.1, 0.2, 9.0])
    assert [row["step"] for row in run.rollouts] == [0, 1, 2]
    assert len(run.events) == 1


def test_resume_keeps_earlier_lines_byte_for_byte(folder):
    write_run(folder, 5)
    before = (folder / "metrics.jsonl").read_bytes()
    RunWriter.resume(folder, 3).close()
    after = (folder / "metrics.jsonl").read_bytes()
    assert after == b"".join(before.splitlines(keepends=True)[:3])


def test_resume_drops_later_checkpoints_and_leftovers(folder):
    writer = write_run(folder, 5)
    for step in (2, 4):
        writer.checkpoint(step, {"w": torch.ones(1)}, {})
    (folder / "checkpoints" / "step_000005.tmp").mkdir()
    RunWriter.resume(folder, 2).close()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_000002"]


def test_an_interrupt_in_a_rewind_leaves_no_half_of_a_checkpoint(folder, monkeypatch, caplog):
    writer = write_run(folder, 5)
    for step in (2, 4):
        writer.checkpoint(step, {"w": torch.ones(1)}, {})
    writer.close()
    with monkeypatch.context() as patched:

        def half(path, **_):
            if Path(path).exists():
                next(Path(path).iterdir()).unlink()
                raise KeyboardInterrupt

        patched.setattr(shutil, "rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            RunWriter.resume(folder, 2)
    assert [step for step, _ in Run(folder).checkpoints] == [2] and caplog.text == ""
    RunWriter.resume(folder, 2).close()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_000002"]


def test_what_interrupts_left_beside_a_checkpoint_goes_before_it(folder, monkeypatch):
    writer, removed = write_run(folder, 5), []
    for step in (2, 4):
        writer.checkpoint(step, {"w": torch.ones(1)}, {})
    writer.close()
    for end in (".gone", ".old", ".tmp"):
        shutil.copytree(
            folder / "checkpoints" / "step_000004", folder / "checkpoints" / f"step_000004{end}"
        )
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (removed.append(Path(a).name), real(a, b)))
    RunWriter.resume(folder, 2).close()
    assert removed[:3] == ["step_000004.tmp", "step_000004.old", "step_000004"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_000002"]


@pytest.mark.parametrize("moment", ["aside", "back"])
def test_a_reader_sees_a_whole_checkpoint_while_it_is_replaced(folder, monkeypatch, caplog, moment):
    writer, seen = write_run(folder, 3), []
    writer.checkpoint(2, {"w": torch.ones(1)}, {"version": 1})
    real = os.replace

    def replace(source, target):
        real(source, target)
        if Path(target).suffix == ".old" or moment == "back":
            seen.append(Run(folder).load_checkpoint(None)[1]["version"])

    monkeypatch.setattr(os, "replace", replace)
    writer.checkpoint(2, {"w": torch.ones(1)}, {"version": 2})
    assert seen == {"aside": [1], "back": [1, 2]}[moment] and caplog.text == ""


def test_a_reader_that_looked_before_the_old_one_went_aside_finds_it(folder, monkeypatch, caplog):
    writer = write_run(folder, 3)
    path = writer.checkpoint(2, {"w": torch.ones(1)}, {})
    whole, looks = folder_module._is_whole, []

    def moved(place):  # away at the first look, as a writer moves it
        looks.append(place)
        if len(looks) == 1:
            os.replace(path, path.with_suffix(".old"))
        return whole(place)

    monkeypatch.setattr(folder_module, "_is_whole", moved)
    assert Run(folder).checkpoints == [(2, path.with_suffix(".old"))] and caplog.text == ""


def test_a_kill_while_resume_truncates_leaves_the_log_as_it_was(folder, monkeypatch):
    write_run(folder, 5)
    monkeypatch.setattr(os, "replace", _killed)
    with pytest.raises(KeyboardInterrupt):
        RunWriter.resume(folder, 3)
    assert len(Run(folder).metrics) == 5


def _killed(*_):
    raise KeyboardInterrupt


def test_checkpoint_round_trip_is_exact(folder):
    writer = write_run(folder, 1)
    tensors = {"w": torch.randn(3, 4).T, "half": torch.tensor([1.5], dtype=torch.bfloat16)}
    tensors["tied"] = tensors["w"]
    state = {"rng": [1, 2], "ema": 1 / 3}
    path = writer.checkpoint(1, tensors, state)
    assert path == folder / "checkpoints" / "step_000001"
    loaded, loaded_state = Run(folder).load_checkpoint(1)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert loaded_state == state


def test_tensors_and_state_are_of_one_writing(folder, monkeypatch):
    """A knob that is turned while another process reads replaces the checkpoint in between."""
    writer = write_run(folder, 1)
    real, once = folder_module.load_file, []

    def load(path):
        tensors = real(path)
        if not once:
            once.append(writer.checkpoint(1, {"w": torch.ones(2)}, {"step": 1, "lr": 2.0}))
        return tensors

    writer.checkpoint(1, {"w": torch.zeros(2)}, {"step": 1, "lr": 1.0})
    monkeypatch.setattr(folder_module, "load_file", load)
    tensors, state = Run(folder).load_checkpoint(1)
    assert once and (tensors["w"].tolist(), state["lr"]) == ([1.0, 1.0], 2.0)


def test_the_latest_checkpoint_is_by_number(folder):
    writer = write_run(folder, 1)
    for step in (20, 3, 1_000_000):
        writer.checkpoint(step, {"w": torch.tensor([float(step)])}, {"step": step})
    run = Run(folder)
    assert [step for step, _ in run.checkpoints] == [3, 20, 1_000_000]
    assert run.load_checkpoint(None)[1] == {"step": 1_000_000}
    assert run.load_checkpoint(3)[0]["w"].item() == 3.0


def test_a_checkpoint_of_the_same_step_replaces_the_old_one(folder):
    writer = write_run(folder, 1)
    for value in (1.0, 2.0):
        writer.checkpoint(5, {"w": torch.tensor([value])}, {"value": value})
    tensors, state = Run(folder).load_checkpoint(5)
    assert (tensors["w"].item(), state["value"]) == (2.0, 2.0)
    assert len(list((folder / "checkpoints").iterdir())) == 1


def test_a_kill_before_the_rename_leaves_no_checkpoint(folder, monkeypatch):
    writer = write_run(folder, 1)
    writer.checkpoint(1, {"w": torch.ones(1)}, {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", _killed)
        with pytest.raises(KeyboardInterrupt):
            writer.checkpoint(2, {"w": torch.ones(1)}, {})
    assert [step for step, _ in Run(folder).checkpoints] == [1]
    writer.checkpoint(2, {"w": torch.ones(1)}, {})  # the leftover is no obstacle
    assert [step for step, _ in Run(folder).checkpoints] == [1, 2]


def test_whoever_reads_a_run_reads_its_checkpoints(folder):
    late = write_run(folder, 1).checkpoint(1, {"w": torch.ones(4)}, {})
    assert (
        len({(late / name).stat().st_mode for name in ("state.json", "tensors.safetensors")}) == 1
    )


@pytest.mark.parametrize("damage", ["no state", "no tensors", "cut state", "cut tensors"])
def test_a_half_written_checkpoint_is_skipped_with_a_warning(folder, caplog, damage):
    writer = write_run(folder, 1)
    writer.checkpoint(1, {"w": torch.ones(4)}, {})
    late = writer.checkpoint(2, {"w": torch.ones(4)}, {"a": 1})
    verb, what = damage.split()
    path = late / {"state": "state.json", "tensors": "tensors.safetensors"}[what]
    path.unlink() if verb == "no" else cut(path, 3)
    assert Run(folder).load_checkpoint(None)[1] == {}
    assert "half-written checkpoint" in caplog.text


def test_a_checkpoint_that_is_not_there(folder):
    writer = write_run(folder, 1)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        Run(folder).load_checkpoint(None)
    writer.checkpoint(1, {"w": torch.ones(1)}, {})
    with pytest.raises(FileNotFoundError, match="has no checkpoint 7, only 1"):
        Run(folder).load_checkpoint(7)
