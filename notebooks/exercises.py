"""Graders of the notebooks' exercises: each takes the reader's function and says how to go on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


def exercise(meaning: str, *cases: Case) -> Callable[[Function], Verdict]:
    """A grader of `cases`, with its help text `meaning`."""

    def check(function: Function) -> Verdict:
        return grade(function, cases)

    check.__doc__ = meaning
    return check


def grade(function: Function, cases: Sequence[Case], digits: int = 12) -> Verdict:
    """The first failing case in plain English; it never raises, so a notebook runs on.

    A function that raises NotImplementedError, or gives None where a value is due in the first
    case, counts as not filled in. A list is as good as a tuple, and a bool as an int.
    """
    for number, case in enumerate(cases):
        shown = ", ".join(repr(brief(value)) for value in case.given)
        try:
            found = plain(function(*case.given), digits)
        except NotImplementedError:
            return Verdict("open", "Not filled in yet: write the body, then run this cell again.")
        except Exception as error:
            kind = type(error).__name__
            return Verdict("wrong", f"Not yet: it raised {kind} ({error}) for {shown}.")
        if number == 0 and found is None and case.expected is not None:
            return Verdict("open", "Not filled in yet: it returned None. Write the body.")
        if found != plain(case.expected, digits):
            gave, right = brief(found), brief(case.expected)
            told = f"for {shown} it gave {gave!r}, and {right!r} is right"
            return Verdict("wrong", f"Not yet: {told}. {case.hint}")
    return Verdict("right", f"Right: all {len(cases)} cases pass.")


def plain(value: object, digits: int) -> object:
    """Values that a reader may fairly give in another type, made alike."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    return round(value, digits) + 0.0 if isinstance(value, float) else value


def brief(value: object) -> object:
    """The same with numbers of four digits, to be read; what is no number stays as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(brief(item) for item in value)
    return float(f"{value:.4g}") if isinstance(value, float) else value


# -- notebooks 1 to 5 ------------------------------------------------------------------------------

OPEN = Verdict("open", "Not filled in yet: put your answer in place of None, then run this again.")


check_go_back = exercise(
    "`function(rewards)`: the last batch whose reward is the mean of the first two, or above.",
    Case(([0.3, 0.4, 0.5, 0.5, 0.4, 0.3, 0.2],), 4, "Its start is 0.35. Batches count from 0."),
    Case(([0.3, 0.4, 0.5, 0.6],), 3, "This run has not fallen."),
    Case(([0.3, 0.4, 0.2, 0.1],), 1, "The first two batches count too."),
    Case(([0.3, 0.4, 0.3, 0.5, 0.2],), 3, "The first dip passed: look for the last such batch."),
    Case(([0.25, 0.125, 0.1875, 0.125],), 2, "Its start is 0.1875: a batch exactly at it counts."),
)


FIELDS = ("method", "rate", "start", "seed")
SAVED = {"method": "GRPO + LLDS", "rate": 1e-3, "start": "half-taught", "seed": 0}


def check_one_difference(control: Mapping[str, object] | None) -> Verdict:
    """A run to set beside `SAVED`: right if it differs from it in the method alone."""
    if control is None:
        return OPEN
    if missing := [name for name in FIELDS if name not in control]:
        return Verdict("wrong", f"Not yet: say its {', '.join(missing)} as well.")
    if "LLDS" in str(control["method"]):
        return Verdict("wrong", "Not yet: it has LLDS too, so it cannot tell what LLDS does.")
    if other := [name for name in FIELDS[1:] if control[name] != SAVED[name]]:
        told = f"it also differs in {' and '.join(other)}, which may be the cause as well"
        return Verdict("wrong", f"Not yet: {told}.")
    return Verdict("right", "Right: the two runs differ in LLDS and in nothing else.")


CAPITALS = ("Lima", "Rome", "Cairo", "Oslo", "Quito")


def check_loose_reward(answer: str | None) -> Verdict:
    """One text that contains every right answer, and is none of them."""
    if answer is None:
        return OPEN
    if missing := [name for name in CAPITALS if name not in answer]:
        earned = len(CAPITALS) - len(missing)
        return Verdict("wrong", f"Not yet: it earns 1 on {earned} of 5 questions.")
    return Verdict("right", "Right: it earns 1 on all five, and exact match would give 0 on each.")


def check_grpo(loss: Function) -> Verdict:
    """`loss(new, old, A, mask)`: GRPO's clipped loss, a mean over the action tokens of all rows."""
    import torch

    def found(ratios: Sequence[Sequence[float]], A: Sequence[float], mask: object) -> float | None:
        old = torch.full((len(ratios), len(ratios[0])), -1.0)
        new = (torch.tensor(ratios).log() + old).requires_grad_()
        value = loss(new, old, torch.tensor(A), torch.tensor(mask))
        if value is None:
            return None
        if not value.requires_grad:
            raise ValueError("it has no gradient, so it moves no weights")
        return float(value.detach())

    both = [[True, True], [True, False]]
    cases = [
        (([[1.0, 1.0], [1.0, 1.0]], [1.0, -0.5], both), -0.5, "Nothing has moved."),
        (([[1.0, 1.0], [1.0, 9.0]], [1.0, -0.5], both), -0.5, "What stands behind the mask moved."),
        (([[1.5, 1.0]], [1.0], [[True, True]]), -1.1, "A good token rose by half."),
        (([[0.5, 1.0]], [1.0], [[True, True]]), -0.75, "A good token fell by half."),
        (([[0.5, 1.0]], [-1.0], [[True, True]]), 0.9, "A bad token fell by half."),
        (([[1.5, 1.0]], [-1.0], [[True, True]]), 1.25, "A bad token rose by half."),
    ]
    return grade(found, [Case(*case) for case in cases], digits=4)


def check_my_llds(llds: Function) -> Verdict:
    """`llds(new, old, A, mask)`: LLDS gated by action, a mean over the tokens of good answers."""
    import torch

    def found(changes: Sequence[Sequence[float]], A: Sequence[float], mask: object) -> float | None:
        old = torch.full((len(changes), len(changes[0])), -1.0)
        new = (old + torch.tensor(changes)).requires_grad_()
        value = llds(new, old, torch.tensor(A), torch.tensor(mask, dtype=torch.bool))
        if value is None:
            return None
        if any(A) and not value.requires_grad:
            raise ValueError("it has no gradient, so it moves no weights")
        return float(value.detach())

    table, two = [[0.0, -0.5, 0.2, 0.0, -0.1, 0.6]], [[0.0, -0.5], [0.0, -0.9]]
    cases = [
        (([[0.0, -0.5, 0.2]], [1.0], [[0, 1, 1]]), 0.25, "It is the table's search: 0.5 / 2."),
        (([[0.0, -0.1, 0.6]], [1.0], [[0, 1, 1]]), 0.0, "This action gained in total."),
        ((table, [1.0], [[0, 1, 1, 0, 1, 1]]), 0.125, "It is the whole table: 0.5 / 4."),
        ((two, [1.0, -1.0], [[0, 1], [0, 1]]), 0.5, "Only the first answer is good: 0.5 / 1."),
        (([[0.0, -0.5]], [-1.0], [[0, 1]]), 0.0, "No answer is good: mind the divisor."),
    ]
    return grade(found, [Case(*case) for case in cases], digits=4)


def own_grpo(loss: Function) -> Function:
    """The reader's GRPO if `check_grpo` finds it right, else the package's; it says which."""
    return _own_or("GRPO", loss, check_grpo(loss), package_grpo)


def own_llds(loss: Function) -> Function:
    """The reader's LLDS if `check_my_llds` finds it right, else the package's; it says which."""
    return _own_or("LLDS", loss, check_my_llds(loss), package_llds)


def _own_or(name: str, loss: Function, verdict: Verdict, package: Function) -> Function:
    right = verdict.state == "right"
    told = f"your own {name}." if right else f"the package's {name}, as yours is not right yet."
    print("Training with", told)
    return loss if right else package


def package_grpo(new: Any, old: Any, A: Any, mask: Any) -> Any:
    """GRPO's loss as notebook 3 writes it."""
    from lldlib import losses

    return losses.aggregate(losses.policy_gradient(new, old, A, mask), mask, "token-mean")


def package_llds(new: Any, old: Any, A: Any, mask: Any) -> Any:
    """LLDS on the answers of A > 0, as notebook 3 writes it."""
    from lldlib import losses

    parts = losses.llds_parts(new, old, A, mask, gate="action", preserve="positive")
    return losses.aggregate(parts.penalty, parts.preserved, "token-mean")


def check_good_change(change: Function) -> Verdict:
    """`change(new, old, A, mask)`: the mean change of the agent's tokens in answers of A > 0."""
    import torch

    def found(changes: Sequence[Sequence[float]], A: Sequence[float], mask: object) -> float | None:
        old = torch.full((len(changes), len(changes[0])), -1.0)
        new = old + torch.tensor(changes)
        value = change(new, old, torch.tensor(A), torch.tensor(mask, dtype=torch.bool))
        return None if value is None else float(value)

    both, unequal = [[-0.5, 0.2], [0.9, 0.4]], [[-0.6, 0.0, 0.0], [0.4, 0.4, 0.4]]
    cases = [
        (([[-0.5, 0.2]], [1.0], [[1, 1]]), -0.15, "It is new - old: (-0.5 + 0.2) / 2."),
        (([[0.7, -0.5, 0.2]], [1.0], [[0, 1, 1]]), -0.15, "The first token is not the agent's."),
        ((both, [1.0, -1.0], [[1, 1], [1, 1]]), -0.15, "Only the first answer is good."),
        ((both, [1.0, 0.0], [[1, 1], [1, 1]]), -0.15, "A = 0 is not good either."),
        ((unequal, [1.0, 0.5], [[1, 0, 0], [1, 1, 1]]), 0.15, "Every token counts alike: 0.6 / 4."),
    ]
    return grade(found, [Case(*case) for case in cases], digits=4)


def check_payers(payers: str | None) -> Verdict:
    """The letters of the tokens that pay in notebook 4's table."""
    if payers is None:
        return OPEN
    found = set(payers) & set("abcdefg")
    if found == set("ag"):
        return Verdict("right", "Right: these two, and both are pulled back equally hard.")
    wrong = [
        ("bd", "a token that rose pays."),
        ("ef", "a token pays whose answer has no A > 0."),
        ("c", "a token pays whose action gained in total."),
    ]
    for letters, told in wrong:
        if found & set(letters):
            return Verdict("wrong", f"Not yet: in your list {told}")
    return Verdict("wrong", "Not yet: somebody is missing. Go through the three questions again.")


PAIRS = {"a": {1, 4}, "b": {3, 4}, "c": {2, 5}}


def check_control_pairs(pairs: Mapping[str, Sequence[int]] | None) -> Verdict:
    """For each claim of notebook 5 the two runs that differ in what it speaks of alone."""
    if pairs is None:
        return OPEN
    if missing := [claim for claim in PAIRS if claim not in pairs]:
        return Verdict("wrong", f"Not yet: say a pair for {', '.join(missing)} as well.")
    wrong = [claim for claim, pair in PAIRS.items() if set(pairs[claim]) != pair]
    if not wrong:
        return Verdict(
            "right", "Right: each pair differs in what its claim speaks of, and no more."
        )
    told = "in what do the two runs differ, and is it what the claim speaks of, and nothing else?"
    return Verdict("wrong", f"Not yet, for {' and '.join(wrong)}: {told}")


hint = "Look at the gaps one by one: how many seeds make the mean?"
check_verdict = exercise(
    '`function(grpo, llds)` of ends by seed: "ahead" or "not told apart".',
    Case(([0.78, 0.89, 0.93], [0.93, 0.92, 0.92]), "not told apart", hint),
    Case(([0.34, 0.03, 0.36], [0.62, 0.85, 0.72]), "not told apart", "Large gaps can be noisy."),
    Case(([0.61, 0.64, 0.37], [0.91, 0.93, 0.68]), "ahead", "A steady gap is told apart."),
    Case(([0.91, 0.93, 0.68], [0.61, 0.64, 0.37]), "not told apart", "GRPO is ahead there."),
    Case(([0.5] * 3, [0.80, 0.72, 0.64]), "ahead", "Did you divide by the square root of 3?"),
    Case(([0.5] * 3, [0.81, 0.71, 0.61]), "not told apart", "`stdev` divides by n - 1."),
)

check_action_mask = exercise(
    "`function(turns)` of (role, number of tokens) pairs: one bool a token, True for actions.",
    Case(
        ([("prompt", 2), ("action", 3), ("environment", 1), ("action", 1)],),
        [False, False, True, True, True, False, True],
        "Give one value for each token, in order; only the agent's own are True.",
    ),
    Case(
        ([("prompt", 1), ("action", 1), ("environment", 2)],),
        [False, True, False, False],
        "What the environment says is not the policy's, also at the end of a row.",
    ),
    Case(([("prompt", 2)],), [False, False], "A row without an action has an empty mask."),
)

# -- notebooks 6 to 10 -----------------------------------------------------------------------------


def check_rate(given: float | None) -> Verdict:
    """A third of the lowest rate of notebook 9's three made-up runs that died or fell, 1e-5."""
    hint = "which is the lowest rate that died or fell? At 1e-5 the run ends .17 under its best."
    return check_answer(None if given is None else 3e-6 <= given <= 3.4e-6, True, hint)


def check_enough(given: float | None) -> Verdict:
    """The probability at which the push of (.85 - .45) is that of .03 and (.38 - .44)."""
    hint = "write both pushes down, as pi (Q - V): what must pi be for equal sizes?"
    return check_answer(None if given is None else round(given, 4), 0.0045, hint)


def check_works(given: str | None) -> Verdict:
    """The place at which Lp-Reg acts on the spark and not on the noise word."""
    hint = "work out both lines of each place, and see which words lie between them."
    return check_answer(given, "b", hint)


PLAINLY = {  # promises of check_llds by how their names begin, in the order of exercise 1
    "rows": "which answers: the protected ones are charged, and no others",
    "gate": "the gate: it opens only where the tokens of an action, added up, lost",
    "normaliser": "the divisor: the number of protected tokens (or of all action tokens)",
    "tied": "which answers: the protected ones are charged, and no others",
    "nothing": "no answer is protected: the charge must be 0, and finite",
    "bf16": "bfloat16: a long action must be added up in float32",
}


def check_mended(function: Function, preserve: str = "positive") -> Verdict:
    """`function(logp, old_logp, advantages, action_mask)`: an LLDS that keeps all promises."""
    from lldlib.adapters.check_llds import check_llds

    try:
        promises = check_llds(function, preserve=preserve).promises
    except ValueError as error:
        return Verdict("wrong", f"Not yet: it {error}.")
    broken = [promise for promise in promises if not promise.kept]
    if not broken:
        return Verdict("right", f"Right: it keeps all {len(promises)} promises.")
    found = {}  # the first that is broken of each kind
    for promise in broken:
        found.setdefault(PLAINLY.get(promise.name.split("-")[0], promise.says), promise.seen)
    plain = [*PLAINLY.values()]
    shown = sorted(found, key=lambda what: plain.index(what) if what in plain else -1)[:3]
    told = "\n".join(f"- {what}. Here: {found[what]}" for what in shown)
    more = f"\nand {len(broken) - len(shown)} more" if len(broken) > len(shown) else ""
    head = f"Not yet: {len(broken)} of {len(promises)} promises are broken. For example:"
    return Verdict("wrong", f"{head}\n{told}{more}")


def check_answer(given: object, right: object, hint: str) -> Verdict:
    """A single answer: a number, a word or a set of them; None is an open exercise."""
    if given is None:
        return OPEN
    if given == right:
        return Verdict("right", "Right.")
    return Verdict("wrong", f"Not yet: {hint}")


def check_falling(given: set[int] | None) -> Verdict:
    """The places of the words that lose when the word of .12 is pushed down."""
    hint = "all scores shift, but one sum is shared: who gains so much that the others must pay?"
    return check_answer(None if given is None else set(given), {1, 2, 3, 4, 5}, hint)


def check_standing(given: set[str] | None) -> Verdict:
    """The conclusions that the measurements bear out."""
    hint = "two stand; the third goes beyond what was seen: two things came together."
    return check_answer(None if given is None else set(given), {"b", "c"}, hint)


def check_late(given: int | None) -> Verdict:
    """The batch at which a mean of ten is first under .3 of the best, after a drop at 20."""
    return check_answer(given, 27, "how many of the ten batches must be 0 before the mean is 0.15?")


level, lucky = [0.5, 0.4, 0.6, 0.5, 0.5] * 3, [0.3, 0.3, 0.9, 0.3, 0.3] * 2
check_fell = exercise(
    "`function(rewards)`: whether the mean of the last five is under half of the best such mean.",
    Case(([*level, 0.1],), False, "Draw this run: which level does it have?"),
    Case(([*level, 0.1, 0.1, 0.1, 0.1],), True, "The last five have a mean of 0.18."),
    Case((lucky,), False, "This run keeps its level. What was taken for its best level?"),
    Case(([0.1] * 5 + level,), False, "A rise is no fall."),
    Case(([0.1] * 5 + [0.8] * 5 + [0.3] * 5,), True, "Its best level is 0.8."),
)


def check_search_controls(given: set[str] | None) -> Verdict:
    """The controls of "it is good because it searches"."""
    hint = "a control keeps all but the searching as it is; two of the four do."
    return check_answer(None if given is None else set(given), {"b", "c"}, hint)


def check_curve(given: str | None) -> Verdict:
    """What makes an LLDS charge at the first update of every batch, of the very first too."""
    hint = "look at the very first update. Which of the four causes can charge there already?"
    return check_answer(given, "c", hint)
