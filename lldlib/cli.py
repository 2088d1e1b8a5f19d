"""The command line: `lldlib demo | train | evaluate | diagnose | ...`, or `python -m lldlib ...`.

A command is a function: its docstring is the help text, its parameters are the flags. The commands
import what takes seconds when they run.
"""

import hashlib
import importlib.util
import io
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import partial, reduce, wraps
from json import dumps as as_json
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import lldlib
from lldlib.adapters.script import script
from lldlib.config import (
    Count,
    ExamConfig,
    Gate,
    LoadConfig,
    Positive,
    SftConfig,
    TrainConfig,
    WarmstartConfig,
    Within,
    check,
    require,
    train_config_from,
    unknown,
)
from lldlib.files import claim, new_folder, refuse_foreign, shown, write_json, write_whole
from lldlib.hints import (
    check_command,
    claim_pages,
    command,
    ending,
    program,
    resume_hint,
    wrong_flags,
)
from lldlib.recipes import METHODS, start_config, train_config
from lldlib.seeds import seed_for

ABOUT = "A search agent whose training by GRPO collapses, and what saves it. Also: --version."
CORES = os.cpu_count() or 1  # processes that keep this machine busy
RUN = Path("runs/train")  # where train writes
QLORA = LoadConfig(quantize="nf4", lora_rank=16, dtype="bfloat16", gradient_checkpointing=True)

# what the extra "train" of pyproject.toml brings, as Python imports it
TRAIN = {
    *("torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "pandas"),
    *("scipy", "tqdm", "jaxtyping", "rank_bm25"),
}

AGAIN = "stopped; the same command goes on with every run where it stands"

Bare = tyro.conf.arg(name="")  # the fields' flags have no prefix


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 2 after an error that the user can mend."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):  # an encoding that lacks a letter ends no command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if arguments[:1] == ["--version"]:
        say(f"lldlib {lldlib.__version__}")
        return 0
    handler = logging.StreamHandler()
    handler.setFormatter(Plain("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        return parsed(arguments)()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in TRAIN:
            raise
        what = "this command needs PyTorch and more: pip install 'lldlib[train]'"
        say(f"error: {what}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the output has stopped, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell reports for a command that SIGPIPE ended
    except (ValueError, OSError) as error:
        say(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        on_gpu = type(error).__name__ == "OutOfMemoryError"  # torch's, which may not be installed
        if not on_gpu and "DefaultCPUAllocator" not in str(error):
            raise
        what = "lower --rollout.at-once (rollouts, exams) or --micro-rows (evaluate, sft: --rows)"
        say(f"error: out of {'GPU ' * on_gpu}memory: {what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("stopped", file=sys.stderr)
        return 130


def parsed(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its flags, not yet called; ValueError, in one line, for wrong flags."""
    if not arguments:
        raise ValueError(f"name a command: {', '.join(commands([]))}; see {program()} --help")
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return _read(commands(arguments), arguments)
    except SystemExit as left:
        if not left.code:
            raise
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        _read(commands([]), [*(word for word in arguments[:1] if word[0] != "-"), "--help"])
    raise ValueError(wrong_flags(arguments, text.getvalue(), box.getvalue()))


def _read(found: Mapping[str, Callable[..., int]], arguments: Sequence[str]) -> Callable[[], int]:
    later = {name: _later(call) for name, call in found.items()}
    return tyro.extras.subcommand_cli_from_dict(
        later, args=arguments, prog="lldlib", description=ABOUT
    )


def _later(call: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """The same flags and help, and what it gives is the call itself, still to be made."""
    if isinstance(call, partial):
        return partial(_later(call.func), **call.keywords)

    @wraps(call)
    def later(*values: Any, **named: Any) -> Callable[[], int]:
        return partial(call, *values, **named)

    return later


class Plain(logging.Formatter):
    """Names of files may hold escape codes, which do not reach the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The message with its printable characters alone."""
        return shown(super().format(record))


def say(text: object, **to: Any) -> None:
    """Print what may hold names and texts of others."""
    print(shown(str(text)), **to)


@dataclass(frozen=True)
class Named:
    """The flags of train from which the defaults of the others follow."""

    method: str = TrainConfig.method
    policy: str = TrainConfig.policy
    world: Annotated[str | None, tyro.conf.arg(name="data.world")] = None
    out: Path = RUN
    resume: bool = False

    def start(self) -> TrainConfig:
        """The settings that the other flags change: a recipe's, or those of the run in --out."""
        if not self.resume:
            world = {} if self.world is None else {"world": self.world}
            return train_config(self.method, seed=0, policy=self.policy, **world)
        from lldlib.runs.folder import Run

        return train_config_from(Run(self.out).settings())


@dataclass(frozen=True)
class Taught:
    """The flag of warmstart from which the defaults of the others follow."""

    start: str | None = None


def commands(arguments: Sequence[str]) -> dict[str, Callable[..., int]]:
    """The commands by name; method and policy in `arguments` give the defaults of train."""
    named, taught = Named(), Taught()
    if "train" in arguments[:1]:
        named, _ = tyro.cli(Named, args=arguments[1:], return_unknown_args=True, add_help=False)
    if "warmstart" in arguments[:1]:
        taught, _ = tyro.cli(Taught, args=arguments[1:], return_unknown_args=True, add_help=False)
    found = {
        "demo": demo,
        "train": partial(train, config=named.start()),
        "evaluate": evaluate,
        "serve": serve,
        "report": report,
        "explore": explore,
        "sweep": sweep,
        "warmstart": partial(warmstart, config=start_config(taught.start)),
        "prepare": prepare,
        "sft": sft,
        "fit": partial(fit, load=QLORA),
        "diagnose": diagnose,
        "check-llds": check_llds,
        "script": script,
    }
    check_command(arguments, found)
    return found


# -- the lab ---------------------------------------------------------------------------------------


def demo(
    seeds: tuple[int, ...] = (0,),
    out: Path = Path("runs/demo"),
    jobs: int = CORES,
    steps: int = 25,
    policy: str = "half_taught",
) -> int:
    """Train GRPO, GRPO+LLDS and GRPO at a lower learning rate side by side from one start.

    The third arm is for half_taught alone, of which such a rate is known. The other two have a rate
    of 1.2e-3 there, at which GRPO dies within 25 batches. Ends with a table, a verdict, figure.png
    and summary.json in the folder --out. Run it again to go on after an interruption; what is done
    is skipped.

    Args:
        seeds: a run of every arm for each
        out: folder for the runs, the figure and the summary
        jobs: runs at the same time; one core each
        steps: rollout batches of each run; the recorded runs of the same setting go on to 40
        policy: "half_taught" learns in the shuffled atlas, "tiny" is the first world's searcher,
            "sparks" adds up in the world of sparks; or a policy's folder, for the first world
    """
    if not seeds:
        raise ValueError("no seeds: give at least one, such as --seeds 0 1")
    require("steps", steps, Count)
    require("jobs", jobs, Count)
    from lldlib.policy.load import BUILT_IN
    from lldlib.show.curves import collapse_figure
    from lldlib.show.style import save
    from lldlib.train import demo as study

    if policy not in BUILT_IN and not Path(policy).exists():  # seen here, not in every worker
        raise ValueError(f"{unknown('policy', policy, BUILT_IN)} (or a policy's folder)")
    claim(out, "demo", *(f"{arm}-seed*" for arm in study.NAMES), "figure.png", "summary.json")
    try:
        rows, runs, failures = study.demo(out, seeds, jobs, policy=policy, steps=steps)
    except KeyboardInterrupt:
        return _stopped(AGAIN)
    if rows:
        figure = save(collapse_figure(runs), out / "figure.png")
        say(f"\n{study.table(rows)}\n\n{study.verdict(rows)}\n")
        folders = [run.path for found in runs.values() for run in found]
        say(f"figure:  {figure}\nsummary: {out / 'summary.json'}")
        say(f"one page with every answer: {command('explore', *folders, '--out', 'spiral.html')}")
    return _complain(failures)


def train(
    config: Annotated[TrainConfig, Bare],
    out: Path = RUN,
    resume: bool = False,
    dry_run: bool = False,
) -> int:
    """Train one policy into a run folder.

    Where the settings start follows from --method and --policy. half_taught: the shuffled atlas, 16
    updates per batch, learning rate 1e-3 (the demo takes 1.2e-3 and stops early, --steps 25).
    sparks: the world of sparks. tiny: the first world, of fixed facts, 64 updates per batch, 4e-4.
    Any other policy: as the papers train. Interrupted, even by kill -9, it goes on with --resume,
    and on the CPU gives the numbers of an unbroken run. Ends with a verdict and a figure.

    Methods: ALL_METHODS.

    Args:
        out: the run folder: settings, metrics, rollouts, checkpoints
        resume: go on with the run in --out by its own settings; a larger --steps extends it
        dry_run: train two batches, keep nothing, and say what the run takes: memory and hours
    """
    config.check()  # before what takes seconds
    from lldlib.runs.folder import Run, refuse_run
    from lldlib.train.run import TrainingRun, run_with_bar

    _one_thread()
    if resume:
        own = train_config_from(Run(out).settings())
        if replace(config, steps=own.steps) != own:
            raise ValueError(
                "--resume goes on by the run's own settings: give it only --out, and --steps to "
                "train on"
            )
    else:
        refuse_run(out)
        _refuse_idle(config)
    if dry_run:
        from lldlib.train.rehearse import rehearse

        done = max((step for step, _ in Run(out).checkpoints), default=0) if resume else 0
        say(rehearse(config, done).text())
        return 0
    run = TrainingRun(config, out, resume=resume)
    try:
        if resume and config.steps != own.steps:
            run.extend(config.steps)
        run_with_bar(run)
    except KeyboardInterrupt:
        return _stopped(resume_hint(out))
    say(f"\n{ending(out)}")
    return 0


def _refuse_idle(config: TrainConfig) -> None:
    """ValueError for a setting that was given of a term that is off, as in a grid of sweep.

    Its weight may be given: 0 turns a term off.
    """
    from lldlib.train.sweep import OWN, applies

    own, start = config.loss, {"policy": config.policy, "world": config.data.world}
    usual = train_config(config.method, seed=0, **start).loss
    given = [one.name for one in fields(own) if getattr(own, one.name) != getattr(usual, one.name)]
    weights = {term.coef for term in OWN}
    if idle := [name for name in given if name not in weights and not applies(name, own)]:
        raise ValueError(f"loss.{idle[0]} is of a term that is off: turn it on, or drop this")


train.__doc__ = train.__doc__.replace("ALL_METHODS", ", ".join(METHODS))


def report(runs: tyro.conf.Positional[tuple[Path, ...]], out: Path) -> int:
    """Make the table and the figures of recorded runs, from their folders alone.

    Args:
        runs: run folders, such as runs/demo/*-seed0
        out: folder for table.md, summary.json and the figures
    """
    from lldlib.show.compare import REPORT, write_report

    refuse_foreign(out, "report", *REPORT)
    files = write_report(runs, out)
    say(files[0].read_text(encoding="utf-8"))
    say("\n".join(map(str, files)))
    return 0


def explore(runs: tyro.conf.Positional[tuple[Path, ...]], out: Path, play: bool = False) -> int:
    """Make one page of runs: curves, a cursor over the batches, and what each run answers there.

    The page needs no kernel and no network. The answers are greedy, to the same few questions, and
    coloured by likelihood. A run records them with --questions-every 1, as the demo's runs do; of
    other runs the page shows sampled rollouts.

    Args:
        runs: run folders, such as runs/demo/*-seed0
        out: file for the page, such as spiral.html
        play: move the cursor at once when the page is opened
    """
    from lldlib.runs.folder import Run
    from lldlib.show.spiral import save_spiral

    say(f"page: {save_spiral([Run(run) for run in runs], out, play=play)}")
    return 0


def sweep(grid: tuple[str, ...], out: Path, jobs: int = CORES) -> int:
    """Train a grid of runs over all cores, such as:

    python -m lldlib sweep --grid method=grpo,llds seed=0,1,2 lr=2e-4,4e-4 --out runs/sweep

    What the grid does not name is as for half_taught: the shuffled atlas, 16 updates per batch,
    learning rate 1e-3 (the demo takes 1.2e-3 and stops earlier, steps=25). policy=sparks gives
    the world of sparks, any other policy the first world: fixed facts, 64 updates per batch, 4e-4.

    Each cell has a folder; unfinished ones are resumed, finished ones skipped. The rows of all
    whole runs are in sweep.json, and printed at the end. A setting of LLDS, Lp-Reg, KL-Cov or the
    KL to the old policy is left out for methods without that term.

    Args:
        grid: settings as name=value,value; method and seed are needed
        out: folder for the runs and sweep.json
        jobs: runs at the same time; one core each
    """
    require("jobs", jobs, Count)
    from lldlib.runs.summary import summary_table
    from lldlib.train.sweep import SUMMARY, check_cells, grid_cells, parse_grid, sweep

    found = parse_grid(grid)
    check_cells(grid_cells(found, out))
    claim(out, "sweep", "method=*", SUMMARY)
    try:
        failures = sweep(found, out, jobs)
    except KeyboardInterrupt:
        return _stopped(AGAIN)
    rows = json.loads((out / SUMMARY).read_bytes())
    say(f"\n{summary_table([row | {'arm': row['cell']} for row in rows])}\nrows: {out / SUMMARY}")
    return _complain(failures)


def warmstart(config: Annotated[WarmstartConfig, Bare], out: Path = Path("runs/warmstart")) -> int:
    """Make a searcher of the atlas, from nothing or --start, by training on noisy demonstrations.

    Takes 13 minutes on a quiet core, and keeps nothing if it is stopped. --start smollm2 teaches
    SmolLM2 to look up one thing and answer, and sets the other flags for it.

    Args:
        out: a new folder for the policy
    """
    config.check()
    from lldlib.policy.load import save_policy
    from lldlib.train.supervised import warm_start
    from lldlib.world.atlas import World

    _one_thread()
    claim(out, "warmstart")
    with new_folder(out) as fresh:
        policy = warm_start(World.load(), config)
        save_policy(policy, fresh)
    say(f"policy: {out}")
    start = {} if config.start is None else {"policy": config.start}
    _print_heldout(policy, train_config("grpo", seed=0, world="shuffled", **start))
    return 0


# -- real models -----------------------------------------------------------------------------------


def prepare(
    name: Annotated[str, tyro.conf.Positional],
    out: Path,
    files: Annotated[tuple[Path, ...], tyro.conf.arg(name="from")] = (),
    heldout: int = 500,
) -> int:
    """Make train, held-out and corpus files out of the official files of a question set.

    NAME is hotpotqa, 2wiki, musique, nq, triviaqa, or wiki18, which is a corpus alone. Files are
    read as they are downloaded: JSON, JSON lines, parquet, TSV, plain or .gz. A file's name says
    whether it is for training (train) or held out (dev, valid, test).

    Args:
        name: the question set
        out: a new folder, or one that this command made
        files: the downloaded files; without any the error says where they are
        heldout: training questions that are held out where no file is
    """
    from lldlib.world import prepare as made

    require("heldout", heldout, Count)
    say(made.report(name, out, made.prepare(name, files, out, heldout=heldout)))
    corpus = out / "corpus.jsonl" if (out / "corpus.jsonl").is_file() else "FILE"
    if (out / "train.jsonl").is_file():
        parts = shlex.join(
            ["--data.train", f"{out}/train.jsonl", "--data.heldout", f"{out}/heldout.jsonl"]
        )
        parts += f" --data.corpus {shlex.quote(str(corpus))}"
        say(f"next: lldlib train --policy MODEL {parts} --dry-run")
    elif name != "wiki18":
        asked = f"--benchmarks {shlex.quote(str(out))} --tasks heldout "
        asked += f"--corpus {shlex.quote(str(corpus))} --out runs/exam"
        say(f"no train file, so nothing to train on; next: lldlib evaluate --policy MODEL {asked}")
    return 0


def sft(
    config: Annotated[SftConfig, Bare], out: Path = Path("runs/sft"), resume: bool = False
) -> int:
    """Teach a real model the protocol: supervised steps on trajectories from gold passages, such as

    python -m lldlib sft --files hotpotqa_distractor_train.jsonl --policy smollm2 --out runs/sft

    The trained policy, adapters merged, ends up in the folder policy of --out. Interrupted, the run
    goes on with --resume.

    Args:
        out: the run folder
        resume: go on with the run in --out, by the settings saved there
    """
    if not resume:
        config.check()
    from lldlib.train.supervised import SftRun

    if not config.files and not resume:
        raise ValueError("name the train files with gold passages: --files FILE ...")
    if config.files and resume:
        raise ValueError("--resume goes on by the run's own settings: give it only --out")
    run = SftRun(config, out, resume=resume)
    try:
        run.run()
    except KeyboardInterrupt:
        return _stopped(resume_hint(out, "sft"))
    say(f"policy: {out / 'policy'}")
    return 0


def fit(
    policy: str,
    gpu: float,
    load: LoadConfig,
    rows: int = 4,
    rollouts: int = 40,
    tokens: int = 2048,
    reference: bool = True,
    move_limit: bool = False,
) -> int:
    """Say before any weights are downloaded whether training fits on a GPU, part by part.

    Memory alone: hours are measured by train's --dry-run, on the card itself. Counted from the
    model's configuration by a step without storage; the CUDA context is a guess.

    Args:
        policy: a Hugging Face name such as Qwen/Qwen2.5-3B, a folder, or a built-in policy
        gpu: memory of the GPU in GB (1e9 bytes)
        rows: episodes scored or trained at a time
        rollouts: episodes generated at the same time
        tokens: length of the longest episode, passages included
        reference: the loss has a KL to the reference policy
        move_limit: each update is limited, as by train's --move-limit
    """
    require("gpu", gpu, Positive)
    for name, value in {"rows": rows, "rollouts": rollouts, "tokens": tokens}.items():
        require(name, value, Count)
    check(load, "load.")
    from lldlib.policy.load import LoraSettings
    from lldlib.policy.memory import Shape, estimate

    found = estimate(
        policy,
        gpu,
        Shape(rows, rollouts, tokens),
        quantize=load.quantize,
        lora=LoraSettings(load.lora_rank, load.lora_alpha) if load.lora_rank else None,
        dtype=load.dtype,
        gradient_checkpointing=load.gradient_checkpointing,
        reference=reference,
        move_limit=move_limit,
    )
    say("memory alone; hours: `lldlib train ... --dry-run` measures two batches on your card")
    say(found.table())
    return 0 if found.fits else 1


# -- questions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """Whom to ask what."""

    run: Path | None = None  # a run folder with checkpoints
    checkpoint: int | None = None  # batch of the run's checkpoint; the latest if left out
    policy: str | None = None  # built in: tiny, half_taught, sparks; or as train takes it
    # of the policy of --policy; of a run the device alone
    load: LoadConfig = field(default_factory=LoadConfig)
    benchmarks: Path | None = None  # folder of normalised JSONL files, or hub: Hugging Face
    tasks: tuple[str, ...] = ("all",)  # all, qa, maths, single tasks, or files of the folder
    retriever: str = "bm25"  # bm25, none, or the address of a /retrieve service
    corpus: Path | None = None  # passages for bm25, as JSONL
    index: Path | None = None  # folder for bm25's index on disk, such as runs/index/wiki
    out: Path | None = None  # folder for predictions, summary.json and table.md
    against: Path | None = None  # the --out of another policy: compare question by question
    exam: Annotated[ExamConfig, Bare] = field(default_factory=ExamConfig)

    def config(self) -> TrainConfig:
        """The settings of the run, or those that a run of the policy starts from."""
        from lldlib.runs.folder import Run

        if self.run is None:
            return train_config("grpo", seed=0, policy=self.policy)
        before = None if self.checkpoint is None else self.checkpoint + 1
        return train_config_from(Run(self.run).settings(before))

    def names(self) -> dict[str, Any]:
        """What the answers depend on besides the exam's own settings."""
        return {
            "policy": self.policy,
            "run": None if self.run is None else str(self.run),
            "checkpoint": self.checkpoint,
            "load": asdict(self.load),
            "retriever": self.retriever,
            "corpus": None if self.corpus is None else _content(self.corpus),
        }


def evaluate(asked: Annotated[Asked, Bare]) -> int:
    """Ask questions: benchmarks from a folder, or the held-out ones of a run or a world.

    Name a policy or a run. With --benchmarks and --out: exact match and F1 with 95 % intervals,
    searches and length, beside the papers' rows; every answer is kept, and the same command goes on
    after an interruption. Without: what the run, or training this policy, holds out, by the budget
    of training, answered greedily. Questions of the atlas are asked again where its facts are
    permuted; a searcher that reads answers from the permuted passages, one that remembers gives the
    true answers.
    """
    if (asked.run is None) == (asked.policy is None):
        raise ValueError("name what to evaluate: either --run DIR or --policy NAME")
    if asked.run is None and asked.checkpoint is not None:
        raise ValueError("--checkpoint belongs to --run: a policy has no checkpoints")
    if asked.benchmarks is not None and asked.out is None:
        raise ValueError("name a folder for the predictions: --out DIR")
    asked.exam.check()
    check(asked.load, "load.")
    from lldlib.runs.folder import Run

    if asked.run is not None and asked.checkpoint is None:  # settled here: the run may go on
        asked = replace(asked, checkpoint=max(dict(Run(asked.run).checkpoints), default=None))
    if asked.benchmarks is not None:
        return _benchmarks(asked)
    given = replace(asked, run=None, checkpoint=None, policy=None, load=LoadConfig())
    if idle := [f"--{f.name}" for f in fields(given) if getattr(given, f.name) != _unasked(f)]:
        told = " and ".join(idle).replace("--exam", "the exam's settings")
        raise ValueError(f"{told} belong to benchmarks: name their folder, --benchmarks")
    _one_thread()
    _print_heldout(_policy(asked), asked.config())
    return 0


def _unasked(one: Field) -> Any:
    """The default of a flag."""
    return one.default if one.default is not MISSING else one.default_factory()


def _content(corpus: Path) -> str:
    """A corpus by name, size and first megabyte: many data sets' are called corpus.jsonl."""
    if not corpus.is_file():
        return corpus.name  # opening it will say so
    with corpus.open("rb") as file:
        digest = hashlib.sha256(file.read(1_000_000)).hexdigest()[:12]
    return f"{corpus.name} of {corpus.stat().st_size} bytes, {digest}"


def _policy(asked: Asked) -> Any:
    from lldlib.evaluate.heldout import policy_of
    from lldlib.policy.load import load_as
    from lldlib.runs.folder import Run

    if asked.run is None:
        return load_as(asked.policy, asked.load)
    device = asked.load.device
    if replace(asked.load, device=LoadConfig.device) != LoadConfig():
        raise ValueError(
            "a run's policy is loaded as it was trained: of --load only the device counts"
        )
    own = device == LoadConfig.device
    return policy_of(Run(asked.run), asked.checkpoint, None if own else device)


def _benchmarks(asked: Asked) -> int:
    from lldlib.evaluate.exam import Exam, prediction_file
    from lldlib.evaluate.scores import compare, read_predictions, score_task
    from lldlib.evaluate.tables import evaluation_report
    from lldlib.retrieval import NoRetriever
    from lldlib.retrieval.choose import open_retriever
    from lldlib.world.answers import need_math_verify
    from lldlib.world.benchmarks import find_tasks, load_benchmark, load_from_hub

    folder = None if str(asked.benchmarks) == "hub" else asked.benchmarks
    tasks = find_tasks(asked.tasks, folder)
    questions = [load_benchmark(t, folder) if folder else load_from_hub(t) for t in tasks]
    if any(task.kind == "maths" for task in tasks):
        need_math_verify()
    if any(task.kind == "qa" for task in tasks):
        retriever = open_retriever(asked.retriever, asked.corpus, asked.index)
    else:  # maths is answered without search
        retriever = NoRetriever()
    claim(asked.out, "evaluate", "settings.json", "predictions", "summary.json", "table.md")
    others = {}
    if asked.against is not None:  # read before anything is asked
        others = {t.name: read_predictions(prediction_file(asked.against, t)) for t in tasks}
    exam = Exam(_policy(asked), retriever, asked.exam, asked.out, asked.names())
    scores, pairs = [], []
    for task, of_task in zip(tasks, questions, strict=True):
        answers = exam.ask(task, of_task, progress=True)
        scores.append(score_task(task.title, task.kind, answers))
        if others:
            pairs.append(compare(task.title, answers, others[task.name]))
    table = evaluation_report(asked.policy or str(asked.run), scores, pairs)
    summary = {"tasks": [s.summary() for s in scores], "against": [asdict(p) for p in pairs]}
    write_json(asked.out / "summary.json", asked.names() | summary)
    write_whole(asked.out / "table.md", table)
    say(f"{table}\nanswers: {asked.out}")
    return 0


def serve(
    corpus: Path,
    index: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    topk: int = 3,
) -> int:
    """Serve a corpus to rollouts over HTTP, by the /retrieve protocol of Search-R1.

    Args:
        corpus: passages as JSONL
        index: folder for the index on disk, such as runs/index/wiki
        host: address to listen at
        port: 0: any free one
        topk: passages per query where the client names no number
    """
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise ValueError("serving needs fastapi and uvicorn: pip install 'lldlib[benchmarks]'")
    require("port", port, Annotated[int, Within(0, 65535)])
    require("topk", topk, Count)
    from lldlib.retrieval.choose import open_bm25
    from lldlib.retrieval.serve import make_app, serve

    app = make_app(open_bm25(corpus, index), topk)
    serve(app, host, port, lambda url: say(f"serving {url}", flush=True))
    return 0


# -- anyone's log ----------------------------------------------------------------------------------


def diagnose(
    logs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path | None = None,
    json: bool = False,
    markdown: bool = False,
    map: tuple[str, ...] = (),
    fail_on: Literal["stagnating", "degrading", "collapsed"] | None = None,
    follow: bool = False,
    seconds: float = 30.0,
    answers: Path | None = None,
    webhook: str | None = None,
) -> int:
    """Say what is wrong with a training run, from its log alone: no model, no GPU.

    Reads logs of verl, Search-R1, TRL, W&B exports, TensorBoard, CSV, JSONL, and run folders.

    Args:
        logs: files or folders
        out: folder for the page as HTML and the figure
        json: one JSON object a run
        markdown: a page to paste into a bug report
        map: columns of a home-made log, as reward=COLUMN step=COLUMN
        fail_on: exit with 3 where this verdict or a worse one is found
        follow: read one growing log again and again
        seconds: between two readings with --follow
        webhook: address to which --follow sends a warning or a bad verdict, as one POST of JSON
        answers: file or folder of the run's completions, where they are not beside the log
    """
    from lldlib.doctor.live import diagnose_command

    require("seconds", seconds, Positive)
    if out is not None:
        claim_pages(out)
    # a log that stands behind --map is read as one more of its columns
    logs += tuple(Path(given) for given in map if "=" not in given and Path(given).exists())
    map = tuple(given for given in map if "=" in given or not Path(given).exists())

    def complain(line: str) -> None:
        say(f"error: {line}", file=sys.stderr)

    shown = {"as_json": json, "markdown": markdown, "map_columns": map, "fail_on": fail_on}
    live = {"follow": follow, "seconds": seconds, "address": webhook}
    return diagnose_command(logs, print, complain, out=out, answers=answers, **live, **shown)


def check_llds(
    function: tyro.conf.Positional[str],
    gate: Gate = "action",
    preserve: Literal["nonnegative", "positive"] = "nonnegative",
    signature: Literal["default", "verl-policy-loss", "trl-trainer"] = "default",
    json: bool = False,
) -> int:
    """Say which promises of LLDS an implementation keeps, anyone's, on some twenty small cases.

    Exit status: 0 all are kept, 1 not, 2 it cannot be called. In a test of your own: assert_llds of
    lldlib.adapters.check_llds.

    Args:
        function: MODULE:FUNCTION or FILE.py:FUNCTION; it takes (logp, old_logp, advantages,
            action_mask) and gives the (B, T) penalty or its scalar
        gate: the gate that it should have
        preserve: rows whose likelihood it should keep: of advantage >= 0, or > 0
        signature: verl-policy-loss: a policy loss of verl; trl-trainer: a function without
            arguments that builds a trainer of TRL
        json: one JSON object
    """
    from lldlib.adapters.check_llds import check_llds

    how = {"gate": gate, "preserve": preserve, "signature": signature}
    found = check_llds(_function(function), **how)
    told = {"function": function, "kept": found.kept, **asdict(found)}
    say(as_json(told, ensure_ascii=False) if json else found.text())
    return 0 if found.kept else 1


# -- what they share -------------------------------------------------------------------------------


def _print_heldout(policy: Any, config: TrainConfig) -> None:
    """Print held-out exact match and, of the atlas's questions, the permuted-facts control."""
    from lldlib.evaluate.heldout import heldout_em, permuted_control
    from lldlib.world.atlas import World, WorldQuestion
    from lldlib.world.registry import open_environment

    environment = open_environment(config)
    if environment.heldout is None:
        raise ValueError("nothing was held out of this run: ask benchmarks, --benchmarks and --out")
    questions = environment.heldout.questions
    rollout = config.rollout.exact
    em = heldout_em(policy, environment, rollout)
    say(f"held-out exact match                        {em:.3f}  ({len(questions)} questions)")
    if not all(isinstance(question, WorldQuestion) for question in questions):
        return  # there are no facts to permute
    planet = seed_for("control planet", config.seed)
    control = permuted_control(policy, World.load(), questions, rollout, seed=planet)
    say(f"on a permuted corpus, against its answers   {control.em_permuted:.3f}  ", end="")
    say(f"({control.questions} questions whose answer changed)")
    say(f"on a permuted corpus, against true answers  {control.em_true:.3f}")


def _function(name: str) -> Callable[..., Any]:
    """What MODULE:FUNCTION or FILE.py:FUNCTION names; raises ValueError if there is none."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise ValueError(f"{name!r}: want MODULE:FUNCTION, such as lldlib.losses:llds_penalty")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, "")  # the folder where the command runs
            module = importlib.import_module(place)
        found = reduce(getattr, attribute.split("."), module)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises
        raise ValueError(f"cannot import {name}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name} is no function but {type(found).__name__}")
    return found


def _one_thread() -> None:
    """As in demo and sweep: the same numbers, and no slower at this size."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def _stopped(what: str) -> int:
    """After Ctrl-C: say how to go on; the exit code."""
    say(f"\n{what}", file=sys.stderr)
    return 130


def _complain(failures: dict[Path, str]) -> int:
    """Say which runs failed; the exit code."""
    for path, error in failures.items():
        say(f"failed: {path}: {error}", file=sys.stderr)
    return 1 if failures else 0
