"""Runs for the lab: one opens when it is needed, one replays a recording and trains on from it."""

import shutil

import pytest

from lldlib.recipes import WORLD, train_config
from lldlib.runs.folder import Run
from lldlib.show.lab import LiveLab
from lldlib.show.steering import RunControl
from lldlib.train.live import Replay, live
from lldlib.train.run import TrainingRun


def untimed(run: Run) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in run.metrics]


@pytest.fixture
def recorded(tmp_path, micro) -> Run:
    """Three batches, with a checkpoint at 2, and questions answered after each."""
    often = {"steps": 3, "checkpoint_every": 2, "questions_every": 1, "eval_every": 0}
    config = train_config("grpo", 0, recipe=WORLD, **micro | often)
    return TrainingRun(config, tmp_path / "recorded").run()


def test_a_live_run_opens_when_the_lab_needs_it(tmp_path, micro):
    make = live("llds", 3, tmp_path / "run", recipe=WORLD, **micro)
    assert not (tmp_path / "run").exists()
    lab = LiveLab(make)  # no event loop runs: it waits
    run = lab.runs["A"]
    assert (run.config.method, run.config.seed, run.config.checkpoint_every) == ("llds", 3, 2)
    lab.step()
    assert len(Run(tmp_path / "run").metrics) == 1
    assert {record["step"] for record in Run(run.out).questions} == {0, 1}


def test_a_replay_writes_what_was_recorded_and_no_more(tmp_path, recorded):
    replay = Replay(recorded, tmp_path / "replay")
    assert isinstance(replay, RunControl) and replay.points == [0]
    assert {record["step"] for record in Run(replay.out).questions} == {0}
    replay.step()
    shown = Run(replay.out)
    assert shown.metrics == recorded.metrics[:1] and replay.points == [0, 1]
    assert shown.rollouts == Run(recorded.path, batches=1).rollouts
    assert shown.questions == Run(recorded.path, batches=1).questions
    replay.step()
    replay.rewind(1)
    assert Run(replay.out).metrics == recorded.metrics[:1] and replay.next_batch == 1
    replay.step()
    replay.step()
    assert Run(replay.out).metrics == recorded.metrics
    assert Run(replay.out).questions == recorded.questions
    assert not Run(replay.out).checkpoints
    with pytest.raises(ValueError, match="no batch 4 was played"):
        replay.rewind(4)
    with pytest.raises(ValueError, match="has no knobs"):
        replay.turn(lr=1e-4)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("step", [1, 2])
def test_a_branch_of_a_replay_trains_on_as_the_run_did(tmp_path, recorded, kept, step):
    """From a checkpoint of the recording, or trained up to there: bit for bit the same."""
    if not kept:
        shutil.rmtree(recorded.path / "checkpoints")
    replay = Replay(recorded, tmp_path / "replay")
    replay.step()
    replay.step()
    first, second = (replay.branch(Run(replay.out), step, tmp_path / f"b{n}") for n in (1, 2))
    assert first.next_batch == second.next_batch == step
    first.run()
    assert untimed(Run(first.out)) == untimed(recorded)
    assert untimed(Run(second.out)) == untimed(recorded)[:step]
    trained = sorted(path.name for path in tmp_path.glob("replay-trained*"))
    assert trained == ([] if kept and step == 2 else ["replay-trained1"])  # once, for both


def test_a_recording_of_other_questions_is_told(tmp_path, recorded, caplog):
    """Trained again, its first batch earns something else: the world has changed since."""
    shutil.rmtree(recorded.path / "checkpoints")
    path = recorded.path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    reward = f'"reward/mean": {recorded.metrics[0]["reward/mean"]}'
    lines[0] = lines[0].replace(reward, '"reward/mean": 0.987')
    assert "0.987" in lines[0]
    path.write_text("\n".join(lines) + "\n")
    replay = Replay(Run(recorded.path), tmp_path / "replay")
    replay.step()
    replay.branch(Run(replay.out), 1, tmp_path / "b")
    assert "does not repeat here" in caplog.text


def test_what_cannot_be_replayed(tmp_path, recorded, micro):
    half = train_config("grpo", 0, recipe=WORLD, **micro | {"eval_every": 0})
    run = TrainingRun(half, tmp_path / "half")
    run.step()
    with pytest.raises(ValueError, match="has 1 of 2 batches"):
        Replay(Run(run.out), tmp_path / "no")
    run.turn(lr=1e-4)
    run.step()
    with pytest.raises(ValueError, match="was turned: give a run left alone"):
        Replay(Run(run.out), tmp_path / "no")
    assert not (tmp_path / "no").exists()
