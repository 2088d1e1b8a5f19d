"""The search tool: passages, what a retriever is, BM25 in memory and on disk, HTTP both ways.

`choose` opens one by name. `disk` and `serve` need the extra `benchmarks`: import them where they
are used. May import: files.
"""

from lldlib.retrieval.memory import BM25Retriever
from lldlib.retrieval.passages import (
    Hit,
    NoRetriever,
    Passage,
    Retriever,
    RetrieverError,
    ScoredRetriever,
    load_corpus,
    read_corpus,
    words,
)

__all__ = [
    "BM25Retriever",
    "Hit",
    "NoRetriever",
    "Passage",
    "Retriever",
    "RetrieverError",
    "ScoredRetriever",
    "load_corpus",
    "read_corpus",
    "words",
]
