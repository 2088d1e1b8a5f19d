"""The step inspector: one update token by token, with each token's loss written out in numbers."""

import html
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import ipywidgets

from lldlib.config import LossConfig
from lldlib.show.colouring import GATE, LOGP, Colouring, signed
from lldlib.show.tokens import token_page
from lldlib.types import TokenInfo, TokenStep

CLIP = Colouring("clipped", "clip", "the clip", "blue no gradient, grey passes", None)
KEPT = {"nonnegative": ">= 0", "positive": "> 0", "negative": "< 0"}
PANEL, NARROW = 178, 310  # pixels of the formulas' panel, and on a narrow screen
# a token's box is drawn in the panel under all tokens, not beside the token
STYLE = """
.ID {position: static; padding-right: 10px}
.ID .t {position: static}
.ID .tip {left: 0; right: 0; top: auto; bottom: 0; width: auto; font: 12px/1.5 monospace;
  white-space: pre-wrap; overflow: hidden; box-sizing: border-box}
.ID:has(.t:hover) .t:focus:not(:hover) .tip {display: none}
.step-inspector {position: relative; padding-bottom: PANELpx}
.step-inspector .hint {position: absolute; bottom: 0; left: 0; right: 0; padding: 8px;
  box-sizing: border-box; background: #f1f4f7; color: #3c464f; font: 13px/1.6 sans-serif}
.step-inspector .hint, .ID .tip {height: PANELpx}
@media (max-width: 600px) {
  .step-inspector {padding-bottom: NARROWpx}
  .step-inspector .hint, .ID .tip {height: NARROWpx}
}
""".replace("PANEL", str(PANEL)).replace("NARROW", str(NARROW))
HINT = (
    "Point at a token, or reach it with Tab: here its loss is written out with its numbers. "
    "A gradient is by the token's log-prob; a negative one makes the token likelier. What a token "
    "gains or loses in the end is not its own pull alone, since all tokens share the weights."
)


class Trajectory(Protocol):
    """What is shown of a row; `lldlib.train.dissect.Dissected` is one."""

    question: str
    reward: float
    advantage: float
    tokens: Sequence[TokenInfo]


@runtime_checkable
class Update(Protocol):
    """What is shown; `lldlib.train.dissect.DissectedUpdate` is one."""

    batch: int
    number: int
    loss: LossConfig
    rows: Sequence[Trajectory]


class StepInspector(ipywidgets.HTML):
    """One update token by token: what it read, what each token's loss is, and what the step did.

    Trajectories of positive advantage come first, then negative ones, then those without any.
    Painted by the gradient of the loss in a token's log-prob, by the update's change of it, by the
    log-prob, by LLDS's gate or by the clip. The panel below writes out the loss of the token under
    the mouse, or the one reached with Tab: plain HTML and CSS, which needs no kernel. `height` is
    that of the tokens, in pixels. Raises ValueError for an update without tokens.

    `StepInspector(dissect_update(run.trainer, 8), height=400)` shows update 8 of the batch that a
    TrainingRun trains next (see `lldlib.train.dissect`); the run stays as it is.
    """

    def __init__(self, update: Update, height: int):
        rows = [
            (f"{row.question} (reward {row.reward:g}, A = {row.advantage:+.3f})", row.tokens)
            for row in sorted(update.rows, key=lambda row: (not row.advantage, -row.advantage))
        ]
        steps = [t for row in update.rows for t in row.tokens if isinstance(t, TokenStep)]
        pull = signed("gradient", "gradient of the loss in the log-prob", _limit(steps, "gradient"))
        moved = signed("change", "change by this update (nats)", _limit(steps, "change"))
        page = token_page(
            rows,
            height,
            (pull, moved, LOGP, GATE, CLIP),
            lambda token: formula(token, update.loss),
            STYLE,
        )
        hint = html.escape(f"Update {update.number} of batch {update.batch}. {HINT}")
        super().__init__(f'<div class="step-inspector"><div class="hint">{hint}</div>{page}</div>')


def _limit(steps: Sequence[TokenStep], number: str) -> float:
    """The end of a scale: the largest of these numbers, to two digits."""
    return float(f"{max((abs(getattr(step, number)) for step in steps), default=0):.2g}") or 1.0


# -- the formula, filled in -----------------------------------------------------------------------


def formula(token: TokenInfo, loss: LossConfig) -> str:
    """The token's loss with its numbers, a line for each part; empty for a token of others."""
    if not isinstance(token, TokenStep):
        return ""
    # + 0.0: no minus before a zero
    terms = " ".join(f"{value + 0.0:+.3g} ({name})" for name, value in token.gradients)
    pull = "no pull"
    if token.gradient:
        pull = "makes it likelier" if token.gradient < 0 else "makes it less likely"
    return "\n".join(
        [
            f"log-prob: sampled {token.logp:.3f}, now {token.now:.3f}, after the update "
            f"{token.now + token.change:.3f} ({token.change:+.3f})",
            *_policy(token, loss),
            *_llds(token, loss),
            f"gradient of the loss in the log-prob = {terms} = {token.gradient:+.3g}: {pull}",
        ]
    )


def _policy(token: TokenStep, loss: LossConfig) -> list[str]:
    r, a, part = token.ratio, token.advantage, 1 / token.policy_share
    given = f"exp(now - sampled) = exp({token.now:.3f} + {-token.logp:.3f})"
    if loss.ratio_level == "sequence":
        given = "exp(mean over the row of now - sampled)"
    if loss.surrogate != "ppo":
        most = "1" if loss.surrogate == "reinforce" else f"min(r, {1 + loss.clip_high:g})"
        weight = 1.0 if loss.surrogate == "reinforce" else min(r, 1 + loss.clip_high)
        rule, filled = f"-{most} A now", f"-{weight:.3f} x {a:.3f} x {token.now:.3f}"
    elif loss.ratio_cap is None:
        low, high = 1 - loss.clip_low, 1 + loss.clip_high
        rule = f"-min(r A, clip(r, {low:g}, {high:g}) A)"
        filled = f"-min({r:.3f} x {a:.3f}, {min(max(r, low), high):.3f} x {a:.3f})"
    else:
        rule = f"-min(r, {loss.ratio_cap:g}) A"
        filled = f"-{min(r, loss.ratio_cap):.3f} x {a:.3f}"
    gradient = dict(token.gradients)["policy"]
    if token.clipped:
        why = "0, clipped: r is out of range on the side of A"
    elif gradient == 0 and a:
        why = "0, silenced: not among the tokens that are trained"
    else:
        weight = {"ppo": "r", "cispo": "min(r, cap)", "reinforce": "1"}[loss.surrogate]
        why = f"-{weight} A / {part:g} = {gradient + 0.0:+.3g}"
    return [
        f"r = {given} = {r:.3f};  A = {a:+.3f}",
        f"policy = {rule} = {filled} = {token.policy + 0.0:+.3f}, one of {part:g} in the mean",
        f"  its gradient: {why}",
    ]


def _llds(token: TokenStep, loss: LossConfig) -> list[str]:
    if token.gate_open is None:
        return [f"LLDS: keeps rows of A {KEPT[loss.llds_preserve]}, not this one"]
    if not token.gate_open:
        return ["LLDS: the gate is shut, no charge"]
    answer = "" if loss.llds_answer == "none" else " (times LLDS-MA's weight on the answer)"
    lines = [
        "LLDS: the gate is open, charge = max(0, sampled - now) = "
        f"max(0, {token.logp - token.now:.3f}){answer} = {token.charge:.3f}"
    ]
    if not loss.llds_coef:
        return [*lines, "  not in this loss: lambda = 0"]
    part, weight = 1 / token.llds_share, loss.llds_coef
    value, gradient = weight * token.charge / part, dict(token.gradients)["llds"]
    lines.append(
        f"  lambda charge / {part:g} = {weight:g} x {token.charge:.3f} / {part:g} = {value:.3g}; "
        f"its gradient: {gradient + 0.0:+.3g}"
    )
    return lines
