"""The search tool: passages, the protocol of a retriever, and BM25 in memory.

`lldlib.retrieval.disk` (BM25 on disk) and `lldlib.retrieval.client` (a service over HTTP) are
imported where they are used: the first needs the extra `benchmarks`.
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
