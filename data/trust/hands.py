"""The lab under random hands: python data/trust/hands.py --count 1000 [--seed 0]

Each sequence opens a lab of one or two runs and then plays, pauses, steps, rewinds, branches,
rescues, turns knobs, chooses runs and views, interrupts, and runs cells, with and without waiting.
The runs are the package's own; only their trainer is a sum that every batch's settings go into. A
twin of each run, which knows nothing of files, says what its folder must hold. Each act must reach
the run that was named on the page, once; at the end the lab must still answer. Prints the faults
with their seeds, and how often each act was done. `hands_browser.py` is the same in a browser.
"""

import argparse
import asyncio
import dataclasses
import html
import itertools
import logging
import os
import random
import signal
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from matplotlib.figure import Figure

from lldlib.config import LossConfig, TrainConfig, train_config_from
from lldlib.recipes import built_in, train_config
from lldlib.runs.folder import CHECKPOINTS, Run
from lldlib.show.bar import NOW
from lldlib.show.lab import LiveLab
from lldlib.show.steering import BRANCH, FIRST, Steering, remedies
from lldlib.train.run import TrainingRun

BLOCK = 50  # sequences between two lines of output
WAIT = 30  # seconds after which a lab that is not quiet is called stuck
PRIME = 99_991
SMALL = {"checkpoint_every": 2, "eval_every": 0, "questions_every": 0, "probe_every": 0}


# -- what the runs must be ------------------------------------------------------------------------


def mark(config: TrainConfig) -> int:
    """A number of the settings of a batch."""
    return zlib.crc32(repr((config.lr, config.updates_per_batch, config.loss)).encode()) % PRIME


def following(total: int, config: TrainConfig) -> int:
    """The sum after a batch with these settings: it depends on all batches and their order."""
    return (31 * total + mark(config)) % PRIME


@dataclass
class Twin:
    """What a run must be: settings and sum of every batch, now, and at every checkpoint."""

    config: TrainConfig
    total: int
    batches: list[tuple[TrainConfig, int]]
    kept: dict[int, tuple[TrainConfig, int]]

    def step(self) -> None:
        """One batch."""
        self.batches.append((self.config, self.total))
        self.total = following(self.total, self.config)
        done, every = len(self.batches), self.config.checkpoint_every
        if done == self.config.steps or (every and done % every == 0):
            self.keep()

    def keep(self) -> None:
        """A checkpoint here."""
        self.kept[len(self.batches)] = self.config, self.total

    def turn(self, knobs: dict[str, Any]) -> None:
        """Other settings from the next batch on."""
        self.config = replace(self.config, **knobs)
        self.keep()

    def rewind(self, step: int) -> None:
        """Back to a checkpoint."""
        self.config, self.total = self.kept[step]
        self.batches = self.batches[:step]
        self.kept = {at: kept for at, kept in self.kept.items() if at <= step}

    def branch(self, step: int) -> "Twin":
        """Another run from a checkpoint of this one."""
        return Twin(*self.kept[step], self.batches[:step], {step: self.kept[step]})


class Twins:
    """The twins of all run folders of a lab, and what the journal of its acts does to them."""

    def __init__(self, configs: dict[str, tuple[str, TrainConfig]]):
        self.folders = {f: Twin(c, 0, [], {0: (c, 0)}) for f, c in configs.values()}
        self.names = {name: folder for name, (folder, _) in configs.items()}
        self.rescues: dict[int, Iterator[None]] = {}

    def follow(self, entry: dict[str, Any]) -> None:
        """Do what one entry of the journal says; KeyError where that cannot be."""
        act, name, step = entry["act"], entry.get("name"), entry.get("step")
        if act == "tick":
            self._tick([self.folders[folder] for folder in self.names.values()])
        elif act == "turn":
            run, knobs = self.folders[self.names[name]], dict(entry["knobs"])
            for field in knobs.keys() & {f.name for f in dataclasses.fields(LossConfig)}:
                loss = knobs.get("loss", run.config.loss)
                knobs["loss"] = replace(loss, **{field: knobs.pop(field)})
            if replace(run.config, **knobs) != run.config:
                run.turn(knobs)
        elif act == "rewind":
            self.folders[self.names[name]].rewind(step)
        elif act == "branch":
            self.names[BRANCH] = self._branch(name, step, "branch")
        elif act == "rescue":
            self.rescues[entry["id"]] = self._rescue(name, step, entry["batches"])
        elif act == "part":
            next(self.rescues[entry["id"]])

    @staticmethod
    def _tick(runs: Sequence[Twin]) -> None:
        left = [(len(run.batches), run) for run in runs if len(run.batches) < run.config.steps]
        hindmost = min((done for done, _ in left), default=0)
        for run in [run for done, run in left if done == hindmost]:
            run.step()

    def _branch(self, name: str, step: int | None, kind: str) -> str:
        source = self.folders[self.names[name]]
        if step is None:
            source.keep()
            step = len(source.batches)
        fresh = (f"{self.names[name]}-{kind}{n}" for n in itertools.count(1))
        folder = next(f for f in fresh if f not in self.folders)
        self.folders[folder] = source.branch(step)
        return folder

    def _rescue(self, name: str, step: int | None, batches: int) -> Iterator[None]:
        source = self.folders[self.names[name]]
        if step is None:
            source.keep()
            step = len(source.batches)
        own = []
        for knobs in remedies(source.kept[step][0]).values():
            own.append(self.folders[self._branch(name, step, "rescue")])
            own[-1].turn({"steps": step + batches} | knobs)
            yield
        for _ in range(batches):
            self._tick(own)
            yield


def settings(run: Run, step: int) -> TrainConfig:
    """The settings of batch `step`, by config.json and the knobs in the log."""
    raw = run.config
    for event in run.events:
        if event["kind"] == "knob" and event["step"] <= step:
            raw |= {name: value for name, value in event.items() if name not in ("step", "kind")}
    return train_config_from(raw)


def logged(config: TrainConfig) -> TrainConfig:
    """A config as the log has it, with a rate of 6 digits."""
    return replace(config, lr=float(f"{config.lr:.6g}"))


def differs(run: Run, twin: Twin, trained: bool) -> Iterator[str]:
    """Each way in which a run folder is not its twin; `trained`: by the real trainer, no sum."""
    name, done = run.path.name, len(twin.batches)
    if [row["step"] for row in run.metrics] != list(range(done)):
        yield f"{name}: {len(run.metrics)} batches in place of {done}"
        return
    for step, (row, (config, total)) in enumerate(zip(run.metrics, twin.batches, strict=True)):
        if settings(run, step) != logged(config):
            yield f"{name}: batch {step} has other settings in the log"
        if abs(row["update/lr"] - config.lr) > 1e-5 * config.lr:
            yield f"{name}: batch {step} was trained at the rate {row['update/lr']}"
        if not trained and row["reward/mean"] != round(total / PRIME, 5):
            yield f"{name}: batch {step} follows another history"
    if settings(run, done) != logged(twin.config):
        yield f"{name}: other settings at the end"
    kept = {}
    for step, _ in run.checkpoints:
        tensors, state = run.load_checkpoint(step)
        total = twin.kept.get(step, (None, 0))[1] if trained else int(tensors["total"])
        kept[step] = train_config_from(state["config"]), total
    if kept != twin.kept:
        yield f"{name}: checkpoints {sorted(kept)} in place of {sorted(twin.kept)}, or not the same"
    left = (".tmp", ".gone")  # what an interrupt leaves, and nobody reads
    ends = {
        f.with_suffix("").name for f in (run.path / CHECKPOINTS).iterdir() if f.suffix not in left
    }
    if len(ends) != len(kept):
        yield f"{name}: {sorted(ends)} holds what is no checkpoint"
    asked = Counter(row["step"] for row in run.questions)
    every = twin.config.questions_every
    if every and (sorted(asked) != list(range(0, done + 1, every)) or len(set(asked.values())) > 1):
        yield f"{name}: questions asked at {dict(asked)}"


def judge(folder: Path, twins: Twins, trained: bool = False) -> list[str]:
    """What is wrong with the run folders in `folder`."""
    found = {path.name for path in folder.iterdir()}
    if found != twins.folders.keys():
        return [f"folders {sorted(found)} in place of {sorted(twins.folders)}"]
    wrong = []
    for name, twin in twins.folders.items():
        try:
            wrong += differs(Run(folder / name), twin, trained)
        except (ValueError, OSError) as error:
            wrong.append(f"{name}: {error}")
    return wrong


# -- the journal -----------------------------------------------------------------------------------


def record(steering: Steering, write: Callable[[dict[str, Any]], None]) -> None:
    """Write down what reaches the runs, in the order in which it does, and each failure."""
    numbers = itertools.count()

    def noting(act: str, names: Sequence[str]) -> None:
        real = getattr(steering, act)

        def done(*args: Any) -> Any:
            entry = {"act": act} | dict(zip(names, args, strict=True))
            try:
                real(*args)
            except Exception as error:
                entry["error"] = f"{type(error).__name__}: {error}"
                raise
            finally:
                write(entry)

        setattr(steering, act, done)

    def rescue(name: str, step: int | None, batches: int) -> Iterator[None]:
        number = next(numbers)
        write({"act": "rescue", "name": name, "step": step, "batches": batches, "id": number})
        parts = real_rescue(name, step, batches)
        while True:
            try:
                next(parts)
            except StopIteration:
                return
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                write({"act": "part", "id": number, "error": told})
                raise
            write({"act": "part", "id": number})
            yield

    noting("tick", ())
    noting("turn", ("name", "knobs"))
    noting("rewind", ("name", "step"))
    noting("branch", ("name", "step"))
    real_rescue, steering.rescue = steering.rescue, rescue


@dataclass
class Wish:
    """What a hand asked for: an act that must reach that run; `maybe`: an interrupt may drop it."""

    act: str
    name: str
    step: int | None = None
    field: str = ""  # of a knob
    value: Any = None
    maybe: bool = False

    def is_in(self, knobs: dict[str, Any]) -> bool:
        """Whether this knob was turned to this value; None: to any."""
        return self.field in knobs and self.value in (None, knobs[self.field])

    def knobs(self, before: TrainConfig, value: Any) -> TrainConfig:
        """The settings after this turn of a knob to `value`: nothing else may have moved."""
        if self.field == "method":
            return replace(before, method=value, loss=built_in(before.policy).loss_of(value))
        if self.field in {f.name for f in dataclasses.fields(LossConfig)}:
            return replace(before, loss=replace(before.loss, **{self.field: value}))
        return replace(before, **{self.field: value})


def compare(journal: Sequence[dict], wishes: Sequence[Wish], twins: Twins) -> list[str]:
    """Follow the journal with the twins: what reached a run that nobody asked for, or did not."""
    wrong, waiting, lucky = [], list(wishes), []

    def excused(wish: Wish) -> bool:
        """Whether one may be missing, or what came for an equal one that might was this one's."""
        same = [other for other in lucky if replace(other, maybe=wish.maybe) == wish]
        if same and not wish.maybe:
            lucky.remove(same[0])
        return wish.maybe or bool(same)

    for entry in journal:
        act, name = entry["act"], entry.get("name")
        wish = None
        if act not in ("tick", "part"):
            told = f"{act} {name} {entry.get('step')}"
            while waiting and wish is None:
                wish = waiting.pop(0)
                same = (wish.act, wish.name, wish.step) == (act, name, entry.get("step"))
                same &= act != "turn" or wish.is_in(entry["knobs"])
                if not same and not excused(wish):
                    wrong.append(f"{wish} was asked for, and {told} came")
                lucky += [wish] * (same and wish.maybe)
                wish = wish if same else None
            if wish is None:
                wrong.append(f"{told} came, and nobody asked for it")
        before = twins.folders[twins.names[name]].config if act == "turn" else None
        try:
            twins.follow(entry)
        except KeyError as error:
            wrong += [] if "error" in entry else [f"{entry} cannot be: no checkpoint {error}"]
            continue
        if "error" in entry:
            wrong.append(f"{entry} failed")
        if act == "turn" and wish is not None and wish.is_in(entry["knobs"]):
            after = twins.folders[twins.names[name]].config
            meant = wish.knobs(before, entry["knobs"][wish.field])
            if after != meant:
                wrong.append(f"{wish} turned other knobs too: {changes(meant, after)}")
    wrong += [f"{wish} was asked for, and nothing came" for wish in waiting if not excused(wish)]
    return wrong


def changes(one: TrainConfig, other: TrainConfig) -> dict[str, Any]:
    """The fields in which two configs differ, as the second has them."""
    pairs = (
        (f.name, getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
    )
    return {name: b for name, a, b in pairs if a != b}


# -- runs that cost nothing ------------------------------------------------------------------------


class SumTrainer:
    """In the place of a trainer: a sum, to which every batch adds its settings."""

    def __init__(self, config: TrainConfig, *_: Any):
        self.config, self.total, self.step_index = config, 0, 0

    def step(self) -> tuple[dict[str, float], list]:
        """One batch."""
        row = {"reward/mean": round(self.total / PRIME, 5), "update/lr": self.config.lr}
        self.total = following(self.total, self.config)
        self.step_index += 1
        return row, []

    def turn(self, **knobs: Any) -> None:
        """Other settings."""
        config = replace(self.config, **knobs)
        config.check()
        self.config = config

    def state(self) -> tuple[dict[str, torch.Tensor], dict]:
        """What a checkpoint holds."""
        numbers = {"step": self.step_index, "config": dataclasses.asdict(self.config)}
        return {"total": torch.tensor(self.total)}, numbers

    def load_state(self, tensors: dict[str, torch.Tensor], state: dict) -> None:
        """Go on from a checkpoint."""
        self.total, self.step_index = int(tensors["total"]), state["step"]


def sketch(runs: dict[str, Run], *, ghost: Run | None = None, width: float = 2) -> Figure:
    """In the place of the curves: it reads what they read."""
    for run in runs.values():
        run.series("reward/mean"), run.events
    return Figure(figsize=(1, 1))


@contextmanager
def cheap() -> Iterator[None]:
    """In this context runs have no model and no pictures."""
    with ExitStack() as stack:
        nothing = SimpleNamespace(policy=None, environment=None, probe=None)
        for name, other in {
            "lldlib.train.run.Trainer": SumTrainer,
            "lldlib.train.run.make_setting": lambda config: nothing,
            "lldlib.show.views.lab_figure": sketch,
            "lldlib.show.views.png": lambda figure: b"picture",
        }.items():
            stack.enter_context(mock.patch(name, other))
        yield


ACTS = {  # and how often each is done
    **{"play": 6, "step": 3, "rewind": 4, "branch": 3, "rescue": 2, "knob": 8, "choose": 3},
    **{"point": 6, "view": 1, "width": 1, "interrupt": 2, "cell": 3, "settle": 6},
}
KNOB_VALUES = {
    "lr": (5e-5, 2e-4, 1e-3),
    "llds_coef": (0.0, 0.5, 1.1),
    "method": ("grpo", "llds"),
    "updates_per_batch": (1, 3, 8),
}


# -- hands -----------------------------------------------------------------------------------------


class Stuck(Exception):
    """The lab is not quiet in time."""


class Hands:
    """Random acts on a lab, and what they must come to."""

    def __init__(self, lab: LiveLab, rng: random.Random):
        self.lab, self.rng = lab, rng
        self.wishes: list[Wish] = []
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def act(self) -> None:
        """One act; then it waits a little, or not."""
        (name,) = self.rng.choices(list(ACTS), list(ACTS.values()))
        self.done[name] += 1
        if name in self.lab.bar.buttons:
            self._click(name)
        elif name == "settle":
            await self.quiet()
        elif name == "interrupt":
            await self._interrupt()
        else:
            getattr(self, f"_{name}")()
        await asyncio.sleep(0)  # as between two messages of a page
        for _ in range(self.rng.choice([0, 0, 1, 3, 30])):
            await asyncio.sleep(0.001)

    async def quiet(self) -> None:
        """Until the lab has nothing to do: at the latest when every run is at its end."""

        lab, end = self.lab, time.monotonic() + WAIT
        while lab._doing or lab._beside or not (lab._task is None or lab._task.done()):
            if time.monotonic() > end:
                raise Stuck(f"{lab._doing!r}, {lab.status.value}")
            await asyncio.sleep(0.001)
        await asyncio.wrap_future(lab._worker.submit(int))  # what an interrupted cell has begun
        await asyncio.sleep(0.001)
        grey = [part for part in self._parts() if part.disabled]
        if grey or "paused" not in self.lab._state:
            self.wrong.append(f"quiet, and {len(grey)} controls are grey: {self.lab.status.value}")

    def _parts(self) -> list:
        panels = (panel.parts.values() for panel in self.lab.bar.knobs.values())
        return [*self.lab.bar.buttons.values(), self.lab.chosen, *itertools.chain(*panels)]

    def _click(self, name: str) -> None:
        button, chosen, point = (
            self.lab.bar.buttons[name],
            self.lab.chosen.value,
            self.lab.bar.point,
        )
        if button.disabled and self.rng.random() < 0.5:
            return
        given = name in ("rewind", "branch", "rescue") and not button.disabled
        if given and not (name == "rewind" and point is None):
            self.wishes.append(Wish(name, chosen, point))
        if name == "rescue":
            self.lab.bar.batches.value = self.rng.randint(1, 3)
        button.click()

    def _knob(self) -> None:
        field = self.rng.choice(list(KNOB_VALUES))
        part = self.lab.knobs.parts.get(field)
        value = self.rng.choice(KNOB_VALUES[field])
        if part is None or (part.disabled and self.rng.random() < 0.5):
            return
        if not part.disabled and part.value != value:
            self.wishes.append(Wish("turn", self.lab.chosen.value, None, field, value))
        part.value = value

    def _choose(self) -> None:
        if not self.lab.chosen.disabled:
            self.lab.chosen.value = self.rng.choice(self.lab.chosen.options)

    def _point(self) -> None:
        if not self.lab.checkpoints.disabled:
            self.lab.checkpoints.value = self.rng.choice(self.lab.checkpoints.options)[1]

    def _view(self) -> None:
        self.lab.view.value = self.rng.choice(self.lab.view.options)

    def _width(self) -> None:
        """The page is loaded again in a window of another width."""
        self.lab._repr_mimebundle_()
        self.lab.curves.width = self.rng.randint(200, 1200)

    async def _interrupt(self) -> None:
        """The kernel's Interrupt while no cell runs pauses a lab that plays."""
        playing = self.lab._task is not None and not self.lab._task.done()
        os.kill(os.getpid(), signal.SIGINT)
        if playing:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            if self.lab.playing:
                self.wrong.append("an Interrupt did not pause the lab")

    def _cell(self) -> None:
        """A cell that asks the lab for something, and is perhaps interrupted."""
        lab, name = self.lab, self.lab.chosen.value
        act = self.rng.choice(["step", "turn", "rewind", "branch", "rescue"])
        stopped = self.rng.random() < 0.4
        args: dict[str, tuple[Callable, Wish | None]] = {
            "step": (lambda: lab.step(2), None),
            "turn": (lambda: lab.turn(lr=3e-4), Wish("turn", name, None, "lr", 3e-4)),
            "rewind": (lambda: lab.rewind(0), Wish("rewind", name, 0)),
            "branch": (lab.branch, Wish("branch", name)),
            "rescue": (lambda: lab.rescue(batches=1), Wish("rescue", name)),
        }
        work, wish = args[act]
        if wish is not None:
            self.wishes.append(replace(wish, maybe=stopped))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(self.rng.random() / 50, os.kill, (os.getpid(), signal.SIGINT))
        try:
            if stopped:
                timer.start()
            work()
            timer.join() if stopped else None
        except KeyboardInterrupt:
            pass
        except (ValueError, OSError):  # the cell shows it: no such checkpoint
            timer.cancel()
        finally:
            signal.signal(signal.SIGINT, before)


async def play_with(folder: Path, rng: random.Random) -> tuple[Counter, list[str]]:
    """One sequence: how often each act was done, and what is wrong."""
    names = rng.choice([[FIRST], ["GRPO", "GRPO + LLDS"]])
    configs, openers = {}, {}
    for name, method in zip(names, ("grpo", "llds"), strict=False):
        out, steps = folder / f"run{len(configs)}", rng.randint(4, 12)
        config = train_config(method, len(configs), steps=steps, **SMALL)
        configs[name] = out.name, config
        openers[name] = partial(TrainingRun, config, out)
    loop, journal, wrong = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, what: wrong.append(str(what)))
    lab = LiveLab(openers if rng.random() < 0.5 else {n: make() for n, make in openers.items()})
    record(lab.steering, journal.append)
    hands = Hands(lab, rng)
    try:
        for _ in range(rng.randint(3, 25)):
            await hands.act()
        lab.pause()
        await hands.quiet()
        wrong += shown(lab)
        ticks = len(journal)
        lab.bar.buttons["step"].click()
        await hands.quiet()
        if [entry["act"] for entry in journal[ticks:]] != ["tick"]:
            wrong.append("the lab does not step any more")
    except Stuck as stuck:
        lab.pause()
        return hands.done, [*wrong, f"stuck: {stuck}"]
    twins = Twins(configs)
    wrong += hands.wrong + compare(journal, hands.wishes, twins) + judge(folder, twins)
    for run in (*lab.runs.values(), *lab.rescued.values()):
        run.writer.close()
    for pool in (lab._worker, lab._drawer):
        pool.shutdown()
    return hands.done, wrong


def shown(lab: LiveLab) -> list[str]:
    """What a quiet lab shows that is not so."""
    wrong = []
    for name, run in lab.runs.items():
        panel = lab.bar.knobs[name].parts
        for field, part in panel.items():
            holder = run.config if hasattr(run.config, field) else run.config.loss
            if part.value != getattr(holder, field):
                wrong.append(f"{field} of {name} is shown as {part.value}")
        told, where = html.unescape(lab.status.value), f"{run.next_batch} of {run.config.steps}"
        if lab._state in told and f"{name}: {where}" not in told:  # else it tells of a problem
            wrong.append(f"{name} has {run.next_batch} batches, and shown is {lab.status.value}")
    points = [value for _, value in lab.checkpoints.options if value != NOW]
    if sorted(points) != lab.runs[lab.chosen.value].points:
        wrong.append(f"checkpoints {points} are offered")
    return wrong


class Complaints(logging.Handler):
    """What is logged as a warning or worse."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, with its traceback."""
        self.heard.append(self.format(record))


def trial(count: int, seed: int) -> tuple[Counter, list[str]]:
    """So many sequences: how often each act was done, and what is wrong."""
    done, wrong, complaints = Counter(), [], Complaints()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a kernel while no cell runs
    logging.getLogger().addHandler(complaints)
    try:
        with cheap(), asyncio.Runner() as runner:  # one loop for all labs, as in a kernel
            for number in range(seed, seed + count):
                with tempfile.TemporaryDirectory() as folder:
                    acts, faults = runner.run(play_with(Path(folder), random.Random(number)))
                done += acts
                wrong += [f"seed {number}: {fault}" for fault in faults + complaints.heard]
                complaints.heard.clear()
    finally:
        logging.getLogger().removeHandler(complaints)
        signal.signal(signal.SIGINT, before)
    return done, wrong


def main() -> None:
    """Try, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="sequences")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, total, faults = given.seed + given.count, Counter(), 0
    for first in range(given.seed, end, BLOCK):
        count = min(BLOCK, end - first)
        done, wrong = trial(count, first)
        total, faults = total + done, faults + len(wrong)
        print("\n".join(wrong[:5]), end="\n" * bool(wrong))
        told = ", ".join(f"{n} {act}" for act, n in total.most_common())
        print(f"seeds {given.seed} to {first + count - 1}: {faults} faults; {told}", flush=True)


if __name__ == "__main__":
    main()
