"""BM25 on disk agrees with BM25 in memory, and its index follows its corpus."""

import importlib
import os
import shutil

import numpy as np
import pytest
from benchmark_files import passage_row, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lldlib.retrieval import BM25Retriever, NoRetriever, Passage, Retriever, ScoredRetriever
from lldlib.retrieval import choose as choosing
from lldlib.retrieval.choose import open_bm25, open_retriever
from lldlib.retrieval.passages import best, load_corpus

pytest.importorskip("bm25s", reason="bm25s is not installed (extra `benchmarks`)")
disk = importlib.import_module("lldlib.retrieval.disk")
LETTERS = "abcdefgh"
ROWS = [
    passage_row(
        f"p{i}", " ".join(LETTERS[(i * j) % 8] for j in range(1, 4 + i % 5)), LETTERS[i % 8]
    )
    for i in range(40)
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("corpus") / "c.jsonl.gz", ROWS)


@pytest.fixture(scope="module")
def both(corpus, tmp_path_factory):
    index = disk.open_index(corpus, tmp_path_factory.mktemp("index") / "c")
    return index, BM25Retriever(load_corpus(corpus))


@pytest.mark.parametrize("query", ["a", "b c", "h h a", "d zzz", "", "zzz"])
def test_scores_are_those_in_memory_up_to_a_factor(both, query):
    on_disk, in_memory = both
    found = [r.scored([query], 100)[0] for r in both]
    assert isinstance(on_disk, ScoredRetriever) and isinstance(in_memory, ScoredRetriever)
    scores = [{hit.passage: hit.score for hit in hits} for hits in found]
    assert scores[0].keys() == scores[1].keys()
    assert bool(scores[0]) == (query not in ("", "zzz"))
    for passage, score in scores[0].items():  # rank-bm25 keeps the constant factor k1 + 1 = 2.5
        assert scores[1][passage] == pytest.approx(2.5 * score, rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(LETTERS + " ", max_size=12), max_size=3), st.integers(1, 50))
def test_any_query_finds_at_most_k_and_one_list_each(both, queries, k):
    found = both[0].search(queries, k)
    assert len(found) == len(queries) and all(len(row) <= k for row in found)
    assert [[p.id for p in row] for row in found] == [
        [hit.passage.id for hit in row] for row in both[0].scored(queries, k)
    ]


def test_k_below_one_is_refused(both):
    with pytest.raises(ValueError, match="k is 0"):
        both[0].search(["a"], 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=30), st.integers(1, 9))
def test_best_is_a_stable_sort_of_what_scores(scores, k):
    expected = sorted((i for i, s in enumerate(scores) if s > 0), key=lambda i: (-scores[i], i))
    assert best(np.array(scores), k).tolist() == expected[:k]


def test_the_index_is_made_once_and_again_when_the_corpus_changes(tmp_path, monkeypatch):
    made = []
    build = disk.build_index
    monkeypatch.setattr(disk, "build_index", lambda *a: (made.append(1), build(*a)))
    path = write_rows(tmp_path / "c.jsonl", [passage_row("x", "red cat"), passage_row("y", "dog")])
    for _ in range(2):
        found = disk.open_index(path, tmp_path / "i").search(["cat"], 1)
        assert found == [[Passage("x", "red cat")]]
    assert len(made) == 1
    write_rows(path, [passage_row("z", "red cat"), passage_row("y", "dog")])
    os.utime(path, ns=(1, 1))
    assert disk.open_index(path, tmp_path / "i").search(["cat"], 1)[0][0].id == "z"
    assert len(made) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl", "i"]  # nothing half-made stays


@pytest.mark.parametrize(
    ("rows", "error"),
    [([passage_row("x", "cat")] * 2, "c.jsonl:2: id 'x'"), ([passage_row("x", "?!")], "no word")],
)
def test_a_bad_corpus_leaves_no_index(tmp_path, rows, error):
    path = write_rows(tmp_path / "c.jsonl", rows)
    with pytest.raises(ValueError, match=error.replace("no word", "no passage holds a word")):
        disk.open_index(path, tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_a_missing_corpus_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl: no such file"):
        disk.open_index(tmp_path / "none.jsonl", tmp_path / "i")


def test_size_chooses_between_memory_and_disk(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_bm25(corpus, None), BM25Retriever)
    assert isinstance(open_bm25(corpus, tmp_path / "i"), disk.DiskRetriever)
    monkeypatch.setattr(choosing, "DISK_FROM", 40)
    assert isinstance(open_bm25(corpus, None), disk.DiskRetriever)
    # a corpus of the same name elsewhere does not take its place
    (tmp_path / "other").mkdir()
    shutil.copy(corpus, tmp_path / "other")
    open_bm25(tmp_path / "other" / corpus.name, None)
    made = [path.name for path in (tmp_path / "runs" / "index").iterdir()]
    assert len(made) == 2 and all(name.startswith("c.jsonl.gz-") for name in made)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="BM25 on disk needs bm25s"):
        open_bm25(corpus, None)


@pytest.mark.parametrize(
    ("name", "with_corpus", "message"),
    [
        ("bm25", False, "name it, --corpus"),
        ("none", True, "belong to the retriever bm25, not to 'none'"),
        ("dense", False, "unknown retriever 'dense'"),
    ],
)
def test_a_wrong_choice_is_refused(corpus, name, with_corpus, message):
    with pytest.raises(ValueError, match=message):
        open_retriever(name, corpus if with_corpus else None, None)


def test_none_finds_nothing():
    nothing = open_retriever("none", None, None)
    assert isinstance(nothing, NoRetriever) and isinstance(nothing, Retriever)
    assert nothing.search(["a", "b"], 3) == [[], []]
