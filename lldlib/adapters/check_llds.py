"""Is an LLDS alive? Anyone's implementation on small cases, promise by promise.

`check_llds` gives the report, `assert_llds` is the same as one line of a pytest test.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.config import Gate
from lldlib.losses.llds import llds_gate, llds_penalty, preserved_mask
from lldlib.losses.policy_gradient import policy_gradient
from lldlib.losses.term import Number, aggregate

Kept = Literal["nonnegative", "positive"]  # rows whose likelihood is kept: A >= 0, or A > 0
Signature = Literal["default", "verl-policy-loss", "trl-trainer"]
GATES: tuple[Gate, ...] = ("action", "response", "token")
REFERENCES = ("ref_logp", "ref_log_prob", "ref_log_probs", "ref_logps", "ref_per_token_logps")
UNIT = 1 / 64  # of the falls below, in nats: exact in float32, and 10 of them stay inside a clip
FAINT = 1e-3  # of the largest gradient of an ordinary case: less is rounding
HINT = "it wants (logp, old_logp, advantages, action_mask), or name another --signature"


@dataclass(frozen=True)
class Case:
    """A minibatch, as a loss is given it."""

    logp: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    ref_logp: Float[Tensor, "B T"]  # the reference policy's; LLDS must not read it
    advantages: Float[Tensor, " B"]
    action_mask: Bool[Tensor, "B T"]

    def copy(self) -> "Case":
        """The same numbers in tensors of their own."""
        return Case(**{name: value.clone() for name, value in vars(self).items()})

    @property
    def attention(self) -> Bool[Tensor, "B T"]:
        """Real tokens: all up to a row's last action."""
        return self.action_mask.flip(1).cumsum(1).flip(1) > 0


@dataclass(frozen=True)
class Seen:
    """What an implementation said of a case."""

    value: float  # the scalar, or the sum of the (B, T) penalty
    grad: Float[Tensor, "B T"]  # of that value by the policy's log-probs
    per_token: bool
    connected: bool  # there is a gradient at all


@dataclass(frozen=True)
class Promise:
    """One promise of LLDS and whether it is kept."""

    name: str
    says: str
    kept: bool
    seen: str  # what was seen in its place; empty if it is kept


@dataclass(frozen=True)
class Report:
    """What the check found."""

    promises: tuple[Promise, ...]
    normaliser: str  # what the sum is divided by
    gate: str  # the gate that it behaves like

    @property
    def kept(self) -> bool:
        """Every promise is kept."""
        return all(promise.kept for promise in self.promises)

    def text(self) -> str:
        """A line a promise, and the result."""
        lines = [
            f"{'kept  ' if p.kept else 'BROKEN'}  {p.name:24}  {p.says}"
            + ("" if p.kept else f"\n{'':34}here: {p.seen}")
            for p in self.promises
        ]
        count = sum(p.kept for p in self.promises)
        end = f"{count} of {len(self.promises)} promises kept; gate: {self.gate}; "
        return "\n".join([*lines, end + f"divided by: {self.normaliser}"])


def check_llds(
    function: Callable[..., Any],
    *,
    gate: Gate = "action",
    preserve: Kept = "nonnegative",
    signature: Signature = "default",
) -> Report:
    """Call an implementation on some twenty cases, and compare with the paper's equations.

    "default": `function(logp, old_logp, advantages, action_mask)` gives the (B, T) penalty or its
    scalar; arguments named gate, preserve or like a reference policy's log-probs are given too.
    "verl-policy-loss": verl's policy loss, by verl's keywords; bind its config with
    functools.partial, else it gets verl's defaults. "trl-trainer": `function()` builds a trainer
    of TRL, whose `_compute_loss` is called. In the last two the clipped policy gradient (of TRL:
    that of its own base class) is subtracted. Raises ValueError where it cannot be
    called. Source: 2512.04220v2 Eq. 4, 9, 10.
    """
    call = _called(function, gate, preserve, signature)
    ordinary = rows(("aaaaa", [4, 6, 2, 8, 4], 1), ("aa.aa ", [2, 4, 9, 2, 6], -1))
    try:
        seen = call(ordinary)
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises
        hint = f"; {HINT}" if signature == "default" else ""
        raise ValueError(f"cannot be called: {type(error).__name__}: {error}{hint}") from error
    subject = Subject(call, gate, preserve, float(seen.grad.abs().max()))
    found = list(_promises(subject))
    if signature == "trl-trainer":
        found += [_accumulation(call, subject), _updates(call.trainer.args)]
    alive = subject.scale > 0
    divisor = _normaliser(subject)[0] if alive else "unknown"
    return Report(tuple(found), divisor, looks_like(subject) if alive else "unknown")


def assert_llds(function: Callable[..., Any], **how: Any) -> None:
    """`check_llds` as a test: raises AssertionError with the broken promises."""
    report = check_llds(function, **how)
    assert report.kept, "\n" + report.text()


# -- cases -----------------------------------------------------------------------------------------


def rows(*given: tuple[str, Sequence[Number], Number]) -> Case:
    """Rows of (mask, falls, advantage): mask "a" = action, "." = a tool's token, " " = padding.

    A fall is old - new in units of 1/64 nat.
    """
    width = max(len(mask) for mask, _, _ in given)
    masks = [[letter == "a" for letter in mask.ljust(width)] for mask, _, _ in given]
    falls = torch.tensor([list(f) + [0.0] * (width - len(f)) for _, f, _ in given]) * UNIT
    old = -1 - torch.arange(falls.numel()).reshape(falls.shape) % 5 / 4
    advantages = torch.tensor([float(a) for _, _, a in given])
    return Case(old - falls, old, old.clone(), advantages, torch.tensor(masks))


FIRST = rows(("aaaaa", [0] * 5, 1), ("aa.aa ", [0] * 5, -1), ("aaa", [0] * 3, 0))
FELL = rows(("aaaaa ", [4, 6, 2, 8, 4], 1), ("aa.aa", [2, 4, 9, 2, 6], 1))
# each net sum is written beside it
FALLING_RESPONSE = rows(("aa.aa", [10, -2, 0, 4, -6], 1), ("aaa", [1, 1, 1], 1))  # 8, -2: 6
# three actions, so that a gate that parts a row only at its first tool result is told; 3, -8, 3: -2
RISING_RESPONSE = rows(("aa.aa.aa", [2, 1, 0, -9, 1, 0, 4, -1], 1), ("aaa", [1, 1, 1], 1))
RISING_ACTION = rows(("aaa  ", [4, -6, 1], 1), ("aaaaa", [1] * 5, 1))  # -1
TOOL_TOKENS = rows(("aa...a", [2, -3, 10, 10, 10, -1], 1), ("aaa", [1, 1, 1], 1))  # -1, -1
TWO_ROWS = rows(("..aa", [0, 0, 2, 1], 1), ("aa..", [-9, -1], 1), ("aaa ", [1, 1, 1], 1))  # 3, -10
TIE = rows(("aa  ", [4, -4], 1), ("aaaa", [1] * 4, 1))  # 0
ROWS = rows(("aaaaa", [4] * 5, 1), ("aa.aa ", [4] * 5, -1), ("aaa", [4] * 3, 0))
TIED = rows(("aaaa", [4] * 4, 0), ("aaa", [4] * 3, 0))
NONE_KEPT = rows(("aaaa ", [4] * 4, -1), ("     ", [0] * 5, 1))
SIZES = rows(("aaa ", [2, 4, 8], 1), ("aaaa", [1, 2, 3, 4], 1))


# -- how a stranger's code is called ---------------------------------------------------------------


def _called(
    function: Callable[..., Any], gate: Gate, preserve: Kept, signature: Signature
) -> Callable[[Case], Seen]:
    if signature == "verl-policy-loss":
        return functools.partial(_verl, function)
    if signature == "trl-trainer":
        try:
            return TrainerCall(function())
        except (Exception, SystemExit) as error:  # whatever a stranger's trainer raises
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"the function builds no trainer: {what}") from error
    return functools.partial(_default, function, {"gate": gate, "preserve": preserve})


def _default(function: Callable[..., Any], settings: dict[str, Any], case: Case) -> Seen:
    taken = _parameters(function)
    bound = getattr(function, "keywords", {})
    given = {k: v for k, v in settings.items() if k in taken and k not in bound}
    given |= {name: case.ref_logp for name in REFERENCES if name in taken}
    logp = case.logp.clone().requires_grad_()
    before = (case.old_logp, case.advantages, case.action_mask)
    try:
        out = function(logp, *before, **given)
    except (RuntimeError, IndexError):  # it wants advantages a token
        spread = case.advantages[:, None].expand(logp.shape).clone()
        out = function(logp, case.old_logp, spread, case.action_mask, **given)
    return _seen(out, logp)


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in
        return set()


def _seen(out: Any, logp: Float[Tensor, "B T"], base: Tensor | None = None) -> Seen:
    """Value and gradient of what was returned, less the `base`."""
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.shape not in ((), logp.shape):
        raise ValueError(f"it returns {_shape(out)}, not a scalar or a tensor like logp")
    value, per_token = out.float().sum(), out.dim() > 0
    if base is not None:
        value = value - base.float()
    grad = torch.zeros_like(logp)
    if value.requires_grad:
        found = torch.autograd.grad(value, logp, allow_unused=True)[0]
        grad = grad if found is None else found
    return Seen(float(value.detach()), grad.float(), per_token, out.requires_grad)


def _shape(out: Any) -> str:
    return f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__


class VerlSettings(SimpleNamespace):
    """What a policy loss reads of verl's actor settings, with the defaults of verl 0.9.1."""

    def get(self, name: str, default: Any = None) -> Any:
        """As verl's own settings."""
        return getattr(self, name, default)


def _verl(function: Callable[..., Any], case: Case) -> Seen:
    settings = VerlSettings(
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
        loss_agg_mode="token-mean",
        global_batch_info={"dp_size": 1},
        policy_loss=VerlSettings(),
    )
    logp = case.logp.clone().requires_grad_()
    # verl's advantages are 0 where its mask is, and its mask knows no third kind of token
    spread = case.advantages[:, None] * case.action_mask
    given = {} if "config" in getattr(function, "keywords", {}) else {"config": settings}
    out = function(
        old_log_prob=case.old_logp,
        log_prob=logp,
        advantages=spread,
        response_mask=case.action_mask,
        loss_agg_mode="token-mean",
        rollout_is_weights=None,
        **given,
    )
    base = policy_gradient(logp, case.old_logp, case.advantages, case.action_mask)
    return _seen(out, logp, aggregate(base, case.action_mask, "token-mean"))


class TrainerCall:
    """Calls `_compute_loss` of a trainer of TRL, whose forward pass is replaced by the case."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        ours = [c for c in type(trainer).__mro__ if c.__module__.partition(".")[0] == "trl"]
        if not ours or not hasattr(trainer, "_compute_loss"):
            raise ValueError("--signature trl-trainer: the function must return a TRL trainer")
        self.base = ours[0]
        if not hasattr(trainer, "current_gradient_accumulation_steps"):  # set once it trains
            trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps

    def __call__(self, case: Case) -> Seen:
        self.trainer.model.train()
        logp = case.logp.clone().requires_grad_()
        inputs = self._inputs(case)
        with self._forward(logp):
            try:
                out = self.trainer._compute_loss(self.trainer.model, dict(inputs))
            except KeyError as error:
                raise ValueError(
                    f"its loss reads inputs[{error}], which its own rollouts add: check the "
                    "function that computes the term"
                ) from error
            base = self.base._compute_loss(self.trainer, self.trainer.model, dict(inputs))
        return _seen(out, logp, base)

    @contextmanager
    def accumulating_twice(self) -> Iterator[None]:
        """Twice as many micro-batches an update, and as many updates."""
        names = ("gradient_accumulation_steps", "steps_per_generation")
        owners = [(self.trainer, "current_gradient_accumulation_steps")]
        owners += [(self.trainer.args, name) for name in names]
        before = [getattr(owner, name) for owner, name in owners]
        for (owner, name), value in zip(owners, before, strict=True):
            setattr(owner, name, 2 * value)
        try:
            yield
        finally:
            for (owner, name), value in zip(owners, before, strict=True):
                setattr(owner, name, value)

    @contextmanager
    def _forward(self, logp: Float[Tensor, "B T"]) -> Iterator[None]:
        name = "_get_per_token_logps_and_entropies"
        original = getattr(self.base, name)
        setattr(self.base, name, lambda *args, **kwargs: (logp, torch.zeros_like(logp), None))
        try:
            yield
        finally:
            setattr(self.base, name, original)

    def _inputs(self, case: Case) -> dict[str, Tensor]:
        """A rollout batch of one minibatch; the old log-probs only where TRL computes them."""
        args, shape = self.trainer.args, case.logp.shape
        tokens = case.action_mask.sum() * args.steps_per_generation
        inputs = {
            "prompt_ids": torch.zeros(shape[0], 1, dtype=torch.long),
            "prompt_mask": torch.ones(shape[0], 1, dtype=torch.long),
            "completion_ids": torch.zeros(shape, dtype=torch.long),
            "completion_mask": case.attention.long(),
            "tool_mask": (case.action_mask | ~case.attention).long(),
            "advantages": case.advantages,
            "num_items_in_batch": tokens,  # of all micro-batches between two rollouts
            "ref_per_token_logps": case.ref_logp,
        }
        if args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations):
            inputs["old_per_token_logps"] = case.old_logp
        return inputs


# -- promises --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The implementation under test, and what was asked of it."""

    run: Callable[[Case], Seen]
    gate: Gate
    preserve: Kept
    scale: float  # the largest gradient of an ordinary case

    def call(self, case: Case) -> Seen:
        """What it says of a copy, which it may change."""
        return self.run(case.copy())

    def acts(self, case: Case) -> Bool[Tensor, "B T"]:
        """Where the term has a gradient."""
        return self.call(case).grad.abs() > FAINT * self.scale

    def wanted(self, case: Case, gate: Gate | None = None) -> Bool[Tensor, "B T"]:
        """Where it should."""
        data = (case.logp, case.old_logp, case.advantages, case.action_mask)
        return llds_penalty(*data, gate=gate or self.gate, preserve=self.preserve) > 0


Check = Callable[[Subject], str]  # what is wrong, or nothing
CHECKS: list[tuple[str, str, Check, bool]] = []  # name, promise, check, whether it needs a term


def _promise(says: str, needs_term: bool = True) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CHECKS.append((check.__name__.replace("_", "-"), says, check, needs_term))
        return check

    return add


def _promises(subject: Subject) -> Iterator[Promise]:
    dead = "not seen: the term has no gradient in any case" if not subject.scale > 0 else ""
    for name, says, check, needs_term in CHECKS:
        try:
            wrong = dead if dead and needs_term else check(subject)
        except (Exception, SystemExit) as error:  # whatever a stranger's code raises
            wrong = f"it raises {type(error).__name__}: {' '.join(str(error).split())}"
        yield Promise(name, says, not wrong, wrong)


@_promise("0 at the first update of a rollout batch", needs_term=False)
def zero_at_first(subject: Subject) -> str:
    # the reference policy is another by then
    first = replace(FIRST, ref_logp=FIRST.logp + 8 * UNIT)
    seen = subject.call(first)
    if abs(seen.value) < 1e-6 and not (seen.grad.abs() > 1e-6).any():
        return ""
    return f"value {seen.value:.3g} where new and old log-probs are the same: not the old policy's?"


@_promise("then not: it acts once a good response has lost likelihood", needs_term=False)
def then_not(subject: Subject) -> str:
    if abs(subject.call(FELL).value) > 1e-6:
        return ""
    return (
        "0 at every update: old_logp is the current policy's (old = current.detach()), or is taken "
        "anew for each (one update a batch)"
    )


@_promise("the anchor is the old policy, which sampled, not the reference")
def old_anchor(subject: Subject) -> str:
    """A fall under the old policy is charged, one under the reference is not."""
    fell = replace(FELL, ref_logp=FELL.logp - 8 * UNIT)  # under the old policy, over the reference
    rose = rows(("aaaaa", [-4] * 5, 1), ("aa.aa", [-4] * 5, 1))
    rose = replace(rose, ref_logp=rose.logp + 8 * UNIT)
    if subject.acts(fell).any() and not subject.acts(rose).any():
        return ""
    if subject.acts(rose).any() and not subject.acts(fell).any():
        return "it penalises a fall below the reference policy, and none below the old one"
    return "it does not follow old_logp: a rise over the old policy is penalised, or a fall is not"


@_promise("it has a gradient", needs_term=False)
def gradient(subject: Subject) -> str:
    seen = subject.call(FELL)
    if seen.connected and torch.isfinite(seen.grad).all() and seen.grad.any():
        return ""
    if not seen.connected:
        return "the result is detached from logp"
    return "the gradient is 0 or not finite where likelihood was lost"


@_promise("the gradient pulls lost likelihood up again")
def sign(subject: Subject) -> str:
    seen = subject.call(FELL)
    if seen.value > 0 and not (seen.grad > FAINT * subject.scale).any():
        return ""
    return "the sign is wrong: a descent step lowers the log-probs that fell"


@_promise("a token that rose is left alone: max(0, old - new)")
def rising_tokens(subject: Subject) -> str:
    case = rows(("aaaa", [9, -2, 3, -1], 1), ("aaa", [1, 1, 1], 1))
    acted = subject.acts(case) & (case.logp > case.old_logp)
    return f"{int(acted.sum())} of 2 tokens that rose have a gradient" if acted.any() else ""


@_promise("every nat lost counts alike: linear in the fall")
def linear(subject: Subject) -> str:
    slopes = subject.call(SIZES).grad[0, :3].abs()
    if slopes.min() > 0.98 * slopes.max():
        return ""
    return "falls of 1, 2 and 4 parts have slopes in ratio " + _ratio(slopes)


def _tokens(count: Tensor | int, kind: str = "") -> str:
    """The count in words, such as "2 fallen tokens"."""
    return f"{int(count)} {kind}token{'s' * (int(count) != 1)}"


def _ratio(values: Tensor) -> str:
    first = float(values[0]) or 1.0
    return " : ".join(f"{float(v) / first:.3g}" for v in values)


def _gate_check(subject: Subject, case: Case) -> str:
    acts, wanted = subject.acts(case), subject.wanted(case)
    if torch.equal(acts, wanted):
        return ""
    extra, missed = int((acts & ~wanted).sum()), int((wanted & ~acts).sum())
    said = [f"acts on {_tokens(extra)} behind a closed gate"] * bool(extra)
    said += [f"leaves {_tokens(missed, 'fallen ')} behind an open gate"] * bool(missed)
    return " and ".join(said) + f"; behaves like the gate: {looks_like(subject)}"


def looks_like(subject: Subject) -> str:
    """The gate that explains what was seen of the three probes, or "none of the three"."""
    probes = (FALLING_RESPONSE, RISING_RESPONSE, RISING_ACTION)
    seen = [subject.acts(case) for case in probes]
    for gate in GATES:
        wanted = [subject.wanted(case, gate) for case in probes]
        if all(torch.equal(a, b) for a, b in zip(seen, wanted, strict=True)):
            return gate if gate != "token" else "token (or no gate)"
    return "none of the three"


@_promise("the gate, in a response that fell as a whole: an action that rose, one that fell")
def gate_in_falling_response(subject: Subject) -> str:
    return _gate_check(subject, FALLING_RESPONSE)


@_promise("the gate, in a response that rose as a whole: an action that rose between two that fell")
def gate_in_rising_response(subject: Subject) -> str:
    return _gate_check(subject, RISING_RESPONSE)


@_promise("the gate, in one action that rose as a whole: its fallen tokens")
def gate_in_rising_action(subject: Subject) -> str:
    return _gate_check(subject, RISING_ACTION)


@_promise("the gate's sum leaves out what tools wrote")
def gate_and_tools(subject: Subject) -> str:
    return _gate_check(subject, TOOL_TOKENS)


@_promise("the gate's sum ends with the row")
def gate_across_rows(subject: Subject) -> str:
    return _gate_check(subject, TWO_ROWS)


@_promise("a tie, falls and rises that cancel, leaves the gate as its strict > 0 says")
def gate_tie(subject: Subject) -> str:
    return _gate_check(subject, TIE)


@_promise("rows of A > 0 are kept")
def rows_positive(subject: Subject) -> str:
    count = int(subject.acts(ROWS)[0].sum())
    return "" if count == 5 else f"it acts on {count} of the 5 tokens that fell"


@_promise("rows of A < 0 are left alone")
def rows_negative(subject: Subject) -> str:
    count = int(subject.acts(ROWS)[1].sum())
    return f"it acts on {_tokens(count)} of a row of A < 0" if count else ""


@_promise("rows of A = 0 are kept by --preserve nonnegative, left alone by positive")
def rows_zero(subject: Subject) -> str:
    return _zero_rows(subject, ROWS, 2)


@_promise("so are they where every group is tied")
def tied_batch(subject: Subject) -> str:
    return _zero_rows(subject, TIED, 0)


def _zero_rows(subject: Subject, case: Case, row: int) -> str:
    seen, wanted = int(subject.acts(case)[row].sum()), int(subject.wanted(case)[row].sum())
    return (
        "" if seen == wanted else f"it acts on {_tokens(seen)} of a row of A = 0, not on {wanted}"
    )


@_promise("advantages only choose rows: their size changes nothing")
def advantage_size(subject: Subject) -> str:
    sizes = replace(FELL, advantages=torch.tensor([0.25, 3.0]))
    seen, other = subject.call(FELL), subject.call(sizes)
    same = _near(seen.grad, other.grad, subject)
    return "" if same else "the gradient changes with the size of the advantages"


def _near(one: Tensor, other: Tensor, subject: Subject) -> bool:
    return bool(((one - other).abs() <= 10 * FAINT * subject.scale).all())


@_promise("no gradient on tokens that the policy did not choose")
def mask_gradient(subject: Subject) -> str:
    wrong = subject.acts(FELL) & ~FELL.action_mask
    return f"it acts on {_tokens(wrong.sum())} outside the mask" if wrong.any() else ""


@_promise("what stands at masked tokens changes nothing")
def mask_value(subject: Subject) -> str:
    noise = torch.where(FELL.action_mask, 0.0, torch.tensor(-7 * UNIT))
    other = replace(FELL, logp=FELL.logp + noise)
    same = _same(subject, subject.call(FELL), subject.call(other))
    return "" if same else "the value or the gradient changes with masked log-probs"


@_promise("more padding changes nothing")
def padding(subject: Subject) -> str:
    wide = {
        name: torch.nn.functional.pad(getattr(FELL, name), (0, 4))
        for name in ("logp", "old_logp", "ref_logp", "action_mask")
    }
    seen, other = subject.call(FELL), subject.call(replace(FELL, **wide))
    cut = replace(other, grad=other.grad[:, : seen.grad.shape[1]])
    return "" if _same(subject, seen, cut) else "the value or the gradient changes"


def _same(subject: Subject, one: Seen, other: Seen) -> bool:
    close = abs(one.value - other.value) <= 10 * FAINT * max(abs(one.value), abs(other.value))
    return close and _near(one.grad, other.grad, subject)


@_promise("0 and finite where no row is kept")
def nothing_kept(subject: Subject) -> str:
    seen = subject.call(NONE_KEPT)
    if abs(seen.value) < 1e-6 and not (seen.grad.abs() > 1e-6).any():  # nan compares false
        return "" if torch.isfinite(seen.grad).all() else "the gradient is not finite"
    return f"value {seen.value:.3g}"


@_promise("a mean over the kept rows' tokens (the paper) or all action tokens (the official code)")
def normaliser(subject: Subject) -> str:
    name, known = _normaliser(subject)
    return "" if known else f"divided by {name}: one lambda weighs more in one batch than another"


def _normaliser(subject: Subject) -> tuple[str, bool]:
    """What a token's slope is divided by, from batches of different counts."""
    cases = (
        # the first row's second action and the second row are kept, and their gates are shut
        rows(("aaa.aa", [4, 4, -1, 0, -1, -2], 1), ("aaaa", [-4] * 4, 1), ("aa.aaa", [4] * 6, -1)),
        rows(("aaaa  ", [4] * 4, 1), ("aaaaaa", [4] * 6, 1)),
        rows(("aaaa   ", [4] * 4, 1), ("aaaaaaa", [4] * 7, 1), ("aaa", [4] * 3, -1)),
    )
    if subject.call(cases[0]).per_token:
        return "nothing, it is per token: the divisor is the caller's", True
    slopes = torch.stack([subject.call(case).grad[0, 0].abs() for case in cases])
    divisors = {
        "the tokens of kept rows (the paper)": (lambda c: _kept_tokens(subject, c), True),
        "all action tokens (the official code)": (lambda c: float(c.action_mask.sum()), True),
        "the rows": (lambda c: float(len(c.logp)), False),
        "nothing: a sum": (lambda c: 1.0, False),
        "all tokens, padding too": (lambda c: float(c.logp.numel()), False),
        "the tokens with a gradient": (lambda c: float(subject.acts(c).sum()), False),
        "the tokens behind an open gate": (lambda c: _open_tokens(subject, c), False),
        "the kept tokens of rows with a charge": (lambda c: _charged_tokens(subject, c), False),
        "the real tokens, those of tools too": (lambda c: float(c.attention.sum()), False),
    }
    for name, (count, known) in divisors.items():
        found = slopes * torch.tensor([count(case) for case in cases])
        if found.min() > 0.99 * found.max():
            return name, known
    return "an unknown count", False


def _kept_tokens(subject: Subject, case: Case) -> float:
    return float(preserved_mask(case.advantages, case.action_mask, subject.preserve).sum())


def _open_tokens(subject: Subject, case: Case) -> float:
    data = (case.logp, case.old_logp, case.advantages, case.action_mask)
    return float(llds_gate(*data, subject.gate, subject.preserve).sum())


def _charged_tokens(subject: Subject, case: Case) -> float:
    charged = subject.acts(case).any(1, keepdim=True)
    kept = preserved_mask(case.advantages, case.action_mask, subject.preserve)
    return float((kept & charged).sum())


@_promise("its inputs are left as they were, and it says the same again")
def pure(subject: Subject) -> str:
    case = FELL.copy()
    first, second = subject.run(case), subject.run(case)
    if not all(torch.equal(getattr(case, name), getattr(FELL, name)) for name in vars(case)):
        return "it changes its inputs in place"
    return "" if _same(subject, first, second) else "a second call on the same case differs"


@_promise("bf16 log-probs are summed in float32: a long action's gate is as in exact arithmetic")
def bf16(subject: Subject) -> str:
    """A gate that only a sum in float32 finds shut stays shut."""
    # one fall of 2 nats and 600 rises of 1/256, 0.34 more; a sum in bf16 stays at 2
    width = 601
    old = torch.full((2, width), -0.5)
    new = old + 1 / 256
    old[:, 0], new[:, 0] = -0.5, -2.5
    new[1, 1:] = old[1, 1:]  # this row's gate is open
    half = [x.to(torch.bfloat16) for x in (new, old, old)]
    size = 0.0 if subject.preserve == "nonnegative" else 2.0**-10  # no policy gradient beside it
    mask = torch.ones(2, width, dtype=torch.bool)
    case = Case(*half, torch.full((2,), size), mask)
    seen = subject.call(case)
    acts = seen.grad.abs() > 0.1 * seen.grad.abs().max()
    wanted = subject.wanted(case)
    if torch.equal(acts, wanted) and seen.value == seen.value:
        return ""
    return f"it acts on {_tokens(acts.sum())}, in exact arithmetic on {int(wanted.sum())}"


def _accumulation(call: TrainerCall, subject: Subject) -> Promise:
    """Of a trainer: TRL adds up what its micro-batches say, and leaves the division to the loss."""
    name, says = "accumulation", "with twice the micro-batches an update, each weighs half"
    if not subject.scale > 0:
        return Promise(name, says, False, "not seen: the term has no gradient in any case")
    once = subject.call(FELL).grad.abs().sum()
    with call.accumulating_twice():
        ratio = float(subject.call(FELL).grad.abs().sum() / once)
    kept = abs(ratio - 0.5) < 10 * FAINT
    seen = (
        f"each weighs {ratio:.3g} of before: divide by current_gradient_accumulation_steps, or by "
        "the count of the whole update"
    )
    return Promise(name, says, kept, "" if kept else seen)


def _updates(args: Any) -> Promise:
    """Of a trainer: LLDS is 0 unless a rollout batch gets several updates."""
    passes = args.steps_per_generation * args.num_iterations
    updates = passes / args.gradient_accumulation_steps
    seen = "" if updates > 1 else f"{updates:g} update a rollout batch: LLDS is 0 at each"
    return Promise("updates", "a rollout batch gets several updates", not seen, seen)
