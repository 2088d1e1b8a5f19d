"""What an agent says, coloured by likelihood; in the lab, now and to the same few questions."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets

from lldlib.runs.folder import Run
from lldlib.show.colouring import COLOURINGS
from lldlib.show.tokens import LOGP, Tokens, page_token, record_tokens, token_page, token_tip

Record = Mapping[str, Any]

# the number of the word under the mouse stands at the foot of its box, where it hides nothing
STYLE = """<style>
.lab-says {font: 13px/1.5 sans-serif}
.lab-two {display: flex; flex-wrap: wrap; gap: 8px; color: #000}
.lab-two > div {flex: 1 1 330px; min-height: 120px; padding: 4px 8px 20px; background: #fff;
  border: 1px solid #bbb; position: relative; font: 12px/1.8 monospace}
.lab-two .q {font: 13px/1.5 sans-serif; margin-bottom: 2px}
.lab-two .t {background: var(--logp-bg); color: var(--logp-ink); padding: 0 3px;
  border: 1px solid #777; border-radius: 2px}
.lab-two .e {padding: 0 3px; border: 1px dotted #888; color: #666; font-style: italic}
.lab-two .tip {display: none; position: absolute; left: 8px; bottom: 2px; color: #000}
.lab-two .t:hover, .lab-two .t:focus {outline: 2px solid #D55E00}
.lab-two .t:hover .tip, .lab-two .t:focus .tip {display: block}
</style>"""


class TokenView(ipywidgets.HTML):
    """Trajectories painted by log-prob, by change, by open gate or by Lp-Reg's protection.

    `rows` are (title, tokens); a colouring of which no token has the number is left out. Hover over
    a token, or reach it with Tab, for its numbers: plain HTML and CSS, which needs no kernel.
    `height` is in pixels. Raises ValueError without tokens.
    """

    def __init__(self, rows: Sequence[tuple[str, Tokens]], height: int):
        super().__init__(token_page(rows, height, COLOURINGS, token_tip))


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
    if record["reward"] >= 1:
        return f"✓ right, {record['answer']}"
    given = f"✗ wrong, {record['answer']}" if record["answer"] else "✗ no answer"
    return f"{given} (wanted {wanted})" if wanted else given


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


def said_html(name: str, run: Run) -> str:
    """What a run says now, its own words painted by log-prob."""
    records = said_now(run)
    if not records:
        return f"<p>{html.escape(name)} has said nothing yet.</p>"
    fixed = bool(run.questions)
    batches = records[0]["step"] + (0 if fixed else 1)
    when = f"after {batches} batches" if batches else "before the first batch"
    what = "always the same two questions" if fixed else "two episodes of its last batch"
    key = f"colour: {LOGP.name} in nats, {LOGP.colours}"
    head = f"<b>What {html.escape(name)} says {when}</b> ({what}; {key})"
    episodes = "".join(f"<div>{_episode(record)}</div>" for record in records)
    return f'{STYLE}<div class="lab-says">{head}<div class="lab-two">{episodes}</div></div>'


def _episode(record: Record) -> str:
    """One episode: the question and its outcome, then what the agent and the search said."""
    question = record["question"]
    title = f'<div class="q">{html.escape(question)}<br><b>{html.escape(outcome(record))}</b></div>'
    try:
        tokens = [token for token in record_tokens(record) if token.role != "prompt"]
    except ValueError:  # tokens that are no words: the text alone
        turns = (turn["text"] for turn in record["turns"] if turn["role"] != "prompt")
        return title + html.escape(" ".join(turns))
    return title + " ".join(page_token(token, (LOGP,)) for token in tokens)


def _of(records: Sequence[Record], step: int) -> list[Record]:
    return [record for record in records if record["step"] == step]
