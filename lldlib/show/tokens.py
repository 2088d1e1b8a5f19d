"""Token panels: an episode set like a page, each token coloured by one number.

White with a dotted border is a token that the policy did not choose; a thick border marks a token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import cm, colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.show.curves import SMALL, WIDTH
from lldlib.types import Episode

LETTERS = 76  # of a line; more do not fit in the width of a figure
LINE, TURN, GAP = 1.0, 1.25, 1.6  # line pitch, turn pitch (lines); space after a word (letters)
MARGIN = 15  # letters left of the text, for the role
LOGP = "log-prob (nats) of a token the policy chose; white, dotted: not its choice"


@dataclass(frozen=True)
class TokenTurn:
    """One turn as it is drawn; a value is None where the policy did not choose the token."""

    role: str
    words: Sequence[str]
    values: Sequence[float | None]
    marked: Sequence[bool]  # tokens with a thick border


def logp_scale() -> cm.ScalarMappable:
    """Log-probs: dark is -5 nats and under, bright is near certain; colour-blind safe."""
    return cm.ScalarMappable(colors.Normalize(-5, 0), "cividis")


def signed_scale(limit: float) -> cm.ScalarMappable:
    """Numbers of both signs, -limit (orange) to limit (purple), 0 pale; colour-blind safe."""
    return cm.ScalarMappable(colors.Normalize(-limit, limit), "PuOr")


def episode_turns(
    episode: Episode,
    piece: Callable[[int], str],
    values: Sequence[float] | None = None,
    marked: Sequence[bool] | None = None,
) -> list[TokenTurn]:
    """The turns of an episode; `piece` gives a token's text.

    `values` and `marked` have one entry per token of the whole row; without them the values are the
    sampler's log-probs, and nothing is marked.
    """
    turns, start = [], 0
    for turn in episode.turns:
        end = start + len(turn.tokens)
        shown = turn.logp if values is None else list(values[start:end])
        if turn.role != "action":
            shown = [None] * len(turn.tokens)
        marks = [False] * len(turn.tokens) if marked is None else list(marked[start:end])
        turns.append(TokenTurn(turn.role, [piece(t) for t in turn.tokens], shown, marks))
        start = end
    return turns


def recorded_turns(record: Mapping[str, Any]) -> list[TokenTurn]:
    """The turns of a line of rollouts.jsonl of the tiny searcher, where a word is a token."""
    turns = []
    for turn in record["turns"]:
        words = turn["text"].split()
        values = turn["logp"] or [None] * len(words)
        turns.append(TokenTurn(turn["role"], words, values, [False] * len(words)))
    return turns


def token_panel(ax: Axes, turns: Sequence[TokenTurn], scale: cm.ScalarMappable) -> Axes:
    """Set the turns in lines of about 76 letters, roles on the left; marks have thick borders.

    Raises ValueError where a turn's words, values and marks differ in number.
    """
    y = 0.0
    for turn in turns:
        ax.text(-2, y, turn.role, ha="right", va="center", fontsize=SMALL, color="0.3")
        x = 0.0
        for word, value, mark in zip(turn.words, turn.values, turn.marked, strict=True):
            x, y = (0.0, y + LINE) if x + len(word) > LETTERS else (x, y)
            _token(ax, x, y, word, scale, value, mark)
            x += len(word) + GAP
        y += TURN
    ax.set(xlim=(-MARGIN, LETTERS + 5), ylim=(y - 0.4, -0.8), xticks=(), yticks=())
    ax.set_frame_on(False)
    return ax


def token_figure(turns: Sequence[TokenTurn], scale: cm.ScalarMappable, label: str) -> Figure:
    """One token panel with its colour bar; `label` says what the colour is, with its unit."""
    lines = sum(1 + sum(len(word) + GAP for word in turn.words) // LETTERS for turn in turns)
    figure = Figure(figsize=(WIDTH, 1.0 + 0.27 * lines), layout="constrained")
    ax = token_panel(figure.subplots(), turns, scale)
    bar = figure.colorbar(scale, ax=ax, location="bottom", shrink=0.6, aspect=40)
    bar.set_label(label, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    return figure


def _token(
    ax: Axes, x: float, y: float, word: str, scale: cm.ScalarMappable, value: float | None, mark
) -> None:
    face = "white" if value is None else scale.to_rgba(value)
    red, green, blue = colors.to_rgb(face)
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    box = {"facecolor": face, "boxstyle": "square,pad=0.25"}
    box |= {"edgecolor": "black" if mark else "0.5", "linewidth": 1.8 if mark else 0.6}
    if value is None:
        box["linestyle"] = ":"
    font = {"family": "monospace", "fontsize": SMALL, "va": "center"}
    # a dollar sign in a token is no formula
    ax.text(x, y, word, color=ink, bbox=box, parse_math=False, **font)
