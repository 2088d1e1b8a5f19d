"""The commands' options: one frozen dataclass a command, its docstring is the help text."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from lldlib.config import ExamConfig, LoadConfig, SftConfig, TrainConfig, WarmstartConfig, data_dir


def cores() -> int:
    """How many processes keep this machine busy."""
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Demo:
    """Watch GRPO collapse and GRPO+LLDS live: both are trained side by side from the same start.

    Ends with a table, figure.png and summary.json in the folder --out. Run it again to go on after
    an interruption; what is done is skipped.
    """

    seeds: tuple[int, ...] = (0,)  # two runs for each
    out: Path = Path("runs/demo")  # folder for the runs, the figure and the summary
    jobs: int = field(default_factory=cores)  # runs at the same time; one core each
    steps: int = 50  # rollout batches of each run; the recorded runs begin with the same ones
    policy: str = "tiny"  # "tiny" is the built-in searcher; else a Hugging Face name or path


@dataclass(frozen=True)
class Train:
    """Train one searcher, from its warm start, into a run folder.

    Every setting starts from the method's preset: at the demo's setting for the tiny searcher, at
    that of the papers for any other policy. Interrupted, even by kill -9, it goes on with --resume
    and gives the numbers of an unbroken run.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path = Path("runs/train")  # the run folder: settings, metrics, rollouts, checkpoints
    resume: bool = False  # go on with the run in --out, by the settings saved there


@dataclass(frozen=True)
class Evaluate:
    """Ask questions: benchmarks from a folder, or the held-out ones of the world.

    Name a policy or a run. With --benchmarks and --out: exact match and F1 with 95 % intervals,
    searches and length, beside the papers' rows; every answer is kept, and the same command goes on
    after an interruption. Without: the held-out questions of the world, asked again where its facts
    are permuted; a searcher that reads answers from the permuted passages, one that remembers gives
    the true answers.
    """

    run: Path | None = None  # a run folder with checkpoints
    checkpoint: int | None = None  # of that run: its batch number; the latest if left out
    policy: str | None = None  # "tiny", or a Hugging Face name or path
    load: LoadConfig = field(default_factory=LoadConfig)  # of the policy of --policy
    benchmarks: Path | None = None  # folder of normalised JSONL files, or hub: Hugging Face
    tasks: tuple[str, ...] = ("all",)  # all, qa, maths, single tasks, or files of the folder
    retriever: str = "bm25"  # bm25, none, or the address of a /retrieve service
    corpus: Path | None = None  # passages for bm25, as JSONL
    index: Path | None = None  # folder for bm25's index on disk; large corpora: runs/index
    out: Path | None = None  # folder for predictions, summary.json and table.md
    against: Path | None = None  # the --out of another policy: compare question by question
    exam: Annotated[ExamConfig, tyro.conf.arg(name="")] = field(default_factory=ExamConfig)


@dataclass(frozen=True)
class Serve:
    """Serve a corpus to rollouts over HTTP, by the /retrieve protocol of Search-R1."""

    corpus: Path  # passages as JSONL
    index: Path | None = None  # folder for the index on disk; large corpora: runs/index
    host: str = "127.0.0.1"  # address to listen at
    port: int = 8000  # 0: any free one
    topk: int = 3  # passages per query where the client names no number


@dataclass(frozen=True)
class Report:
    """Make the table and the figures of recorded runs, from their folders alone."""

    runs: tyro.conf.Positional[tuple[Path, ...]]  # run folders, such as runs/demo/*-seed0
    out: Path  # folder for table.md, summary.json and the figures


@dataclass(frozen=True)
class Sweep:
    """Train a grid of runs at the demo's setting over all cores, such as:

    python -m lldlib sweep --grid method=grpo,llds seed=0,1,2 lr=2e-4,4e-4 --out runs/sweep

    Each cell has a folder; unfinished ones are resumed, finished ones skipped. The rows of all
    whole runs are in sweep.json. A setting of LLDS or Lp-Reg is left out for methods without that
    term.
    """

    grid: tuple[str, ...]  # settings as name=value,value; method and seed are needed
    out: Path  # folder for the runs and sweep.json
    jobs: int = field(default_factory=cores)  # runs at the same time; one core each


@dataclass(frozen=True)
class Sft:
    """Teach a real model the protocol: supervised steps on trajectories from gold passages, such as

    python -m lldlib sft --files hotpotqa_distractor_train.jsonl --policy smollm2 --out runs/sft

    The trained policy, adapters merged, ends up in the folder policy of --out. Interrupted, the run
    goes on with --resume.
    """

    config: Annotated[SftConfig, tyro.conf.arg(name="")]
    out: Path = Path("runs/sft")  # the run folder
    resume: bool = False  # go on with the run in --out, by the settings saved there


@dataclass(frozen=True)
class Fit:
    """Say before anything is downloaded whether training fits on a GPU, part by part.

    Counted from the model's configuration by a step without storage; the CUDA context is a guess.
    """

    policy: str  # such as Qwen/Qwen2.5-3B; "tiny", a folder, or a Hugging Face name
    gpu: float  # memory of the GPU in GB (1e9 bytes)
    rows: int = 4  # episodes scored or trained at a time
    rollouts: int = 40  # episodes generated at the same time
    tokens: int = 2048  # of the longest episode, passages included
    reference: bool = True  # the loss has a KL to the reference policy
    load: LoadConfig = field(
        default_factory=lambda: LoadConfig(
            quantize="nf4", lora_rank=16, dtype="bfloat16", gradient_checkpointing=True
        )
    )


@dataclass(frozen=True)
class Warmstart:
    """Make the tiny searcher from nothing, by supervised training on noisy demonstrations.

    Takes some minutes on one core, and writes over what the folder --out holds.
    """

    config: Annotated[WarmstartConfig, tyro.conf.arg(name="")]
    out: Path = field(default_factory=lambda: data_dir() / "tiny")  # the policy's folder
