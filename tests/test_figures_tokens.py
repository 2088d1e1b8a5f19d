"""Token panels: the right words, colours and marks, all on the canvas."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lldlib.show.tokens import (
    CHANGE,
    GATE,
    LOGP,
    NO,
    NONE,
    PROTECTION,
    YES,
    episode_tokens,
    paint,
    signed,
    token_figure,
    token_panel,
)
from lldlib.types import Episode, Question, Span, StopReason, TokenInfo, Turn

PIECES = ["?", "<answer>", "Rome", "</answer>"]
EPISODE = Episode(
    Question("q", "?", ("Rome",)),
    [Turn.given("prompt", [0]), Turn("action", [1, 2, 3], [-0.1, -4.0, -0.2], [Span.ANSWER] * 3)],
    StopReason.ANSWER,
    "Rome",
    valid_searches=0,
    invalid_actions=0,
    reward=1.0,
    group=0,
)


def drawn(tokens):
    """The panel's tokens by word; roles are no tokens."""
    ax = token_panel(Figure().subplots(), [tokens], LOGP)
    roles = {token.role for token in tokens}
    return {t.get_text(): t for t in ax.texts if t.get_text() not in roles}


def test_the_tokens_of_an_episode():
    prompt, *action = episode_tokens(EPISODE, PIECES.__getitem__)
    assert prompt == TokenInfo("?", "prompt")
    assert [token.text for token in action] == PIECES[1:]
    assert [token.logp for token in action] == [-0.1, -4.0, -0.2]


def test_numbers_and_marks_run_over_the_whole_row():
    given = {"change": [9.0, 1.0, 2.0, 3.0, 0.0], "marked": [False, True, False, True, False]}
    tokens = episode_tokens(EPISODE, PIECES.__getitem__, **given)
    assert [t.change for t in tokens] == [None, 1.0, 2.0, 3.0]  # the prompt is not the policy's
    assert [t.marked for t in tokens] == [False, True, False, True]
    with pytest.raises(IndexError):
        episode_tokens(EPISODE, PIECES.__getitem__, change=[9.0, 1.0])


def test_white_is_not_the_policys_and_a_mark_has_a_thick_border():
    marked = [False, True, False, False]
    tokens = drawn(episode_tokens(EPISODE, PIECES.__getitem__, marked=marked))
    boxes = {word: text.get_bbox_patch() for word, text in tokens.items()}
    assert boxes["?"].get_facecolor() == to_rgba("white") and boxes["?"].get_linestyle() == ":"
    assert boxes["Rome"].get_facecolor() == pytest.approx(LOGP.scale.to_rgba(-4.0), abs=1 / 255)
    assert boxes["<answer>"].get_linewidth() > boxes["Rome"].get_linewidth()
    assert tokens["Rome"].get_color() == "#FFFFFF"  # light ink on a dark token
    assert tokens["<answer>"].get_color() == "#000000"


def test_paint():
    token = TokenInfo("a", "action", logp=-9.0, change=0.0, gate_open=True)
    assert paint(token, LOGP) == ("#00224e", "#FFFFFF")  # clipped to the dark end of cividis
    assert paint(token, GATE)[0] == YES
    assert paint(TokenInfo("a", "action", gate_open=False), GATE)[0] == NO
    assert paint(token, PROTECTION)[0] == NONE
    falls, rises = (paint(TokenInfo("a", "action", change=c), CHANGE)[0] for c in (-9.0, 9.0))
    assert falls != rises and paint(token, CHANGE)[1] == "#000000"


def test_a_signed_scale_is_pale_at_zero_and_even():
    scale = signed("score", "score", 2).scale
    assert scale.norm(0.0) == 0.5 and (scale.norm(-2.0), scale.norm(2.0)) == (0.0, 1.0)
    assert min(scale.to_rgba(0.0)[:3]) > 0.9


@pytest.mark.parametrize("by", [LOGP, GATE])
def test_long_rows_wrap_within_the_canvas(by):
    words = [f"word{number:02d}" for number in range(40)]
    row = [TokenInfo(word, "action", logp=-1.0, gate_open=True) for word in words]
    figure = token_figure([row, row], by)
    figure.draw_without_rendering()
    places = [text.get_position() for text in figure.axes[0].texts if text.get_text() in words]
    assert len(set(places)) == len(places) == 80 and len({y for _, y in places}) == 8
    assert places[40][0] == 0 and places[40][1] > places[39][1]  # a row begins on its own line
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


def test_a_dollar_sign_is_no_formula():
    assert "$x" in drawn([TokenInfo(word, "action", logp=-1.0) for word in ("$x", "y$")])
