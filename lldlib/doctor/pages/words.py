"""A diagnosis in words: for a terminal, as Markdown for a bug report, and as one object."""

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from lldlib.doctor.judge import Judgement
from lldlib.doctor.judging.advice import Advice
from lldlib.doctor.judging.statistics import trailing, window_size
from lldlib.doctor.judging.warnings import evidence, watched
from lldlib.doctor.pages.diagnosis import Diagnosis, tool_died
from lldlib.doctor.reading.log import printable
from lldlib.doctor.reading.series import ENOUGH, LoggedRun
from lldlib.doctor.reading.signals import SIGNALS, read_name

WIDTH = 98  # characters of a line in a terminal
COUNTED = ("fall", "dead floor", "learned", "at the top", "no trend")  # rules with a record
UNREAD = 1.1  # times the rows that were read from which on the file holds more
SHARED = 2.2  # values per step from which on steps are crowded
ANSWERS = "What it wrote"  # the section on answers
NO_RING = "none of the warnings rang before the fall"
UNWATCHED = (
    "no series of this log has warned of falls more often than chance on recorded runs; what a "
    "batch's updates cost right answers has (displacement/correct_token)"
)
TOOL_DIED = "not looked for: the tool died, and the warnings are of a policy that goes wrong"
TOY = "nearly all are toy models of 0.4 million weights"
SILENT = ("epoch", "clock", "step_time")  # signals that a page does not list


def as_object(found: Diagnosis) -> dict[str, Any]:
    """What `--json` prints: plain lists, numbers and words."""
    run, judged = found.run, found.judged
    heldout = {"heldout": run.heldout_name} if np.isfinite(run.heldout).any() else {}
    hours = found.hours
    return {
        "name": run.name,
        "kind": run.kind.word,
        "kind_by": run.kind.by,
        "format": run.format,
        "steps": len(run.steps),
        "first_step": _plain(run.steps[0]) if len(run.steps) else None,
        "last_step": _plain(run.steps[-1]) if len(run.steps) else None,
        "rows": {"in_file": run.in_file, "read": run.read, "used": len(run.scored)},
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "rule": judged.rule,
        "evidence": list(judged.evidence),
        "collapsed_at": _plain(judged.collapsed_at),
        "hours_after_fall": None if hours is None else round(hours[0], 2),
        "warned_at": _plain(found.warned),
        "warnings": [
            {"step": _plain(run.steps[r.row]), "says": r.says, "odds": r.odds}
            for r in found.warnings
        ],
        "signs": [
            {
                "key": sign.key,
                "step": None if sign.row is None else _plain(run.steps[sign.row]),
                "says": sign.says,
                "grave": sign.grave,
            }
            for sign in found.signs
        ],
        "signals": {k: v for k, v in run.columns.items() if k in run.signals} | heldout,
        "guessed": sorted(run.guessed),
        "missing": found.missing,
        "patterns": [asdict(pattern) for pattern in found.patterns],
        "advice": [asdict(piece) for piece in found.advice],
        "care": care(run),
        "notes": run.notes,
        "answers": asdict(found.answers) if is_dataclass(found.answers) else None,
    }


def _plain(value: float | None) -> float | int | None:
    if value is None:
        return None
    return int(value) if float(value).is_integer() else float(value)


def kind_line(run: LoggedRun) -> str:
    """What the log is and how that is known, for the head of a page."""
    return f"{run.kind.says}."


def care(run: LoggedRun) -> list[str]:
    """What must be said before the verdict: rows that were not read, steps shared, a guess."""
    name, used = run.columns.get("reward"), len(run.scored)
    if name is None or run.kind.word != "rl":
        return []
    said = []
    if run.in_file is not None and run.in_file > UNREAD * (run.read + run.refused) + 2:
        said.append(
            f"the file names {name} {run.in_file} times with a number, and {run.read} were read"
        )
    if used and run.judged_of > SHARED * used:
        said.append(
            f"{run.judged_of} values of {name} share {used} steps, and the last of each counts"
        )
    if "reward" in run.guessed:
        said.append(
            f"{name} is taken for the reward by its name alone; if it is another column, name it: "
            "--map reward=COLUMN"
        )
    return said


def sections(found: Diagnosis) -> list[tuple[str, list[str]]]:
    """The page's headings with their lines, the same for every way to print it."""
    judged = found.judged
    said = {text for text in judged.evidence}
    shown = [upper(sign.says) for sign in found.signs if sign.says not in said]
    out = [
        ("Read with care", [upper(line) for line in care(found.run)]),
        ("Why", list(judged.evidence)),
        ("Signs to look at", shown),
        ("What it cost", _cost(found)),
        ("How sure", how_sure(judged)),
    ]
    if found.warnings:
        out.append(("First warning", _warning_lines(found)))
    elif judged.verdict in ("degrading", "collapsed") and judged.row is not None:
        out.append(("First warning", [_silence(found)]))
    if found.answers is not None:
        out.append((ANSWERS, found.answers.lines() + found.answers.pairs()))
    lines = [f"{p.title}: {p.evidence}. Rule: {p.rule}." for p in found.patterns]
    out.append(("What it resembles", lines))
    if found.advice:
        out.append(("What to try, in this order", [_advice_line(a) for a in found.advice]))
    else:
        out.append(("What to try", _no_advice(found)))
    out.append(("What was read", _read(found)))
    return [(title, lines) for title, lines in out if lines]


def _cost(found: Diagnosis) -> list[str]:
    hours = found.hours
    if hours is None:
        return []
    after, whole = hours
    return [f"{_hours(after)} ran after the fall, of {_hours(whole)} in all"]


def _hours(value: float) -> str:
    if value >= 1:
        return f"{value:.1f} hours"
    minutes = round(60 * value)
    return f"{minutes} minute{'s' if minutes != 1 else ''}"


def _no_advice(found: Diagnosis) -> list[str]:
    """Why nothing is advised, where a reader would look for it."""
    if found.judged.verdict not in ("stagnating", "degrading", "collapsed"):
        return []
    if "reward" in found.run.guessed:
        return ["nothing is advised on a column that is a guess"]
    wanted = [_short(name) for name in found.missing if name != "heldout"]
    more = f"; it might, if it held {', '.join(wanted)}" if wanted else ""
    return [f"this log does not say why, so nothing is advised{more}"]


def _short(name: str) -> str:
    return f"the {SIGNALS[name].title}" if name == "kl" else SIGNALS[name].title


def _read(found: Diagnosis) -> list[str]:
    run, unit = found.run, found.run.unit
    count, rows = len(run.steps), _rows(len(run.steps))
    span = f", {unit}s {run.steps[0]:g} to {run.steps[-1]:g}" if count else ""
    span += f" ({run.step_name})" if count and run.step_name not in ("", "step") else ""
    read = [f"{run.format}; {rows}{span}"]
    name = run.columns.get("reward")
    if name is not None and run.kind.word == "rl":
        held = "" if run.in_file is None else f"{run.in_file} times in the file with a number, "
        read.append(f"{name}: {held}{run.read} read, {len(run.scored)} used")
    if not run.stepped:
        read.append("the log names no step: its rows are counted")
    signals = _signals(found)
    if signals:
        read.append("signals: " + "; ".join(f"{k} = {v}" for k, v in signals))
    if found.missing:
        read.append("missing: " + "; ".join(_missing(name) for name in found.missing))
    return read + run.notes


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"


def _signals(found: Diagnosis) -> list[tuple[str, str]]:
    run = found.run
    held = [("held-out score", run.heldout_name)] if np.isfinite(run.heldout).any() else []
    own = [
        (SIGNALS[k].title, v)
        for k, v in run.columns.items()
        if k in run.signals and k not in SILENT
    ]
    return own[:1] + held + own[1:]


def _missing(name: str) -> str:
    if name == "heldout":
        return "a held-out score (without it a reward that is gamed cannot be told)"
    return f"{SIGNALS[name].title} (for {SIGNALS[name].needed_for})"


def _silence(found: Diagnosis) -> str:
    """Why no warning is told of a run that fell."""
    if tool_died(found.patterns):
        return TOOL_DIED
    return NO_RING if watched(found.run) else UNWATCHED


def _warning_lines(found: Diagnosis) -> list[str]:
    lines, run = [], found.run
    for ring in found.warnings:
        ahead = ""
        if found.judged.row is not None and ring.row < found.judged.row:
            ahead = f", {_rows(found.judged.row - ring.row)} before the fall"
        lines.append(f"{run.steps[ring.row]:g}{ahead}: {ring.says}. {upper(ring.odds)}.")
    return [f"{run.unit} {line}" for line in lines]


def _advice_line(piece: Advice) -> str:
    return (
        f"{stop(piece.do)} For: {piece.pattern}. Evidence: {piece.evidence}. "
        f"Price: {piece.price}. Source: {piece.source}."
    )


def upper(text: str) -> str:
    """The text with a capital, unless it begins with the name of a column."""
    first = text.split(" ", 1)[0]
    column = "/" in first or "_" in first or bool(read_name(first.rstrip(":")).signals)
    return text if column else text[:1].upper() + text[1:]


def lower(text: str) -> str:
    """The text without its capital, unless it begins with an abbreviation."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def stop(text: str) -> str:
    """The text with one full stop at its end."""
    return text if text.endswith((".", "?", "!")) else text + "."


def how_sure(judged: Judgement) -> list[str]:
    """How often this verdict was right on recorded runs, whose labels were made another way."""
    if judged.rule not in COUNTED:
        return []
    table = evidence()["verdict"]["in_use"]
    dead, alive = (table[truth].get(judged.verdict, 0) for truth in ("dead", "alive"))
    return [
        f"of this project's recorded runs ({TOY}) the doctor calls {dead + alive} "
        f"{judged.verdict}: by another rule {dead} of them had died and {alive} had not"
    ]


def as_text(found: Diagnosis) -> str:
    """The page for a terminal; no name in it can steer the terminal."""
    name = printable(found.run.name)
    head = [name, "=" * len(name), kind_line(found.run), found.judged.sentence]
    lines = [*(textwrap.fill(line, WIDTH) for line in head), ""]
    for title, said in sections(found):
        lines += [title, *(_item(line) for line in said), ""]
    return "\n".join(lines)


def _item(line: str) -> str:
    return textwrap.fill(
        printable(line),
        WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_markdown(found: Diagnosis) -> str:
    """The page to paste into a bug report."""
    run, judged = found.run, found.judged
    head = f"### {_no_markup(run.name)}: {judged.verdict}"
    lines = [head, "", _no_markup(kind_line(run)), "", _no_markup(judged.sentence), ""]
    for title, said in sections(found):
        lines += [f"**{title}**", "", *(f"- {_no_markup(line)}" for line in said), ""]
    return "\n".join(lines)


def _no_markup(line: str) -> str:
    return re.sub(r"([*_`<>|#])", r"\\\1", printable(line))


def names_of(all_found: Sequence[Diagnosis]) -> list[str]:
    """A name for each run: its own, with as many of its folders as tell it from the others."""
    own = [printable(found.run.name) for found in all_found]
    above = [() if f.run.path is None else f.run.path.parent.parts for f in all_found]
    names = own
    for depth in range(1, max(map(len, above), default=0) + 1):
        count = Counter(names)
        if max(count.values()) == 1:
            break
        names = [
            printable("/".join([*parts[-depth:], name])) if count[before] > 1 and parts else before
            for before, parts, name in zip(names, above, own, strict=True)
        ]
    return names


def side_by_side(all_found: Sequence[Diagnosis]) -> list[tuple[str, ...]]:
    """A table of several runs: name, verdict, where, reward at best and at the end, patterns."""
    rows = [("run", "verdict", "collapsed at", "warned at", "best", "last", "resembles")]
    for name, found in zip(names_of(all_found), all_found, strict=True):
        best = last = "-"
        scored = found.run.scored
        if len(scored) and found.run.kind.word == "rl":
            scores = found.run.signals["reward"][scored]
            mean = trailing(scores, window_size(len(scores)))
            best, last = f"{mean.max():.3g}", f"{mean[-1]:.3g}"
        rows.append(
            (
                name,
                found.judged.verdict,
                "-" if found.judged.collapsed_at is None else f"{found.judged.collapsed_at:g}",
                "-" if found.warned is None else f"{found.warned:g}",
                best,
                last,
                _resembles(found),
            )
        )
    return rows


def _resembles(found: Diagnosis) -> str:
    if found.run.kind.word != "rl":
        return f"not judged: {found.run.kind.title}"
    if found.judged.rule == "guess":
        return f"{found.run.columns['reward']} may not be the reward"
    if found.judged.verdict == "unknown":
        return f"fewer than {ENOUGH} rows with a reward"
    return "; ".join(p.title for p in found.patterns[:2]) or "-"


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """The table in columns, and how often each verdict was given."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    verdicts = [row[1] for row in rows[1:]]
    counts: Mapping[str, int] = Counter(verdicts)
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return "\n".join([*lines, "", f"{len(verdicts)} runs: {said}"])
