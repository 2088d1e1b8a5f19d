"""Widgets: each shows, with controls, what a static figure of `lldlib.figures*` says.

They read run folders and plain data; a run to be steered is handed in (see `lab.RunControl`).
"""

from lldlib.widgets.explorers import GateExplorer, PhaseDiagram, PostMortemView, ProxyExplorer
from lldlib.widgets.lab import LiveLab, RunControl
from lldlib.widgets.token_view import TokenView

__all__ = [
    "GateExplorer",
    "LiveLab",
    "PhaseDiagram",
    "PostMortemView",
    "ProxyExplorer",
    "RunControl",
    "TokenView",
]
