"""Graders of the notebooks' exercises: each takes the reader's function and says how to go on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lldlib.protocol import parse_action

BYTES_PER_PARAMETER = 16  # float32: weight 4, gradient 4, AdamW's two moments 8

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
        if _plain(found) != _plain(case.expected):
            told = f"for {shown} it gave {found!r}, and {case.expected!r} is right"
            return Verdict("wrong", f"Not yet: {told}. {case.hint}")
    return Verdict("right", f"Right: all {len(cases)} cases pass.")


def check_last_batch_above(function: Function) -> Verdict:
    """`function(rewards, level)`: the last batch whose reward is over `level`, or None."""
    return grade(
        function,
        [
            Case(([0.4, 0.7, 0.6, 0.1], 0.5), 2, "Batches count from 0; take the last one over."),
            Case(([0.9, 0.2], 0.5), 0, "The only one over the level is batch 0."),
            Case(([0.5, 0.5], 0.5), None, "Over the level means more than it, not equal to it."),
            Case(([], 0.5), None, "A run without batches never was over anything: give None."),
        ],
    )


def check_training_bytes(function: Function) -> Verdict:
    """`function(parameters)`: bytes of float32 weights, gradients and AdamW's two moments."""
    hint = "Four numbers of 4 bytes for each parameter: weight, gradient, first and second moment."
    sizes = (1, 1000, 494_000_000)
    return grade(function, [Case((size,), BYTES_PER_PARAMETER * size, hint) for size in sizes])


def check_action_mask(function: Function) -> Verdict:
    """`function(turns)` of (role, number of tokens) pairs: one bool a token, True for actions."""
    whole = [("prompt", 2), ("action", 3), ("environment", 1), ("action", 1)]
    mask = [False, False, True, True, True, False, True]
    return grade(
        function,
        [
            Case((whole,), mask, "One value a token, in order; only the policy's turns are True."),
            Case(
                ([("prompt", 1), ("action", 1), ("environment", 2)],),
                [False, True, False, False],
                "What the environment says is not the policy's, also at the end of a row.",
            ),
            Case(([("prompt", 2)],), [False, False], "A row without an action has an empty mask."),
        ],
    )


def check_read_action(function: Function) -> Verdict:
    """`function(text)`: the (kind, content) of the first complete tag pair of a turn."""
    texts = {
        "<search> capital Laos </search>": "Strip the spaces around the content.",
        "<think> so Rome </think> <answer> Rome </answer>": "Text before the tag does not matter.",
        "<search> a </search> <answer> b </answer>": "The first complete pair counts.",
        "<answer> Rome": "A tag that never closes is only text: the action is invalid.",
        "<search>  </search>": "A search without a query is invalid.",
        "<think> hmm </think>": "Neither a search nor an answer: invalid.",
        "<search> a <answer> b </answer>": "The search never closes, so the answer is first.",
    }
    actions = {text: parse_action(text) for text in texts}
    return grade(
        function,
        [Case((t,), (actions[t].kind, actions[t].content), hint) for t, hint in texts.items()],
    )


def _plain(value: object) -> object:
    """Values that a reader may fairly give in another type, made alike."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value
