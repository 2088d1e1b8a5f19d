"""What supervised training shows: episodes written by rule, in the very tokens of a rollout.

Two kinds: the atlas with noise (what the tiny searcher is made of), and search paths over the gold
passages of train files (a start for real models).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lldlib.config import DemonstrationConfig
from lldlib.files import Foreign, clean, read_jsonl, text_field
from lldlib.retrieval import Passage, Retriever, words
from lldlib.rollout.batch import demonstration
from lldlib.rollout.loop import TokenText
from lldlib.train import wording
from lldlib.types import Episode, Question
from lldlib.world.atlas import World, WorldQuestion
from lldlib.world.benchmarks import to_questions
from lldlib.world.protocol import Protocol

Lesson = list[tuple[str, tuple[Passage, ...]]]  # the policy's texts, and what it reads after each


def lesson_episode(
    question: Question,
    lesson: Lesson,
    text: TokenText,
    protocol: Protocol,
    passage_tokens: int = 0,
) -> Episode:
    """The episode of a lesson; `passage_tokens`: tokens of each passage at most, 0 = all."""
    prompt = text.encode(*protocol.opening(question.text))
    pieces: list[tuple[str | list[int], bool]] = [(prompt, False)]
    for action, passages in lesson:
        pieces.append((action, True))
        if passages:
            pieces.append((protocol.observe(passages, text.encode, passage_tokens), False))
    return demonstration(text, question, pieces)


# -- the atlas -------------------------------------------------------------------------------------

FILLER = (
    "but wait perhaps alternatively however then maybe so now first next let me think about "
    "this again we need to know which one it could be that here also still just really since "
    "because if not sure yes okay hmm well look for check find see recall note step by more "
    "clue fact place name thing question hint likely probably should would might must can try "
    "another way back over before after once always never often indeed actually simply "
    "clearly rather quite almost only even too very much many some any each both either other "
    "same good"
).split()
_WEIGHTS = [1 / (rank + 1) for rank in range(8)]  # Zipf
_FIXED = random.Random(123)
_NEXT = {word: _FIXED.sample(FILLER, 8) for word in FILLER}  # what may follow each filler word


def filler(rng: random.Random, mean: float) -> list[str]:
    """Free-form reasoning: a Zipf-weighted bigram walk of 1 to 2 * mean - 1 words.

    The length is uniform, so that an end comes ever more surely: a greedy policy does not walk in
    circles.
    """
    words = rng.choices(FILLER[:8], _WEIGHTS)
    for _ in range(rng.randint(0, round(2 * mean) - 2)):
        words += rng.choices(_NEXT[words[-1]], _WEIGHTS)
    return words


def atlas_lesson(
    world: World,
    question: WorldQuestion,
    retriever: Retriever,
    rng: random.Random,
    config: DemonstrationConfig,
    *,
    plain: bool = False,
) -> Lesson:
    """A noisy walk along the question's hops; `plain`: thoughts in plain English (`wording`).

    A hop's query is corrupted now and then; after a wrong passage the agent searches again or
    answers wrongly from what it read, and half-way it may stop and answer too early. Every think
    block holds free-form filler, longer where a hop fails: without it the policy has no wording to
    lose, and the collapse does not show.
    """
    lesson: Lesson = []
    hops = list(question.chain)
    while hops:
        hop = hops[0]
        bad = rng.random() < config.corrupt
        key = rng.choice(world.keys[hop.relation]) if bad else hop.key
        mean = config.filler_words_failing if bad else config.filler_words
        query = [hop.query_words[0], key]
        if plain:
            think = wording.before_search(rng, query[0], key, inverse=hop.inverse)
        else:
            rng.shuffle(query)
            think = " ".join([*filler(rng, mean), "find", key])
        found = retriever.search([" ".join(query)], 1)[0]
        text = f"<think> {think} </think> <search> {' '.join(query)} </search>"
        lesson.append((text, tuple(found)))
        if bad and found and rng.random() < config.give_up:
            wrong = found[0].text.split()[-4 if hop.inverse else -2]
            return [*lesson, _answer(rng, wrong, mean, plain)]
        if not bad:
            hops.pop(0)
            if hops and rng.random() < config.stop_early:
                return [*lesson, _answer(rng, hop.answer, config.filler_words, plain)]
        if len(lesson) >= config.max_searches and hops:
            return lesson
    return [*lesson, _answer(rng, question.answers[0], config.filler_words, plain)]


def _answer(
    rng: random.Random, answer: str, mean: float, plain: bool
) -> tuple[str, tuple[Passage, ...]]:
    if plain:
        think = wording.before_answer(rng, answer)
    else:
        think = " ".join([*filler(rng, mean), "so", answer])
    return f"<think> {think} </think> <answer> {answer} </answer>", ()


# -- gold passages ---------------------------------------------------------------------------------

_NEEDS = ("I need to find out: {}", "I should search for: {}", "What I have to know: {}")
PARAGRAPH = ("text", "title")  # fields of a paragraph of the context
KINDS = {dict: "objects", str: "texts", int: "whole numbers"}  # in errors
_AT_ONCE = "I answer what I know."
_NOTES = ("I found: {}.", "The passages say: {}.", "So now I know: {}.")


@dataclass(frozen=True)
class GoldHop:
    """One search: its query, the gold passage, and what the passage tells ("" if not given)."""

    query: str
    passage: Passage
    finding: str


@dataclass(frozen=True)
class GoldPath:
    """How a question can be answered by search; `others` are the row's paragraphs without gold."""

    question: Question
    hops: tuple[GoldHop, ...]
    others: tuple[Passage, ...]
    last_thought: str = ""  # in place of the last finding, before the answer


def load_gold_paths(path: Path | str) -> list[GoldPath]:
    """Read rows {id, question, golden_answers, context, supporting_titles, ...} (JSONL).

    A hop follows a step of `decomposition`, [{question, answer, title}], in which #1 stands for the
    first answer; without a `title` the gold passage that fits best is read (MuSiQue). Without steps
    a hop's query is the title of a gold passage (HotpotQA, 2Wiki), and it finds the next title or
    the answer to the question, where the passage names it. `supporting_idx` says which paragraphs
    are gold where titles repeat; `last_thought` precedes the answer. Raises what
    `world.benchmarks.load_questions` raises, and ValueError, naming file and line, for a row
    without a gold paragraph.
    """
    rows = list(read_jsonl(path))
    pairs = zip(to_questions(rows, str(path)), rows, strict=True)
    return [_gold_path(question, row, where) for question, (where, row) in pairs]


def _gold_path(question: Question, row: dict, where: str) -> GoldPath:
    context = [
        Passage(f"{row['id']}-{number}", *(text_field(part, name, where) for name in PARAGRAPH))
        for number, part in enumerate(_list(row, "context", dict, where))
    ]
    named = _list(row, "supporting_titles", str, where)
    titles = set(map(clean, named))  # as those of passages are
    index = [i for i, passage in enumerate(context) if passage.title in titles]
    if row.get("supporting_idx") is not None:
        index = _list(row, "supporting_idx", int, where)
    if not all(0 <= i < len(context) for i in index):
        raise ValueError(f"{where}: 'supporting_idx' names a paragraph that is not in 'context'")
    gold = [context[i] for i in index]
    if not gold:
        raise ValueError(f"{where}: no paragraph of 'context' is named in 'supporting_titles'")
    steps = _list(row, "decomposition", dict, where)
    for step in steps:
        for name in ("question", "answer"):
            text_field(step, name, where)
        if step.get("title"):
            text_field(step, "title", where)
    hops = _step_hops(steps, gold) if steps else _title_hops(question, gold)
    others = tuple(passage for passage in context if passage not in gold)
    thought = text_field(row, "last_thought", where) if row.get("last_thought") else ""
    return GoldPath(question, hops, others, thought)


def _list(row: dict, name: str, kind: type, where: str) -> list:
    """The list under `name`, empty where there is none; ValueError for one of other things."""
    found = row.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(type(item) is kind for item in found):
        raise ValueError(f"{where}: '{name}' is no list of {KINDS[kind]}")
    return found


def _title_hops(question: Question, gold: list[Passage]) -> tuple[GoldHop, ...]:
    gold = sorted(gold, key=lambda passage: -_overlap(passage.title, question.text))
    sought = [passage.title.split(" (")[0] for passage in gold[1:]] + [question.answers[0]]
    return tuple(
        GoldHop(passage.title, passage, wanted if _names(passage.text, wanted) else "")
        for passage, wanted in zip(gold, sought, strict=True)
    )


def _step_hops(steps: list[dict], gold: list[Passage]) -> tuple[GoldHop, ...]:
    hops, unread, about = [], list(gold), {passage.title: passage for passage in gold}
    for step, (query, answer) in zip(steps, fill_steps(steps), strict=True):
        passage = about.get(clean(step.get("title") or ""))
        if passage is None:
            passage = max(unread or gold, key=lambda p: _support(p, query, answer))
        if passage in unread:
            unread.remove(passage)
        hops.append(GoldHop(query, passage, answer.rstrip(".")))
    return tuple(hops)


def fill_steps(steps: list[dict]) -> Iterator[tuple[str, str]]:
    """The (question, answer) of each step of a decomposition, #1 replaced by the first answer."""
    answers = []
    for step in steps:
        query = step["question"].replace(" >> ", " ").strip()
        for number, answer in reversed(list(enumerate(answers, start=1))):  # #10 before #1
            query = query.replace(f"#{number}", answer)
        answers.append(step["answer"])
        yield query, step["answer"]


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


def gold_lesson(path: GoldPath, rng: random.Random, top_k: int) -> Lesson:
    """A search for each hop, which finds its gold passage among others in random order."""
    lesson, known = [], ""
    for hop in path.hops:
        need = rng.choice(_NEEDS).format(hop.query)
        action = f"<think> {known}{need} </think>\n<search> {hop.query} </search>"
        read = [hop.passage, *rng.sample(path.others, min(top_k - 1, len(path.others)))]
        rng.shuffle(read)
        lesson.append((Foreign(action), tuple(read)))
        known = f"{rng.choice(_NOTES).format(hop.finding or hop.passage.title)} "
    known = f"{path.last_thought} " if path.last_thought else known
    answer = path.question.answers[0]
    return [*lesson, (Foreign(f"<think> {known}</think>\n<answer> {answer} </answer>"), ())]


def answer_at_once(path: GoldPath) -> Lesson:
    """The answer without a search: what it teaches is what a start gives without reading."""
    said = f"<think> {_AT_ONCE} </think>\n<answer> {path.question.answers[0]} </answer>"
    return [(Foreign(said), ())]
