"""Search trajectories from the gold passages of multi-hop train files (HotpotQA, 2Wiki, MuSiQue).

A hop's query is the subject and the relation of a fact where the row has facts (2Wiki), else the
data set's own sub-question (MuSiQue), else the title of a gold passage; what it finds is the fact's
object, the sub-question's answer, or the next title or the answer to the question, where the
passage names it. What is read is the gold passage among other paragraphs of the row, in random
order.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lldlib.files import read_jsonl
from lldlib.retrieval import Passage, words
from lldlib.train.facts import Chain, by_year, row_chains, year
from lldlib.train.recombine import AskAgain, fill_steps, step_rows
from lldlib.types import Question
from lldlib.world.questions import to_questions

_NEEDS = ("I need to find out: {}", "I should search for: {}", "What I have to know: {}")
_AT_ONCE = "I answer what I know."
_NOTES = ("I found: {}.", "The passages say: {}.", "So now I know: {}.")


@dataclass(frozen=True)
class Hop:
    """One search: its query, the gold passage, and what the passage tells ("" if not given)."""

    query: str
    passage: Passage
    finding: str


@dataclass(frozen=True)
class GoldPath:
    """How a question can be answered by search; `others` are the row's paragraphs without gold."""

    question: Question
    hops: tuple[Hop, ...]
    others: tuple[Passage, ...]
    gathered: str = ""  # what a comparison's last thought holds in place of the last finding


def load_gold_paths(path: Path | str) -> list[GoldPath]:
    """Read rows {id, question, golden_answers, context, supporting_titles, ...}.

    `supporting_idx` (MuSiQue) says which paragraphs are gold where titles repeat; a `decomposition`
    is [{question, answer}], in which #1 stands for the first answer; `evidences` (2Wiki) are
    [subject, relation, object]. Raises what `tasks.load_questions` raises, and ValueError, naming
    file and line, for a row without a gold paragraph.
    """
    return _gold_paths(list(read_jsonl(path)), str(path))


def more_gold_paths(files: Iterable[Path | str], asked_again: int, seed: int) -> list[GoldPath]:
    """Paths of the rows that `recombine` makes of the files' own; raises as `load_gold_paths`."""
    rows = [row for file in files for _, row in read_jsonl(file)]
    made = step_rows(rows) + AskAgain(rows).rows(asked_again, seed)
    return _gold_paths([(row["id"], row) for row in made], "made rows") if made else []


def _gold_paths(rows: list[tuple[str, dict]], source: str) -> list[GoldPath]:
    found = []
    for question, (where, row) in zip(to_questions(rows, source), rows, strict=True):
        context = [
            Passage(f"{row['id']}-{number}", paragraph["text"], paragraph["title"])
            for number, paragraph in enumerate(row.get("context", []))
        ]
        titles = row.get("supporting_titles", [])
        index = row.get("supporting_idx")
        if index is None:
            index = [i for i, passage in enumerate(context) if passage.title in titles]
        gold = [context[i] for i in index]
        if not gold:
            raise ValueError(f"{where}: no paragraph of 'context' is named in 'supporting_titles'")
        others = tuple(passage for passage in context if passage not in gold)
        chains = row_chains(row)
        hops = _fact_hops(chains, gold) if chains else _hops(question, row, gold)
        compares = chains is not None and len(chains) == 2
        found.append(GoldPath(question, hops, others, _gather(*chains) if compares else ""))
    return found


def _fact_hops(chains: list[Chain], gold: list[Passage]) -> tuple[Hop, ...]:
    about = {passage.title: passage for passage in gold}
    facts = [fact for chain in chains for fact in chain]
    return tuple(
        Hop(f"{fact.subject} {fact.relation}", about[fact.paragraph[0]], fact.object)
        for fact in facts
    )


def _gather(*chains: Chain) -> str:
    """What both sides of a comparison came to, then the two ends alone, side by side, compared."""
    sides = [", ".join([c[0].subject, *(fact.object for fact in c)]) for c in chains]
    ends, ordered = [year(c) or c[-1].object for c in chains], by_year(*chains)
    if ordered is None:
        same = "the same" if ends[0] == ends[1] else "not the same"
        return f"{'; '.join(sides)}. {ends[0]} and {ends[1]} are {same}."
    told_by = zip(ordered, ("earlier", "later"), strict=True)
    told = "; ".join(f"{year(c)} is {word}: {c[0].subject}" for c, word in told_by)
    return f"{'; '.join(sides)}. Of {ends[0]} and {ends[1]}, {told}."


def _hops(question: Question, row: dict, gold: list[Passage]) -> tuple[Hop, ...]:
    steps = row.get("decomposition")
    if not steps:
        gold = sorted(gold, key=lambda passage: -_overlap(passage.title, question.text))
        sought = [passage.title.split(" (")[0] for passage in gold[1:]] + [question.answers[0]]
        return tuple(
            Hop(passage.title, passage, wanted if _names(passage.text, wanted) else "")
            for passage, wanted in zip(gold, sought, strict=True)
        )
    hops, unread = [], list(gold)
    for query, answer in fill_steps(steps):
        passage = max(unread or gold, key=lambda p: _support(p, query, answer))
        if passage in unread:
            unread.remove(passage)
        hops.append(Hop(query, passage, answer.rstrip(".")))
    return tuple(hops)


def _overlap(part: str, whole: str) -> float:
    """The share of the words of `part` that stand in `whole`."""
    mine = set(words(part))
    return len(mine & set(words(whole))) / max(1, len(mine))


def _support(passage: Passage, query: str, answer: str) -> float:
    """How well a passage fits a hop: it should speak of the query and hold the answer."""
    text = f"{passage.title} {passage.text}"
    return _overlap(query, text) + _overlap(answer, text) + _overlap(passage.title, query)


def _names(text: str, part: str) -> bool:
    """Whether `part` stands in the text as words of its own, in any case."""
    return f" {' '.join(words(part))} " in f" {' '.join(words(text))} "


def demonstrate(
    path: GoldPath, rng: random.Random, top_k: int
) -> list[tuple[str, tuple[Passage, ...]]]:
    """The episode after the prompt: each text of the policy, and the passages it then reads.

    Nothing is read after the last text, which is the answer.
    """
    turns, known = [], ""
    for hop in path.hops:
        need = rng.choice(_NEEDS).format(hop.query)
        action = f"<think> {known}{need} </think>\n<search> {hop.query} </search>"
        read = [hop.passage, *rng.sample(path.others, min(top_k - 1, len(path.others)))]
        rng.shuffle(read)
        turns.append((action, tuple(read)))
        known = f"{rng.choice(_NOTES).format(hop.finding or hop.passage.title)} "
    known, answer = f"{path.gathered} " if path.gathered else known, path.question.answers[0]
    turns.append((f"<think> {known}</think>\n<answer> {answer} </answer>", ()))
    return turns


def answer_at_once(path: GoldPath) -> list[tuple[str, tuple[Passage, ...]]]:
    """The episode of a policy that is taught the answer without a search, as `demonstrate` has it.

    What a policy trained on it reaches is what the warm start gives without reading.
    """
    return [(f"<think> {_AT_ONCE} </think>\n<answer> {path.question.answers[0]} </answer>", ())]
