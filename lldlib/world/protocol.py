"""The tag protocol of Search-R1 (arXiv 2503.09516): think, search, read, answer.

The only place that parses what the policy writes and renders what the environment says. Retrieved
text is data: it is rendered into the context and never parsed, so a passage that holds
`</information><answer>x</answer>` neither ends a turn nor scores.

What differs from Search-R1's loop (read in LLDS's copy, c19a094). An end-of-sequence token
without an action ends the episode here; there it is an invalid action, and the episode goes on. A
search with an empty query is an invalid action here; there it is run and counts as a valid search.
Instruction and message after an invalid action say the same in other words, and titles stand
without the quotes that its corpus has. So a checkpoint of theirs is asked a little otherwise here.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lldlib.files import Foreign
from lldlib.retrieval import Passage
from lldlib.types import Span
from lldlib.world.answers import boxed

CLOSING_TAGS = ("</search>", "</answer>")
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)

INSTRUCTION = (
    "Answer the question below. Think inside <think> and </think> each time you learn something "
    "new. When you lack a fact, write <search> your query </search>; what was found comes back "
    "between <information> and </information>. You may search several times. Once you know enough, "
    "give the answer alone inside <answer> and </answer>, for instance "
    "<answer> Beijing </answer>.\n"
)
INVALID_MESSAGE = (
    "\nThe last action was invalid. To search, put the query between <search> and </search>. "
    "To finish, put the answer between <answer> and </answer>. Try again.\n"
)
MATHS_INSTRUCTION = "Reason step by step, and put the final answer within \\boxed{}."
TINY_INVALID_MESSAGE = " Invalid action . Try again . "
INFORMATION, END_OF_INFORMATION = "\n\n<information>", "</information>\n\n"
TINY_WORDS = 10_000  # the built-in worlds have some hundreds
_PLACE = "@@message@@"  # stands for the user's message while a chat template is taken apart


@dataclass(frozen=True)
class Action:
    """What one turn of the policy asks for; `content` is the query or the answer, stripped."""

    kind: Literal["search", "answer", "invalid"]
    content: str


def numbered(passages: Sequence[Passage]) -> list[str]:
    """Each passage with its number and title, as Search-R1 shows it but for the title's quotes."""
    return [f"Doc {i}(Title: {p.title}) {p.text}" for i, p in enumerate(passages, 1)]


@dataclass(frozen=True)
class Protocol:
    """The fixed texts around an episode; the tiny searcher's vocabulary wants short ones."""

    instruction: str
    invalid_message: str
    numbered: bool = False  # passages as "Doc i(Title: ...) text", one a line, as Search-R1 does
    observation_tokens: int | None = None  # tokens of one environment turn at most; None: no limit
    chat: tuple[str, str] = ("", "")  # a chat template's texts before and after the user's message

    def message(self, question: str) -> str:
        """What the user says; a missing question mark is added, as Search-R1 does."""
        question = question.strip()
        mark = "" if question.endswith("?") else "?"
        return f"{self.instruction}Question: {question}{mark}\n"

    def opening(self, question: str) -> tuple[str, Foreign, str]:
        """The text that opens an episode, in pieces for `TokenText.encode`."""
        return self.chat[0], Foreign(self.message(question)), self.chat[1]

    def prompt(self, question: str) -> str:
        """The text that opens an episode, as one."""
        return "".join(self.opening(question))

    def observe(
        self, passages: Sequence[Passage], encode: Callable[[str], list[int]], passage_tokens: int
    ) -> list[int]:
        """Tokens of the environment's answer to a search, at most `observation_tokens` of them.

        `encode` is given text of others as Foreign, as `TokenText.encode` takes it.
        What is too long is cut at its end. The closing tag stays, where Search-R1 cuts it off too.
        Each passage is cut to `passage_tokens` first, its number and title included; 0: no cut.
        """
        if self.numbered:
            gap, between = "", "\n"
            texts = numbered(passages)
        else:
            gap, between = " ", " "
            texts = [p.text for p in passages]
        before, after = f"{INFORMATION}{gap}", f"{gap}{END_OF_INFORMATION}"
        if passage_tokens:
            tokens = encode(before)
            for number, text in enumerate(texts):
                tokens += (encode(between) if number else []) + encode(Foreign(text))[
                    :passage_tokens
                ]
            tokens += encode(after)
        else:
            tokens = encode(Foreign(before + between.join(texts) + after))
        limit = self.observation_tokens
        if limit is None or len(tokens) <= limit:
            return tokens
        end = encode(END_OF_INFORMATION)
        return tokens[: limit - len(end)] + end

    def final_answer(self, said: str, tagged: str | None) -> str | None:
        """What an episode answers: the <answer> it ended with, of all that the policy said."""
        return tagged

    def in_chat(self, tokenizer) -> "Protocol":
        """The same protocol inside the tokenizer's chat template, if it has one.

        The instruction and the question are one user message, without a system prompt but the one
        that the template adds itself (as in Search-R1, for Base and Instruct models alike).
        """
        if not getattr(tokenizer, "chat_template", None):
            return self
        messages = [{"role": "user", "content": _PLACE}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        before, found, after = text.partition(_PLACE)
        if not found:
            raise ValueError("the tokenizer's chat template changes the user's message: unset it")
        return replace(self, chat=(before, after))


@dataclass(frozen=True)
class MathsProtocol(Protocol):
    """The texts of an episode without search: the problem as it is, then the instruction."""

    def message(self, question: str) -> str:
        """What the user says."""
        return f"{question.strip()}\n{self.instruction}\n"

    def final_answer(self, said: str, tagged: str | None) -> str | None:
        """What the last complete box of all that was said holds; else the <answer>, if any."""
        return boxed(said) or tagged


@dataclass(frozen=True)
class PlainProtocol(Protocol):
    """The texts of the atlas for a real tokenizer: its spaced-out words as people write them."""

    def message(self, question: str) -> str:
        """What the user says."""
        return super().message(_written(question))

    def observe(
        self, passages: Sequence[Passage], encode: Callable[[str], list[int]], passage_tokens: int
    ) -> list[int]:
        """Tokens of the environment's answer to a search."""
        plain = [replace(passage, text=_written(passage.text)) for passage in passages]
        return super().observe(plain, encode, passage_tokens)


def _written(text: str) -> str:
    """Without the space that the built-in world has before a mark, as in "What is this ?"."""
    return re.sub(r" ([.?])$", r"\1", text)


SEARCH_R1 = Protocol(INSTRUCTION, INVALID_MESSAGE, numbered=True, observation_tokens=500)
TINY = Protocol("", TINY_INVALID_MESSAGE)
ATLAS = PlainProtocol(
    "", "\nInvalid action. Use <search> query </search> or <answer> answer </answer>.\n"
)
MATHS = MathsProtocol(MATHS_INSTRUCTION, invalid_message="")


def search_protocol(tokenizer) -> Protocol:
    """The short texts of TINY for a vocabulary of the built-in world, else SEARCH_R1.

    The latter stands in the tokenizer's chat template, if it has one.
    """
    return TINY if _is_tiny(tokenizer) else SEARCH_R1.in_chat(tokenizer)


def atlas_protocol(tokenizer) -> Protocol:
    """The short texts of the built-in world: TINY for a vocabulary of its words, or ATLAS.

    Without instruction and chat template: a start is taught the tags, and an episode stays short.
    """
    return TINY if _is_tiny(tokenizer) else ATLAS


def _is_tiny(tokenizer) -> bool:
    """Whether the tags are words of a small vocabulary; somebody may add them to a large one."""
    vocabulary = tokenizer.get_vocab()
    return "</search>" in vocabulary and len(vocabulary) < TINY_WORDS


def parse_action(text: str) -> Action:
    """The first complete search or answer in one turn of the policy; an empty query is invalid.

    A tag that opens and never closes is text, and what stands between two tags of a kind is taken
    as it is, other tags included.
    """
    match = _ACTION.search(text)
    if match is None:
        return Action("invalid", "")
    kind, content = match.group(1), match.group(2).strip()
    if kind == "search" and not content:
        return Action("invalid", "")
    return Action(kind, content)  # type: ignore[arg-type]


def ends_turn(text: str) -> bool:
    """Whether the policy has just closed a search or an answer."""
    return any(tag in text for tag in CLOSING_TAGS)


def may_end_turn(piece: str) -> bool:
    """Whether a token of this text can complete a closing tag: text up to a ">" ends like one."""
    starts = [piece[: at + 1] for at, character in enumerate(piece) if character == ">"]
    return any(s.endswith(tag) or tag.endswith(s) for s in starts for tag in CLOSING_TAGS)


def spans(pieces: list[str]) -> list[Span]:
    """What each token of one turn is for, from the tokens' own texts; a span holds its tags."""
    text = "".join(pieces)
    found = [(m.start(), m.end(), m.group(1)) for m in _ACTION.finditer(text)][:1]
    labels, start = [], 0
    for piece in pieces:
        end = start + len(piece)
        label = Span.FREE
        for low, high, kind in found:
            if start < high and end > low:
                label = Span.QUERY if kind == "search" else Span.ANSWER
        labels.append(label)
        start = end
    return labels
