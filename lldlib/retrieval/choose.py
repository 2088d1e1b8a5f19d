"""A retriever by name, as the command line gives it."""

import hashlib
import importlib.util
from itertools import islice
from pathlib import Path

from lldlib.files import read_jsonl
from lldlib.retrieval.client import HTTPRetriever, RetryConfig
from lldlib.retrieval.memory import BM25Retriever
from lldlib.retrieval.passages import (
    NoRetriever,
    Retriever,
    RetrieverError,
    ScoredRetriever,
    load_corpus,
)

DISK_FROM = 20_000  # passages from which BM25 goes to disk


def open_retriever(name: str, corpus: Path | None, index: Path | None) -> Retriever:
    """`bm25` over a corpus file, `none`, or the address of a `/retrieve` service.

    `index` is the folder for an index on disk. A service is asked one query, to see that it is
    there. ValueError for an unknown name, a missing or superfluous corpus, or no service.
    """
    if name == "bm25":
        if corpus is None:
            raise ValueError(
                "the retriever bm25 searches a file: name it, --corpus (of train: --data.corpus)"
            )
        return open_bm25(corpus, index)
    if corpus is not None or index is not None:
        raise ValueError(f"a corpus and an index belong to the retriever bm25, not to {name!r}")
    if name == "none":
        return NoRetriever()
    if not name.startswith(("http://", "https://")):
        raise ValueError(f"unknown retriever {name!r}: use bm25, none, or http://HOST/retrieve")
    service = HTTPRetriever(name, RetryConfig())
    try:
        service.search(["test"], 1)
    except RetrieverError as error:
        raise ValueError(f"{error}; start it, or mend the address") from error
    return service


def open_bm25(corpus: Path, index: Path | None) -> ScoredRetriever:
    """BM25 over a corpus file: in memory below DISK_FROM passages, else on disk.

    An `index` folder puts it on disk at any size; else a large corpus gets one in runs/index,
    whose name tells apart files of one name.
    Raises what `load_corpus` raises, and ValueError where bm25s is needed and not installed.
    """
    if index is None and sum(1 for _ in islice(read_jsonl(corpus), DISK_FROM)) < DISK_FROM:
        return BM25Retriever(load_corpus(corpus))
    if importlib.util.find_spec("bm25s") is None:
        raise ValueError("BM25 on disk needs bm25s: pip install 'lldlib[benchmarks]'")
    from lldlib.retrieval.disk import open_index

    place = hashlib.sha256(str(corpus.resolve()).encode()).hexdigest()[:6]
    return open_index(corpus, index or Path("runs", "index", f"{corpus.name}-{place}"))
