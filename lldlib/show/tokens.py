"""Tokens of trajectories, each painted by one of its numbers: a figure, and a page that answers.

White with a dotted border is a token without the number, as what the policy did not choose.
"""

import html
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.show.colouring import (
    CHANGE,
    GATE,
    LOGP,
    NO,
    NONE,
    PROTECTION,
    YES,
    Colouring,
    paint,
    signed,
)
from lldlib.show.style import SMALL, WIDTH
from lldlib.types import Episode, TokenInfo

# a colouring is chosen where tokens are shown, so it can be had from here too
__all__ = ["CHANGE", "GATE", "LOGP", "NO", "NONE", "PROTECTION", "YES"]
__all__ += ["episode_tokens", "paint", "record_tokens", "signed", "token_figure", "token_page"]
__all__ += ["page_token", "token_panel", "token_tip"]
LETTERS = 76  # of a line of the figure; more do not fit in its width
LINE, TURN, GAP = 1.0, 1.25, 1.6  # line pitch, turn pitch (lines); space after a word (letters)
MARGIN = 15  # letters left of the text, for the role
DOTTED = "white, dotted: not the agent's words"

Tokens = Sequence[TokenInfo]


def episode_tokens(
    episode: Episode,
    piece: Callable[[int], str],
    *,
    marked: Sequence[bool] | None = None,
    **numbers: Sequence[float],
) -> list[TokenInfo]:
    """The tokens of an episode; `piece` gives a token's text, the log-probs are the sampler's.

    `marked`, and each of `numbers` (fields of TokenInfo), has an entry for every token of the
    episode at least; numbers are left out where the policy did not choose the token.
    """
    tokens: list[TokenInfo] = []
    for turn in episode.turns:
        for token, logp in zip(turn.tokens, turn.logp, strict=True):
            at, known = len(tokens), {}
            if turn.role == "action":
                known = {"logp": logp} | {name: row[at] for name, row in numbers.items()}
            mark = marked is not None and bool(marked[at])
            tokens.append(TokenInfo(piece(token), turn.role, marked=mark, **known))
    return tokens


def record_tokens(record: Mapping[str, Any]) -> list[TokenInfo]:
    """The words of one line of rollouts.jsonl, each with its log-prob: the sum over its tokens.

    Raises ValueError for a record of another tokenizer than one of words that was logged without
    its tokens' texts, as before 2026-11-25.
    """
    tokens = []
    for turn in record["turns"]:
        if turn["role"] == "action":
            tokens += [TokenInfo(word, "action", value) for word, value in turn_words(turn)]
        else:
            tokens += [TokenInfo(word, turn["role"]) for word in turn["text"].split()]
    return tokens


def turn_words(turn: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The words of a logged turn of the policy, and the sum of the log-probs of their tokens."""
    words, logp = turn["text"].split(), turn["logp"]
    pieces = turn.get("pieces", words)
    if len(pieces) != len(logp):
        raise ValueError(
            f"a turn has {len(pieces)} words but {len(logp)} log-probs: its tokens cannot be told "
            "apart in its text"
        )
    if "pieces" not in turn:
        return list(zip(words, logp, strict=True))
    found: list[tuple[str, float]] = []
    begins = True
    for piece, value in zip(pieces, logp, strict=True):
        if found and (not piece.strip() or not (begins or piece[0].isspace())):
            found[-1] = found[-1][0] + piece.strip(), found[-1][1] + value
        else:
            found.append((piece.strip(), value))
        begins = piece[-1:].isspace()
    return found


def token_figure(rows: Sequence[Tokens], by: Colouring, note: str = DOTTED) -> Figure:
    """One token panel and what its colours mean; `note` says what else is to be seen."""
    turns = [turn for row in rows for _, turn in _turns(row)]
    lines = sum(1 + sum(len(t.text) + GAP for t in turn) // LETTERS for turn in turns)
    lines += TURN * (len(rows) - 1)
    figure = Figure(figsize=(WIDTH, 1.0 + 0.27 * lines), layout="constrained")
    ax = token_panel(figure.subplots(), rows, by)
    if by.ends is None:
        ax.set_title(f"{by.label}: {by.colours}; {note}", fontsize=SMALL, loc="left", color="0.25")
    else:
        bar = figure.colorbar(by.scale, ax=ax, location="bottom", shrink=0.6, aspect=40)
        bar.set_label(f"{by.label}; {note}", fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL)
    return figure


def token_panel(ax: Axes, rows: Sequence[Tokens], by: Colouring) -> Axes:
    """Set trajectories turn by turn in lines of about 76 letters, roles on the left."""
    y = -TURN
    for row in rows:
        y += TURN
        for role, turn in _turns(row):
            ax.text(-2, y, role, ha="right", va="center", fontsize=SMALL, color="0.3")
            x = 0.0
            for token in turn:
                x, y = (0.0, y + LINE) if x + len(token.text) > LETTERS else (x, y)
                _draw(ax, x, y, token, by)
                x += len(token.text) + GAP
            y += TURN
    ax.set(xlim=(-MARGIN, LETTERS + 5), ylim=(y - 0.4, -0.8), xticks=(), yticks=())
    ax.set_frame_on(False)
    return ax


def _turns(row: Tokens) -> list[tuple[str, list[TokenInfo]]]:
    """The tokens of each stretch of one role."""
    return [(role, list(turn)) for role, turn in groupby(row, key=lambda token: token.role)]


def _draw(ax: Axes, x: float, y: float, token: TokenInfo, by: Colouring) -> None:
    face, ink = paint(token, by)
    box = {"facecolor": face, "boxstyle": "square,pad=0.25"}
    box |= {"edgecolor": "black" if token.marked else "0.5"}
    box |= {"linewidth": 1.8 if token.marked else 0.6}
    if getattr(token, by.number) is None:
        box["linestyle"] = ":"
    font = {"family": "monospace", "fontsize": SMALL, "va": "center"}
    # a dollar sign in a token is no formula
    ax.text(x, y, token.text, color=ink, bbox=box, parse_math=False, **font)


# -- the page --------------------------------------------------------------------------------------

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


def token_page(
    rows: Sequence[tuple[str, Tokens]],
    height: int,
    colourings: Sequence[Colouring],
    tip: Callable[[TokenInfo], str],
    more: str = "",
) -> str:
    """The HTML of trajectories; `tip` is the text of a token's box, `more` further rules of style.

    In those rules ID is the class of the view. Raises ValueError without tokens.
    """
    every = [token for _, tokens in rows for token in tokens]
    known = [by for by in colourings if any(getattr(t, by.number, None) is not None for t in every)]
    if not known:
        raise ValueError("no token has a value to show: give trajectories of a policy")
    name = f"tv{uuid.uuid4().hex[:8]}"  # of this view alone: a page may hold several
    style = STYLE + "".join(BY_MODE.replace("MODE", by.number) for by in known) + more
    only = " hidden" * (len(known) == 1)  # nothing to choose
    buttons = "".join(
        f'<input type="radio" name="{name}" id="{name}-{by.number}"'
        f"{' checked' * (by is known[0])}{only}>"
        f'<label for="{name}-{by.number}"{only}>{by.name}</label>'
        for by in known
    )
    legends = "".join(
        f'<div class="legend {by.number}">{by.label}: {by.colours}; {OTHERS}</div>' for by in known
    )
    body = "".join(
        f'<div class="title">{html.escape(title)}</div>'
        + " ".join(page_token(t, known, tip) for t in tokens)
        for title, tokens in rows
    )
    sheet = style.replace("HEIGHT", str(height)).replace("ID", name)
    bar = f'<div class="bar" role="radiogroup" aria-label="colour by">{buttons}{legends}</div>'
    return f'<style>{sheet}</style><div class="{name} token-view">{bar}{body}</div>'


def token_tip(token: TokenInfo) -> str:
    """The numbers of a token, a line each."""
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


def page_token(
    token: TokenInfo, known: Iterable[Colouring], tip: Callable[[TokenInfo], str] = token_tip
) -> str:
    """A token as HTML, with its colours as variables of CSS and its numbers as a tip."""
    text = html.escape(token.text)
    if token.role != "action":
        author = "retrieved or said by the environment" if token.role == "environment" else "prompt"
        return f'<span class="e" title="{author}: the policy did not choose it">{text}</span>'
    colours = ((by.number, *paint(token, by)) for by in known)
    style = "".join(f"--{name}-bg:{face};--{name}-ink:{ink};" for name, face, ink in colours)
    box = f'<span class="tip">{html.escape(tip(token))}</span>'
    return f'<span class="t" tabindex="0" style="{style}">{text}{box}</span>'
