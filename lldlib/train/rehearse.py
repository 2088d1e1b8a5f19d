"""What a run would take, measured before it: memory, seconds per batch, hours, and what it asks."""

import os
import time
from dataclasses import dataclass
from statistics import fmean

import torch

from lldlib.config import TrainConfig
from lldlib.train.run import exam_scores
from lldlib.train.setup import Setting, make_setting
from lldlib.train.trainer import Trainer
from lldlib.world.answers import normalise_answer

BATCHES = 2  # that are measured
ASKED = 100  # training questions whose answers are looked for
SLOW = 1.2  # times float32's time from which bfloat16 is worth a warning
GB = 1e9


@dataclass(frozen=True)
class Rehearsal:
    """The first batches of a run that is not kept."""

    questions: int  # to train on, in the first batch's split
    heldout: int  # questions of an evaluation
    found: float | None  # share of training questions whose passages hold an answer
    right: float  # mean reward of the starting policy
    mixed: float  # share of groups with right and wrong answers, the only ones that teach
    peak: float | None  # bytes held at most; None: this system does not say
    available: float  # bytes of the device
    seconds: float  # a batch
    exam_seconds: float  # an evaluation
    batches: int  # to go
    exams: int  # to go
    bfloat16_price: float = 1.0  # time of a product in the run's bfloat16, in float32's time

    @property
    def left(self) -> float:
        """Seconds to go."""
        return self.seconds * self.batches + self.exam_seconds * self.exams

    def text(self) -> str:
        """One line for each thing that was measured."""
        held = f"{self.peak / GB:.2f} GB at most" if self.peak is not None else "not known here"
        lines = [
            f"questions: {self.questions} to train on, {self.heldout} held out",
            f"start:     {self.right:.0%} right, {self.mixed:.0%} of groups mixed",
            f"memory:    {held}, of {self.available / GB:.1f} GB",
            f"a batch:   {self.seconds:.3g} s, the mean of {BATCHES}",
            *([f"an exam:   {self.exam_seconds:.3g} s, {self.exams} to go"] if self.exams else []),
            f"to go:     {self.batches} batches, about {duration(self.left)}",
        ]
        if self.found is not None:
            lines.insert(1, f"passages:  searched by the question, {self.found:.0%} show an answer")
        if not self.mixed:
            lines.append("warning:   no group is mixed, so these batches teach nothing")
        if self.bfloat16_price > SLOW:
            lines.append(
                f"warning:   this processor takes {self.bfloat16_price:.1f} times as long for a "
                "product in bfloat16 as in float32: --load.dtype float32 is faster"
            )
        return "\n".join(lines)


def rehearse(config: TrainConfig, done: int = 0) -> Rehearsal:
    """Train two batches from the start and ask one evaluation; nothing is written or kept.

    Memory is what the device held at most, on the CPU the whole process. `done` batches need not be
    trained any more. Raises ValueError for settings without a meaning, and what `make_setting`
    raises for questions, corpus and policy.
    """
    config.check()
    setting = make_setting(config)
    trainer = Trainer(config, setting.policy, setting.environment, setting.probe)
    rows = [trainer.step()[0] for _ in range(BATCHES)]
    started = time.perf_counter()
    if config.eval_every:
        exam_scores(setting, config.rollout)
    exam_seconds = time.perf_counter() - started
    heldout = setting.environment.heldout
    peak, available = memory(trainer.device)
    return Rehearsal(
        questions=len(setting.environment.training(0).questions),
        heldout=0 if heldout is None else len(heldout.questions),
        found=answers_found(setting, config),
        right=rows[0]["reward/mean"],
        mixed=fmean(row["reward/mixed_groups"] for row in rows),
        peak=peak,
        available=available,
        seconds=fmean(row["time/step"] for row in rows),
        exam_seconds=exam_seconds,
        batches=max(0, config.steps - done),
        exams=exams_due(config, done),
        bfloat16_price=bfloat16_price(trainer.device) if config.load.dtype == "bfloat16" else 1.0,
    )


def bfloat16_price(device: torch.device) -> float:
    """Seconds of a product of matrices in bfloat16 by those in float32: under 1 where it is fast.

    Some processors have instructions for it, some emulate it. On a GPU it is fast: 1.
    """
    if device.type != "cpu":
        return 1.0
    seconds = []
    for dtype in (torch.bfloat16, torch.float32):
        rows = torch.ones(512, 1024, dtype=dtype, device=device)
        weight = torch.ones(1024, 1024, dtype=dtype, device=device)
        times = []
        for _ in range(6):
            started = time.perf_counter()
            torch.mm(rows, weight)
            times.append(time.perf_counter() - started)
        seconds.append(min(times))
    return seconds[0] / seconds[1]


def exams_due(config: TrainConfig, done: int) -> int:
    """Evaluations from batch `done` on; the one before any training is another."""
    every, left = config.eval_every, range(done, config.steps)
    if not every:
        return 0
    return sum((i + 1) % every == 0 or i + 1 == config.steps for i in left) + (done == 0)


def answers_found(setting: Setting, config: TrainConfig) -> float | None:
    """Share of training questions for which a search by their own words finds an answer.

    None where there is no search. Of questions of several hops it finds less than a policy can.
    """
    split = setting.environment.training(0)
    asked = split.questions[:ASKED]
    if config.data.kind == "maths" or not config.rollout.max_searches:
        return None
    found = split.tool.search([q.text for q in asked], config.rollout.top_k)
    if not any(found):
        return None
    hits = 0
    for question, passages in zip(asked, found, strict=True):
        read = f" {normalise_answer(' '.join(f'{p.title} {p.text}' for p in passages))} "
        hits += any(f" {normalise_answer(answer)} " in read for answer in question.answers)
    return hits / len(asked)


def memory(device: torch.device) -> tuple[float | None, float]:
    """Bytes that were held at most, and those that the device has."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return float(torch.cuda.max_memory_reserved(device)), float(total)
    try:
        import resource
    except ImportError:  # Windows
        return None, float("nan")
    unit = 1 if os.uname().sysname == "Darwin" else 1024  # of ru_maxrss
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit), float(total)


def duration(seconds: float) -> str:
    """Such as 40 s, 12 min, 3 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
