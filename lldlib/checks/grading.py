"""How a reader's function is judged, in plain English."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Function = Callable[..., object]


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check found; a notebook shows its message."""

    state: Literal["open", "wrong", "right"]  # "open": the stub is not filled in yet
    message: str

    def __repr__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Case:
    """One call with the result it should give, and what to think of where it gives another."""

    given: tuple[object, ...]
    expected: object
    hint: str


def grade(function: Function, cases: Sequence[Case]) -> Verdict:
    """The first failing case in plain English; it never raises, so a notebook runs on.

    A function that raises NotImplementedError, or gives None where a value is due in the first
    case, counts as not filled in. A list is as good as a tuple, and a bool as an int.
    """
    for number, case in enumerate(cases):
        shown = ", ".join(map(repr, case.given))
        try:
            found = function(*case.given)
        except NotImplementedError:
            return Verdict("open", "Not filled in yet: write the body, then run this cell again.")
        except Exception as error:
            kind = type(error).__name__
            return Verdict("wrong", f"Not yet: it raised {kind} ({error}) for {shown}.")
        if number == 0 and found is None and case.expected is not None:
            return Verdict("open", "Not filled in yet: it returned None. Write the body.")
        if plain(found) != plain(case.expected):
            told = f"for {shown} it gave {found!r}, and {case.expected!r} is right"
            return Verdict("wrong", f"Not yet: {told}. {case.hint}")
    return Verdict("right", f"Right: all {len(cases)} cases pass.")


def plain(value: object) -> object:
    """Values that a reader may fairly give in another type, made alike."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


def to_three_decimals(function: Function) -> Function:
    """The function with its result to three decimals, so that rounding is no error."""

    def rounded(*given: object) -> object:
        return _round(function(*given))

    return rounded


def _round(value: object) -> object:
    value = plain(value)
    if isinstance(value, tuple):
        return tuple(map(_round, value))
    return round(value, 3) + 0.0 if isinstance(value, float) else value
