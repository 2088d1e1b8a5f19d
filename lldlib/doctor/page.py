"""The page on a run: as text, Markdown for a bug report, HTML with its figure, and one object."""

import base64
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lldlib.doctor.findings import Advice, Pattern, advice, patterns
from lldlib.doctor.judge import Judgement, judge
from lldlib.doctor.judging.statistics import trailing, window_size
from lldlib.doctor.judging.warnings import Ring, evidence, rings
from lldlib.doctor.readers import read_logs
from lldlib.doctor.reading.log import Log
from lldlib.doctor.reading.series import Run, run_of
from lldlib.doctor.reading.signals import SIGNALS

WORTH_NAMING = ("heldout", "entropy", "grad_norm", "kl", "length", "clipped", "reward_std")
COLOURS = {
    "healthy": "#1b7f4b",
    "stagnating": "#5c6773",
    "degrading": "#b35c00",
    "collapsed": "#b3261e",
    "unknown": "#5c6773",
}
PANELS = ("reward", "entropy", "grad_norm", "length", "kl", "likelihood")
MOST_RUNS, NAMED = 60, 6  # lines in the figure that compares runs; so few are named in it
NAME_POINTS = 7  # size of those names


@dataclass(frozen=True)
class Diagnosis:
    """Everything that the page says of one run."""

    run: Run
    judged: Judgement
    warnings: tuple[Ring, ...]
    patterns: tuple[Pattern, ...]
    advice: tuple[Advice, ...]

    @property
    def warned(self) -> float | None:
        """The step of the first warning."""
        return float(self.run.steps[self.warnings[0].row]) if self.warnings else None

    @property
    def missing(self) -> list[str]:
        """Signals worth having that the log does not hold."""
        held = np.isfinite(self.run.heldout).any()
        have = self.run.signals.keys() | ({"heldout"} if held else set())
        return [name for name in ("reward", *WORTH_NAMING) if name not in have]


def diagnose_run(run: Run) -> Diagnosis:
    """Judge a run, and find its warnings, patterns and advice."""
    judged = judge(run)
    found = patterns(run, judged)
    rung = (
        ()
        if any(p.key == "tool" for p in found)
        else tuple(rings(run.sure, judged.verdict, judged.row))
    )
    return Diagnosis(run, judged, rung, tuple(found), tuple(advice(judged, found)))


def diagnose(path: Path | str, mapping: Mapping[str, str] | None = None) -> list[Diagnosis]:
    """Read a file or folder and diagnose every run in it; `mapping` is {column: our signal}.

    Raises `readers.Unreadable` with one line where nothing can be read.
    """
    return [diagnose_run(run_of(log)) for log in read_logs(path, mapping)]


def diagnose_rows(rows: Sequence[Mapping[str, float | int]], name: str = "live") -> Diagnosis:
    """Diagnose rows that were never in a file: one mapping of logged names to numbers a step."""
    log = Log(name, "live")
    for row in rows:
        log.add(row, {})
    return diagnose_run(run_of(log.close()))


# -- words -----------------------------------------------------------------------------------------


def as_object(found: Diagnosis) -> dict[str, Any]:
    """What `--json` prints: plain lists, numbers and words."""
    run, judged = found.run, found.judged
    heldout = {"heldout": run.heldout_name} if np.isfinite(run.heldout).any() else {}
    return {
        "name": run.name,
        "format": run.format,
        "steps": len(run.steps),
        "first_step": _plain(run.steps[0]) if len(run.steps) else None,
        "last_step": _plain(run.steps[-1]) if len(run.steps) else None,
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "rule": judged.rule,
        "evidence": list(judged.evidence),
        "collapsed_at": _plain(judged.collapsed_at),
        "warned_at": _plain(found.warned),
        "warnings": [
            {"step": _plain(run.steps[r.row]), "says": r.says, "odds": r.odds}
            for r in found.warnings
        ],
        "signals": {k: v for k, v in run.columns.items() if k in run.signals} | heldout,
        "missing": found.missing,
        "patterns": [asdict(pattern) for pattern in found.patterns],
        "advice": [asdict(piece) for piece in found.advice],
        "notes": run.notes,
    }


def _plain(value: float | None) -> float | int | None:
    if value is None:
        return None
    return int(value) if float(value).is_integer() else float(value)


def sections(found: Diagnosis) -> list[tuple[str, list[str]]]:
    """The page's headings with their lines, the same for every way to print it."""
    run, judged = found.run, found.judged
    unit = "step" if run.stepped else "row"
    read = [f"{run.format}; {len(run.steps)} rows, {unit}s {run.steps[0]:g} to {run.steps[-1]:g}"]
    if not run.stepped:
        read.append("the log names no step: its rows are counted")
    read.append("signals: " + "; ".join(f"{k} = {v}" for k, v in _signals(found)))
    if found.missing:
        read.append("missing: " + "; ".join(_missing(name) for name in found.missing))
    out = [("Why", list(judged.evidence)), ("How sure", [how_sure(judged)])]
    if found.warnings:
        out.append(("First warning", _warning_lines(found)))
    elif judged.verdict in ("degrading", "collapsed"):
        out.append(("First warning", ["none of the warnings rang before the fall"]))
    if found.patterns:
        lines = [f"{p.title}: {p.evidence}. Rule: {p.rule}." for p in found.patterns]
        out.append(("What it resembles", lines))
    if found.advice:
        out.append(("What to try, in this order", [_advice_line(a) for a in found.advice]))
    out.append(("What was read", read + run.notes))
    return [(title, lines) for title, lines in out if lines]


def _signals(found: Diagnosis) -> list[tuple[str, str]]:
    run = found.run
    held = [("held-out score", run.heldout_name)] if np.isfinite(run.heldout).any() else []
    own = [
        (SIGNALS[k].title, v) for k, v in run.columns.items() if k in run.signals and k != "epoch"
    ]
    return own[:1] + held + own[1:]


def _missing(name: str) -> str:
    if name == "heldout":
        return "a held-out score (without it a reward that is gamed cannot be told)"
    return f"{SIGNALS[name].title} (for {SIGNALS[name].needed_for})"


def _warning_lines(found: Diagnosis) -> list[str]:
    lines, run = [], found.run
    for ring in found.warnings:
        ahead = ""
        if found.judged.row is not None and ring.row < found.judged.row:
            rows = found.judged.row - ring.row
            ahead = f", {rows} row{'s' if rows > 1 else ''} before the fall"
        lines.append(f"{run.steps[ring.row]:g}{ahead}: {ring.says}. {_upper(ring.odds)}.")
    return [f"{'step' if run.stepped else 'row'} {line}" for line in lines]


def _advice_line(piece: Advice) -> str:
    return (
        f"{_stop(piece.do)} For: {piece.pattern}. Evidence: {piece.evidence}. "
        f"Price: {piece.price}. Source: {piece.source}."
    )


def _upper(text: str) -> str:
    """The text with a capital, unless it begins with the name of a column."""
    first = text.split(" ", 1)[0]
    return text if "/" in first or "_" in first else text[:1].upper() + text[1:]


def _stop(text: str) -> str:
    """The text with one full stop at its end."""
    return text if text.endswith((".", "?", "!")) else text + "."


def how_sure(judged: Judgement) -> str:
    """How the verdicts did on recorded runs whose labels were made another way."""
    if judged.verdict == "unknown":
        return "no verdict is given from less than its rule needs"
    (dead, of_dead, false, of_alive), (found, _, wrong, _) = (
        _counts(evidence()["verdict"][how]) for how in ("in_use", "left_out")
    )
    return (
        f"of this project's recorded runs {dead} of {of_dead} that died are called collapsed, and "
        f"{false} of {of_alive} that lived degrading or collapsed; with thresholds set on all "
        f"other runs {found} and {wrong}"
    )


def _counts(table: Mapping[str, Mapping[str, int]]) -> tuple[int, int, int, int]:
    """Dead runs called collapsed, dead runs; living ones called ill, living runs."""
    dead, alive = table["dead"], table["alive"]
    ill = alive.get("collapsed", 0) + alive.get("degrading", 0)
    return dead.get("collapsed", 0), sum(dead.values()), ill, sum(alive.values())


def as_text(found: Diagnosis) -> str:
    """The page for a terminal."""
    lines = [found.run.name, "=" * len(found.run.name), found.judged.sentence, ""]
    for title, said in sections(found):
        lines += [title, *(_wrapped(line) for line in said), ""]
    return "\n".join(lines)


def _wrapped(line: str, width: int = 98) -> str:
    words, rows = line.split(" "), [" "]
    for word in words:
        if len(rows[-1]) + 1 + len(word) > width and rows[-1].strip():
            rows.append("   ")
        rows[-1] += " " + word
    return "\n".join(["  -" + rows[0][1:], *rows[1:]])


def as_markdown(found: Diagnosis) -> str:
    """The page to paste into a bug report."""
    lines = [f"### {found.run.name}: {found.judged.verdict}", "", found.judged.sentence, ""]
    for title, said in sections(found):
        lines += [f"**{title}**", "", *(f"- {_no_markup(line)}" for line in said), ""]
    return "\n".join(lines)


def _no_markup(line: str) -> str:
    return re.sub(r"([*_`<>|#])", r"\\\1", line)


def side_by_side(all_found: Sequence[Diagnosis]) -> list[tuple[str, ...]]:
    """A table of several runs: name, verdict, where, reward at best and at the end, patterns."""
    rows = [("run", "verdict", "collapsed at", "warned at", "best", "last", "resembles")]
    for found in all_found:
        best = last = "-"
        scored = found.run.scored
        if len(scored):
            scores = found.run.signals["reward"][scored]
            mean = trailing(scores, window_size(len(scores)))
            best, last = f"{mean.max():.3g}", f"{mean[-1]:.3g}"
        rows.append(
            (
                found.run.name,
                found.judged.verdict,
                "-" if found.judged.collapsed_at is None else f"{found.judged.collapsed_at:g}",
                "-" if found.warned is None else f"{found.warned:g}",
                best,
                last,
                ", ".join(p.title for p in found.patterns[:2]) or "-",
            )
        )
    return rows


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """The table in columns, and how often each verdict was given."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    verdicts = [row[1] for row in rows[1:]]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return "\n".join([*lines, "", f"{len(verdicts)} runs: {counts}"])


# -- figure ----------------------------------------------------------------------------------------


def figure(found: Diagnosis) -> Figure:
    """Reward, entropy, gradient norm, length, KL and likelihood, as far as the log has them.

    Amber: from the first warning to the fall; red: after the fall.
    """
    run = found.run
    shown = [name for name in PANELS if _series(run, name) is not None]
    columns = 2 if len(shown) > 1 else 1
    rows = (len(shown) + columns - 1) // columns
    drawn = Figure(figsize=(10, 0.6 + 2.3 * rows), layout="constrained")
    axes = np.atleast_1d(drawn.subplots(rows, columns, sharex=True)).ravel()
    for ax, name in zip(axes, shown, strict=False):
        _draw(ax, found, name)
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    for ax in axes[max(len(shown) - columns, 0) : len(shown)]:
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("step" if run.stepped else "row")
    return drawn


def _series(run: Run, name: str) -> tuple[str, np.ndarray] | None:
    for key in ("probe", "likelihood") if name == "likelihood" else (name,):
        values = run.signals.get(key)
        if values is not None and np.isfinite(values).any():
            return key, np.where(np.isfinite(values), values, np.nan)
    return None


def _draw(ax: Axes, found: Diagnosis, name: str) -> None:
    run = found.run
    key, values = _series(run, name)
    known = np.isfinite(values)
    ax.plot(run.steps[known], values[known], color="#9aa5b1", linewidth=0.8)
    width = max(3, int(known.sum()) // 30)
    fall = len(values) if found.judged.row is None else found.judged.row
    for part, label in ((slice(None, fall), f"mean of {width} rows"), (slice(fall, None), None)):
        kept = known[part]  # the mean starts anew at the fall: it must not smear it
        mean = trailing(values[part][kept], width)
        ax.plot(run.steps[part][kept], mean, color="#1f3a5f", linewidth=1.8, label=label)
    ax.set_title(f"{SIGNALS[key].title}   ({run.columns[key]})", loc="left", fontsize=10)
    if name == "reward":
        held = np.isfinite(run.heldout)
        if held.any():
            ax.plot(
                run.steps[held], run.heldout[held], "o-", ms=4, color="#b35c00", label="held out"
            )
        ax.legend(fontsize=8, frameon=False, loc="best")
    if name in ("grad_norm", "kl", "entropy") and (values[known] > 0).all():
        high, low = np.quantile(values[known], 0.999), np.median(values[known])
        if high > 30 * low:
            ax.set_yscale("log")
    _shade(ax, found, name == "reward")
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(x=0.01)


def _shade(ax: Axes, found: Diagnosis, words: bool) -> None:
    run, fall = found.run, found.judged.row
    end = float(run.steps[-1])
    at = None if fall is None else float(run.steps[fall])
    if found.warned is not None:
        ax.axvspan(found.warned, end if at is None else at, color="#f5c542", alpha=0.22, lw=0)
        ax.axvline(found.warned, color="#b38600", linestyle="--", linewidth=1.2)
        if words:
            _word(ax, found.warned, f"first warning {found.warned:g}", "#8a6700", 0.97)
    if at is not None:
        ax.axvspan(at, end, color="#b3261e", alpha=0.13, lw=0)
        ax.axvline(at, color="#b3261e", linewidth=1.2)
        if words:
            what = "collapsed" if found.judged.verdict == "collapsed" else "falls from"
            _word(ax, at, f"{what} {at:g}", "#8c1d18", 0.85)


def _word(ax: Axes, x: float, text: str, colour: str, height: float) -> None:
    low, high = ax.get_xlim()
    right = x > (low + high) / 2
    ax.annotate(
        text,
        (x, height),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if right else 4, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        fontsize=9,
        color=colour,
        fontweight="bold",
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
    )


def runs_figure(all_found: Sequence[Diagnosis]) -> Figure:
    """The rewards of several runs, each in the colour of its verdict."""
    drawn = Figure(figsize=(10, 3.4), layout="constrained")
    ax, ends = drawn.subplots(), []
    for found in all_found[:MOST_RUNS]:
        rows = found.run.scored
        if len(rows):
            scores = found.run.signals["reward"][rows]
            mean = trailing(scores, window_size(len(scores)))
            colour = COLOURS[found.judged.verdict]
            ax.plot(found.run.steps[rows], mean, color=colour, linewidth=1.4)
            ends.append((found.run.name[:30], found.run.steps[rows[-1]], mean[-1]))
    if len(all_found) <= NAMED:
        _name_ends(ax, ends)
    ax.set_xlabel("step")
    ax.set_ylabel("reward, trailing mean")
    ax.spines[["top", "right"]].set_visible(False)
    return drawn


def _name_ends(ax: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Write each (name, x, y) right of the axes, in the order of y, so that no two names touch."""
    if not ends:
        return
    ax.get_ylim()  # settles the limits before heights are read off
    to_axes = ax.transData - ax.transAxes
    heights = np.array([to_axes.transform((x, y))[1] for _, x, y in ends])
    gap = 1.4 * NAME_POINTS / 72 / (ax.get_position().height * ax.figure.get_figheight())
    order, below = np.argsort(heights, kind="stable"), gap * np.arange(len(ends))
    places = np.maximum.accumulate(heights[order] - below) + below
    places = np.minimum(places, 1 - below[::-1])  # the highest stays inside
    for place, (name, x, y) in zip(places, (ends[i] for i in order), strict=True):
        ax.annotate(
            name,
            (x, y),
            xytext=(1.02, place),
            textcoords="axes fraction",
            va="center",
            fontsize=NAME_POINTS,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),  # to the left of the name
                "color": "#9aa5b1",
                "linewidth": 0.5,
            },
        )


# -- HTML ------------------------------------------------------------------------------------------

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1.5rem;color:#1c2329;
background:#fff}
h1{font-size:1.15rem;font-weight:600;margin:0 0 .6rem;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
.verdict{color:#fff;border-radius:.5rem;padding:.9rem 1.1rem;font-size:1.25rem;font-weight:600}
.verdict small{display:block;font-weight:400;font-size:.85rem;opacity:.92}
img{max-width:100%;height:auto;margin:.8rem 0 0}
ul,ol{margin:.2rem 0;padding-left:1.4rem} li{margin:.25rem 0}
.card{border:1px solid #d5dbe1;border-radius:.5rem;padding:.6rem .9rem;margin:.5rem 0}
.card b{display:block} .small{color:#56616c;font-size:.88rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{border-bottom:1px solid #d5dbe1;text-align:left;padding:.3rem .5rem;vertical-align:top}
footer{margin-top:2rem;color:#56616c;font-size:.85rem}
"""


def as_html(found: Diagnosis) -> str:
    """The page with its figure inside: one file without links to others."""
    run, judged = found.run, found.judged
    colour = COLOURS[judged.verdict]
    head, _, rest = judged.sentence.partition(": ")
    parts = [
        f"<h1>{_esc(run.name)}</h1>",
        f'<div class="verdict" style="background:{colour}">{_esc(head)}'
        f"<small>{_esc(_upper(rest) or judged.sentence)}{_esc(_likeness(found))}</small></div>",
    ]
    if len(run.scored):
        parts.append(_img(_alt(found), figure(found)))
        parts.append(f'<p class="small">{_esc(_legend(found))}</p>')
    for title, lines in sections(found):
        parts.append(f"<h2>{_esc(title)}</h2>")
        parts.append(_html_section(title, lines, found))
    return _document(run.name, parts)


def _likeness(found: Diagnosis) -> str:
    """The first pattern and the first thing to try, for the top of the page."""
    if not found.patterns:
        return ""
    title = found.patterns[0].title
    tried = f" Try first: {found.advice[0].do}." if found.advice else ""
    return f" It resembles: {title[:1].lower()}{title[1:]}.{tried}"


def _html_section(title: str, lines: Sequence[str], found: Diagnosis) -> str:
    if title == "What it resembles":
        return "".join(
            f'<div class="card"><b>{_esc(p.title)}</b>{_esc(_upper(p.evidence))}.'
            f'<div class="small">The rule: {_esc(p.rule)}.</div></div>'
            for p in found.patterns
        )
    if title.startswith("What to try"):
        return "".join(
            f'<div class="card"><b>{i}. {_esc(a.do)}</b>For: {_esc(a.pattern)}. '
            f"Price: {_esc(a.price)}."
            f'<div class="small">Evidence: {_esc(a.evidence)}. Source: {_esc(a.source)}.</div>'
            "</div>"
            for i, a in enumerate(found.advice, start=1)
        )
    if len(lines) == 1:
        return f"<p>{_esc(_stop(_upper(lines[0])))}</p>"
    return "<ul>" + "".join(f"<li>{_esc(_upper(line))}</li>" for line in lines) + "</ul>"


def _legend(found: Diagnosis) -> str:
    said = "Grey: the values as logged; blue: their trailing mean."
    if found.warned is not None:
        said += " Amber: from the first warning on."
    if found.judged.row is not None:
        said += " Red: from the fall on."
    return said


def _alt(found: Diagnosis) -> str:
    return f"Curves of {found.run.name}. {found.judged.sentence}"


def several_html(all_found: Sequence[Diagnosis], files: Sequence[str]) -> str:
    """The page that compares several runs and leads to each one's own."""
    head, *rows = side_by_side(all_found)
    body = "".join(
        f'<tr><td><a href="{_esc(file)}">{_esc(row[0])}</a></td>'
        f'<td style="color:{COLOURS[row[1]]};font-weight:600">{_esc(row[1])}</td>'
        + "".join(f"<td>{_esc(cell)}</td>" for cell in row[2:])
        + "</tr>"
        for row, file in zip(rows, files, strict=True)
    )
    parts = [
        f"<h1>{len(rows)} runs side by side</h1>",
        _img("rewards of all runs", runs_figure(all_found)),
        '<p class="small">Each run in the colour of its verdict: green healthy, grey stagnating, '
        "orange degrading, red collapsed.</p>",
        f"<table><tr>{''.join(f'<th>{_esc(cell)}</th>' for cell in head)}</tr>{body}</table>",
    ]
    return _document("runs side by side", parts)


def _document(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_esc(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}"
        "<footer>Made by <code>python -m lldlib diagnose</code> from this log alone.</footer>"
        "</body></html>"
    )


def _img(words: str, drawn: Figure) -> str:
    return f'<img alt="{_esc(words)}" src="data:image/png;base64,{_png64(drawn)}">'


def _png64(drawn: Figure) -> str:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _esc(text: str) -> str:
    return html.escape(text, quote=True)


def write_pages(all_found: Sequence[Diagnosis], folder: Path) -> Path:
    """Write a page, a figure and an object for each run, and a page on all; returns the first page.

    Files: `index.html`, and for several runs NAME.html, NAME.png and NAME.json each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stems = _stems([found.run.name for found in all_found])
    if len(all_found) == 1:
        stems = ["index"]
    for found, stem in zip(all_found, stems, strict=True):
        (folder / f"{stem}.html").write_text(as_html(found), encoding="utf-8")
        if len(found.run.scored):
            figure(found).savefig(folder / f"{'figure' if stem == 'index' else stem}.png", dpi=130)
        text = json.dumps(as_object(found), indent=1, ensure_ascii=False)
        (folder / f"{stem}.json").write_text(text + "\n", encoding="utf-8")
    if len(all_found) > 1:
        page = several_html(all_found, [f"{stem}.html" for stem in stems])
        (folder / "index.html").write_text(page, encoding="utf-8")
    return folder / "index.html"


def _stems(names: Sequence[str]) -> list[str]:
    """File names, each once."""
    clean = [re.sub(r"[^\w.=,-]+", "_", name)[:80] or "run" for name in names]
    return [
        stem if clean.index(stem) == i and stem != "index" else f"{stem}_{i + 1}"
        for i, stem in enumerate(clean)
    ]
