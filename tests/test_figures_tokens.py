"""Token panels: the right words, colours and marks, all on the canvas."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lldlib.show.tokens import (
    LOGP,
    TokenTurn,
    episode_turns,
    logp_scale,
    recorded_turns,
    signed_scale,
    token_figure,
    token_panel,
)
from lldlib.types import Episode, Question, Span, StopReason, Turn

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


def drawn(turns, scale=None):
    """The panel's tokens by word; roles are no tokens."""
    ax = token_panel(Figure().subplots(), turns, scale or logp_scale())
    roles = {turn.role for turn in turns}
    return {t.get_text(): t for t in ax.texts if t.get_text() not in roles}


def test_the_turns_of_an_episode():
    prompt, action = episode_turns(EPISODE, PIECES.__getitem__)
    assert prompt == TokenTurn("prompt", ["?"], [None], [False])
    assert action == TokenTurn("action", PIECES[1:], [-0.1, -4.0, -0.2], [False] * 3)


def test_values_and_marks_run_over_the_whole_row():
    values, marked = [9.0, 1.0, 2.0, 3.0], [False, True, False, True]
    prompt, action = episode_turns(EPISODE, PIECES.__getitem__, values, marked)
    assert prompt.values == [None]  # never the policy's, whatever the row says
    assert (action.values, action.marked) == ([1.0, 2.0, 3.0], [True, False, True])


def test_the_turns_of_a_recorded_rollout():
    record = {
        "turns": [
            {"role": "prompt", "text": "Where ?", "logp": []},
            {"role": "action", "text": "<answer> Rome", "logp": [-0.1, -0.2]},
        ]
    }
    prompt, action = recorded_turns(record)
    assert (prompt.words, prompt.values) == (["Where", "?"], [None, None])
    assert (action.words, action.values) == (["<answer>", "Rome"], [-0.1, -0.2])


def test_white_is_not_the_policys_and_a_mark_has_a_thick_border():
    tokens = drawn(episode_turns(EPISODE, PIECES.__getitem__, None, [False, True, False, False]))
    boxes = {word: text.get_bbox_patch() for word, text in tokens.items()}
    assert boxes["?"].get_facecolor() == to_rgba("white") and boxes["?"].get_linestyle() == ":"
    assert boxes["Rome"].get_facecolor() == tuple(logp_scale().to_rgba(-4.0))
    assert boxes["<answer>"].get_linewidth() > boxes["Rome"].get_linewidth()
    assert tokens["Rome"].get_color() == "white"  # light ink on a dark token
    assert tokens["<answer>"].get_color() == "black"


def test_a_signed_scale_is_pale_at_zero_and_even():
    scale = signed_scale(2.0)
    assert scale.norm(0.0) == 0.5 and (scale.norm(-2.0), scale.norm(2.0)) == (0.0, 1.0)
    assert min(scale.to_rgba(0.0)[:3]) > 0.9


def test_long_turns_wrap_within_the_canvas():
    words = [f"word{number:02d}" for number in range(40)]
    figure = token_figure(
        [TokenTurn("action", words, [-1.0] * 40, [False] * 40)], logp_scale(), LOGP
    )
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if text.get_text() in words]
    assert len(texts) == 40 and len({text.get_position()[1] for text in texts}) == 4
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


def test_a_dollar_sign_is_no_formula():
    assert "$x" in drawn([TokenTurn("action", ["$x", "y$"], [-1.0, -1.0], [False] * 2)])


def test_numbers_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="zip"):
        token_panel(Figure().subplots(), [TokenTurn("action", ["a"], [], [False])], logp_scale())
