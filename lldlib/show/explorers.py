"""Explorers over data that is there: gates, the proxy, a phase diagram, a post-mortem."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace

import ipywidgets
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from lldlib.runs.folder import Run
from lldlib.runs.postmortem import PostMortem, mean_logp, post_mortem, post_mortem_figure
from lldlib.runs.report import summarise
from lldlib.show.controls import choice, control, labelled, picture, png, row
from lldlib.show.curves import BATCH, TEXT, metric_panel, sweep_heatmap, tick
from lldlib.show.explorer_figures import gate_figure, proxy_figure
from lldlib.show.token_view import TokenView
from lldlib.show.values import GateCase, gate_values, proxy_values, record_tokens

VALUES = {
    "end reward (mean of the last 10 batches)": "end_reward",
    "peak reward (best mean of 10 batches)": "peak_reward",
    "share of seeds that collapsed": "collapsed",
}


class GateExplorer(ipywidgets.VBox):
    """Move tokens up and down: which of LLDS's gates open, what loss and gradient follow.

    A slider per action token of the first row of `case` sets its change in nats; the other rows
    stay. `values` is what `explore.gate_values` gives for the sliders as they stand.
    """

    def __init__(self, case: GateCase):
        self.case = case
        change = (case.new_logp - case.old_logp)[0]
        places = case.action_mask[0].nonzero()[:, 0].tolist()
        span = {"min": -1.0, "max": 1.0, "step": 0.05, "readout_format": "+.2f"}
        self.changes = {
            t: control(
                ipywidgets.FloatSlider,
                f"{t + 1} {case.words[0][t]}",
                "change of the token's log-prob, nats",
                285,
                value=round(float(change[t]), 2),
                **span,
            )
            for t in places
        }
        tips = ("where the fall must sum to more than 0", "weight of answer tokens (LLDS-MA)")
        self.gate = choice(["token", "action", "response"], tips[0])
        self.gate.value = "action"
        self.answer = control(
            ipywidgets.FloatSlider, "answer weight", tips[1], 280, value=1.0, min=0, max=1, step=0.1
        )
        self.coef = control(
            ipywidgets.FloatSlider, "λ", "weight of LLDS", 240, value=0.5, min=0, max=2, step=0.1
        )
        self.picture = picture(130 + 220 * len(case.words))
        for part in (*self.changes.values(), self.gate, self.answer, self.coef):
            part.observe(self._show, "value")
        title = ipywidgets.HTML("change of each token of row 1 (nats):")
        knobs = row([labelled("gate", self.gate), self.answer, self.coef])
        super().__init__([knobs, title, row(self.changes.values()), self.picture])
        self._show()

    def _show(self, _change: object = None) -> None:
        new = self.case.new_logp.clone()
        for t, slider in self.changes.items():
            new[0, t] = self.case.old_logp[0, t] + slider.value
        moved = replace(self.case, new_logp=new)
        self.values = gate_values(
            moved, gate=self.gate.value, answer_weight=self.answer.value, coef=self.coef.value
        )
        self.picture.value = png(gate_figure(moved, self.values))


class ProxyExplorer(ipywidgets.VBox):
    """Lp-Reg's threshold over real next-token distributions: filter, proxy, KL, gradient.

    `cases` maps a name to the logits of one distribution over `words`.
    """

    def __init__(self, words: Sequence[str], cases: Mapping[str, Float[Tensor, " V"]]):
        self.words, self.cases = words, cases
        self.case = control(
            ipywidgets.Dropdown, "next token", "which distribution", 420, options=list(cases)
        )
        self.filtering = choice(["min-p", "fixed"], "how it drops tokens")
        options = [0.0, *(round(m * 10.0**-e, 6) for e in (4, 3, 2, 1) for m in (1, 2, 5)), 0.9]
        self.threshold = control(
            ipywidgets.SelectionSlider,
            "threshold (κ of the largest, or τ)",
            "tokens at or under it are dropped",
            520,
            options=[(tick(v), v) for v in options],
            value=0.02,
        )
        self.picture = picture(470)
        for part in (self.case, self.filtering, self.threshold):
            part.observe(self._show, "value")
        knobs = row([self.case, labelled("filter", self.filtering)])
        super().__init__([knobs, self.threshold, self.picture])
        self._show()

    def _show(self, _change: object = None) -> None:
        given = {"filtering": self.filtering.value, "threshold": self.threshold.value}
        self.values = proxy_values(self.cases[self.case.value], **given)
        self.picture.value = png(proxy_figure(self.words, self.values))


class PhaseDiagram(ipywidgets.VBox):
    """A sweep over learning rate and updates per batch: a map, and the runs behind each cell.

    Raises ValueError without runs.
    """

    def __init__(self, runs: Sequence[Run]):
        if not runs:
            raise ValueError("no runs to map: give the run folders of a sweep")
        self.runs = list(runs)
        self.rows = [summarise(run) for run in self.runs]
        for found in self.rows:
            found["collapsed"] = float(found["collapsed_at"] is not None)
        methods = list(dict.fromkeys(found["method"] for found in self.rows))
        self.method = control(ipywidgets.Dropdown, "method", "", 220, options=methods)
        self.shown = control(ipywidgets.Dropdown, "colour", "", 400, options=VALUES)
        self.lr, self.updates = (
            control(ipywidgets.Dropdown, label, "the cell whose runs are drawn", width)
            for label, width in (("cell: lr", 170), ("updates per batch", 210))
        )
        self.map, self.curves = picture(380), picture(300)
        self._offer()
        self.method.observe(self._offer, "value")
        for part in (self.shown, self.lr, self.updates):
            part.observe(self._show, "value")
        controls = row([self.method, self.shown, self.lr, self.updates])
        super().__init__([controls, self.map, self.curves])
        self._show()

    def _offer(self, _change: object = None) -> None:
        """The cells of the chosen method."""
        mine = [found for found in self.rows if found["method"] == self.method.value]
        for part, key in ((self.lr, "lr"), (self.updates, "updates_per_batch")):
            part.options = [(tick(v), v) for v in sorted({found[key] for found in mine})]
            part.index = 0  # a list that was empty has nothing chosen
        self._show()

    def _show(self, _change: object = None) -> None:
        mine = [
            (run, found)
            for run, found in zip(self.runs, self.rows, strict=True)
            if found["method"] == self.method.value
        ]
        rows = [found for _, found in mine]
        cell = {"lr": self.lr.value, "updates_per_batch": self.updates.value}
        axes = {key: sorted({found[key] for found in rows}) for key in cell}
        if any(value not in axes[key] for key, value in cell.items()):
            return  # the method was changed, and the cells on offer are not yet its own
        ax = sweep_heatmap(rows, "lr", "updates_per_batch", self.shown.value)
        ax.figure.axes[-1].set_ylabel(self.shown.label, fontsize=8)
        ax.figure.set_size_inches(8.5, 3.8)
        corner = [axes[key].index(value) - 0.5 for key, value in cell.items()]
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=3))
        self.map.value = png(ax.figure)
        chosen = [run for run, found in mine if all(found[k] == v for k, v in cell.items())]
        self.curves.value = png(cell_figure(chosen, f"lr {self.lr.label}, {self.updates.label}"))


def cell_figure(runs: Sequence[Run], name: str) -> Figure:
    """The rewards behind one cell of the map: thin lines are seeds, the bold one is their mean."""
    figure = Figure(figsize=(8.5, 3), layout="constrained")
    ax = figure.subplots()
    title = f"{name} updates per batch: no run"
    if runs:
        metric_panel(ax, {name: runs}, "reward/mean", "mean reward", seeds=True, line="-")
        seeds = ", ".join(str(run.config["seed"]) for run in runs)
        title = f"{name} updates per batch; seeds {seeds}"
    ax.set_title(title, fontsize=TEXT)
    ax.set_xlabel(BATCH, fontsize=TEXT)
    ax.set_ylim(0, 1)
    return figure


class PostMortemView(ipywidgets.VBox):
    """Any run folder: where each phase began, which tokens went first, who may have started it.

    `runs` maps a name to a run. Raises ValueError without runs.
    """

    def __init__(self, runs: Mapping[str, Run]):
        if not runs:
            raise ValueError("no runs to examine: give at least one run folder")
        self.runs = dict(runs)
        self.run = control(ipywidgets.Dropdown, "run", "", 320, options=list(runs))
        self.suspect = control(
            ipywidgets.Dropdown, "trajectory", "logged wrong ones, the least likely first", 640
        )
        self.picture = picture(450)
        layout = ipywidgets.Layout(height="130px", overflow="auto")
        self.story = ipywidgets.HTML(layout=layout)
        self.tokens = ipywidgets.VBox(layout=ipywidgets.Layout(height="250px"))
        self.run.observe(self._examine, "value")
        self.suspect.observe(self._show_suspect, "value")
        super().__init__([row([self.run]), self.picture, self.story, self.suspect, self.tokens])
        self._examine()

    def _examine(self, _change: object = None) -> None:
        run = self.runs[self.run.value]
        self.found = post_mortem(run)
        self.picture.value = png(post_mortem_figure(run, self.found))
        self.story.value = story_html(self.found)
        self.suspect.options = [
            (f"batch {r['step']}, mean log-prob {mean_logp(r):.2f} nats: {r['question'][:40]}", i)
            for i, r in enumerate(self.found.suspects)
        ]
        self.suspect.index = 0 if self.found.suspects else None
        self._show_suspect()

    def _show_suspect(self, _change: object = None) -> None:
        if self.suspect.value is None:
            self.tokens.children = [ipywidgets.HTML("No wrong trajectory was logged there.")]
            return
        record = self.found.suspects[self.suspect.value]
        title = f"wanted {' or '.join(record['answers'])}, answered {record['answer']}"
        self.tokens.children = [TokenView([(title, record_tokens(record))], 220)]


def story_html(found: PostMortem) -> str:
    """The post-mortem in four sentences."""

    def when(batch: int | None) -> str:
        return "never" if batch is None else f"at batch {batch}"

    words = ", ".join(f"{w.word} {w.after - w.before:+.1f}" for w in found.words)
    phases = ", ".join(f"{phase} {when(batch)}" for phase, batch in found.begins.items())
    parts = ", ".join(f"{name} {when(batch)}" for name, batch in found.fallen)
    lines = {
        "Phases began": phases,
        "Alarm, collapse": f"{when(found.alarm)}, {when(found.collapse)}",
        "Probe, in the order of its fall": parts or "nothing fell",
        f"Words that fell most, up to batch {found.end} (nats, against the first batches)": words
        or "none",
    }
    body = "".join(f"<div><b>{k}:</b> {html.escape(v)}</div>" for k, v in lines.items())
    return f'<div style="font: 13px/1.5 sans-serif">{body}</div>'
