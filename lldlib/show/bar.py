"""The lab's bar of controls, which stays in view: buttons, runs, views, checkpoints and knobs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from lldlib.show.controls import Knobs, control, labelled, row
from lldlib.show.steering import RunControl
from lldlib.show.views import VIEWS

NOW = "now"
BUTTONS = {  # what each is called, what it does, its icon
    "play": ("Play", "go on, or pause", "play"),
    "step": ("Step", "one batch", "step-forward"),
    "rewind": ("Rewind", "back to that checkpoint; what came after it is dropped", "undo"),
    "branch": ("Branch", "a second run, B, from that checkpoint", "code-fork"),
    "rescue": (
        "Rescue it",
        "from that checkpoint: nothing changed, LLDS, a fifth of the rate, more rows",
        "medkit",
    ),
}
# a notebook wraps a widget in boxes that scroll by themselves, in which nothing could stick
STYLE = """<style>
.lab-bar {position: sticky; top: 0; z-index: 5; padding: 2px 4px;
  background: var(--jp-layout-color0, #fff); border-bottom: 1px solid #bbb}
.live-lab, .lab-bar, .live-lab > .widget-html {overflow: visible}
.live-lab img {background: #fff}
.jp-OutputArea-output:has(.live-lab), .jp-OutputArea-child:has(.live-lab),
.jp-OutputArea:has(.live-lab), .jp-Cell-outputWrapper:has(.live-lab),
.jp-Cell-outputArea:has(.live-lab), .jp-Cell:has(.live-lab) {overflow: visible !important}
.lab-fates {border-collapse: collapse; font: 13px/1.7 sans-serif}
.lab-fates th, .lab-fates td {padding: 0 10px; text-align: right; border-bottom: 1px solid #ddd}
.lab-fates th[scope=row] {text-align: left}
.live-lab p {font: 13px/1.5 sans-serif; margin: 4px 0}
@media (max-width: 600px) {
  .lab-bar {display: contents}
  .lab-top {position: sticky; top: 0; z-index: 5; background: var(--jp-layout-color0, #fff)}
}
</style>"""


class Bar(ipywidgets.VBox):
    """The controls, which know nothing of what they do: that is the lab's.

    `turned` is called with the name of a run and the settings that its knobs ask for.
    """

    def __init__(
        self, names: Sequence[str], batches: int, turned: Callable[[str, dict[str, Any]], None]
    ):
        self._turned = turned
        self.buttons = {name: _button(*given) for name, given in BUTTONS.items()}
        self.chosen = ipywidgets.ToggleButtons(options=list(names))
        self.view = ipywidgets.ToggleButtons(options=VIEWS)
        self.view.style.button_width = "92px"
        self.checkpoints = control(
            ipywidgets.Dropdown,
            "checkpoint at batch",
            "where to rewind, branch or rescue",
            210,
            options=[(NOW, NOW)],
        )
        self.batches = control(
            ipywidgets.BoundedIntText,
            "for so many batches",
            "how long the branches of a rescue go on",
            190,
            value=batches,
            min=1,
            max=999,
        )
        self.status = ipywidgets.HTML()
        self.knobs: dict[str, Knobs] = {}
        self._shelf = ipywidgets.VBox()
        self._add_knobs(names)
        self.chosen.observe(lambda _: self._show_knobs(), "value")
        top = row(
            [
                self.buttons["play"],
                self.buttons["step"],
                labelled("run", self.chosen),
                labelled("view", self.view),
            ]
        )
        second = row(
            [self.checkpoints]
            + [self.buttons[name] for name in ("rewind", "branch", "rescue")]
            + [self.batches]
        )
        super().__init__([ipywidgets.HTML(STYLE), top, self.status, second, self._shelf])
        self.add_class("lab-bar")
        top.add_class("lab-top")

    @property
    def point(self) -> int | None:
        """The checkpoint that is chosen; None: where the run stands."""
        return None if self.checkpoints.value == NOW else self.checkpoints.value

    def show_state(self, *, going: bool, locked: bool, busy: bool) -> None:
        """Grey while the lab is `busy`; the first button pauses while it is `going`."""
        play = self.buttons["play"]
        play.description, play.icon = ("Pause", "pause") if going else ("Play", "play")
        play.disabled = locked
        knobs = (part for panel in self.knobs.values() for part in panel.parts.values())
        buttons = (button for name, button in self.buttons.items() if name != "play")
        for part in (*buttons, self.chosen, self.checkpoints, self.batches, *knobs):
            part.disabled = busy

    def offer(self, runs: Mapping[str, RunControl]) -> None:
        """Offer these runs, and let the knobs stand as their settings do."""
        if list(self.chosen.options) != list(runs):
            kept = self.chosen.value
            self.chosen.options = list(runs)
            self.chosen.value = kept
        self._add_knobs(list(runs))
        for name, run in runs.items():
            self.knobs[name].show(run.config)
        self.offer_checkpoints(runs)

    def offer_checkpoints(self, runs: Mapping[str, RunControl]) -> None:
        """Offer the checkpoints of the chosen run."""
        run = runs.get(self.chosen.value)
        have = run.points if run else []
        options = [(NOW, NOW), *((str(step), step) for step in reversed(have))]
        if list(self.checkpoints.options) != options:
            kept = self.checkpoints.value
            self.checkpoints.options = options
            self.checkpoints.value = kept if kept in have else NOW

    def _add_knobs(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.knobs:
                self.knobs[name] = Knobs(name, lambda asked, name=name: self._turned(name, asked))
                for part in self.knobs[name].parts.values():
                    part.disabled = self.chosen.disabled
        self.chosen.style.button_width = f"{32 + 9 * max(map(len, names))}px"
        self._show_knobs()

    def _show_knobs(self) -> None:
        self._shelf.children = [self.knobs[self.chosen.value]]


def _button(label: str, tip: str, icon: str) -> ipywidgets.Button:
    layout = ipywidgets.Layout(width=f"{44 + 8 * len(label)}px")
    return ipywidgets.Button(description=label, tooltip=tip, icon=icon, layout=layout)
