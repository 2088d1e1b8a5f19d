"""What to try, in order: only what answers something that this log measured.

The order follows this project's own studies: a lower rate and more rows before a term is added.
What a remedy did is read from `evidence.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lldlib.doctor.judging.statistics import values_of
from lldlib.doctor.judging.vital import Sign
from lldlib.doctor.judging.warnings import evidence
from lldlib.doctor.reading.series import LoggedRun

FOR = {  # pattern or sign -> remedies in the order in which to try them
    "tool": ("check tool",),
    "one step": ("check scoring",),
    "resume": ("check resume",),
    "numbers": ("lower lr", "clip gradient"),
    "nothing moves": ("go back", "lower lr"),
    "frozen": ("go back", "lower lr"),
    "cut": ("tight budget",),
    "tokens": ("check reward", "go back"),
    "contrast": ("find signal",),
    "no signal": ("find signal", "warm start"),
    "broken start": ("check start", "warm start"),
    "hardly moves": ("raise lr",),
    "displacement": ("lower lr", "fewer updates", "more rows", "go back", "llds"),
    "spikes": ("lower lr", "clip gradient", "fewer updates", "more rows", "llds"),
    "entropy up": ("lower lr", "fewer updates", "more rows", "llds"),
    "entropy down": ("find signal", "lower lr", "more rows"),
    "length": ("tight budget", "lower lr"),
    "short": ("check reward", "go back"),
    "reference": ("check start",),
    "format": ("check reward", "warm start"),
    "kl": ("lower lr", "fewer updates", "more rows"),
    "kl in reward": ("kl out", "go back"),
    "held-out": ("keep best", "lower lr"),
    "parts": ("check reward",),
    "sampler": ("check sampler", "fewer updates"),
}
OF_THE_RATE = ("lower lr", "raise lr", "go back")  # remedies that say by how much to change it
FELL = ("lower lr", "fewer updates", "more rows", "llds")  # where a fall has no other sign
MOST = 5  # pieces of advice on a page
SEVERAL = 0.1  # share of the rows with clipped tokens that shows several updates per batch
OFF_POLICY = 1e-4  # nats per token from the old policy that more than rounding makes


@dataclass(frozen=True)
class Advice:
    """One thing to try."""

    do: str
    evidence: str
    price: str
    source: str
    pattern: str  # what it is for


def several_updates(run: LoggedRun) -> bool | None:
    """Whether a batch is used for several updates, by clipped tokens or the KL to the old policy.

    None where the log has neither.
    """
    clipped = values_of(run.sure, "clip_share")
    clipped = clipped[np.isfinite(clipped)]
    if len(clipped):
        return bool(np.mean(clipped > 0) > SEVERAL)
    old = values_of(run.sure, "kl_old")
    old = old[np.isfinite(old)]
    return bool(np.median(np.abs(old)) > OFF_POLICY) if len(old) else None


def _rate(run: LoggedRun) -> str:
    """The learning rate that the log holds, for a remedy that changes it; "" where it has none."""
    rates = values_of(run.sure, "learning_rate")
    rates = rates[np.isfinite(rates) & (rates > 0)]
    return f" (the highest rate in this log is {rates.max():.2g})" if len(rates) else ""


def advice(
    run: LoggedRun, verdict: str, found: Sequence[tuple[str, str]], shown: Sequence[Sign]
) -> list[Advice]:
    """What to try for the (key, title) of each pattern and for each grave sign, none twice.

    A healthy run needs none; a reward that is a guess carries none.
    """
    if verdict in ("healthy", "unknown") or "reward" in run.guessed:
        return []
    causes = [*found, *((s.key, s.says) for s in shown if s.grave != "told")]
    causes = [(key, title) for key, title in causes if key in FOR]
    wanted: dict[str, str] = {}
    for place in range(max((len(FOR[key]) for key, _ in causes), default=0)):
        for key, title in causes:
            if place < len(FOR[key]):
                wanted.setdefault(FOR[key][place], title)
    if not causes and verdict in ("degrading", "collapsed"):
        wanted = {key: "the fall of the reward" for key in FELL}
    several = several_updates(run)
    table: dict[str, Any] = evidence()["remedies"]
    return [
        Advice(
            **table[key] | {"do": table[key]["do"] + (_rate(run) if key in OF_THE_RATE else "")},
            pattern=title,
        )
        for key, title in wanted.items()
        if key in table and (several or key not in ("llds", "fewer updates"))
    ][:MOST]
