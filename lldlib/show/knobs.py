"""The lab's knobs: method, lambda, gate, MA, Lp-Reg, learning rate and updates per batch."""

import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets

from lldlib.config import AnswerSchedule, Gate, LossConfig, TrainConfig
from lldlib.losses.objective import REGULARIZERS
from lldlib.recipes import METHODS, WORLD
from lldlib.show.controls import control, row
from lldlib.show.curves import tick

RATES = (0.0, 5e-5, 1e-4, 2e-4, 3e-4, 4e-4, 6e-4, 8e-4, 1e-3)
CHOICES = {  # of a term, after its weight: label, tip, width, options
    "llds_gate": ("gate", "where LLDS may act", 160, typing.get_args(Gate)),
    "llds_answer": ("MA", "LLDS's weight on answer tokens", 140, typing.get_args(AnswerSchedule)),
}


class Knobs(ipywidgets.VBox):
    """Controls of one run's settings; `turned` is called with the fields of TrainConfig to set.

    Choosing a method sets the other knobs of the loss to that method's preset.
    """

    def __init__(self, turned: Callable[[dict[str, Any]], None]):
        self._turned, self._quiet, self._base = turned, False, LossConfig()
        loss = _loss_parts()
        self._loss = tuple(loss)  # knobs that are fields of the loss
        self.parts: dict[str, ipywidgets.Widget] = {
            "method": _choice("method", "a preset of lldlib.recipes", 230, list(METHODS)),
            **loss,
            "lr": control(
                ipywidgets.SelectionSlider, "lr", "learning rate", 250, options=_rates(0.0)
            ),
            "updates_per_batch": control(
                ipywidgets.IntSlider, "updates per batch", "optimiser updates", 320, min=1, max=64
            ),
        }
        for name, part in self.parts.items():
            part.observe(lambda change, name=name: self._changed(name), "value")
        super().__init__([row(self.parts.values())])

    def show(self, config: TrainConfig) -> None:
        """Let the controls stand as the config does, without turning anything."""
        self._base, self._quiet = config.loss, True
        try:
            self.parts["lr"].options = _rates(config.lr)
            shown = {"method": config.method, "lr": config.lr}
            shown["updates_per_batch"] = config.updates_per_batch
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
        if name == "method":
            self._take_preset(self.parts["method"].value)
        loss = replace(self._base, **{k: self.parts[k].value for k in self._loss})
        others = ("method", "lr", "updates_per_batch")
        self._turned({"loss": loss} | {k: self.parts[k].value for k in others})

    def _take_preset(self, name: str) -> None:
        """The loss of a method, at the weights that suit the built-in world."""
        self._base, self._quiet = WORLD.loss_of(name), True
        for knob in self._loss:
            self.parts[knob].value = getattr(self._base, knob)
        self._quiet = False


def _loss_parts() -> dict[str, ipywidgets.Widget]:
    """A slider for the weight of each term with a symbol, then that term's choices."""
    weight = {"min": 0.0, "max": 2.0, "step": 0.1, "readout_format": ".1f", "width": 270}
    parts = {}
    for term in REGULARIZERS:
        if term.symbol:
            tip = f"weight of the term {term.name}; 0 is off"
            parts[term.coef] = control(ipywidgets.FloatSlider, term.symbol, tip, **weight)
            chosen = {k: v for k, v in CHOICES.items() if k.startswith(f"{term.name}_")}
            parts |= {name: _choice(*choice) for name, choice in chosen.items()}
    return parts


def _choice(label: str, tip: str, width: int, options: Sequence[str]) -> ipywidgets.Dropdown:
    return control(ipywidgets.Dropdown, label, tip, width, options=list(options))


def _rates(own: float) -> list[tuple[str, float]]:
    return [(tick(rate), rate) for rate in sorted({*RATES, own})]
