"""One seed for every (purpose, run, index), so that no two purposes ever draw the same thing."""

# of a rollout batch
DRAWS = ("questions", "sampling", "order", "dropped", "fresh", "control", "fresh control")
# What is drawn as a whole: planets of the shuffled atlas, sums, the rows of a warm start. Only the
# planets must not meet, so each kind of them has a range of its own.
WHOLES = {
    "warm-start planet": 0,
    "training planet": 10**15,
    "control planet": 2 * 10**15,
    "sums": 0,
    "warm-start rows": 0,
}


def seed_for(purpose: str, seed: int, index: int = 0) -> int:
    """The seed of what a run (`seed`) draws for a purpose in its batch or update `index`.

    (seed * 1_000_003 + index) * 8 + the purpose's place for DRAWS, which go to PyTorch's
    generators: on a CPU these read the lower 32 bits only. seed * 1_000_003 + index + the start of
    the purpose's range for WHOLES. Raises ValueError for an unknown purpose, and for a seed or an
    index at which ranges would meet.
    """
    if not (0 <= seed < 10**8 and 0 <= index < 1_000_003):
        raise ValueError(f"seed {seed}, batch {index}: use seeds under 10**8, batches under 10**6")
    number = seed * 1_000_003 + index
    if purpose in DRAWS:
        return number * 8 + DRAWS.index(purpose)
    if purpose in WHOLES:
        return number + WHOLES[purpose]
    raise ValueError(f"unknown purpose {purpose!r}: use one of {', '.join((*DRAWS, *WHOLES))}")
