"""How a run of 40 batches ends, for the tables that show it: sampled, greedy, collapsed."""

from collections.abc import Iterable, Mapping
from statistics import fmean

from lldlib.runs.phases import find_collapse

BATCHES, EXAMS = 40, (29, 39)
SAMPLED, GREEDY = "eval/heldout_em", "eval/heldout_em_greedy"

Rows = list[dict]  # a run's metrics, one line a batch


def exam(rows: Rows, key: str = SAMPLED) -> float:
    """The mean of the evaluations after 30 and 40 batches."""
    return fmean(row[key] for row in rows if row["step"] in EXAMS)


def ends(seeds: Mapping[int, Rows]) -> str:
    """The mean end and, of several, each seed's, sampled; then the mean greedy one."""
    own = [exam(rows) for _, rows in sorted(seeds.items())]
    greedy = fmean(exam(rows, GREEDY) for rows in seeds.values())
    each = f" ({' '.join(f'{end:.2f}' for end in own)})" if len(own) > 1 else ""
    return f"{fmean(own):.2f}{each} / {greedy:.2f}"


def start(runs: Iterable[Rows]) -> str:
    """The score before the first batch, sampled and greedy, of the first run that logged it."""
    first = next(rows[0] for rows in runs if "eval/start_em" in rows[0])
    return f"{first['eval/start_em']:.2f} / {first['eval/start_em_greedy']:.2f}"


def fates(seeds: Mapping[int, Rows]) -> list[str]:
    """By seed the batch of the collapse, with "for good" where it is, or "-"."""
    found = [
        find_collapse([row["reward/mean"] for row in rows]) for _, rows in sorted(seeds.items())
    ]
    return ["-" if f.known is None else f"{f.known}{', for good' * f.for_good}" for f in found]
