"""Widgets: each shows, with controls, what a static figure of `lldlib.show.curves*` says.

They read run folders and plain data; a run to be steered is handed in (see `lab.RunControl`).
"""

from lldlib.show.explorers import GateExplorer, PhaseDiagram, PostMortemView, ProxyExplorer
from lldlib.show.lab import LiveLab, RunControl
from lldlib.show.token_view import TokenView

__all__ = [
    "GateExplorer",
    "LiveLab",
    "PhaseDiagram",
    "PostMortemView",
    "ProxyExplorer",
    "RunControl",
    "TokenView",
]
