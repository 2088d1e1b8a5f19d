"""The token view: trajectories as words that answer to the pointer and the keyboard by themselves.

Plain HTML and CSS, so hovering and changing the colours need no kernel.
"""

import html
import uuid
from collections.abc import Sequence

import ipywidgets

from lldlib.show.explorer_figures import SHOWS, By, paint
from lldlib.show.values import TokenInfo

NAMES: dict[By, str] = {
    "logp": "log-prob",
    "change": "change",
    "gate": "LLDS gate",
    "protection": "Lp-Reg",
}
HAS = {"logp": "logp", "change": "change", "gate": "gate_open", "protection": "protected"}
# the room on the right is for the numbers of a line's last word
STYLE = """
.ID {height: HEIGHTpx; overflow-y: auto; border: 1px solid #999; padding: 8px 150px 8px 10px;
  background: #fff; color: #000; font: 13px/2 monospace; position: relative}
.ID .bar {position: sticky; top: -8px; background: #fff; font: 13px/1.6 sans-serif; z-index: 2;
  padding: 4px 0; border-bottom: 1px solid #ddd}
.ID .bar label {margin: 0 14px 0 3px}
.ID .legend {display: none; color: #444}
.ID .title {font: 13px/1.6 sans-serif; margin: 8px 0 2px; font-weight: bold}
.ID .t {padding: 1px 3px; border: 1px solid #777; border-radius: 2px; position: relative;
  white-space: pre; cursor: default}
.ID .t:hover, .ID .t:focus {outline: 2px solid #D55E00; z-index: 3}
.ID .e {padding: 1px 3px; border: 1px dotted #888; color: #666; font-style: italic;
  background: repeating-linear-gradient(45deg, #fff 0 4px, #ececec 4px 6px)}
.ID .tip {display: none; position: absolute; left: 0; top: 1.9em; background: #222; color: #fff;
  font: 12px/1.5 sans-serif; padding: 5px 8px; border-radius: 3px; width: max-content;
  white-space: pre; z-index: 4}
.ID .t:hover .tip, .ID .t:focus .tip {display: block}
"""
BY_MODE = """
.ID:has(#ID-MODE:checked) .t {background: var(--MODE-bg); color: var(--MODE-ink)}
.ID:has(#ID-MODE:checked) .legend.MODE {display: block}
"""
OTHERS = "dotted, hatched, in italics: not the policy's words"


class TokenView(ipywidgets.HTML):
    """Trajectories painted by log-prob, by change, by open gate or by Lp-Reg's protection.

    `rows` are (title, tokens); a colouring of which no token knows a value is left out. Hover over
    a token, or reach it with Tab, for its numbers. `height` is in pixels. Raises ValueError without
    tokens.
    """

    def __init__(self, rows: Sequence[tuple[str, Sequence[TokenInfo]]], height: int):
        self.height = height
        super().__init__()
        self.show(rows)

    def show(self, rows: Sequence[tuple[str, Sequence[TokenInfo]]]) -> None:
        """Show other trajectories."""
        self.value = token_html(rows, self.height)


def token_html(rows: Sequence[tuple[str, Sequence[TokenInfo]]], height: int) -> str:
    """The page of `TokenView`."""
    every = [token for _, tokens in rows for token in tokens]
    known = [by for by in NAMES if any(getattr(t, HAS[by]) is not None for t in every)]
    if not known:
        raise ValueError("no token has a value to show: give trajectories of a policy")
    name = f"tv{uuid.uuid4().hex[:8]}"  # of this view alone: a page may hold several
    style = STYLE + "".join(BY_MODE.replace("MODE", by) for by in known)
    buttons = "".join(
        f'<input type="radio" name="{name}" id="{name}-{by}"{" checked" * (by == known[0])}>'
        f'<label for="{name}-{by}">{NAMES[by]}</label>'
        for by in known
    )
    legends = "".join(f'<div class="legend {by}">{SHOWS[by]}; {OTHERS}</div>' for by in known)
    body = "".join(
        f'<div class="title">{html.escape(title)}</div>'
        + " ".join(_token(t, known) for t in tokens)
        for title, tokens in rows
    )
    sheet = style.replace("HEIGHT", str(height)).replace("ID", name)
    bar = f'<div class="bar" role="radiogroup" aria-label="colour by">{buttons}{legends}</div>'
    return f'<style>{sheet}</style><div class="{name} token-view">{bar}{body}</div>'


def _token(token: TokenInfo, modes: Sequence[By]) -> str:
    text = html.escape(token.text)
    if token.role != "action":
        author = "retrieved or said by the environment" if token.role == "environment" else "prompt"
        return f'<span class="e" title="{author}: the policy did not choose it">{text}</span>'
    colours = ((by, *paint(token, by)) for by in modes)
    style = "".join(f"--{by}-bg:{face};--{by}-ink:{ink};" for by, face, ink in colours)
    tip = f'<span class="tip">{_tip(token)}</span>'
    return f'<span class="t" tabindex="0" style="{style}">{text}{tip}</span>'


def _tip(token: TokenInfo) -> str:
    lines = []
    if token.logp is not None:
        lines.append(f"log-prob {token.logp:.3f} nats")
    if token.change is not None:
        lines.append(f"change {token.change:+.3f} nats")
    if token.gate_open is not None:
        lines.append(f"LLDS gate {'open' if token.gate_open else 'shut'}")
    if token.protected is not None:
        lines.append(f"Lp-Reg: {'protected' if token.protected else 'not protected'}")
    return "\n".join(lines)
