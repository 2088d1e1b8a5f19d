"""The live lab on a run without a model: what the buttons do, and that the kernel stays free."""

import asyncio
import base64
import os
import re
import signal
import sys
import threading
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from lldlib.config import train_config_from
from lldlib.recipes import SHUFFLED, WORLD, train_config
from lldlib.runs.folder import Run, RunWriter
from lldlib.show.lab import LiveLab
from lldlib.show.steered import knob_changes
from lldlib.show.steering import remedies
from lldlib.train.run import TrainingRun, describe

WAIT = 600  # seconds after which a test that hangs gives up


class FakeRun:
    """A run whose batches cost nothing; `gate`, if set, holds each batch until it is released."""

    gate: threading.Semaphore | None = None

    def __init__(self, out, config, writer, next_batch=0):
        self.out, self.config, self.writer, self.next_batch = out, config, writer, next_batch
        self.threads = set()

    @classmethod
    def new(cls, out, **config) -> "FakeRun":
        config = train_config("grpo", 0, **config)
        run = cls(out, config, RunWriter.create(out, describe(config)))
        run.checkpoint()
        return run

    def step(self):
        self.threads.add(threading.current_thread())
        if self.gate is not None:
            assert self.gate.acquire(timeout=WAIT)
        row = {"reward/mean": 0.5 if self.config.loss.llds_coef else 0.4}
        self.writer.metrics(self.next_batch, row)
        self.next_batch += 1
        return row

    def turn(self, **knobs):
        if knobs.get("lr") == 5e-5:
            raise ValueError("lr is <5e-5>")
        self.config = replace(self.config, **knobs)
        fields = {k: v for k, v in describe(self.config).items() if k in knobs}
        self.writer.event(self.next_batch, "knob", **fields)

    @property
    def points(self):
        return [step for step, _ in Run(self.out).checkpoints]

    def checkpoint(self):
        self.writer.checkpoint(self.next_batch, {}, {"step": self.next_batch})

    def rewind(self, step):
        self.writer.close()
        self.writer, self.next_batch = RunWriter.resume(self.out, step), step

    @classmethod
    def branch(cls, source, step, out):
        config = train_config_from(source.config)
        writer = RunWriter.create(out, describe(config))
        for row in source.metrics[:step]:
            writer.metrics(row["step"], {"reward/mean": row["reward/mean"]})
        return cls(out, config, writer, step)


def sketch(runs, *, ghost=None, width=2) -> Figure:
    """In place of the curves, which take longer than all the rest."""
    figure = Figure(figsize=(2, 1))
    figure.text(0, 0.5, " ".join(f"{name} {len(run.metrics)}" for name, run in runs.items()))
    return figure


@pytest.fixture
def lab(tmp_path, monkeypatch) -> LiveLab:
    monkeypatch.setattr("lldlib.show.views.lab_figure", sketch)
    return LiveLab(FakeRun.new(tmp_path / "run", steps=6))


def batches(lab) -> dict[str, int]:
    return {name: len(Run(run.out).metrics) for name, run in lab.runs.items()}


async def until(condition) -> None:
    async def wait():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), WAIT)


def test_cells_can_do_what_the_buttons_do(lab):
    first = bytes(lab.curves.value)
    lab.step(2)
    assert batches(lab) == {"A": 2} and bytes(lab.curves.value) != first
    lab.branch()
    assert lab.chosen.value == "B" and lab.runs["B"].out.name == "run-branch1"
    assert Run(lab.runs["A"].out).checkpoints[-1][0] == 2
    lab.turn(loss=train_config("llds", 0).loss)
    assert lab.knobs.parts["llds_coef"].value == SHUFFLED.weights["llds_coef"]
    lab.step()
    assert batches(lab) == {"A": 3, "B": 3}
    assert Run(lab.runs["B"].out).column("reward/mean") == [0.4, 0.4, 0.5]
    lab.chosen.value = "A"
    assert lab.knobs.parts["llds_coef"].value == 0.0
    lab.rewind(0)
    lab.step()
    assert batches(lab) == {"A": 1, "B": 3}  # who is behind goes first
    lab.branch(0)
    assert lab.runs["B"].out.name == "run-branch2"
    assert "A: 1 of 6 batches, reward 0.40 | B: 0 of" in lab.status.value


def test_a_run_that_is_done_stays_done(lab):
    lab.step(9)
    assert batches(lab) == {"A": 6}


def test_play_leaves_the_kernel_free_and_pause_stops_it(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    async def scene():
        lab.bar.buttons["play"].click()
        assert lab.playing and lab.bar.buttons["play"].description == "Play"
        await until(lambda: lab.runs["A"].threads)  # a batch is going, and this still runs
        assert lab.bar.buttons["play"].description == "Pause" and "playing" in lab.status.value
        FakeRun.gate.release()
        await until(lambda: "1 of 6" in lab.status.value)
        lab.bar.buttons["play"].click()
        FakeRun.gate.release()
        await until(lambda: "paused" in lab.status.value)
        await lab._task

    asyncio.run(scene())
    assert batches(lab) == {"A": 2} and lab.bar.buttons["play"].description == "Play"
    assert lab.runs["A"].threads.isdisjoint({threading.main_thread()})


def test_paused_is_said_when_no_batch_is_going(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    async def scene():
        lab.play()
        await until(lambda: lab.runs["A"].threads)
        lab.bar.buttons["play"].click()
        assert "finishing this batch" in lab.status.value and "paused" not in lab.status.value
        assert lab.bar.buttons["play"].disabled
        FakeRun.gate.release()
        await lab._task
        assert "paused" in lab.status.value and not lab.bar.buttons["play"].disabled

    asyncio.run(scene())
    assert batches(lab) == {"A": 1}


def test_play_again_while_a_batch_is_finishing_is_one_play(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    async def scene():
        lab.play()
        await until(lambda: lab.runs["A"].threads)
        task = lab._task
        lab.pause()
        lab.play()
        assert lab._task is task and lab.playing
        FakeRun.gate.release(6)
        await task

    asyncio.run(scene())
    assert batches(lab) == {"A": 6}


@pytest.fixture
def slow_branch(monkeypatch) -> threading.Semaphore:
    """A branch that takes until the semaphore is released."""
    gate, branch = threading.Semaphore(0), FakeRun.branch.__func__

    def wait(cls, source, step, out):
        assert gate.acquire(timeout=WAIT)
        return branch(cls, source, step, out)

    monkeypatch.setattr(FakeRun, "branch", classmethod(wait))
    return gate


def controls(lab) -> list:
    knobs = [part for panel in lab.bar.knobs.values() for part in panel.parts.values()]
    return [*lab.bar.buttons.values(), lab.chosen, lab.checkpoints, lab.bar.batches, *knobs]


def test_two_clicks_on_branch_make_one_branch(lab, slow_branch):
    async def scene():
        lab.bar.buttons["branch"].click()
        lab.bar.buttons["branch"].click()  # before the page has made it grey
        slow_branch.release(2)
        await until(lambda: lab.chosen.value == "B")

    asyncio.run(scene())
    lab._worker.submit(int).result()  # whatever else was asked for is done
    folder = lab.runs["A"].out.parent
    assert sorted(path.name for path in folder.iterdir()) == ["run", "run-branch1"]


def test_controls_are_grey_while_the_lab_works_and_a_knob_reaches_no_other_run(lab, slow_branch):
    """Branch, then a knob while it is made: neither run gets it, and the knob stands as before."""

    async def scene():
        assert not any(part.disabled for part in controls(lab))
        lab.bar.buttons["branch"].click()
        assert all(part.disabled for part in controls(lab))
        assert "working: branching A ..." in lab.status.value
        lab.knobs.parts["method"].value = "llds"
        slow_branch.release()
        await until(lambda: lab.chosen.value == "B" and not lab.bar.buttons["branch"].disabled)
        assert not any(part.disabled for part in controls(lab))
        assert lab.knobs.parts["method"].value == "grpo"
        lab.knobs.parts["method"].value = "llds"  # now it is B's
        await until(lambda: lab.runs["B"].config.method == "llds")

    asyncio.run(scene())
    assert lab.runs["A"].config.method == "grpo"
    assert not [event for event in Run(lab.runs["A"].out).events if event["kind"] == "knob"]


def test_a_knob_goes_to_the_run_that_was_chosen_when_it_was_turned(lab, monkeypatch):
    lab.branch(0)
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    async def scene():
        lab.play()
        await until(lambda: lab.runs["A"].threads)
        lab.knobs.parts["method"].value = "llds"  # B is chosen
        assert "after the batch that is going: turning a knob of B" in lab.status.value
        assert not lab.bar.buttons["play"].disabled  # one may always pause
        lab.pause()
        FakeRun.gate.release(9)
        await lab._task
        await until(lambda: not lab.bar.buttons["step"].disabled)

    asyncio.run(scene())
    assert (lab.runs["A"].config.method, lab.runs["B"].config.method) == ("grpo", "llds")


def test_what_fails_in_an_unforeseen_way_frees_the_controls(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "turn", lambda self, **knobs: 1 / 0)

    async def scene():
        lab.knobs.parts["method"].value = "llds"
        await until(lambda: "ZeroDivisionError" in lab.status.value)

    asyncio.run(scene())
    assert not any(part.disabled for part in controls(lab))


@pytest.mark.parametrize(("shown", "trained"), [(True, 2), (False, 6)])
def test_the_lab_stops_when_its_page_is_closed(lab, monkeypatch, shown, trained):
    """Two pings are not answered any more; a lab that no page ever showed goes on."""
    monkeypatch.setattr("lldlib.show.lab.PING", 0.0)
    monkeypatch.setattr("lldlib.show.lab.UNHEARD", 1)
    if shown:
        lab.pulse.value += 1  # as a page's Play widget answers

    async def scene():
        lab.play()
        await asyncio.wait_for(lab._task, WAIT)

    asyncio.run(scene())
    assert batches(lab) == {"A": trained} and "paused" in lab.status.value


def test_a_page_that_answers_keeps_the_lab_going(lab, monkeypatch):
    monkeypatch.setattr("lldlib.show.lab.PING", 0.0)
    monkeypatch.setattr("lldlib.show.lab.UNHEARD", 1)
    lab.pulse.observe(
        lambda ping: ping["new"] and lab.pulse.set_trait("value", lab.pulse.value + 1), "playing"
    )

    async def scene():
        lab.play()
        await asyncio.wait_for(lab._task, WAIT)

    asyncio.run(scene())
    assert batches(lab) == {"A": 6}


def test_a_knob_acts_between_two_batches(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    async def scene():
        lab.play()
        await until(lambda: lab.runs["A"].threads)
        lab.knobs.parts["method"].value = "llds"  # while batch 0 is going
        FakeRun.gate.release(2)
        await until(lambda: lab.runs["A"].config.method == "llds")
        lab.pause()
        FakeRun.gate.release(9)
        await lab._task

    asyncio.run(scene())
    run = Run(lab.runs["A"].out)
    (event,) = [e for e in run.events if e["kind"] == "knob"]
    assert event["step"] in (1, 2) and event["loss"]["llds_coef"] == SHUFFLED.weights["llds_coef"]
    rewards = run.column("reward/mean")
    assert rewards[: event["step"]] == [0.4] * event["step"]
    assert set(rewards[event["step"] :]) <= {0.5}


def test_it_plays_to_the_end(lab):
    async def scene():
        lab.play()
        await asyncio.wait_for(lab._task, WAIT)

    asyncio.run(scene())
    assert batches(lab) == {"A": 6} and not lab.playing and "paused" in lab.status.value


def test_buttons_branch_and_rewind(lab):
    async def scene():
        lab.bar.buttons["step"].click()
        await until(lambda: "1 of 6" in lab.status.value)
        lab.bar.buttons["branch"].click()  # from "now"
        await until(lambda: lab.chosen.value == "B")
        lab.chosen.value = "A"
        lab.checkpoints.value = 0
        lab.bar.buttons["rewind"].click()
        await until(lambda: "paused | A: 0 of 6" in lab.status.value)
        lab.checkpoints.value = "now"
        lab.bar.buttons["rewind"].click()
        said = "paused | A: 0 of 6 batches | B: 1 of 6 batches, reward 0.40 | <b>Choose an earlier"
        assert said in lab.status.value
        lab.view.value = "Compare"  # another look drops nothing
        assert said in lab.status.value
        lab.bar.buttons["step"].click()
        await until(lambda: "A: 1 of 6" in lab.status.value)
        assert "Choose" not in lab.status.value

    asyncio.run(scene())
    assert batches(lab) == {"A": 1, "B": 1}


def test_what_cannot_be_done_is_said(lab):
    async def scene():
        lab.knobs.parts["lr"].value = 5e-5
        await until(lambda: "lr is &lt;5e-5&gt;" in lab.status.value)
        assert "paused | A: 0 of 6 batches | <b>" in lab.status.value

    asyncio.run(scene())
    assert lab.knobs.parts["lr"].value == lab.runs["A"].config.lr == 1e-3


def test_a_step_that_fails_stops_the_play_and_is_said(lab, monkeypatch):
    def fail(self):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(FakeRun, "step", fail)

    async def scene():
        lab.play()
        await asyncio.wait_for(lab._task, WAIT)

    asyncio.run(scene())
    assert not lab.playing and "Stopped: RuntimeError: out of memory" in lab.status.value


def test_interrupt_pauses_an_idle_kernel(lab, monkeypatch):
    """As in a kernel, which ignores the signal while no cell runs."""
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))
    before = signal.getsignal(signal.SIGINT)

    async def scene():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        lab.play()
        await until(lambda: lab.runs["A"].threads)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: not lab.playing)
        FakeRun.gate.release()
        await asyncio.wait_for(lab._task, WAIT)

    try:
        asyncio.run(scene())
    finally:
        signal.signal(signal.SIGINT, before)
    assert batches(lab) == {"A": 1}  # the batch that was going is whole


def test_interrupt_ends_a_step_in_a_cell_but_not_its_batch(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    main, seen = threading.main_thread().ident, [None]

    def waits() -> bool:
        """The worker has begun, and the main thread stood twice at one place of its wait for it."""
        frame = sys._current_frames()[main]
        seen.append((frame.f_code.co_name, frame.f_lasti))
        return lab.runs["A"].threads and seen[-1] == seen[-2] and seen[-1][0] == "wait"

    def interrupt():
        asyncio.run(until(waits))
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as while a cell runs
    try:
        other.start()
        with pytest.raises(KeyboardInterrupt):
            lab.step(3)
    finally:
        other.join()
        signal.signal(signal.SIGINT, before)
    FakeRun.gate.release()
    lab.turn(lr=1e-4)  # waits for the worker
    assert batches(lab) == {"A": 1}


def test_an_interrupt_cannot_start_a_second_worker(lab, monkeypatch):
    """An executor that is interrupted while it starts its thread forgets it and starts another."""
    real = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        real(thread)
        raise RuntimeError("interrupted")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    lab.step(2)
    assert len(set(lab.runs["A"].threads)) == 1


def test_a_preset_sets_the_other_knobs(lab):
    asked = []
    knobs = lab.knobs
    knobs._turned = asked.append
    knobs.parts["method"].value = "lp_reg"
    (turned,) = asked
    assert turned["method"] == "lp_reg" and turned["loss"].lp_reg_coef == 1.0
    assert turned["loss"].ratio_cap == 10.0 and turned["loss"].llds_coef == 0.0
    assert knobs.parts["lp_reg_coef"].value == 1.0
    knobs.parts["llds_coef"].value = 0.7
    assert asked[-1] == {"llds_coef": 0.7}  # it alone: the rest of the loss is as it then stands
    assert len(asked) == 2


@pytest.fixture
def arms(tmp_path, monkeypatch) -> LiveLab:
    """Two arms under their names."""
    monkeypatch.setattr("lldlib.show.views.lab_figure", sketch)
    names = {"GRPO": "grpo", "GRPO + LLDS": "llds"}
    return LiveLab({name: FakeRun.new(tmp_path / out, steps=6) for name, out in names.items()})


def test_arms_stand_under_their_names_and_go_side_by_side(arms):
    arms.step(2)
    assert batches(arms) == {"GRPO": 2, "GRPO + LLDS": 2}
    assert "GRPO: 2 of 6 batches" in arms.status.value and "+ LLDS: 2 of" in arms.status.value
    arms.chosen.value = "GRPO + LLDS"
    arms.branch(0)
    assert list(arms.runs) == ["GRPO", "GRPO + LLDS", "B"] and arms.chosen.value == "B"
    assert arms.runs["B"].out.name == "llds-branch1"


def test_every_knob_names_its_run_and_goes_to_it(arms):
    """A knob that is still on its way when another run is chosen reaches the one it names."""
    panels = arms.bar.knobs
    for name, panel in panels.items():
        assert all(part.description.endswith(f" of {name}") for part in panel.parts.values())
    assert arms.bar._shelf.children == (panels["GRPO"],)
    arms.chosen.value = "GRPO + LLDS"
    assert arms.bar._shelf.children == (panels["GRPO + LLDS"],)

    async def scene():
        panels["GRPO"].parts["method"].value = "llds"
        await until(lambda: not arms._doing)

    asyncio.run(scene())
    assert [run.config.method for run in arms.runs.values()] == ["llds", "grpo"]


def test_compare_says_how_every_arm_ends(arms):
    arms.runs["GRPO + LLDS"].config = train_config("llds", 0, steps=12)
    arms.runs["GRPO"].config = train_config("grpo", 0, steps=12)
    arms.step(12)
    assert arms.table.value == ""
    arms.view.value = "Compare"
    cells = re.findall(r">([^<>]+)</t[hd]>|<b>([^<>]+)</b>", arms.table.value)
    words = [one or other for one, other in cells][6:]
    assert words[:5] == ["GRPO", "12", "0.40", "0.40", "0.40"] and words[5] == "lives"
    assert words[6:11] == ["GRPO + LLDS", "12", "0.50", "0.50", "0.50"]
    assert 'style="color:#D55E00">GRPO<' in arms.table.value
    assert 'style="color:#0072B2">GRPO + LLDS<' in arms.table.value


REMEDIES = ["nothing changed", "LLDS on", "a fifth of the rate", "more rows per update"]


def test_a_rescue_trains_a_branch_for_each_remedy(lab):
    lab.step(3)
    lab.rescue(batches=2)
    assert list(lab.rescued) == REMEDIES and lab.view.value == "Rescue"
    assert batches(lab) == {"A": 3}  # the run itself waits
    runs = [Run(run.out) for run in lab.rescued.values()]
    assert [run.path.name for run in runs] == [f"run-rescue{n}" for n in (1, 2, 3, 4)]
    rewards = [run.column("reward/mean") for run in runs]
    assert rewards == [[0.4] * 5, [0.4] * 3 + [0.5] * 2, [0.4] * 5, [0.4] * 5]
    first, llds, cooler, rows = (run.config for run in lab.rescued.values())
    assert replace(first, steps=6) == lab.runs["A"].config and first.steps == 5
    assert llds.loss.llds_coef == SHUFFLED.weights["llds_coef"] and llds.method == "llds"
    assert cooler.lr == pytest.approx(lab.runs["A"].config.lr / 5)
    assert rows.updates_per_batch == lab.runs["A"].config.updates_per_batch // 4
    assert all(name in lab.table.value for name in REMEDIES)
    lab.rescue(0, batches=1)
    assert lab.rescued["LLDS on"].out.name == "run-rescue6"
    with pytest.raises(ValueError, match="give at least 1"):
        lab.rescue(0, batches=0)


def test_a_rescue_starts_from_the_settings_at_its_checkpoint():
    llds = train_config("llds", 0, updates_per_batch=1)
    assert list(remedies(llds)) == ["nothing changed", "a fifth of the rate"]
    assert remedies(train_config("grpo", 0))["nothing changed"] == {}


def test_the_button_rescues_and_pause_ends_it_after_its_batch(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(2))
    lab.step(2)

    async def scene():
        lab.bar.batches.value = 3
        lab.bar.buttons["rescue"].click()
        lab.bar.buttons["rescue"].click()
        others = [part for part in controls(lab) if part is not lab.bar.buttons["play"]]
        assert all(part.disabled for part in others) and not lab.bar.buttons["play"].disabled
        assert lab.bar.buttons["play"].description == "Pause"
        assert "working: rescuing A" in lab.status.value and "paused" not in lab.status.value
        await until(lambda: len(lab.rescued) == 4)
        FakeRun.gate.release(4)
        await until(lambda: "nothing changed: 3 of 5" in lab.status.value)
        lab.bar.buttons["play"].click()
        FakeRun.gate.release(4)  # the round that is going is whole
        await until(lambda: "paused" in lab.status.value)

    asyncio.run(scene())
    assert {len(Run(run.out).metrics) for run in lab.rescued.values()} == {4}
    assert batches(lab) == {"A": 2} and not any(part.disabled for part in controls(lab))
    assert len(list(lab.runs["A"].out.parent.glob("run-rescue*"))) == 4  # two clicks, one rescue


def test_a_rescue_stops_when_its_page_is_closed(lab, monkeypatch):
    monkeypatch.setattr("lldlib.show.lab.PING", 0.0)
    monkeypatch.setattr("lldlib.show.lab.UNHEARD", 4)
    lab.pulse.value += 1  # a page has shown it

    async def scene():
        lab.bar.batches.value = 50
        lab.bar.buttons["rescue"].click()
        await until(lambda: not lab._doing)

    asyncio.run(scene())
    assert {len(Run(run.out).metrics) for run in lab.rescued.values()} < {0, 1, 2}


def test_the_lab_shows_a_ghost_while_its_runs_open(tmp_path, monkeypatch):
    """Nothing is steered before the model is there; a cell that asks for a step waits for it."""
    seen, gate = [], threading.Semaphore(0)
    ghost = Run(FakeRun.new(tmp_path / "ghost").out)

    def seeing(runs, *, ghost, width):
        seen.append((list(runs), ghost))
        return sketch(runs)

    def make():
        assert gate.acquire(timeout=WAIT)
        return FakeRun.new(tmp_path / "run", steps=6)

    monkeypatch.setattr("lldlib.show.views.lab_figure", seeing)

    async def scene():
        lab = LiveLab(make, ghost=ghost)
        assert seen == [([], ghost)] and lab.curves.value.startswith(b"\x89PNG")
        assert "working: loading the model" in lab.status.value
        assert all(part.disabled for part in controls(lab))
        gate.release()
        lab.step()
        await until(lambda: not lab.bar.buttons["play"].disabled)
        return lab

    lab = asyncio.run(scene())
    assert batches(lab) == {"A": 1} and "paused | A: 1 of 6" in lab.status.value
    assert seen[-1] == (["A"], ghost)


def test_the_picture_follows_the_width_of_the_page_and_says_what_it_shows(tmp_path, monkeypatch):
    widths = []

    def seeing(runs, *, ghost, width):
        widths.append(width)
        return sketch(runs)

    monkeypatch.setattr("lldlib.show.views.lab_figure", seeing)
    lab = LiveLab(FakeRun.new(tmp_path / "run", steps=6))
    for pixels in (361, 379, 20, 5000):
        lab.curves.width = pixels
    assert widths == [8.5, 3.6, 3.6, 2.8, 11.0]
    lab.step()
    assert "A: 1 batches, mean reward 0.40 at the start" in lab.curves.alt
    assert lab._repr_mimebundle_()["image/png"] == base64.b64encode(lab.curves.value).decode()


def test_a_view_changes_while_a_batch_is_going(lab, monkeypatch):
    monkeypatch.setattr(FakeRun, "gate", threading.Semaphore(0))

    async def scene():
        lab.play()
        await until(lambda: lab.runs["A"].threads)
        lab.view.value = "Compare"
        await until(lambda: "too early to say" in lab.table.value)
        assert not batches(lab)["A"]
        lab.pause()
        FakeRun.gate.release()
        await lab._task
        assert "<td>1</td>" in lab.table.value

    asyncio.run(scene())


@pytest.mark.parametrize("policy", ["tiny", "half_taught"])
def test_a_preset_has_the_weight_of_the_runs_world(tmp_path, policy):
    lab = LiveLab(FakeRun.new(tmp_path / "run", policy=policy))
    asked = []
    lab.knobs._turned = asked.append
    lab.knobs.parts["method"].value = "llds"
    assert asked[-1]["loss"] == train_config("llds", 0, policy=policy).loss


def test_it_steers_a_training_run(tmp_path, micro):
    run = TrainingRun(
        train_config("grpo", 0, recipe=WORLD, **micro | {"steps": 3}), tmp_path / "run"
    )
    lab = LiveLab(run)
    lab.step(2)
    lab.branch(0)
    lab.turn(method="llds", loss=train_config("llds", 0).loss)
    lab.step(2)
    assert batches(lab) == {"A": 2, "B": 2}
    one, other = (Run(lab.runs[name].out) for name in "AB")
    assert one.metrics[0]["reward/mean"] == other.metrics[0]["reward/mean"]
    assert "llds/value" in other.metrics[0] and "llds/value" not in one.metrics[0]
    assert [(e["step"], e["method"]) for e in other.events if e["kind"] == "knob"] == [(0, "llds")]
    lab.rewind(0)
    assert batches(lab) == {"A": 2, "B": 0}
    assert lab.runs["B"].config.method == "llds"  # the knob is in the checkpoint


def test_the_limit_of_a_move_is_a_knob(tmp_path, micro):
    run = TrainingRun(train_config("grpo", 0, recipe=WORLD, **micro), tmp_path / "run")
    lab = LiveLab(run)
    slider = lab.knobs.parts["move_limit"]

    async def scene():
        slider.value = 0.001
        await until(lambda: lab.runs["A"].config.move_limit == 0.001)

    asyncio.run(scene())
    lab.step()
    (row,), (turned,) = Run(lab.runs["A"].out).metrics, knob_changes(Run(lab.runs["A"].out))
    assert "update/kept" in row and turned == (0, "move limit 0.001")


def test_it_rescues_a_training_run(tmp_path, micro):
    """The unchanged branch is the run itself, to the last bit; the remedies part from it."""
    more = {"steps": 3, "updates_per_batch": 4, "problems": 16, "group_size": 4}  # mixed groups
    config = train_config("grpo", 0, recipe=WORLD, **micro | more)
    lab = LiveLab(TrainingRun(config, tmp_path / "run"))
    lab.step()
    lab.rescue(batches=2)
    lab.step(2)
    (alone, *others) = [Run(run.out) for run in lab.rescued.values()]
    run = Run(lab.runs["A"].out)
    assert untimed(alone) == untimed(run) and len(untimed(run)) == 3
    assert all(untimed(other)[:1] == untimed(run)[:1] for other in others)
    assert all(untimed(other)[2] != untimed(run)[2] for other in others)
    (llds,) = [e for e in others[0].events if e["kind"] == "knob"]
    assert (llds["step"], llds["method"]) == (1, "llds")


def untimed(run: Run) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in run.metrics]
