"""The shuffled atlas: no true pair, a library that misses, held-out questions in two halves."""

from collections import Counter

import pytest

from lldlib.retrieval import BM25Retriever
from lldlib.world.atlas import World
from lldlib.world.shuffled import MissingRetriever, exam_questions, planet

TRUE = {(f.relation, f.entity, f.value) for f in World.load().facts}


def test_a_planet_shares_no_fact_with_the_earth_and_keeps_its_words():
    world = planet(5)
    facts = {(f.relation, f.entity, f.value) for f in world.facts}
    assert not facts & TRUE and len(facts) == len(TRUE)
    assert {fact.split for fact in world.facts} == {"train"}
    assert world.facts == planet(5).facts != planet(6).facts


def searches(misses: float, queries: list[str], k: int = 1) -> list[list[str]]:
    tool = MissingRetriever(BM25Retriever(planet(1).passages("train")), misses, seed=3)
    return [[p.id for p in found] for found in tool.search(queries, k)]


def test_a_library_that_never_misses_is_the_inner_one():
    assert searches(0.0, ["capital Norway", "symbol Gold"]) == [["capital-Norway"], ["symbol-Gold"]]


def test_misses_come_as_often_as_said_and_anew_for_every_search():
    found = searches(0.35, ["capital Norway"] * 2000)
    right = sum(ids == ["capital-Norway"] for ids in found)
    assert (
        1240 < right < 1370
    )  # 1302 expected (a random passage is right once in 431), deviation 21
    wrong = Counter(ids[0] for ids in found if ids != ["capital-Norway"])
    assert len(wrong) > 300  # any passage may come


def test_luck_follows_seed_and_query_not_the_order_of_searches():
    asked = ["capital Norway", "symbol Gold"] * 50
    ordered = sorted(asked)
    first = sorted(zip(asked, map(str, searches(0.5, asked)), strict=True))
    assert first == sorted(zip(ordered, map(str, searches(0.5, ordered)), strict=True))


def test_a_miss_gives_as_many_passages_as_were_asked_for():
    (found,) = searches(1.0, ["capital Norway"], k=3)
    assert len(set(found)) == 3


def test_a_probability_is_between_0_and_1():
    with pytest.raises(ValueError, match=r"misses is 1\.2"):
        searches(1.2, [])


def test_validation_and_test_halves_share_no_question_and_ask_true_facts():
    halves = [exam_questions((1, 2, 3, 4), half) for half in ("validation", "test")]
    for half in halves:
        assert Counter(q.hops for q in half) == {1: 32, 2: 32, 3: 32, 4: 32}
        for question in half:
            facts = {(h.fact.relation, h.fact.entity, h.fact.value) for h in question.chain}
            assert facts <= TRUE
    assert not {q.id for q in halves[0]} & {q.id for q in halves[1]}
    assert halves[0] == exam_questions((1, 2, 3, 4), "validation")
    few = exam_questions((1, 2), "test", limit=8)
    assert Counter(q.hops for q in few) == {1: 8, 2: 8} and set(few) <= set(halves[1])
