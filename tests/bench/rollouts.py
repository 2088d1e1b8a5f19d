"""Rollout tokens a second: one cache over all turns against a prefill at every turn."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lldlib.rollout.loop import Rollout
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
    "reward": lambda e: e.reward,
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
    ours, theirs = Arm([], []), Arm([], [])
    arms = ((ours, Rollout(*work.parts)), (theirs, SearchR1Loop(*work.parts)))
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
    what = f"rollout of {work.rows} episodes"
    return [
        _ratio(f"{what}, policy-chosen tokens a second", policy_tokens, ours, theirs, AIM),
        _ratio(f"{what}, all tokens a second", all_tokens, ours, theirs, None),
    ], _report(work, ours, theirs)


def _ratio(what: str, count, ours: Arm, theirs: Arm, aim: float | None) -> Measurement:
    repeats = range(len(ours.seconds))
    ratios = [ours.rate(i, count) / theirs.rate(i, count) for i in repeats]
    return Measurement(what, ratios, aim)


def _report(work: Workload, ours: Arm, theirs: Arm) -> str:
    lines = [
        "| episodes | one cache | prefill at every turn | difference, standard errors |",
        "|---|---|---|---|",
    ]
    for name, value in STATISTICS.items():
        a, b = ([value(e) for part in arm.episodes for e in part] for arm in (ours, theirs))
        far = distance(a, b, work.config.rollout.group_size)
        verdict = f"{far:.1f}" if far <= AGREE else f"{far:.1f} NOT THE SAME"
        means = f"{statistics.fmean(a):.3f} | {statistics.fmean(b):.3f}"
        lines.append(f"| mean {name} | {means} | {verdict} |")
    for name, count in {"policy": policy_tokens, "all": all_tokens}.items():
        rates = [
            statistics.median(arm.rate(i, count) for i in range(len(arm.seconds)))
            for arm in (ours, theirs)
        ]
        lines.append(f"| {name} tokens a second | {rates[0]:.0f} | {rates[1]:.0f} | |")
    return "\n".join(lines)


def distance(a: list[float], b: list[float], group: int) -> float:
    """How far apart the means of two arms are, in standard errors of their paired difference.

    Every `group` values in a row belong to one question, the same in both arms: the pairs are the
    questions. 0 where the arms agree on every question.
    """
    starts = range(0, len(a), group)
    gaps = [statistics.fmean(a[i : i + group]) - statistics.fmean(b[i : i + group]) for i in starts]
    if not any(gaps):
        return 0.0
    error = statistics.stdev(gaps) / len(gaps) ** 0.5
    return abs(statistics.fmean(gaps)) / max(error, 1e-12)
