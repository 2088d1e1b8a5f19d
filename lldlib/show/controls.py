"""What the widgets share: pictures of figures, controls that look alike, and a run's knobs."""

import base64
import io
import threading
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets
from matplotlib.figure import Figure

from lldlib.config import LossConfig, TrainConfig
from lldlib.losses.objective import REGULARIZERS
from lldlib.recipes import METHODS, built_in
from lldlib.runs.summary import value_text

DPI = 100
PEN = threading.Lock()  # matplotlib sets a text of powers in one thread at a time
WIDE = {"description_width": "initial"}
RATES = (5e-5, 1e-4, 2e-4, 3e-4, 4e-4, 6e-4, 8e-4, 1e-3)
MOVES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)  # nats
FIRST = ("method", "lr", "llds_coef")  # knobs that are always in view
KNOBS = {  # what each knob is called where it was turned, by the field that it sets
    "method": "",
    "lr": "lr ",
    "updates_per_batch": "updates ",
    "move_limit": "move limit ",
} | {name: f"{label} " for term in REGULARIZERS for name, label in term.knobs.items()}


def png(figure: Figure) -> bytes:
    """The figure as a picture."""
    buffer = io.BytesIO()
    with PEN:
        figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


class Picture(anywidget.AnyWidget):
    """A picture with a text for who cannot see it; the page reports how wide it may be.

    `height`, in pixels, is kept free until there is one; a wide one shrinks.
    """

    _esm = Path(__file__).with_name("picture.js")
    value = traitlets.Bytes(b"").tag(sync=True)
    alt = traitlets.Unicode("").tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)
    width = traitlets.Int(0).tag(sync=True)  # pixels that the page has for it; 0: not yet known


def picture(height: int, alt: str) -> Picture:
    """A place for a picture, `height` pixels high."""
    return Picture(height=height, alt=alt)


def with_picture(bundle: Mapping[str, Any] | None, image: bytes) -> dict[str, Any]:
    """What a notebook keeps of a widget, and its picture, which is shown where no kernel runs."""
    return dict(bundle or {}) | {"image/png": base64.b64encode(image).decode()}


def control(kind: type, label: str, tip: str, width: int, **given: Any) -> ipywidgets.Widget:
    """A control with its label in front; a slider reports where it was let go."""
    layout = ipywidgets.Layout(width=f"{width}px", max_width="100%")
    if "continuous_update" in kind.class_traits():
        given["continuous_update"] = False
    return kind(description=label, tooltip=tip, style=WIDE, layout=layout, **given)


def choice(options: Iterable[str], tip: str) -> ipywidgets.ToggleButtons:
    """Buttons of which one is down; see `labelled`."""
    made = ipywidgets.ToggleButtons(options=list(options))
    made.tooltips = [tip] * len(made.options)
    made.style.button_width = "90px"
    return made


def labelled(label: str, buttons: ipywidgets.ToggleButtons) -> ipywidgets.HBox:
    """Buttons with a label in front; their own description would stand above and be cut off."""
    return ipywidgets.HBox([ipywidgets.Label(label), buttons])


def row(children: Iterable[ipywidgets.Widget]) -> ipywidgets.HBox:
    """Controls side by side, in as many lines as they need."""
    layout = ipywidgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="2px 14px")
    return ipywidgets.HBox(list(children), layout=layout)


class Knobs(ipywidgets.VBox):
    """Controls of one run's settings; `turned` is called with what `Steering.turn` is to set.

    Every label names the run, so that nobody turns the knob of another one. Choosing a method sets
    the other knobs of the loss to that method's preset.
    """

    def __init__(self, run: str, turned: Callable[[dict[str, Any]], None]):
        self._turned, self._quiet = turned, False
        self._policy = ""  # of the run whose settings are shown
        loss = _loss_parts()
        self._loss = tuple(loss)  # knobs that are fields of the loss
        self.parts: dict[str, ipywidgets.Widget] = {
            "method": _menu("method", "a preset of lldlib.recipes", 140, list(METHODS)),
            "lr": control(
                ipywidgets.SelectionSlider, "lr", "learning rate", 175, options=_rates(0.0)
            ),
            **loss,
            "updates_per_batch": control(
                ipywidgets.IntSlider, "updates per batch", "optimiser updates", 260, min=1, max=64
            ),
            "move_limit": control(
                ipywidgets.SelectionSlider,
                "limit of an update's move",
                "nats",
                290,
                options=_moves(0.0),
            ),
        }
        for name, part in self.parts.items():
            of = f" of {run}"
            part.description += of
            part.layout.width = f"{int(part.layout.width[:-2]) + 7 * len(of)}px"
            part.observe(lambda change, name=name: self._changed(name), "value")
        rare = [part for name, part in self.parts.items() if name not in FIRST]
        self._rare = row(rare)
        self._rare.layout.display = "none"
        self.more = ipywidgets.ToggleButton(
            description="more knobs",
            tooltip="the other regularizers, updates per batch, their limit",
        )
        self.more.layout.width = "auto"
        self.more.observe(self._open, "value")
        super().__init__([row([*(self.parts[name] for name in FIRST), self.more]), self._rare])

    def _open(self, change: Mapping[str, Any]) -> None:
        self._rare.layout.display = None if change["new"] else "none"

    def show(self, config: TrainConfig) -> None:
        """Let the controls stand as the config does, without turning anything."""
        self._quiet, self._policy = True, config.policy
        try:
            self.parts["lr"].options = _rates(config.lr)
            self.parts["move_limit"].options = _moves(config.move_limit)
            fields = ("method", "lr", "updates_per_batch", "move_limit")
            shown = {name: getattr(config, name) for name in fields}
            for name, value in (shown | {k: getattr(config.loss, k) for k in self._loss}).items():
                part = self.parts[name]
                if isinstance(part, (ipywidgets.FloatSlider, ipywidgets.IntSlider)):
                    part.max = max(part.max, value)
                part.value = value
        finally:
            self._quiet = False

    def _changed(self, name: str) -> None:
        if self._quiet:
            return
        value = self.parts[name].value
        preset = {"loss": self._take_preset(value)} if name == "method" else {}
        self._turned({name: value} | preset)

    def _take_preset(self, name: str) -> LossConfig:
        """Show the loss of a method, at the weights that suit the run's built-in world."""
        loss, self._quiet = built_in(self._policy).loss_of(name), True
        for knob in self._loss:
            self.parts[knob].value = getattr(loss, knob)
        self._quiet = False
        return loss


def _loss_parts() -> dict[str, ipywidgets.Widget]:
    """A slider for the weight of each term with a symbol, then that term's choices."""
    weight = {"min": 0.0, "max": 2.0, "step": 0.1, "readout_format": ".1f", "width": 190}
    parts, kinds = {}, typing.get_type_hints(LossConfig)
    for term in REGULARIZERS:
        if term.symbol:
            tip = f"weight of the term {term.name}; 0 is off"
            parts[term.coef] = control(ipywidgets.FloatSlider, term.symbol, tip, **weight)
            for name, choice in term.choices.items():
                parts[name] = _menu(*choice, 150, typing.get_args(kinds[name]))
    return parts


def _menu(label: str, tip: str, width: int, options: Sequence[str]) -> ipywidgets.Dropdown:
    return control(ipywidgets.Dropdown, label, tip, width, options=list(options))


def _rates(own: float) -> list[tuple[str, float]]:
    return [(value_text(rate), rate) for rate in sorted({*RATES, own})]


def _moves(own: float) -> list[tuple[str, float]]:
    return [(value_text(move) if move else "none", move) for move in sorted({*MOVES, own})]
