"""A diagnosis as one HTML file with its figures inside, and the page that compares several."""

import base64
import html
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from lldlib.doctor.pages.diagnosis import Diagnosis
from lldlib.doctor.pages.figure import COLOURS, figure, runs_figure
from lldlib.doctor.pages.words import (
    ANSWERS,
    care,
    kind_line,
    lower,
    sections,
    side_by_side,
    stop,
    upper,
)
from lldlib.doctor.reading.log import printable

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1.5rem;color:#1c2329;
background:#fff;overflow-wrap:anywhere}
@media(max-width:600px){body{padding:.8rem}.verdict{padding:.7rem .8rem}}
h1{font-size:1.15rem;font-weight:600;margin:0 0 .6rem;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
.verdict{color:#fff;border-radius:.5rem;padding:.9rem 1.1rem;font-size:1.25rem;font-weight:600}
.verdict small{display:block;font-weight:400;font-size:.85rem;opacity:.92}
img{max-width:100%;height:auto;margin:.8rem 0 0}
.wide{overflow-x:auto} .wide td,.wide th{overflow-wrap:normal}
.wide td:first-child{overflow-wrap:anywhere;min-width:9rem}
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
        f'<p class="small">{_esc(kind_line(run))}</p>',
        *(f'<p class="card">Read with care: {_esc(line)}.</p>' for line in care(run)),
        f'<div class="verdict" style="background:{colour}">{_esc(head)}'
        f"<small>{_esc(f'{upper(rest) or judged.sentence} {_likeness(found)}')}</small></div>",
    ]
    if len(run.scored) and run.kind.word == "rl":
        parts.append(_img(_alt(found), figure(found), figure(found, narrow=True)))
        parts.append(f'<p class="small">{_esc(_legend(found))}</p>')
    for title, lines in sections(found):
        if title == "Read with care":
            continue  # it stands above the verdict
        parts.append(f"<h2>{_esc(title)}</h2>")
        parts.append(_html_section(title, lines, found))
    return _document(run.name, parts)


def _likeness(found: Diagnosis) -> str:
    """The first pattern and the first thing to try, for the top of the page."""
    if not found.patterns:
        return ""
    tried = f" Try first: {lower(found.advice[0].do)}." if found.advice else ""
    return f"What it looks like: {lower(found.patterns[0].title)}.{tried}"


def _html_section(title: str, lines: Sequence[str], found: Diagnosis) -> str:
    if title == ANSWERS:
        return found.answers.html()
    if title == "What it resembles":
        return "".join(
            f'<div class="card"><b>{_esc(p.title)}</b>{_esc(upper(p.evidence))}.'
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
        return f"<p>{_esc(stop(upper(lines[0])))}</p>"
    return "<ul>" + "".join(f"<li>{_esc(upper(line))}</li>" for line in lines) + "</ul>"


def _legend(found: Diagnosis) -> str:
    said = "Thin grey: the values as logged; thick blue: their trailing mean."
    if found.warned is not None:
        said += " Broken line: the first warning."
    if found.judged.row is not None:
        said += " Solid line: the fall."
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
        _img("rewards of all runs", runs_figure(all_found), runs_figure(all_found, narrow=True)),
        '<p class="small">Each run in the line of its verdict: solid healthy, dotted stagnating, '
        "broken degrading, dots and dashes collapsed.</p>",
        f'<div class="wide"><table><tr>{"".join(f"<th>{_esc(cell)}</th>" for cell in head)}</tr>'
        f"{body}</table></div>",
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


def _img(words: str, wide: Figure, narrow: Figure) -> str:
    """A figure, and the one that a narrow screen gets in its place."""
    return (
        '<picture><source media="(max-width:600px)" '
        f'srcset="data:image/png;base64,{_png64(narrow)}">'
        f'<img alt="{_esc(words)}" src="data:image/png;base64,{_png64(wide)}"></picture>'
    )


def _png64(drawn: Figure) -> str:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _esc(text: str) -> str:
    return html.escape(printable(text), quote=True)
