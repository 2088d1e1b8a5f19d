"""What a method costs: the same episodes, learned from by GRPO and with its loss."""

import dataclasses
from collections.abc import Iterator

from lldlib.config import LossConfig
from lldlib.recipes import METHODS, WORLD

from .timing import Measurement
from .trainer import TimedTrainer
from .workload import Workload


@dataclasses.dataclass(frozen=True)
class Term:
    """A term on top of GRPO with everything else equal, and its aim as a share of a whole step."""

    name: str
    knobs: dict[str, float]
    aim: float


TERMS = (Term("LLDS", {"llds_coef": 0.2}, 0.01), Term("Lp-Reg", {"lp_reg_coef": 1.0}, 0.05))


def measure(work: Workload, repeats: int) -> list[Measurement]:
    """Overheads as shares of a whole GRPO step, and of its scoring and updates alone."""
    base = work.config.loss
    losses = [base] + [dataclasses.replace(base, **term.knobs) for term in TERMS]
    of_step: list[list[float]] = [[] for _ in TERMS]
    of_learning: list[list[float]] = [[] for _ in TERMS]
    for rollout, (grpo, *seconds) in _repeated(work, losses, repeats):
        for term, taken in enumerate(seconds):
            of_step[term].append((taken - grpo) / (rollout + grpo))
            of_learning[term].append((taken - grpo) / grpo)
    rows = [_row(t, "a GRPO step", of_step[i], t.aim) for i, t in enumerate(TERMS)]
    return rows + [
        _row(t, "GRPO's scoring and updates", of_learning[i], None) for i, t in enumerate(TERMS)
    ]


def compare(work: Workload, repeats: int) -> list[Measurement]:
    """The seconds of a step by each preset, as multiples of those of a GRPO step."""
    others = [name for name in METHODS if name != "grpo"]
    ratios: dict[str, list[float]] = {name: [] for name in others}
    losses = [work.config.loss, *map(WORLD.loss_of, others)]
    for rollout, (grpo, *seconds) in _repeated(work, losses, repeats):
        for name, taken in zip(others, seconds, strict=True):
            ratios[name].append((rollout + taken) / (rollout + grpo))
    return [Measurement(f"a step of {name}, in steps of GRPO", r) for name, r in ratios.items()]


def _repeated(
    work: Workload, losses: list[LossConfig], repeats: int
) -> Iterator[tuple[float, list[float]]]:
    """Seconds of a rollout, and of learning from it with each loss; one more repeat warms up."""
    trainer = TimedTrainer(work)
    for number in range(repeats + 1):
        trainer.restart(number)
        trainer.handed = trainer.roll_out()
        rollout, seconds = trainer.rolling, _interleaved(trainer, losses, number)
        if number:
            yield rollout, seconds
    trainer.restart(0)  # the policy is shared with the other measurements


def _interleaved(trainer: TimedTrainer, losses: list[LossConfig], number: int) -> list[float]:
    """Seconds of scoring and updates with each loss, in an order that turns with `number`."""
    seconds = [0.0] * len(losses)
    for place in range(len(losses)):
        arm = (place + number) % len(losses)
        trainer.turn(loss=losses[arm])
        trainer.restart(number)
        seconds[arm] = trainer.timed_step()[0]
    return seconds


def _row(term: Term, part: str, ratios: list[float], aim: float | None) -> Measurement:
    what = f"overhead of {term.name}, share of {part}"
    return Measurement(what, ratios, aim, overhead=True)
