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


# -- notebook 02 ---------------------------------------------------------------------------------


def check_masked_mean(function: Function) -> Verdict:
    """`function(values, mask)`: the mean of the values whose mask is True; 0.0 if none is."""
    row, chosen = [-1.0, -8.0, -2.0, -3.0], [True, False, True, True]
    return grade(
        function,
        [
            Case(
                (row, chosen), -2.0, "Divide by the number of True, not by the length of the row."
            ),
            Case((row, [False, True, False, False]), -8.0, "Only the second value counts here."),
            Case((row, [False] * 4), 0.0, "An empty mask gives 0.0: nothing to train, no nan."),
        ],
    )


def check_answer_mask(function: Function) -> Verdict:
    """`function(words)`: one bool a word of one turn, True from <answer> to </answer>."""
    texts = {
        "<think> so </think> <answer> Rome </answer>": "The tags belong to the span.",
        "<search> capital Italy </search>": "A turn without an answer has an empty mask.",
        "<answer> Rome": "A tag that never closes is only text: nothing is True.",
        "<answer> a </answer> b </answer>": "The span ends at the first closing tag.",
    }
    masks = ([False] * 3 + [True] * 3, [False] * 4, [False] * 2, [True] * 3 + [False] * 2)
    pairs = zip(texts.items(), masks, strict=True)
    return grade(function, [Case((text.split(),), mask, hint) for (text, hint), mask in pairs])


# -- notebook 06 ---------------------------------------------------------------------------------


def check_displacement(function: Function) -> Verdict:
    """`function(old, new, rewards)`: mean over correct responses of the sum of new - old (nats)."""
    old, new = [[-1.0, -2.0], [-1.0], [-3.0, -1.0]], [[-1.5, -2.0], [-0.5], [-4.0, -1.5]]
    return grade(
        function,
        [
            Case((old, new, [1, 0, 1]), -1.0, "Rows 0 and 2 are correct: -0.5 and -1.5."),
            Case((old, new, [0, 1, 0]), 0.5, "Sum over the tokens of a response, no mean."),
            Case((old, new, [0, 0, 0]), None, "No correct response, no displacement: give None."),
        ],
    )


def check_nthr_score(function: Function) -> Verdict:
    """`function(right, wrong)`: sum over right tokens of <g, g'> <h, h'>; a token is (g, h)."""
    wrong = ((1, -1), (2, 0))
    return grade(
        function,
        [
            Case(([((1, -1), (1, 0))], wrong), 4, "<g, g'> is 2 and <h, h'> is 2: multiply them."),
            Case(([((1, -1), (1, 0)), ((-1, 1), (1, 5))], wrong), 0, "Sum over the right tokens."),
            Case(([((1, -1), (0, 1))], wrong), 0, "Orthogonal contexts do not feel each other."),
        ],
    )


# -- notebook 07 ---------------------------------------------------------------------------------


def check_action_gate(function: Function) -> Verdict:
    """`function(falls, actions)`: LLDS's charge of each token of a good row, action gate.

    `actions`: the number of each token's action, 0 where the policy did not choose it.
    """
    return grade(
        function,
        [
            Case(
                ([1.0, -0.5, 0.0, 0.5, -1.0], [1, 1, 0, 2, 2]),
                [1.0, 0.0, 0.0, 0.0, 0.0],
                "Action 1 fell by 0.5, so its falling tokens pay; action 2 rose as a whole.",
            ),
            Case(
                ([0.5, -0.5], [1, 1]), [0.0, 0.0], "A sum of exactly 0 leaves the gate shut: > 0."
            ),
            Case(([2.0, 1.0], [0, 1]), [0.0, 1.0], "A token outside the actions is never charged."),
        ],
    )


def _plain(value: object) -> object:
    """Values that a reader may fairly give in another type, made alike."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


# -- notebook 09: rare tokens ----------------------------------------------------------------------


def check_entropy(function: Function) -> Verdict:
    """`function(probabilities)`: the entropy in nats, compared to three decimals."""
    return grade(
        _rounded(function),
        [
            Case(([0.25] * 4,), 1.386, "Four equal choices: ln 4 nats, the natural logarithm."),
            Case(([0.5, 0.5, 0.0],), 0.693, "What cannot be drawn adds nothing: skip p = 0."),
            Case(([1.0],), 0.0, "A certain choice has no entropy."),
            Case(([0.7, 0.2, 0.1],), 0.802, "The sum of -p ln p over the list."),
        ],
    )


def check_rare_and_wrong(function: Function) -> Verdict:
    """`function(probabilities, advantages, share)`: indices of the rarest share with A < 0."""
    probs = [0.9, 0.01, 0.3, 0.02, 0.03]
    return grade(
        function,
        [
            Case((probs, [1, -1, 1, 1, -1], 0.6), [1, 4], "The rarest 3 of 5 are 1, 3 and 4."),
            Case((probs, [1, -1, -1, 1, -1], 0.4), [1], "First the share of all tokens, then A."),
            Case((probs, [-1] * 5, 0.41), [1, 3, 4], "2.05 tokens are rounded up to 3."),
            Case((probs, [1, 0, 1, 0, 0], 0.6), [], "An advantage of 0 is not negative."),
        ],
    )


# -- notebook 10: Lp-Reg ---------------------------------------------------------------------------


def check_proxy(function: Function) -> Verdict:
    """`function(probabilities, kappa)`: the min-p proxy, compared to three decimals."""
    return grade(
        _rounded(function),
        [
            Case(([0.5, 0.4, 0.1], 0.5), [0.556, 0.444, 0.0], "0.1 is under 0.5 * 0.5: dropped."),
            Case(([0.5, 0.25, 0.25], 0.5), [1.0, 0.0, 0.0], "At the threshold is not over it."),
            Case(([0.25] * 4, 0.9), [0.25] * 4, "Measured against the largest, not against 1."),
        ],
    )


def check_protected(function: Function) -> Verdict:
    """`function(probability, largest, delta, advantage, kappa)`: does Lp-Reg protect it?"""
    return grade(
        function,
        [
            Case((0.02, 0.5, 0.03, -1.0, 0.02), True, "Rare, kept (over 0.01) and A < 0: yes."),
            Case((0.02, 0.5, 0.03, 1.0, 0.02), False, "A rewarded token needs no protection."),
            Case((0.02, 0.5, 0.01, -1.0, 0.02), False, "It is not under delta: not rare."),
            Case((0.008, 0.5, 0.03, -1.0, 0.02), False, "0.008 is not over 0.02 * 0.5: noise."),
            Case((0.02, 0.5, 0.03, 0.0, 0.02), False, "An advantage of 0 is not negative."),
        ],
    )


def check_floor_ratio(function: Function) -> Verdict:
    """`function(advantage, kept_mass)`: the ratio at which both pulls cancel, three decimals."""
    hint = "Solve |A| x = 1 / (m x) - 1 for x > 0: a quadratic equation."
    cases = ((-1.0, 1.0, 0.618), (-1.0, 0.97, 0.632), (-2.0, 1.0, 0.5), (-0.25, 0.8, 1.0))
    return grade(_rounded(function), [Case((a, m), x, hint) for a, m, x in cases])


def _rounded(function: Function) -> Function:
    """The function with its result to three decimals, so that rounding is no error."""

    def rounded(*given: object) -> object:
        return _round(function(*given))

    return rounded


def _round(value: object) -> object:
    value = _plain(value)
    if isinstance(value, tuple):
        return tuple(map(_round, value))
    return round(value, 3) + 0.0 if isinstance(value, float) else value
