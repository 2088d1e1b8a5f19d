"""What an agent says, coloured by likelihood; in the lab, now and to the same few questions."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets

from lldlib.runs.folder import Run
from lldlib.show.tokens import TokenView, page, record_tokens

HEIGHT = 190  # pixels
Record = Mapping[str, Any]


def transcripts(records: Mapping[str, Mapping[str, Any]], height: int = 320) -> TokenView:
    """Lines of rollouts.jsonl or questions.jsonl under names of your own, painted by log-prob.

    `height` is in pixels.
    """
    rows = [
        (f"{name}: {outcome(record)}", record_tokens(record)) for name, record in records.items()
    ]
    return TokenView(rows, height)


def outcome(record: Mapping[str, Any]) -> str:
    """What an episode answered, and whether that is right, in words."""
    wanted = " or ".join(record["answers"])
    given = record["answer"] or "nothing"
    if record["reward"] >= 1:
        return f"✓ right, {given}"
    return f"✗ wrong, {given} (wanted {wanted})"


def pair(records: Sequence[Record]) -> list[Record]:
    """Of these episodes the first right one and the first wrong one, as far as there are."""
    right = [record for record in records if record["reward"] >= 1][:1]
    return right + [record for record in records if record["reward"] < 1][:1]


def said_now(run: Run) -> list[Record]:
    """The newest answers of a run to two questions, one right at first and one wrong.

    They are its greedy answers to the fixed questions; a run that does not ask them gives a right
    and a wrong episode of its last batch, whose questions change.
    """
    if run.questions:
        first, last = (run.questions[place]["step"] for place in (0, -1))
        followed = [record["question"] for record in pair(_of(run.questions, first))]
        newest = {record["question"]: record for record in _of(run.questions, last)}
        return [newest[question] for question in followed]
    rollouts = run.rollouts
    return pair(_of(rollouts, rollouts[-1]["step"])) if rollouts else []


def said_html(name: str, run: Run, height: int = HEIGHT) -> str:
    """What a run says now, its words painted by log-prob."""
    records = said_now(run)
    if not records:
        return f"<p>{html.escape(name)} has said nothing yet.</p>"
    fixed = bool(run.questions)
    batches = records[0]["step"] + (0 if fixed else 1)
    when = f"after {batches} batches" if batches else "before the first batch"
    what = "to the same questions, its likeliest words" if fixed else "in its last batch, sampled"
    head = f"What {name} says {when}, {what}"
    try:
        rows = [(outcome(record), record_tokens(record)) for record in records]
    except ValueError:  # tokens that are no words: the text alone
        return _plain(head, records)
    return f'<div class="lab-says"><b>{html.escape(head)}</b>{page(rows, height)}</div>'


class Says(ipywidgets.HTML):
    """The newest answers of a run; `show` takes another run, or the same one later."""

    def show(self, name: str, run: Run) -> None:
        """Show what it says now."""
        self.value = said_html(name, run)


def _of(records: Sequence[Record], step: int) -> list[Record]:
    return [record for record in records if record["step"] == step]


def _plain(head: str, records: Sequence[Record]) -> str:
    parts = [f"<b>{html.escape(head)}</b>"]
    for record in records:
        text = " ".join(turn["text"] for turn in record["turns"])
        parts.append(f"<p>{html.escape(outcome(record))}<br>{html.escape(text)}</p>")
    return f'<div class="lab-says">{"".join(parts)}</div>'
