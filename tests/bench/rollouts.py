"""Rollout tokens a second: one cache over all turns against a prefill at every turn."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lldlib.rewards import exact_match
from lldlib.rollout import Rollout
from lldlib.types import Episode

from .search_r1 import SearchR1Loop
from .timing import Measurement, timed
from .workload import Workload, all_tokens, policy_tokens

AIM = 3.0
AGREE = 4.0  # standard errors within which two means of the same statistic count as equal
STATISTICS: dict[str, Callable[[Episode], float]] = {
    "policy tokens": lambda e: policy_tokens([e]),
    "all tokens": lambda e: all_tokens([e]),
    "searches": lambda e: e.valid_searches,
    "invalid actions": lambda e: e.invalid_actions,
    "reward": lambda e: exact_match(e.answer, e.question.answers),
}


@dataclass(frozen=True)
class Arm:
    """One way to roll out: seconds of each repeat, and what came of it."""

    seconds: list[float]
    episodes: list[list[Episode]]

    def rate(self, repeat: int, count: Callable[[list[Episode]], int]) -> float:
        """Tokens a second of one repeat."""
        return count(self.episodes[repeat]) / self.seconds[repeat]


def measure(work: Workload, repeats: int) -> tuple[list[Measurement], str]:
    """The ratios, and a text that shows the two arms' rates and that their episodes are alike."""
    parts = (work.policy.tokenizer, work.policy.protocol, work.retriever, work.config.rollout)
    ours, theirs = Arm([], []), Arm([], [])
    arms = ((ours, Rollout(*parts)), (theirs, SearchR1Loop(*parts)))
    temperature = work.config.rollout.temperature
    for number, questions in enumerate(work.batches(repeats + 1)):
        torch.manual_seed(number)
        for arm, loop in arms if number % 2 else arms[::-1]:
            rows = work.repeated(questions)

            def roll(loop=loop, rows=rows) -> list[Episode]:
                return loop.run(work.policy.model, rows, temperature=temperature)

            seconds, episodes = timed(roll)
            if number:  # the first repeat warms up
                arm.seconds.append(seconds)
                arm.episodes.append(episodes)
    return [
        _ratio("rollout, policy-chosen tokens a second", policy_tokens, ours, theirs, AIM),
        _ratio("rollout, all tokens a second", all_tokens, ours, theirs, None),
    ], _report(ours, theirs)


def _ratio(what: str, count, ours: Arm, theirs: Arm, aim: float | None) -> Measurement:
    repeats = range(len(ours.seconds))
    ratios = [ours.rate(i, count) / theirs.rate(i, count) for i in repeats]
    return Measurement(what, ratios, aim)


def _report(ours: Arm, theirs: Arm) -> str:
    lines = [
        "| episodes | one cache | prefill at every turn | difference, standard errors |",
        "|---|---|---|---|",
    ]
    for name, value in STATISTICS.items():
        a, b = ([value(e) for part in arm.episodes for e in part] for arm in (ours, theirs))
        lines.append(f"| mean {name} | {_mean(a)} | {_mean(b)} | {_verdict(a, b)} |")
    for name, count in {"policy": policy_tokens, "all": all_tokens}.items():
        rates = [
            statistics.median(arm.rate(i, count) for i in range(len(arm.seconds)))
            for arm in (ours, theirs)
        ]
        lines.append(f"| {name} tokens a second | {rates[0]:.0f} | {rates[1]:.0f} | |")
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {_error(values):.3f}"


def _error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def distance(a: list[float], b: list[float]) -> float:
    """Difference of the means in standard errors; 0 for equal means, also where nothing varies."""
    gap = abs(statistics.fmean(a) - statistics.fmean(b))
    return gap / max((_error(a) ** 2 + _error(b) ** 2) ** 0.5, 1e-12) if gap else 0.0


def _verdict(a: list[float], b: list[float]) -> str:
    far = distance(a, b)
    return f"{far:.1f}" if far <= AGREE else f"{far:.1f} NOT THE SAME"
