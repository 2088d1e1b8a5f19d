"""BM25 with the index and the passages on disk, memory-mapped (extra `benchmarks`: bm25s)."""

import json
from dataclasses import asdict
from pathlib import Path

import bm25s
from tqdm import tqdm

from lldlib.files import load_json, remade_folder, writing
from lldlib.retrieval.passages import (
    Hit,
    Passage,
    ScoredRetriever,
    best,
    check_k,
    read_corpus,
    words,
)

SOURCE = "source.json"  # which corpus file an index was made from
MADE = ("*.index.json", "*.index.npy", "corpus.jsonl", "corpus.mmindex.json")


class DiskRetriever(ScoredRetriever):
    """Lexical search by the scores of `BM25Retriever` up to a constant factor, in float32.

    Score ties keep the order of the corpus. The vocabulary is in memory; scores and passages stay
    on disk and are read where a query needs them.
    """

    def __init__(self, folder: Path | str) -> None:
        """Open an index that `build_index` made."""
        self._bm25 = bm25s.BM25.load(
            folder, mmap=True, load_corpus=True, show_progress=False, verbosity=0
        )

    def scored(self, queries: list[str], k: int) -> list[list[Hit]]:
        """As `BM25Retriever.scored`."""
        check_k(k)
        return [self._rank(query, k) for query in queries]

    def _rank(self, query: str, k: int) -> list[Hit]:
        known = [word for word in words(query) if word in self._bm25.vocab_dict]
        if not known:
            return []
        scores = self._bm25.get_scores(known)
        corpus = self._bm25.corpus  # rows of {id, text, title}
        return [Hit(Passage(**corpus[int(i)]), float(scores[i])) for i in best(scores, k)]


def open_index(corpus: Path | str, folder: Path | str) -> DiskRetriever:
    """The index of a corpus file in `folder`; made there first where it is absent or out of date.

    Out of date: the file's path, size or time of change is another than when the index was made.
    Raises what `read_corpus` raises, and ValueError for a folder that holds anything but an index.
    """
    corpus, folder = Path(corpus), Path(folder)
    try:
        made_from = load_json((folder / SOURCE).read_bytes())
    except (OSError, ValueError):
        made_from = None
    if made_from is None or made_from != _fingerprint(corpus):
        build_index(corpus, folder)
    return DiskRetriever(folder)


def build_index(corpus: Path | str, folder: Path | str) -> None:
    """Index title and text of a corpus file into `folder`, which exists whole or not at all.

    Needs memory for the token numbers of all passages (about 8 bytes a word, and as much again for
    the scores). Raises what `read_corpus` raises, and ValueError where no passage holds a word or
    the folder holds anything but an index: only an index's own files are ever replaced.
    """
    corpus, folder = Path(corpus), Path(folder)
    source = _fingerprint(corpus)
    with remade_folder(folder, "an index", SOURCE, *MADE) as fresh:
        vocabulary: dict[str, int] = {}
        numbers = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words(f"{p.title} {p.text}")]
            for p in tqdm(read_corpus(corpus), desc=f"indexing {corpus.name}", disable=None)
        ]
        if not vocabulary:
            raise ValueError(f"{corpus}: no passage holds a word")
        index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        index.index((numbers, vocabulary), create_empty_token=False, show_progress=False)
        with writing(folder):
            index.save(fresh, corpus=map(asdict, read_corpus(corpus)), show_progress=False)
            (fresh / SOURCE).write_text(json.dumps(source), encoding="utf-8")


def _fingerprint(corpus: Path) -> dict[str, str | int] | None:
    if not corpus.is_file():
        return None  # reading it will say so
    status = corpus.stat()
    path = str(corpus.resolve())
    return {"corpus": path, "bytes": status.st_size, "changed": status.st_mtime_ns}
