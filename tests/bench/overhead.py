"""What a method costs: the same episodes, learned from by GRPO and with its loss."""

import dataclasses

from lldlib.config import LossConfig
from lldlib.methods import METHODS
from lldlib.presets import loss_here

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
    trainer = TimedTrainer(work)
    base = work.config.loss
    losses = [base] + [dataclasses.replace(base, **term.knobs) for term in TERMS]
    of_step: list[list[float]] = [[] for _ in TERMS]
    of_learning: list[list[float]] = [[] for _ in TERMS]
    for number in range(repeats + 1):
        trainer.restart(number)
        trainer.handed = trainer.roll_out()
        rollout = trainer.rolling
        seconds = _interleaved(trainer, losses, number)
        for term in range(len(TERMS)) if number else ():  # the first repeat warms up
            extra = seconds[term + 1] - seconds[0]
            of_step[term].append(extra / (rollout + seconds[0]))
            of_learning[term].append(extra / seconds[0])
    trainer.restart(0)  # the policy is shared with the other measurements
    rows = [_row(t, "a GRPO step", of_step[i], t.aim) for i, t in enumerate(TERMS)]
    return rows + [
        _row(t, "GRPO's scoring and updates", of_learning[i], None) for i, t in enumerate(TERMS)
    ]


def compare(work: Workload, repeats: int) -> list[Measurement]:
    """The seconds of a step by each preset, as multiples of those of a GRPO step."""
    trainer = TimedTrainer(work)
    others = [name for name in METHODS if name != "grpo"]
    losses = [work.config.loss, *map(loss_here, others)]
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for number in range(repeats + 1):
        trainer.restart(number)
        trainer.handed = trainer.roll_out()
        grpo, *seconds = (trainer.rolling + s for s in _interleaved(trainer, losses, number))
        for name, taken in zip(others, seconds, strict=True) if number else ():
            ratios[name].append(taken / grpo)
    trainer.restart(0)
    return [Measurement(f"a step of {name}, in steps of GRPO", r) for name, r in ratios.items()]


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
