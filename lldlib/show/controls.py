"""What the widgets share: pictures of figures, and controls that look alike."""

import io
from collections.abc import Iterable
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

DPI = 100
WIDE = {"description_width": "initial"}


def png(figure: Figure) -> bytes:
    """The figure as a picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def picture(height: int) -> ipywidgets.Image:
    """A place of fixed height, in pixels, for a picture; a wide one shrinks to fit."""
    layout = ipywidgets.Layout(
        height=f"{height}px", max_width="100%", object_fit="contain", object_position="left top"
    )
    return ipywidgets.Image(format="png", layout=layout)


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
