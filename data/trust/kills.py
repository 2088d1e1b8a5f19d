"""Kills, full disks, cut files, second writers: python data/trust/kills.py --count 1000 [--seed 0]

A child of this process trains, branches, rewinds, sweeps, reports ... (SCENES) and dies by SIGKILL:
before its k-th change of the disk, in the midst of its k-th write, or at a random instant. Other
trials fill the disk, make the folder read-only, cut a file, or send a second writer. Then the same
command is given again. It must end with what an unbroken child left, to the bit, or say in one line
what is missing; and after each kill, all that can be read must be part of that. Disks and mounts
need root. Prints every difference with its seed, and how many kills landed where.
"""

import argparse
import contextlib
import copy
import hashlib
import json
import logging
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tqdm import tqdm

from lldlib.cli import main as command
from lldlib.config import (
    DataConfig,
    ExamConfig,
    LoadConfig,
    RolloutConfig,
    SftConfig,
    TrainConfig,
    WarmstartConfig,
)
from lldlib.evaluate import exam
from lldlib.policy.load import load_policy, save_policy
from lldlib.recipes import METHODS
from lldlib.retrieval import BM25Retriever
from lldlib.retrieval.disk import build_index
from lldlib.runs import folder as runlog
from lldlib.runs.folder import CONFIG, QUESTIONS, ROLLOUTS, Run, RunWriter
from lldlib.show.compare import write_report
from lldlib.train import run as training
from lldlib.train import setup, supervised, sweep, trainer
from lldlib.train.run import TrainingRun
from lldlib.world import shuffled
from lldlib.world.atlas import World
from lldlib.world.benchmarks import Task
from lldlib.world.prepare import prepare

LONGEST = 300.0  # seconds of a child; one that takes longer hangs
KNOB = {"loss": METHODS["grpo"]}
GRID = {
    **{"method": ["grpo", "llds"], "seed": [3], "world": ["shuffled"], "steps": [3], "lr": [1e-3]},
    **{"problems": [2], "group_size": [4], "max_tokens": [26], "updates_per_batch": [2]},
    **{"rewards": ["coin"], "probe_every": [0], "eval_every": [5], "checkpoint_every": [2]},
}


def searcher() -> supervised.Policy:
    """A random searcher that often writes the protocol's tags.

    A bias adds one direction to every state, and the tags' embeddings point that way.
    """
    policy = supervised.make_tiny(World.load(), WarmstartConfig(width=16, layers=2, heads=2))
    tags = ["<search>", "</search>", "<answer>", "</answer>"]
    rows = policy.tokenizer.convert_tokens_to_ids(tags)
    embeddings = policy.model.get_input_embeddings().weight
    attention = policy.model.get_decoder().layers[-1].self_attn
    with torch.no_grad():
        embeddings.mul_(10)
        direction = torch.nn.functional.normalize(torch.ones(embeddings.shape[1]), dim=0)
        attention.v_proj.bias.copy_(torch.linalg.solve(attention.o_proj.weight, direction))
        embeddings[rows] += torch.tensor([[1.6], [1.5], [1.4], [1.4]]) * direction
    return policy


def settings(stock: Path) -> TrainConfig:
    """Small batches with all that a run does: LLDS, a reference, exams, questions, checkpoints."""
    return TrainConfig(
        seed=3,
        steps=5,
        updates_per_batch=2,
        lr=1e-3,
        eval_every=5,
        probe_every=0,
        questions_every=2,
        checkpoint_every=2,
        rewards="coin",  # so that groups are mixed, whatever is answered
        policy=str(stock / "policy"),
        data=DataConfig(world="shuffled", heldout_limit=1, hop_weights=(1.0,)),
        rollout=RolloutConfig(problems=2, group_size=4, max_tokens=26),
        loss=METHODS["llds"],
    )


def make_stock(stock: Path, names: list[str]) -> None:
    """What the scenes start from: a policy, runs, files of questions and passages."""
    save_policy(searcher(), stock / "policy")
    config = settings(stock)
    if "branch" in names:
        source = TrainingRun(config, stock / "source")
        for _ in range(3):
            source.step()
        source.checkpoint()
        source.step()
        source.writer.close()
    for name in ("grpo", "llds") if {"report", "diagnose", "explore"} & {*names} else ():
        TrainingRun(replace(config, loss=METHODS[name], method=name), stock / name).run()
    rows = [_official(number) for number in range(60)]
    (stock / "hotpot_train.json").write_text(json.dumps(rows[:40]))
    (stock / "hotpot_dev.json").write_text(json.dumps(rows[40:]))
    (stock / "other_train.json").write_text(json.dumps(rows[10:50]))
    passages = ({"id": str(n), "title": f"T {n}", "text": f"text {n % 7}"} for n in range(200))
    (stock / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    (stock / "gold.jsonl").write_text("".join(json.dumps(_gold(n)) + "\n" for n in range(8)))


def _official(n: int) -> dict[str, Any]:
    """A row as HotpotQA's own files have it."""
    context = [[f"Film {n}", [f"Film {n} is by P{n}."]], [f"P{n}", [f"P{n} is of Rome."]]]
    facts = [[title, 0] for title, _ in context]
    about = {"_id": str(n), "question": f"Who made film {n}?", "answer": f"P{n}", "type": "bridge"}
    return about | {"context": context, "supporting_facts": facts}


def _gold(n: int) -> dict[str, Any]:
    """A row with gold passages, as `sft` reads them."""
    texts = {f"Film {n}": f"Film {n} was made by Ann.", "Ann": "Ann was born in Lima."}
    steps = [(f"Film {n} >> maker", "Ann"), ("Where was #1 born?", "yes")]
    return {
        "id": str(n),
        "question": f"Where was the maker of Film {n} born?",
        "golden_answers": ["yes"],  # the words are all unknown to the tokenizer
        "context": [{"title": title, "text": text} for title, text in texts.items()],
        "supporting_titles": list(texts),
        "supporting_idx": [0, 1],
        "decomposition": [{"question": q, "answer": a} for q, a in steps],
    }


# -- the scenes: what is typed, again and again until it is done ---------------------------------


def opened(stock: Path, out: Path) -> TrainingRun:
    """A new run, or where there is one that goes on."""
    return TrainingRun(settings(stock), out, resume=(out / CONFIG).is_file())


def train(stock: Path, base: Path) -> None:
    """A run from its start to its end."""
    opened(stock, base / "run").run()


def _turned(run: TrainingRun) -> None:
    """The knob is turned at batch 3, once."""
    while run.next_batch < 3:
        run.step()
    if run.next_batch == 3 and run.config.loss != KNOB["loss"]:
        run.turn(**KNOB)
    run.run()


def knob(stock: Path, base: Path) -> None:
    """A knob is turned between two checkpoints."""
    _turned(opened(stock, base / "run"))


def branch(stock: Path, base: Path) -> None:
    """A branch with one knob, and another turned at its only checkpoint."""
    out = base / "run"
    if out.exists():
        run = opened(stock, out)
    else:
        run = TrainingRun.branch(Run(stock / "source"), 3, out, lr=5e-3)
    _turned(run)


def rewind(stock: Path, base: Path) -> None:
    """Four batches, then back to the second."""
    new = not (base / "run").exists()
    run = opened(stock, base / "run")
    if new:
        for _ in range(4):
            run.step()
        run.rewind(2)
    run.run()


def swept(stock: Path, base: Path) -> None:
    """Two cells in processes of their own."""
    spawn = sweep.multiprocessing.get_context("fork")  # so that they need not import anew
    sweep.multiprocessing.get_context = lambda kind: spawn
    failures = sweep.sweep(GRID | {"policy": [str(stock / "policy")]}, base / "out", 2)
    if failures:
        raise OSError(next(iter(failures.values())))


def sft(stock: Path, base: Path) -> None:
    """A warm start."""
    out = base / "run"
    config = SftConfig(
        files=(str(stock / "gold.jsonl"),),
        policy=str(stock / "policy"),
        load=LoadConfig(),
        steps=5,
        batch=2,
        rows=2,
        checkpoint_every=2,
    )
    supervised.SftRun(config, out, resume=(out / CONFIG).is_file()).run(progress=False)


def asked(stock: Path, base: Path) -> None:
    """Held-out questions, whose answers are kept."""
    world = World.load()
    paper = exam.Exam(
        load_policy(str(stock / "policy")),
        BM25Retriever(world.passages("train")),
        ExamConfig(rows=3, max_tokens=48, max_searches=2, top_k=1),
        base / "out",
        {"policy": "micro"},
    )
    paper.ask(Task("made", "Made", "qa", None, None), world.questions("train")[:12], False)


def reported(stock: Path, base: Path) -> None:
    """Table and figures of two runs."""
    write_report([stock / "grpo", stock / "llds"], base / "out")


def diagnosed(stock: Path, base: Path) -> None:
    """Pages on two runs."""
    logs = [str(stock / name) for name in ("grpo", "llds")]
    _typed("diagnose", *logs, "--out", str(base / "out"))


def explored(stock: Path, base: Path) -> None:
    """One page of two runs."""
    _typed("explore", *(str(stock / name) for name in ("grpo", "llds")), "--out", f"{base}/x.html")


def prepared(stock: Path, base: Path) -> None:
    """Questions made in the place of others."""
    out = base / "out"
    if not out.exists():
        prepare("hotpotqa", [stock / "other_train.json"], out, heldout=5)
    prepare("hotpotqa", [stock / "hotpot_train.json", stock / "hotpot_dev.json"], out)


def indexed(stock: Path, base: Path) -> None:
    """An index on disk, made in the place of itself."""
    for _ in range(2):
        build_index(stock / "corpus.jsonl", base / "out")


def _typed(*words: str) -> None:
    """A command; OSError, with what it says, where it does not end well."""
    with tempfile.TemporaryFile("w+") as said, contextlib.redirect_stderr(said):
        if command(list(words)):
            said.seek(0)
            raise OSError(said.read().removesuffix("\n"))


class Scene(NamedTuple):
    """What is done in a folder, and where its run or its files are."""

    go: Callable[[Path, Path], None]
    runs: str | None = None  # pattern of run folders; None: only files
    files: tuple[str, ...] = ()  # patterns of the other files that are read
    most: int | None = None  # of its points that are tried, where a child takes seconds


SCENES = {
    "train": Scene(train, "run"),
    "knob": Scene(knob, "run"),
    "branch": Scene(branch, "run"),
    "rewind": Scene(rewind, "run"),
    "sweep": Scene(swept, "out/method=*", ("out/sweep.json",)),
    "sft": Scene(sft, "run", ("run/policy/*",)),
    "evaluate": Scene(asked, None, ("out/settings.json", "out/predictions/*.jsonl")),
    "report": Scene(reported, None, ("out/*.*",), 12),
    "diagnose": Scene(diagnosed, None, ("out/*.*",), 8),
    "explore": Scene(explored, None, ("x.html",)),
    "prepare": Scene(prepared, None, ("out/*.json*",)),
    "index": Scene(indexed, None, ("out/*",)),
}
RUNS = tuple(name for name, scene in SCENES.items() if scene.runs)
LEFT = (".tmp", ".old", ".gone")  # ends of what a kill may leave, and nobody reads


# -- what must come out ----------------------------------------------------------------------------


def numbers(run: Run) -> list[dict[str, Any]]:
    """The rows of the metrics, without times."""
    return [{k: v for k, v in row.items() if "time/" not in k} for row in run.metrics]


def of_run(run: Run) -> dict[str, Any]:
    """All of a run that an interruption must not change."""
    found = {name: (run.path / name).read_bytes() for name in (ROLLOUTS, QUESTIONS)}
    found["alarm"] = [event for event in run.events if event["kind"] == "alarm"]
    knobs = found["knob"] = {}  # those of one batch may stand in one event
    for event in run.events:
        if event["kind"] == "knob":
            knobs.setdefault(event["step"], {}).update(event)
    found["numbers"] = numbers(run)
    if run.checkpoints:
        found["checkpoint"] = _digest(run, None)
    return found


def _digest(run: Run, step: int | None) -> tuple[str, dict[str, Any]]:
    """The bits of a checkpoint's tensors, as a hash, and its state."""
    tensors, state = run.load_checkpoint(step)
    bits = hashlib.sha256()
    for name in sorted(tensors):
        bits.update(name.encode() + tensors[name].numpy().tobytes())
    return bits.hexdigest(), state


def result(scene: Scene, base: Path) -> dict[str, Any]:
    """What is compared at the end, by place."""
    found: dict[str, Any] = {str(p.relative_to(base)): p.read_bytes() for p in _files(scene, base)}
    for path in sorted(base.glob(scene.runs)) if scene.runs else ():
        each = of_run(Run(path))
        if scene.go is swept:  # killed before it removes its last checkpoint, a cell keeps it
            each.pop("checkpoint", None)
        found |= {f"{path.name}, {what}": value for what, value in each.items()}
    return {name: _without_times(name, value) for name, value in found.items()}


def _files(scene: Scene, base: Path) -> list[Path]:
    every = sorted(path for pattern in scene.files for path in base.glob(pattern))
    return [path for path in every if path.is_file() and path.suffix not in LEFT]


def _without_times(name: str, value: Any) -> Any:
    """The rows of a sweep without the seconds that they took."""
    if not name.endswith("sweep.json"):
        return value
    return [{k: v for k, v in row.items() if "second" not in k} for row in json.loads(value)]


def readable(scene: Scene, base: Path, whole: Path) -> list[str]:
    """What is wrong with what can be read after a kill: it must be part of the whole."""
    wrong = []
    for path in sorted(base.glob(scene.runs)) if scene.runs else ():
        if not (path / CONFIG).is_file():
            continue
        run, other = Run(path), Run(whole / path.relative_to(base))
        rows = numbers(run)
        if rows != numbers(other)[: len(rows)]:
            wrong.append(f"{path.name}: its rows are no start of the whole's")
        for step, _ in run.checkpoints:
            if step in dict(other.checkpoints) and _digest(run, step)[0] != _digest(other, step)[0]:
                wrong.append(f"{path.name}: checkpoint {step} is another")
    files = {path.relative_to(base): path.read_bytes() for path in _files(scene, base)}
    if scene.go in (asked, swept):  # these grow
        return wrong + [
            f"{p} is no part of the whole's" for p in files if not _part(p, base, whole)
        ]
    # all of one making; `prepare` begins with another
    places = [place for place in (whole, whole.with_name("first")) if place.exists()]
    if not any(all(_bytes(place / p) == data for p, data in files.items()) for place in places):
        wrong.append(f"half-written, or of two makings: {', '.join(map(str, files))}")
    return wrong


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _part(path: Path, base: Path, whole: Path) -> bool:
    """Whether a file that grows holds rows of the whole's, or is refused as half a line."""
    if path.suffix == ".json":
        rows, every = (
            _without_times(path.name, (place / path).read_bytes()) for place in (base, whole)
        )
        return all(row in every for row in rows) if isinstance(every, list) else rows == every
    try:
        rows = exam.read_predictions(base / path)
    except ValueError as error:
        return "not JSON" in str(error)
    return rows == exam.read_predictions(whole / path)[: len(rows)]


# -- children --------------------------------------------------------------------------------------


class Kill(NamedTuple):
    """When a child dies: at its k-th point, or so many seconds after its start; or never."""

    at: int = 0
    seconds: float | None = None
    group: bool = True  # with its own children
    seed: int = 0  # of where a write is cut


NEVER = Kill()


class End(NamedTuple):
    """How a child ended."""

    killed: bool
    said: str  # "" where it did all that it had to, else its error
    place: str  # where it was last
    points: int  # that it passed
    seconds: float


SHARED = mmap.mmap(-1, 4096)  # number of points, then the place; children write it
AT = struct.Struct("q")
PLACES = (
    (trainer.Trainer, "collect", "rollout"),
    (trainer, "make_experience", "scoring"),
    (trainer.Trainer, "_update", "update"),
    (trainer.Trainer, "_measure_after", "measurement"),
    (training, "_exam", "evaluation"),
    (TrainingRun, "_answer_questions", "fixed questions"),
    (TrainingRun, "branch", "branch"),
    (TrainingRun, "rewind", "rewind"),
    (TrainingRun, "_resume", "resume"),
    (sweep, "_prune", "prune"),
    (RunWriter, "create", "start"),
    (RunWriter, "checkpoint", "checkpoint"),
    (RunWriter, "_line", "log write"),
    (supervised.Supervised, "step", "sft"),
    (supervised, "save_policy", "policy"),
    (exam.Exam, "_answer", "rollout"),
)
WRITES = os.O_WRONLY | os.O_RDWR
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.copyfile")


def _set_place(name: str) -> None:
    SHARED[8:72] = name.encode().ljust(64, b"\0")[:64]


def _place() -> str:
    return bytes(SHARED[8:72]).rstrip(b"\0").decode()


def _marked(real: Callable, name: str) -> Callable:
    """The function, that says where it is."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        before = _place()
        _set_place(name)
        found = real(*args, **kwargs)
        _set_place(before)
        return found

    return marked


def _arm(kill: Kill, base: Path) -> None:
    """Count the points of this process, and die at one of them."""
    cut, inside = random.Random(kill.seed), str(base)

    def point(what: str, half: Callable[[], object] = lambda: None) -> None:
        (passed,) = AT.unpack(SHARED[:8])
        SHARED[:8] = AT.pack(passed + 1)
        if passed + 1 == kill.at:
            half()
            _set_place(f"{_place()}, {what}")
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: tuple) -> None:
        opened = event == "open" and args[2] & WRITES and str(args[0]).startswith(inside)
        if opened or event in CHANGES:
            point(event)

    sys.addaudithook(hook)
    save, line = runlog.save_file, RunWriter._line

    def half_write(real: Callable) -> Callable:
        def write(path: Path, content: str | bytes, *args: Any, **kwargs: Any) -> int:
            point("half a file", lambda: real(path, content[: cut.randrange(len(content) + 1)]))
            return real(path, content, *args, **kwargs)

        return write

    def half_save(tensors: dict, path: Path) -> None:
        def half() -> None:
            save(tensors, path)
            os.truncate(path, cut.randrange(path.stat().st_size))

        point("half a file", half)
        save(tensors, path)

    def half_line(writer: RunWriter, name: str, row: dict) -> None:
        def half() -> None:
            text = json.dumps(row).encode()
            writer._files[name].write(text[: cut.randrange(len(text) + 1)])

        point("half a line", half)
        line(writer, name, row)

    Path.write_text, Path.write_bytes = half_write(Path.write_text), half_write(Path.write_bytes)
    runlog.save_file, RunWriter._line = half_save, half_line


def start(
    scene: Scene, stock: Path, base: Path, kill: Kill, ready: Callable = lambda: None
) -> tuple[int, int]:
    """A child that does the scene: its number, and the end of a pipe where it says how it went."""
    reader, writer = os.pipe()
    if number := os.fork():
        os.close(writer)
        return number, reader
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        logging.disable()
        ready()
        said = ""
        _arm(kill, base)
        for owner, name, place in PLACES:
            real = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
            if isinstance(real, classmethod):
                setattr(owner, name, classmethod(_marked(real.__func__, place)))
            else:
                setattr(owner, name, _marked(real, place))
        scene.go(stock, base)
    except (OSError, ValueError) as error:  # what the command line makes a line of
        said = f"{type(error).__name__}: {error}"
    except BaseException as error:
        said = f"TRACEBACK {type(error).__name__}: {error}"
    os.write(writer, said.encode()[:4000] or b"done")
    os._exit(0)


def _signal(number: int, what: signal.Signals) -> None:
    """To the child and to its own children, where it has had the time to make a group of them."""
    try:
        os.killpg(number, what)
    except ProcessLookupError:
        os.kill(number, what)


def wait(number: int, reader: int, kill: Kill, started: float) -> End:
    """Let the child live until its end, or its time."""
    limit = LONGEST if kill.seconds is None else kill.seconds
    while (gone := os.waitpid(number, os.WNOHANG)) == (0, 0):
        if time.monotonic() - started > limit:
            if kill.group:
                _signal(number, signal.SIGKILL)
            os.kill(number, signal.SIGKILL)
            gone = os.waitpid(number, 0)
            break
        time.sleep(0.002)
    if kill.group:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, signal.SIGKILL)  # its own children too
    killed = os.WIFSIGNALED(gone[1])
    said = b"" if killed else os.read(reader, 5000)
    os.close(reader)
    seconds = time.monotonic() - started
    if killed and kill.seconds is None and not kill.at:
        said = b"TRACEBACK it hangs"
    text = said.decode() if said != b"done" else ""
    return End(killed, text, _place() or "before the start", AT.unpack(SHARED[:8])[0], seconds)


def live(
    scene: Scene, stock: Path, base: Path, kill: Kill = NEVER, ready: Callable = lambda: None
) -> End:
    """A child from its start to its end."""
    SHARED[:72] = bytes(72)
    started = time.monotonic()
    return wait(*start(scene, stock, base, kill, ready), kill, started)


def again(
    scene: Scene, stock: Path, base: Path, kill: Kill = NEVER, ready: Callable = lambda: None
) -> End:
    """`live`, once more where a folder is held by what is left of the last child."""
    end = live(scene, stock, base, kill, ready)
    for _ in range(100):
        if "in use" not in end.said:
            break
        time.sleep(0.1)
        end = live(scene, stock, base, kill, ready)
    return end


# -- trials ----------------------------------------------------------------------------------------


class Lab:
    """Where the trials happen: what the scenes start from, and what unbroken children left.

    Only in a process without other threads, whose locks a child would wait for without end.
    """

    def __init__(self, root: Path, names: list[str]) -> None:
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        transformers.utils.logging.disable_progress_bar()  # a bar starts a thread
        tqdm.monitor_interval = 0
        if threading.active_count() > 1:
            raise RuntimeError("this process has threads: start the trial in one of its own")
        self.root, self.stock = root, root / "stock"
        self.number, self.wrong, self.ways = 0, [], Counter()
        self.places: Counter[str] = Counter()
        self._child(lambda: make_stock(self.stock, names))
        self.made = load_policy(str(self.stock / "policy"))
        self.world = shuffled.environment(settings(self.stock))
        self.training = cache(self.world.training)
        for batch in range(settings(self.stock).steps):
            self.training(batch)
        self.ends = {}
        for name in names:
            end = self.live(name, self._made(self.whole(name)))
            if end.said:
                raise RuntimeError(f"{name}: {end.said}")
            self.ends[name] = end
        if "prepare" in names:
            first = self.whole("prepare").with_name("first") / "out"
            rows = [self.stock / "other_train.json"]
            self._child(lambda: prepare("hotpotqa", rows, first, heldout=5))

    def whole(self, name: str) -> Path:
        """The folder of the unbroken child."""
        return self.root / "whole" / name / "whole"

    def fault(self, *lines: str) -> None:
        """Note and print what is wrong."""
        self.wrong += lines
        for line in lines:
            print(line, flush=True)

    def _made(self, path: Path) -> Path:
        path.mkdir(parents=True)
        return path

    def _child(self, work: Callable[[], object]) -> None:
        """Work that may start threads, which this process must not have when it forks."""
        if not (number := os.fork()):
            status = 1
            with contextlib.suppress(BaseException):
                work()
                status = 0
            os._exit(status)
        if os.waitpid(number, 0)[1]:
            raise RuntimeError("what the scenes start from could not be made")

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder for one trial."""
        self.number += 1
        path = self._made(self.root / "trials" / str(self.number))
        yield path
        shutil.rmtree(path)

    def live(
        self, name: str, base: Path, kill: Kill = NEVER, ready: Callable = lambda: None
    ) -> End:
        """A child of that scene; see `again`."""
        return again(SCENES[name], self.stock, base, kill, lambda: (self.give(), ready()))

    def give(self) -> None:
        """Let a child have what is the same for all of them, to save time."""
        environment = replace(self.world, training=self.training, exams=dict)
        setup.open_environment = lambda config: environment
        setup.load_as = lambda name, load: copy.deepcopy(self.made)

    def _end_faults(self, name: str, base: Path) -> list[str]:
        got, want = (result(SCENES[name], place) for place in (base, self.whole(name)))
        return [f"another {key}" for key in got | want if got.get(key) != want.get(key)]

    def finish(self, name: str, base: Path, what: str, *, may_miss: bool = False) -> None:
        """Give the command again; note what is wrong then."""
        end = self.live(name, base)
        if end.said and may_miss and "TRACEBACK" not in end.said:
            self.ways[name, "refused in a line"] += 1
            return
        wrong = [end.said] if end.said else self._end_faults(name, base)
        self.ways[name, "lost" if wrong else "the same"] += 1
        self.fault(*(f"{name}, {what}: {each}" for each in wrong))

    def look(self, name: str, base: Path, what: str) -> None:
        """Note what is wrong with what can be read now."""
        try:
            wrong = readable(SCENES[name], base, self.whole(name))
        except (OSError, ValueError) as error:
            wrong = [f"cannot be read: {error}"]
        self.fault(*(f"{name}, {what}: {each}" for each in wrong))

    def refusal(self, name: str, what: str, end: End, words: tuple[str, ...]) -> None:
        """Note an error that is no refusal of one line with one of these words."""
        if "TRACEBACK" in end.said or not any(word in end.said for word in words):
            self.fault(f"{name}, {what}: {end.said or 'no error'}")
        self.ways[what, "refused in a line" if end.said else "done all the same"] += 1


def kills(lab: Lab, name: str, each: list[Kill], what: str) -> int:
    """Kill the scene again and again, then let it end; returns how often it was killed."""
    done = 0
    with lab.folder() as base:
        for kill in each:
            end = lab.live(name, base, kill)
            if not (end.killed or "its process died" in end.said):
                break
            done += 1
            lab.places[name, end.place.partition(",")[0]] += 1
            lab.look(name, base, f"{what}, {end.place}")
        lab.finish(name, base, f"{what}, {[k for k in each[:done]]}")
    return done


def instants(lab: Lab, name: str, rng: random.Random) -> int:
    """One to three kills at random instants."""
    most = lab.ends[name].seconds
    each = [
        Kill(seconds=rng.uniform(0, most), group=rng.random() < 0.7)
        for _ in range(rng.randint(1, 3))
    ]
    return kills(lab, name, each, "killed at an instant")


def at_point(lab: Lab, name: str, at: int, rng: random.Random) -> int:
    """A kill at one point that the scene passes, and now and then a second one."""
    seconds = [Kill(at=rng.randint(1, at), seed=at)] if rng.random() < 0.2 else []
    first = Kill(at=at, group=rng.random() < 0.7, seed=at)
    return kills(lab, name, [first, *seconds], "killed at a point")


def full_disk(lab: Lab, name: str, rng: random.Random) -> None:
    """A disk of some kilobytes; then it gets room."""
    need = sum(f.stat().st_size + 4096 for f in lab.whole(name).rglob("*")) // 1024
    with lab.folder() as base:
        size = rng.randint(8, need)
        _run("mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", base)
        end = lab.live(name, base)
        if end.said:
            lab.refusal(name, "full disk", end, ("cannot write", "No space left"))
        lab.look(name, base, f"full disk of {size} kB")
        _run("mount", "-o", "remount,size=100m", base)
        lab.finish(name, base, f"full disk of {size} kB, said {end.said!r}")
        _run("umount", base)


def small_files(lab: Lab, name: str, rng: random.Random) -> None:
    """No file may be longer than so many bytes; then it may."""
    longest = max(f.stat().st_size for f in lab.whole(name).rglob("*") if f.is_file())
    size = rng.randint(1, longest)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    with lab.folder() as base:
        end = lab.live(name, base, ready=limit)
        if end.said:
            lab.refusal(name, "files of a limited length", end, ("cannot write", "too large"))
        lab.look(name, base, f"files of at most {size} bytes")
        lab.finish(name, base, f"files of at most {size} bytes, said {end.said!r}")


def read_only(lab: Lab, name: str, rng: random.Random) -> None:
    """A folder, half done, that cannot be written; then it can."""
    with lab.folder() as base:
        lab.live(name, base, Kill(at=rng.randint(1, lab.ends[name].points)))
        before = _tree(base)
        _run("mount", "--bind", base, base)
        _run("mount", "-o", "remount,ro,bind", base)
        end = lab.live(name, base)
        lab.look(name, base, "read-only")
        _run("umount", base)
        lab.refusal(name, "read-only folder", end, ("cannot write", "Read-only"))
        if _tree(base) != before:
            lab.fault(f"{name}, read-only: something was written")
        lab.finish(name, base, f"read-only, said {end.said!r}")


def cut(lab: Lab, name: str, rng: random.Random) -> None:
    """Half done, then files are cut at any byte: of checkpoints, of the log, of the answers."""
    with lab.folder() as base:
        lab.live(name, base, Kill(at=rng.randint(1, lab.ends[name].points)))
        kinds = ("**/*.safetensors", "**/state.json", "**/metrics.jsonl", "**/made.jsonl")
        found = sorted(path for kind in kinds for path in base.glob(kind))
        chosen = rng.sample(found, min(len(found), rng.choice((1, 1, 2, 20))))
        for path in chosen:
            os.truncate(path, rng.randrange(path.stat().st_size + 1))
        what = f"cut: {[str(path.relative_to(base)) for path in chosen]}"
        lab.finish(name, base, what, may_miss=True)


def second_writer(lab: Lab, name: str, rng: random.Random) -> None:
    """A second child where the first one is halted in its midst, which then goes on."""
    scene = SCENES[name]
    with lab.folder() as base:
        SHARED[:72] = bytes(72)
        begun = time.monotonic()
        number, reader = start(scene, lab.stock, base, NEVER, lab.give)
        time.sleep(rng.uniform(0, lab.ends[name].seconds))
        _signal(number, signal.SIGSTOP)
        before, place = _tree(base), _place()
        end = live(scene, lab.stock, base, NEVER, lab.give)
        same = _tree(base) == before
        _signal(number, signal.SIGCONT)
        first = wait(number, reader, NEVER, begun)
        busy = ("in use", "already holds a run", "exists")
        for each in (first, end):
            if each.said and not any(word in each.said for word in busy):
                lab.fault(f"{name}, two writers: {each.said}")
        if end.said and not same:
            lab.fault(f"{name}, two writers ({place}): the refused one wrote")
        lab.ways["second writer", "refused" if end.said else "let in"] += 1
        lab.finish(name, base, f"two writers ({place}): {first.said!r}, {end.said!r}")


def _run(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True)


def _tree(base: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in base.rglob("*") if p.is_file()}


OTHERS = {
    "full disk": (full_disk, tuple(SCENES)),
    "small files": (small_files, tuple(SCENES)),
    "read-only": (read_only, tuple(SCENES)),
    "cut": (cut, (*RUNS, "evaluate")),
    "second writer": (second_writer, (*RUNS, "evaluate")),
}


def all_points(lab: Lab, names: list[str], rng: random.Random) -> list[tuple[str, int]]:
    """Every point of every scene, in random order; of those that take seconds only some."""
    found = []
    for name in names:
        every, most = range(1, lab.ends[name].points + 1), SCENES[name].most
        found += [(name, at) for at in (every if most is None else rng.sample(every, most))]
    rng.shuffle(found)
    return found


def try_all(lab: Lab, given: argparse.Namespace, rng: random.Random) -> Counter:
    """Trials of all kinds in turn, until there were enough kills or the time is over."""
    end, done = time.monotonic() + 60 * given.minutes, Counter()
    left = all_points(lab, given.only, rng)
    cheap = [name for name in given.only if SCENES[name].most is None]
    while done["kills at points"] + done["kills at instants"] < given.count:
        if time.monotonic() > end:
            break
        if left and rng.random() < 0.6:
            done["kills at points"] += at_point(lab, *left.pop(), rng)
        else:
            done["kills at instants"] += instants(lab, rng.choice(cheap), rng)
        if rng.random() < given.others:
            what = rng.choice(list(OTHERS))
            trial, names = OTHERS[what]
            if fit := [name for name in names if name in cheap]:
                trial(lab, rng.choice(fit), rng)
                done[what] += 1
    done["points left"] = len(left)
    return done


def main() -> None:
    """Try, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="kills")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which it ends")
    parser.add_argument("--others", type=float, default=0.2, help="other trials for each kill")
    parser.add_argument("--only", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills") as root:
        lab = Lab(Path(root), given.only)
        done = try_all(lab, given, random.Random(given.seed))
        for counts in (done, lab.ways, lab.places):
            for key, number in sorted(counts.items()):
                print(key if isinstance(key, str) else " / ".join(key), number, sep=": ")
        print(f"{len(lab.wrong)} faults, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
