"""Predict before you see: draw the curve that you expect, or commit to an answer, then compare.

Of the drawing first the numbers, then the figure, then the widget.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import anywidget
import ipywidgets
import traitlets
from matplotlib.figure import Figure

from lldlib.runs.folder import Run
from lldlib.show.controls import png, with_picture
from lldlib.show.style import BATCH, COLOURS, SMALL, WIDTH, style

LEAST = 2  # batches that a drawing has at least

Curve = Sequence[float | int | None]


# -- a curve --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """How a drawing differs from what happened, over the batches that have both."""

    distance: float  # mean of |drawn - happened|, in the unit of the curve
    batch: int  # where they are farthest apart
    sentence: str


def compare(drawn: Curve, happened: Curve) -> Found | None:
    """The distance of two curves of a value per batch; None where they share no batch."""
    both = {
        batch: (one, other)
        for batch, (one, other) in enumerate(zip(drawn, happened, strict=False))
        if one is not None and other is not None
    }
    if not both:
        return None
    gaps = {batch: abs(one - other) for batch, (one, other) in both.items()}
    farthest = max(gaps, key=gaps.__getitem__)
    one, other = both[farthest]
    distance = fmean(gaps.values())
    sentence = (
        f"On average your curve is {distance:.2f} away from what happened; it is farthest at batch "
        f"{farthest}, where you drew {one:.2f} and the run had {other:.2f}."
    )
    return Found(distance, farthest, sentence)


def prediction_figure(
    happened: Curve,
    drawn: Curve,
    *,
    label: str,
    limits: tuple[float | int, float | int],
    colour: str,
) -> Figure:
    """What happened, and over it what was drawn, if anything."""
    figure = Figure(figsize=(WIDTH, 3), layout="constrained")
    ax = style(figure.subplots(), BATCH, label)
    for curve, ink, line, name in (
        (happened, colour, "-", "what happened"),
        (drawn, "0.3", "--", "your prediction"),
    ):
        known = [(batch, value) for batch, value in enumerate(curve) if value is not None]
        if known:
            ax.plot(*zip(*known, strict=True), line, color=ink, linewidth=2, label=name)
    ax.set(xlim=(0, max(1, len(happened) - 1)), ylim=limits)
    ax.legend(fontsize=SMALL, frameon=False)
    return figure


class DrawPrediction(anywidget.AnyWidget):
    """An empty axis on which the reader draws the curve that he expects, then sees what happened.

    `run` is a run, of which `key` is drawn, or a value per batch. The first `given` batches are
    shown from the start; `limits` are the ends of the axis. Mouse, finger or five sliders draw.
    `drawn` is the drawing, `found` what came of it once the reader asked. Without a kernel it is a
    picture of what happened. Raises ValueError for a curve of fewer than two batches to draw.
    """

    _esm = Path(__file__).with_name("predict.js")
    label = traitlets.Unicode().tag(sync=True)
    limits = traitlets.List(traitlets.Float()).tag(sync=True)
    colour = traitlets.Unicode().tag(sync=True)
    batches = traitlets.Int().tag(sync=True)
    given = traitlets.List().tag(sync=True)  # what is shown from the start
    drawing = traitlets.List().tag(sync=True)  # a number per batch, None where there is none
    asked = traitlets.Bool(False).tag(sync=True)  # the reader wants to see what happened
    happened = traitlets.List().tag(sync=True)  # empty until then
    sentence = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        run: Run | Curve,
        key: str = "reward/mean",
        *,
        label: str = "mean reward",
        limits: tuple[float | int, float | int] = (0, 1),
        given: int = 0,
        colour: str = COLOURS[0],
    ):
        self._curve = run.column(key) if isinstance(run, Run) else list(run)
        self.found: Found | None = None
        if len(self._curve) - given < LEAST:
            raise ValueError(
                f"{len(self._curve)} batches, {given} of them given: leave {LEAST} to draw at least"
            )
        super().__init__(
            label=label,
            limits=[float(end) for end in limits],
            colour=colour,
            batches=len(self._curve),
            given=self._curve[:given],
            drawing=[None] * len(self._curve),
        )

    @property
    def drawn(self) -> list[float | int | None]:
        """The drawing: a number per batch, None where nothing was drawn."""
        return list(self.drawing)

    @traitlets.observe("asked")
    def _reveal(self, change: dict[str, Any]) -> None:
        if sum(value is not None for value in self.drawing) < LEAST:
            return  # nothing was predicted yet
        self.found = compare(self.drawing, self._curve)
        self.sentence = self.found.sentence if self.found else "The run has no value there."
        self.happened = self._curve

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        given = {"label": self.label, "limits": tuple(self.limits), "colour": self.colour}
        figure = prediction_figure(self._curve, self.drawing, **given)
        bundle = super()._repr_mimebundle_(**kwargs)
        # anywidget gives the bundle and its metadata
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        return with_picture(bundle, png(figure))


# -- an answer ------------------------------------------------------------------------------------

TEXT = "font: 14px/1.6 sans-serif; max-width: 75ch"


class Predict(ipywidgets.VBox):
    """A question that is answered only after the reader has committed to an answer.

    With `choices` one of them is to be chosen, and `answer` has to be one of them. Without, the
    reader writes: a number if `answer` is one, else words of his own, which nobody marks. `given`
    is his prediction, None before; `right` whether it is the answer, None where nobody can say.
    Without a kernel the answer stands folded under the question. Raises ValueError for an answer
    that is not among the choices.
    """

    def __init__(
        self, question: str, choices: Sequence[str] | None, answer: str | float | int, why: str
    ):
        if choices is not None and answer not in choices:
            raise ValueError(f"the answer {answer!r} is none of the choices: {', '.join(choices)}")
        self.question, self.choices, self.answer, self.why = question, choices, answer, why
        self.given: str | float | None = None
        self.right: bool | None = None
        self._field = _field(choices, answer)
        self._commit = ipywidgets.Button(
            description="This is my prediction", tooltip="then the answer is shown", icon="lock"
        )
        self._commit.layout.width = "190px"
        self._ready()
        self._field.observe(self._ready, "value")
        self._commit.on_click(lambda _: self._reveal())
        self._reply = ipywidgets.HTML()
        asked = ipywidgets.HTML(
            f'<div style="{TEXT}"><b>Predict.</b> {html.escape(question)}</div>'
        )
        super().__init__([asked, self._field, self._commit, self._reply])

    def _ready(self, _change: object = None) -> None:
        self._commit.disabled = self._said() is None

    def _said(self) -> str | float | None:
        """What stands in the field, None while that is no answer."""
        said = self._field.value or None
        if said is None or self.choices is not None or isinstance(self.answer, str):
            return said
        try:
            return float(said)
        except ValueError:
            return None

    def _reveal(self) -> None:
        if self.given is not None or (said := self._said()) is None:
            return
        self.given = said
        self._field.disabled = self._commit.disabled = True
        if self.choices is not None or not isinstance(self.answer, str):
            self.right = self.given == self.answer
        self._reply.value = f'<div style="{TEXT}" role="status">{html.escape(self._words())}</div>'

    def _words(self) -> str:
        """What the prediction is worth, and why."""
        if self.right:
            verdict = f"Yes: {self.answer}."
        elif self.right is None:
            said, saw = (str(words).rstrip(".") for words in (self.given, self.answer))
            verdict = f"You said: {said}. What we saw: {saw}."
        elif isinstance(self.answer, str):
            verdict = f"You said {self.given}. It is {self.answer}."
        else:
            gap = abs(self.given - self.answer)
            verdict = f"You said {self.given:g}. It is {self.answer:g}, {gap:g} away."
        return f"{verdict} {self.why}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and for where no kernel runs the question with its answer folded."""
        options = "".join(f"<li>{html.escape(choice)}</li>" for choice in self.choices or ())
        folded = f"{html.escape(str(self.answer))}. {html.escape(self.why)}"
        page = (
            f"<p><b>Predict.</b> {html.escape(self.question)}</p><ul>{options}</ul>"
            f"<details><summary>The answer</summary>{folded}</details>"
        )
        return dict(super()._repr_mimebundle_(**kwargs) or {}) | {"text/html": page}


def _field(choices: Sequence[str] | None, answer: str | float | int) -> ipywidgets.Widget:
    """Where the reader answers; nothing is chosen for him."""
    if choices is not None:
        layout = ipywidgets.Layout(width="auto", max_width="100%")
        return ipywidgets.RadioButtons(options=list(choices), value=None, layout=layout)
    if isinstance(answer, str):
        return ipywidgets.Textarea(placeholder="your words", rows=2)
    return ipywidgets.Text(placeholder="a number")
