"""Predictions: distances by hand; nothing is shown before the reader has committed."""

import json

import ipywidgets
import nbformat
import pytest
from nbclient import NotebookClient
from test_figures import make_run

from lldlib.show.predict import DrawPrediction, Predict, compare, prediction_figure

SECRET = 0.7654


def test_the_distance_of_two_curves_by_hand():
    found = compare([None, 0.5, 0.9, 0.2], [0.3, 0.4, 0.1, None])
    assert found.distance == pytest.approx(0.45) and found.batch == 2
    assert "0.45 away" in found.sentence
    assert "batch 2, where you drew 0.90 and the run had 0.10" in found.sentence
    assert compare([None, None], [0.1, 0.2]) is None
    assert compare([0.1], []) is None


def sent(widget) -> str:
    """All that the page knows of a widget and its parts."""
    parts = [widget, *getattr(widget, "children", ())]
    return json.dumps([part.get_state() for part in parts], default=str)


def test_a_drawing_is_kept_and_compared():
    guess = DrawPrediction([0.1, 0.2, SECRET, 0.4], given=1)
    assert str(SECRET) not in sent(guess) and guess.given == [0.1]
    guess.drawing = [None, 0.5, 0.5, 0.5]
    guess.asked = True
    assert guess.happened == [0.1, 0.2, SECRET, 0.4] and str(SECRET) in sent(guess)
    assert guess.found.batch == 1 and guess.sentence == guess.found.sentence
    assert guess.drawn == [None, 0.5, 0.5, 0.5]


def test_without_a_drawing_nothing_is_shown():
    guess = DrawPrediction([0.1, SECRET])
    guess.asked = True
    assert guess.happened == [] and guess.found is None and str(SECRET) not in sent(guess)
    with pytest.raises(ValueError, match="leave 2 to draw"):
        DrawPrediction([0.1, 0.2], given=1)


def test_a_run_is_drawn_by_its_key(tmp_path):
    run = make_run(tmp_path / "run", dies=True, batches=5)
    guess = DrawPrediction(run, key="policy/entropy", label="entropy", limits=(0, 2))
    guess.drawing = [0.8] * 5
    guess.asked = True
    assert guess.happened == run.column("policy/entropy")
    assert guess.found.distance == pytest.approx(0, abs=1e-6)


def test_where_no_kernel_runs_it_is_a_picture():
    bundle = DrawPrediction([0.1, 0.2])._repr_mimebundle_()
    assert bundle["image/png"].startswith("iVBOR")
    given = {"label": "mean reward", "limits": (0, 1), "colour": "#D55E00"}
    (ax,) = prediction_figure([0.1, None, 0.3], [None, 0.5, 0.6], **given).axes
    shown = {line.get_label(): list(line.get_xdata()) for line in ax.lines}
    assert shown == {"what happened": [0, 2], "your prediction": [1, 2]}


def field(asked) -> ipywidgets.Widget:
    return asked.children[1]


def button(asked) -> ipywidgets.Button:
    return asked.children[2]


def test_a_choice_is_answered_after_it_was_made():
    asked = Predict("Which <first>?", ["reward", "likelihood"], answer="likelihood", why="Because.")
    assert "Because" not in sent(asked) and "&lt;first&gt;" in sent(asked)
    assert button(asked).disabled and field(asked).value is None
    button(asked).click()
    assert asked.given is None
    field(asked).value = "reward"
    assert not button(asked).disabled and "Because" not in sent(asked)
    button(asked).click()
    assert (asked.given, asked.right) == ("reward", False)
    assert "You said reward. It is likelihood. Because." in sent(asked)
    assert field(asked).disabled and button(asked).disabled
    field(asked).value = "likelihood"
    button(asked).click()
    assert asked.given == "reward"  # it was a commitment


@pytest.mark.parametrize(
    ("said", "right", "reply"),
    [
        ("20", True, "Yes: 20. All."),
        ("12.5", False, "You said 12.5. It is 20, 7.5 away. All."),
    ],
)
def test_a_number_says_how_far_it_is(said, right, reply):
    asked = Predict("How many?", None, answer=20, why="All.")
    field(asked).value = "many"
    assert button(asked).disabled
    field(asked).value = said
    button(asked).click()
    assert asked.right is right and reply in sent(asked)


def test_own_words_are_marked_by_nobody():
    asked = Predict("Why?", None, answer="Steps too large.", why="See 5.")
    field(asked).value = "bad luck"
    button(asked).click()
    assert asked.right is None
    assert "You said: bad luck. What we saw: Steps too large. See 5." in sent(asked)


def test_the_answer_is_folded_where_no_kernel_runs_and_must_be_a_choice():
    page = Predict("Which?", ["a", "b"], answer="b", why="So.")._repr_mimebundle_()["text/html"]
    folded = page[page.index("<details>") :]
    assert "b. So." in folded and "So." not in page.removesuffix(folded)
    with pytest.raises(ValueError, match="none of the choices: a, b"):
        Predict("Which?", ["a", "b"], answer="c", why="")


CELLS = (
    """
import tempfile
from pathlib import Path
from lldlib.config import data_dir
from lldlib.runs.folder import Run
from lldlib.show.lab import LiveLab
from lldlib.show.predict import DrawPrediction, Predict
from lldlib.train.live import Replay
died = Run(data_dir() / "atlas/demo/grpo-seed0")
lab = LiveLab(Replay(died, Path(tempfile.mkdtemp(prefix="lab-")) / "replay"))
lab.play()
lab""",
    "(asked := Predict('Which?', ['a', 'b'], answer='b', why='So.'))",
    "(guess := DrawPrediction(died))",
    "assert asked.given is None and guess.found is None and len(guess.drawn) == 25",
)


def test_a_notebook_runs_without_a_reader_and_keeps_what_can_be_read_without_a_kernel():
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(book, timeout=600, kernel_name="python3").execute()
    kept = [cell.outputs[-1]["data"] for cell in book.cells[:3]]
    view = "application/vnd.jupyter.widget-view+json"
    assert all(view in data for data in kept)
    assert "image/png" in kept[0] and "image/png" in kept[2]
    assert "<summary>The answer</summary>b. So." in kept[1]["text/html"]
