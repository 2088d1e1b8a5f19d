"""Passages, the corpus loader, and what a rollout needs from a search tool."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from lldlib.files import clean, read_jsonl, text_field

# A leading "." or "+" belongs to the word when nothing but space or a bracket stands before it, so
# ".th" and "+66" are not "th" and "66", while "end.Next", "U.S." and "...so" split at their dots.
_WORD = re.compile(r"(?<![\w.+])[.+]\w+|\w+")


@dataclass(frozen=True)
class Passage:
    """One unit of retrieval, cleaned; title and text are both indexed."""

    id: str
    text: str
    title: str = ""

    def __post_init__(self):
        for name in ("id", "text", "title"):
            object.__setattr__(self, name, clean(getattr(self, name)))


class Hit(NamedTuple):
    """A passage that was found, with its score (larger is better; the unit is the retriever's)."""

    passage: Passage
    score: float


class RetrieverError(RuntimeError):
    """The search tool gave no result and stays down; the rollouts that asked end there."""


@runtime_checkable  # so that annotations can be checked while tests run
class Retriever(Protocol):
    """What a rollout needs from a search tool."""

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """At most `k` passages for each query, best first; an empty list where nothing matches.

        Raises RetrieverError when the service is down for good.
        """
        ...


@runtime_checkable
class ScoredRetriever(Retriever, Protocol):
    """A retriever that also tells its scores, as serving it over HTTP needs."""

    def scored(self, queries: list[str], k: int) -> list[list[Hit]]:
        """As `search`, with the score of each passage; ValueError for k < 1."""
        ...

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """The passages that `scored` finds; raises what it raises."""
        return [[hit.passage for hit in hits] for hits in self.scored(queries, k)]


class NoRetriever:
    """A search tool that finds nothing: what a policy knows without search."""

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """An empty list for each query."""
        return [[] for _ in queries]


def words(text: str) -> list[str]:
    """Lower-cased words without punctuation, except a leading "." or "+" (".th", "+66")."""
    return _WORD.findall(text.lower())


def check_k(k: int) -> None:
    """ValueError unless at least one passage is asked for."""
    if k < 1:
        raise ValueError(f"k is {k}: ask for at least one passage")


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the `k` largest scores over 0, best first; ties keep their order."""
    if k < len(scores):  # a full sort of a million scores takes ten times as long
        least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero((scores >= least) & (scores > 0))
    else:
        candidates = np.flatnonzero(scores > 0)
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of a document: '"Title"\\ntext'; a single line is text without a title."""
    first, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    title = first.strip()
    quoted = len(title) > 1 and title[0] == title[-1] == '"'
    return title[1:-1] if quoted else title, text


def join_contents(title: str, text: str) -> str:
    """What `split_contents` takes apart; line breaks of a title become spaces."""
    return f'"{" ".join(title.splitlines())}"\n{text}'


def read_corpus(path: Path | str) -> Iterator[Passage]:
    """Yield the passages of JSONL rows {id, title, text} (gzip where the name ends in .gz).

    Rows {id, contents}, the title's line before the text, are taken too (Search-R1's wiki-18); a
    single line is text without a title.

    Raises FileNotFoundError for a missing file, and ValueError, naming file and line, for a
    malformed line, a missing field or a repeated id; and for a file without passages.
    """
    seen: set[str] = set()
    for where, row in read_jsonl(path):
        name = text_field(row, "id", where)
        if "contents" in row and "text" not in row:  # Search-R1's form: "Title"\ntext
            title, text = split_contents(text_field(row, "contents", where))
        else:
            title, text = (text_field(row, field, where) for field in ("title", "text"))
        if name in seen:
            raise ValueError(f"{where}: id '{name}' is already taken; make ids unique")
        seen.add(name)
        yield Passage(name, text, title)
    if not seen:
        raise ValueError(f"{path}: holds no passage")


def load_corpus(path: Path | str) -> list[Passage]:
    """All passages of a corpus file in memory; raises what `read_corpus` raises."""
    return list(read_corpus(path))
