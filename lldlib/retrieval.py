"""Passages and the search tool: BM25 in memory behind a protocol that any retriever can meet."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from rank_bm25 import BM25Okapi

from lldlib.tasks import read_jsonl, text_field

CACHE_SIZE = 4096  # queries whose results are kept

# A leading "." or "+" belongs to the word when nothing but space or a bracket stands before it, so
# ".th" and "+66" are not "th" and "66", while "end.Next", "U.S." and "...so" split at their dots.
_WORD = re.compile(r"(?<![\w.+])[.+]\w+|\w+")


@dataclass(frozen=True)
class Passage:
    """One unit of retrieval; title and text are both indexed."""

    id: str
    text: str
    title: str = ""


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


def words(text: str) -> list[str]:
    """Lower-cased words without punctuation, except a leading "." or "+" (".th", "+66")."""
    return _WORD.findall(text.lower())


class _BM25(BM25Okapi):
    """Okapi BM25 with idf(w) = ln(1 + (N - n_w + 0.5) / (n_w + 0.5)) > 0, as Lucene has it.

    The plain Okapi idf is zero or negative for a word in half of the passages or more, which would
    make a match indistinguishable from no match.
    """

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size
        self.idf = {word: math.log(1 + (size - n + 0.5) / (n + 0.5)) for word, n in nd.items()}


class BM25Retriever:
    """Lexical search over passages held in memory; score ties keep the order of the passages."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        """Index title and text; ValueError for no passages, a repeated id, or no word at all."""
        self.passages = list(passages)
        if not self.passages:
            raise ValueError("no passages to index")
        if len({passage.id for passage in self.passages}) < len(self.passages):
            raise ValueError("two passages share an id; make ids unique")
        documents = [words(f"{passage.title} {passage.text}") for passage in self.passages]
        if not any(documents):
            raise ValueError("no passage holds a word")
        self._bm25 = _BM25(documents)
        self._cache: dict[tuple[str, int], tuple[Passage, ...]] = {}

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """The `k` best passages that share a word with each query, best first.

        A query without a known word gives an empty list. Raises ValueError for k < 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one passage")
        return [list(self._lookup(query, k)) for query in queries]

    def _lookup(self, query: str, k: int) -> tuple[Passage, ...]:
        key = (query, k)
        if key not in self._cache:
            if len(self._cache) >= CACHE_SIZE:
                del self._cache[next(iter(self._cache))]  # the oldest
            self._cache[key] = self._rank(query, k)
        return self._cache[key]

    def _rank(self, query: str, k: int) -> tuple[Passage, ...]:
        known = [word for word in words(query) if word in self._bm25.idf]
        if not known:
            return ()
        scores = self._bm25.get_scores(known)
        order = np.argsort(-scores, kind="stable")[:k]
        return tuple(self.passages[i] for i in order if scores[i] > 0)


def load_corpus(path: Path | str) -> list[Passage]:
    """Read passages from JSONL rows {id, title, text} (gzip where the name ends in .gz).

    Raises FileNotFoundError for a missing file, and ValueError, naming file and line, for a
    malformed line, a missing field or a repeated id; and for a file without passages.
    """
    passages: dict[str, Passage] = {}
    for where, row in read_jsonl(path):
        name, title, text = (text_field(row, field, where) for field in ("id", "title", "text"))
        if name in passages:
            raise ValueError(f"{where}: id '{name}' is already taken; make ids unique")
        passages[name] = Passage(name, text, title)
    if not passages:
        raise ValueError(f"{path}: holds no passage")
    return list(passages.values())
