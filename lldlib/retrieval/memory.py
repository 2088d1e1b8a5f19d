"""BM25 in memory, for corpora of up to some tens of thousands of passages."""

import math
from collections.abc import Sequence
from functools import lru_cache

from rank_bm25 import BM25Okapi

from lldlib.retrieval.passages import Hit, Passage, ScoredRetriever, best, check_k, words

CACHE_SIZE = 4096  # queries whose results are kept
CACHE_BYTES = 2**25  # for scores of single words, a search's slowest part


class _BM25(BM25Okapi):
    """Okapi BM25 with idf(w) = ln(1 + (N - n_w + 0.5) / (n_w + 0.5)) > 0, as Lucene has it.

    The plain Okapi idf is zero or negative for a word in half of the passages or more, which would
    make a match indistinguishable from no match.
    """

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size
        self.idf = {word: math.log(1 + (size - n + 0.5) / (n + 0.5)) for word, n in nd.items()}


class BM25Retriever(ScoredRetriever):
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
        self._cached = lru_cache(CACHE_SIZE)(self._rank)
        words_kept = max(8, CACHE_BYTES // (8 * len(documents)))
        self._of_word = lru_cache(words_kept)(lambda word: self._bm25.get_scores([word]))

    def scored(self, queries: list[str], k: int) -> list[list[Hit]]:
        """The `k` best passages that share a word with each query and their scores, best first.

        A query without a known word gives an empty list. Raises ValueError for k < 1.
        """
        check_k(k)
        return [list(self._cached(query, k)) for query in queries]

    def _rank(self, query: str, k: int) -> tuple[Hit, ...]:
        known = [word for word in words(query) if word in self._bm25.idf]
        if not known:
            return ()
        scores = sum(map(self._of_word, known))
        return tuple(Hit(self.passages[i], float(scores[i])) for i in best(scores, k))
