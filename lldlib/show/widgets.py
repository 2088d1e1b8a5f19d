"""Widgets: LLDS's gates, Lp-Reg's proxy, the spiral.

A new widget goes here. Of each first the numbers, then the figure, then the widget: a widget does
no maths, it shows what these functions return. (The live lab, which steers a run, is in `lab`.)
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import ipywidgets
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from lldlib.config import Gate
from lldlib.losses import aggregate, forward_kl, llds_parts, proxy_logits
from lldlib.runs.folder import Run
from lldlib.runs.summary import value_text
from lldlib.show.controls import choice, control, labelled, picture, png, row
from lldlib.show.spiral import spiral_page
from lldlib.show.style import COLOURS, SMALL, TEXT, WIDTH, style
from lldlib.show.tokens import YES

TOP = 12  # tokens of a distribution that are drawn
LP_REG = COLOURS[3]  # of Lp-Reg and its proxy


# -- gates ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateCase:
    """A handful of tokens: log-probs before and after an update, in nats, and who wrote them."""

    words: tuple[tuple[str, ...], ...]  # (B, T)
    old_logp: Float[Tensor, "B T"]
    new_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, " B"]
    action_mask: Bool[Tensor, "B T"]
    answer_mask: Bool[Tensor, "B T"]


@dataclass(frozen=True)
class GateValues:
    """What LLDS makes of a GateCase."""

    preserved: Bool[Tensor, "B T"]  # action tokens of rows with A >= 0
    gate_open: Bool[Tensor, "B T"]
    penalty: Float[Tensor, "B T"]  # nats, before the weight lambda
    gradient: Float[Tensor, "B T"]  # of the loss in new_logp; negative: descent lifts the token
    loss: float  # lambda times the mean penalty of a preserved token, nats


def gate_values(
    case: GateCase, *, gate: Gate, answer_weight: float | int, coef: float | int
) -> GateValues:
    """LLDS on a small case: open gates, penalties, loss and gradient (2512.04220v2 Eq. 4, 5)."""
    logp = case.new_logp.detach().clone().requires_grad_()
    rows = (logp, case.old_logp, case.advantages, case.action_mask)
    answer = {"answer_mask": case.answer_mask, "answer_weight": answer_weight}
    parts = llds_parts(*rows, gate=gate, preserve="nonnegative", **answer)
    loss = coef * aggregate(parts.penalty, parts.preserved, "token-mean")
    (gradient,) = torch.autograd.grad(loss, logp)
    return GateValues(
        preserved=parts.preserved,
        gate_open=parts.gate,
        penalty=parts.penalty.detach(),
        gradient=gradient,
        loss=float(loss.detach()),
    )


def gate_figure(case: GateCase, values: GateValues) -> Figure:
    """Per token: the change of its log-prob (open gates shaded), the penalty, and the gradient."""
    rows = len(case.words)
    figure = Figure(figsize=(WIDTH, 0.9 + 2.2 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, sharex="row", sharey="col", squeeze=False)
    titles = ("change new - old (nats)", "penalty (nats)", "gradient of λ·LLDS")
    change = case.new_logp - case.old_logp
    for b, line in enumerate(panels):
        places = range(len(case.words[b]))
        shown = (change[b], values.penalty[b], values.gradient[b])
        for ax, series, title, colour in zip(line, shown, titles, COLOURS[1:], strict=False):
            for t in values.gate_open[b].nonzero()[:, 0].tolist():
                ax.axvspan(t - 0.5, t + 0.5, color=YES, alpha=0.35, linewidth=0)
            ax.bar(places, (series * case.action_mask[b]).tolist(), color=colour, width=0.7)
            ax.axhline(0, color="black", linewidth=0.8)
            style(ax, "", "")
            ax.set_xticks(places, case.words[b], rotation=90)
            if b == 0:
                ax.set_title(title, fontsize=TEXT)
        line[0].set_ylabel(f"row {b + 1}, A = {case.advantages[b]:+.1f}", fontsize=TEXT)
    shaded = f"shaded: the token's gate is open      loss λ·LLDS = {values.loss:.4f} nats"
    figure.supxlabel(shaded, fontsize=TEXT)
    return figure


class GateExplorer(ipywidgets.VBox):
    """Move tokens up and down: which of LLDS's gates open, what loss and gradient follow.

    A slider per action token of the first row of `case` sets its change in nats; the other rows
    stay. `values` is what `gate_values` gives for the sliders as they stand.
    """

    def __init__(self, case: GateCase):
        self.case = case
        change = (case.new_logp - case.old_logp)[0]
        places = case.action_mask[0].nonzero()[:, 0].tolist()
        span = {"min": -1.0, "max": 1.0, "step": 0.05, "readout_format": "+.2f"}
        self.changes = {
            t: control(
                ipywidgets.FloatSlider,
                f"{t + 1} {case.words[0][t]}",
                "change of the token's log-prob, nats",
                285,
                value=round(float(change[t]), 2),
                **span,
            )
            for t in places
        }
        tips = ("where the fall must sum to more than 0", "weight of answer tokens (LLDS-MA)")
        self.gate = choice(["token", "action", "response"], tips[0])
        self.gate.value = "action"
        self.answer = control(
            ipywidgets.FloatSlider, "answer weight", tips[1], 280, value=1.0, min=0, max=1, step=0.1
        )
        self.coef = control(
            ipywidgets.FloatSlider, "λ", "weight of LLDS", 240, value=0.5, min=0, max=2, step=0.1
        )
        self.picture = picture(
            130 + 220 * len(case.words),
            "per token its change, the penalty and the gradient of LLDS",
        )
        for part in (*self.changes.values(), self.gate, self.answer, self.coef):
            part.observe(self._show, "value")
        title = ipywidgets.HTML("change of each token of row 1 (nats):")
        knobs = row([labelled("gate", self.gate), self.answer, self.coef])
        super().__init__([knobs, title, row(self.changes.values()), self.picture])
        self._show()

    def _show(self, _change: object = None) -> None:
        new = self.case.new_logp.clone()
        for t, slider in self.changes.items():
            new[0, t] = self.case.old_logp[0, t] + slider.value
        moved = replace(self.case, new_logp=new)
        self.values = gate_values(
            moved, gate=self.gate.value, answer_weight=self.answer.value, coef=self.coef.value
        )
        self.picture.value = png(gate_figure(moved, self.values))


# -- the proxy ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProxyValues:
    """One next-token distribution and Lp-Reg's proxy of it."""

    probs: Float[Tensor, " V"]
    kept: Bool[Tensor, " V"]
    proxy: Float[Tensor, " V"]  # renormalised over the kept tokens
    gradient: Float[Tensor, " V"]  # of the KL in the logits: probs - proxy
    kl: float  # KL(proxy || policy), nats
    entropy: float  # of the policy, nats


def proxy_values(
    logits: Float[Tensor, " V"], *, filtering: Literal["min-p", "fixed"], threshold: float | int
) -> ProxyValues:
    """Lp-Reg's proxy of one distribution, its KL and the KL's gradient (2510.03222v2 Eq. 5, 6)."""
    given = {"kappa" if filtering == "min-p" else "tau": threshold}
    leaf = logits.detach().float().view(1, 1, -1).requires_grad_()
    filtered = proxy_logits(leaf, **given)
    kl = forward_kl(leaf, filtered)
    (gradient,) = torch.autograd.grad(kl.sum(), leaf)
    logp = leaf.detach().log_softmax(-1)[0, 0]
    kept = filtered[0, 0] > -torch.inf
    proxy = torch.where(kept, filtered[0, 0].softmax(-1), 0.0)  # 0 where all were dropped
    return ProxyValues(
        probs=logp.exp(),
        kept=kept,
        proxy=proxy,
        gradient=gradient[0, 0],
        kl=float(kl.detach()),
        entropy=float(-(logp.exp() * logp).sum()),
    )


def proxy_figure(words: Sequence[str], values: ProxyValues) -> Figure:
    """The likeliest tokens and the rest: policy and proxy (log axis), and the pull on each score.

    The pull is minus the gradient of the KL in the logit: descent lifts a token whose pull is over
    0. `words` names the whole vocabulary. Dropped tokens are hatched and have no proxy.
    """
    order = values.probs.argsort(descending=True)
    top, rest = order[:TOP].tolist(), order[TOP:]
    names = [words[v] for v in top] + [f"{len(rest)} others, {int(values.kept[rest].sum())} kept"]
    columns = [
        [*series[top].tolist(), float(series[rest].sum())]
        for series in (values.probs, values.proxy, -values.gradient)
    ]
    kept = [*values.kept[top].tolist(), bool(values.kept[rest].any())]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    places = range(len(names))
    bars = left.barh([p - 0.2 for p in places], columns[0], 0.38, color="0.6", label="policy")
    for bar, is_kept in zip(bars, kept, strict=True):
        bar.set_hatch("" if is_kept else "////")
        bar.set_edgecolor("black" if not is_kept else "0.6")
    left.barh([p + 0.2 for p in places], columns[1], 0.38, color=LP_REG, label="proxy")
    left.set_xscale("log")
    left.set_xlim(left=1e-5)
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}
    left.legend(fontsize=SMALL, frameon=False, **above)
    right.barh(places, columns[2], 0.6, color=LP_REG)
    right.axvline(0, color="black", linewidth=0.8)
    style(left, "probability (hatched: dropped)", "").set_yticks(places, names)
    style(right, "pull towards the proxy\n(right: the word is lifted)", "")
    left.invert_yaxis()
    for ax in (left, right):
        ax.grid(visible=False)
    title = f"KL(proxy || policy) = {values.kl:.4f} nats      kept {int(values.kept.sum())} of "
    figure.suptitle(f"{title}{len(words)} tokens      entropy {values.entropy:.2f}", fontsize=TEXT)
    return figure


class ProxyExplorer(ipywidgets.VBox):
    """Lp-Reg's threshold over real next-token distributions: filter, proxy, KL, gradient.

    `cases` maps a name to the logits of one distribution over `words`.
    """

    def __init__(self, words: Sequence[str], cases: Mapping[str, Float[Tensor, " V"]]):
        self.words, self.cases = words, cases
        self.case = control(
            ipywidgets.Dropdown, "next token", "which distribution", 420, options=list(cases)
        )
        self.filtering = choice(["min-p", "fixed"], "how it drops tokens")
        options = [0.0, *(round(m * 10.0**-e, 6) for e in (4, 3, 2, 1) for m in (1, 2, 5)), 0.9]
        self.threshold = control(
            ipywidgets.SelectionSlider,
            "threshold (κ of the largest, or τ)",
            "tokens at or under it are dropped",
            520,
            options=[(value_text(v), v) for v in options],
            value=0.02,
        )
        self.picture = picture(470, "policy and proxy by token, and the gradient of the KL")
        for part in (self.case, self.filtering, self.threshold):
            part.observe(self._show, "value")
        knobs = row([self.case, labelled("filter", self.filtering)])
        super().__init__([knobs, self.threshold, self.picture])
        self._show()

    def _show(self, _change: object = None) -> None:
        given = {"filtering": self.filtering.value, "threshold": self.threshold.value}
        self.values = proxy_values(self.cases[self.case.value], **given)
        self.picture.value = png(proxy_figure(self.words, self.values))


# -- recorded runs --------------------------------------------------------------------------------


class SpiralView(ipywidgets.HTML):
    """The page of `spiral_page` in a notebook, in a frame of its own; it needs no kernel.

    `height` is in pixels; with `play` it plays at once.
    """

    def __init__(self, runs: Sequence[Run], height: int, play: bool = False):
        page = html.escape(spiral_page(runs, play=play))
        look = f"width: 100%; height: {height}px; border: 1px solid #999; box-sizing: border-box"
        super().__init__(
            f'<iframe title="the spiral" sandbox="allow-scripts" style="{look}" '
            f'srcdoc="{page}"></iframe>'
        )
        self.layout.width = "100%"
