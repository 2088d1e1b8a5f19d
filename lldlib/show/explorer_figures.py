"""Figures of the explorers: tokens painted by a number, LLDS's gates, Lp-Reg's proxy."""

from collections.abc import Sequence
from typing import Literal

from matplotlib import colormaps
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure

from lldlib.show.curves import COLOURS, SMALL, TEXT, WIDTH, style
from lldlib.show.values import GateCase, GateValues, ProxyValues, TokenInfo

By = Literal["logp", "change", "gate", "protection"]
SHOWS: dict[By, str] = {
    "logp": "log-prob when sampled: dark blue -5 nats, yellow 0",
    "change": "change over the batch's updates: purple +0.5 nats, brown -0.5",
    "gate": "LLDS's gate: blue open, grey shut, white none (a row with A < 0)",
    "protection": "Lp-Reg: blue protected, grey not, white none (a row with A >= 0)",
}
FLOOR, SPAN = -5.0, 0.5  # nats: the ends of the two colour scales
YES, NO, NONE = "#56B4E9", "#D0D0D0", "#FFFFFF"
TOP = 12  # tokens of a distribution that are drawn
WRAP = 108  # characters on a line of painted tokens


def paint(token: TokenInfo, by: By) -> tuple[str, str]:
    """Background and ink of a token, as hex; white where the value means nothing."""
    if by == "logp" and token.logp is not None:
        colour = colormaps["cividis"](Normalize(FLOOR, 0, clip=True)(token.logp))
        return to_hex(colour), "#FFFFFF" if token.logp < -2.2 else "#000000"
    if by == "change" and token.change is not None:
        place = Normalize(-SPAN, SPAN, clip=True)(token.change)
        return to_hex(colormaps["PuOr"](place)), "#FFFFFF" if abs(place - 0.5) > 0.4 else "#000000"
    flag = {"gate": token.gate_open, "protection": token.protected}.get(by)
    return (NONE if flag is None else YES if flag else NO), "#000000"


def token_figure(rows: Sequence[Sequence[TokenInfo]], by: By) -> Figure:
    """Trajectories word by word, painted; what the policy did not write is dotted and grey."""
    lines: list[list[tuple[float, TokenInfo]]] = []
    starts = []
    for row in rows:
        starts.append(len(lines))
        lines.append([])
        x = 0.0
        for token in row:
            if x + len(token.text) > WRAP:
                lines.append([])
                x = 0.0
            lines[-1].append((x, token))
            x += len(token.text) + 1.5
    figure = Figure(figsize=(WIDTH, 0.5 + 0.3 * len(lines)), layout="constrained")
    ax = figure.add_subplot(frameon=False, xticks=(), yticks=())
    for y, line in enumerate(lines):
        for x, token in line:
            face, ink = paint(token, by)
            mine = token.role == "action"
            box = {"facecolor": face, "boxstyle": "square,pad=0.2", "linewidth": 0.5}
            box |= {"edgecolor": "0.4"} if mine else {"edgecolor": "0.6", "linestyle": ":"}
            font = {"family": "monospace", "fontsize": 8, "style": "normal" if mine else "italic"}
            ax.text(x, y, token.text, color=ink if mine else "0.45", bbox=box, va="center", **font)
    ax.set(xlim=(-1, WRAP + 2), ylim=(len(lines) - 0.3, -0.7))
    ax.set_title(SHOWS[by], fontsize=SMALL, loc="left", color="0.25")
    return figure


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


def proxy_figure(words: Sequence[str], values: ProxyValues) -> Figure:
    """The likeliest tokens and the rest: policy and proxy (log axis), and the gradient of the KL.

    `words` names the whole vocabulary. Dropped tokens are hatched and have no proxy.
    """
    order = values.probs.argsort(descending=True)
    top, rest = order[:TOP].tolist(), order[TOP:]
    names = [words[v] for v in top] + [f"{len(rest)} others, {int(values.kept[rest].sum())} kept"]
    columns = [
        [*series[top].tolist(), float(series[rest].sum())]
        for series in (values.probs, values.proxy, values.gradient)
    ]
    kept = [*values.kept[top].tolist(), bool(values.kept[rest].any())]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    places = range(len(names))
    bars = left.barh([p - 0.2 for p in places], columns[0], 0.38, color=COLOURS[4], label="policy")
    for bar, is_kept in zip(bars, kept, strict=True):
        bar.set_hatch("" if is_kept else "////")
        bar.set_edgecolor("black" if not is_kept else COLOURS[4])
    left.barh([p + 0.2 for p in places], columns[1], 0.38, color=COLOURS[1], label="proxy")
    left.set_xscale("log")
    left.set_xlim(left=1e-5)
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}
    left.legend(fontsize=SMALL, frameon=False, **above)
    right.barh(places, columns[2], 0.6, color=COLOURS[2])
    right.axvline(0, color="black", linewidth=0.8)
    style(left, "probability (hatched: dropped)", "").set_yticks(places, names)
    style(right, "gradient of the KL in the logit", "")
    left.invert_yaxis()
    for ax in (left, right):
        ax.grid(visible=False)
    title = f"KL(proxy || policy) = {values.kl:.4f} nats      kept {int(values.kept.sum())} of "
    figure.suptitle(f"{title}{len(words)} tokens      entropy {values.entropy:.2f}", fontsize=TEXT)
    return figure
