"""The built-in world: its facts, passages, questions, permuted copies and build script."""

import hashlib
import random
import re
from collections import Counter
from importlib.metadata import PackageNotFoundError

import helpers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lldlib.config import data_dir
from lldlib.retrieval import BM25Retriever
from lldlib.world.atlas import RELATIONS, Fact, World, WorldQuestion, vocabulary

FOLDER = data_dir() / "world"
WORLD = World.load()
SMALL = World(
    [
        Fact("capital", "Laos", "Vientiane", "train"),
        Fact("domain", "Laos", ".la", "train"),
        Fact("neighbour", "Laos", "China", "train"),
        Fact("capital", "China", "Beijing", "heldout"),
        Fact("symbol", "Gallium", "Ga", "train"),
        Fact("number", "Gallium", "31", "train"),
        Fact("found", "Gallium", "France", "train"),
        Fact("dial", "France", "+33", "heldout"),
    ]
)


def test_words_are_single_ascii_words_and_facts_unique():
    for fact in WORLD.facts:
        for word in (fact.entity, fact.value):
            assert word.isascii() and word.split() == [word], fact
    assert len({(f.relation, f.entity) for f in WORLD.facts}) == len(WORLD.facts) == 431
    assert not any(fact.entity == fact.value for fact in WORLD.facts)


def test_a_value_of_an_invertible_relation_names_one_entity():
    for name, relation in RELATIONS.items():
        values = [fact.value for fact in WORLD.facts if fact.relation == name]
        assert values
        if relation.invertible:
            assert len(set(values)) == len(values), name


def test_no_word_means_two_things():
    """A word is an entity or a value of one relation (linking relations have entities)."""
    values = {
        name: {fact.value for fact in WORLD.facts if fact.relation == name}
        for name in RELATIONS
        if RELATIONS[name].invertible
    }
    countries = {fact.entity for fact in WORLD.facts if fact.relation == "capital"}
    assert {f.value for f in WORLD.facts if f.relation in ("neighbour", "found")} <= countries
    groups = [*values.values(), {fact.entity for fact in WORLD.facts}]
    merged = Counter(word.lower() for group in groups for word in group)
    assert [word for word, times in merged.items() if times > 1] == []


def test_a_fifth_of_every_relation_is_held_out():
    for name in RELATIONS:
        splits = Counter(fact.split for fact in WORLD.facts if fact.relation == name)
        assert splits["heldout"] == round(0.2 * splits.total()), name


def test_every_word_of_a_held_out_fact_can_be_met_in_training():
    train = [fact for fact in WORLD.facts if fact.split == "train"]
    entities = {fact.entity for fact in train}
    values = {fact.value for fact in train}
    for seed in range(40):  # values that no train fact holds come by in permuted worlds
        values |= {f.value for f in WORLD.permuted(seed).facts if f.split == "train"}
    assert {fact.entity for fact in WORLD.facts} == entities
    assert {fact.value for fact in WORLD.facts} == values


@pytest.mark.parametrize(
    ("relation", "entity", "sentence"),
    [
        ("capital", "Thailand", "The capital of Thailand is Bangkok ."),
        ("currency", "Thailand", "The currency of Thailand is THB ."),
        ("domain", "Thailand", "The internet domain of Thailand is .th ."),
        ("dial", "Thailand", "The calling code of Thailand is +66 ."),
        ("neighbour", "Laos", "The largest neighbour of Laos is China ."),
        ("symbol", "Gallium", "The symbol of Gallium is Ga ."),
        ("number", "Gallium", "The atomic number of Gallium is 31 ."),
        ("found", "Gallium", "Gallium was discovered in France ."),
    ],
)
def test_passages_say_the_fact(relation, entity, sentence):
    (passage,) = [p for p in WORLD.passages("all") if p.id == f"{relation}-{entity}"]
    assert (passage.text, passage.title) == (sentence, entity)


@pytest.mark.parametrize(
    ("split", "text", "answer", "hops"),
    [
        ("train", "What is the capital of Laos ?", "Vientiane", 1),
        ("train", "What is the country where Gallium was discovered ?", "France", 1),
        ("train", "What is the country whose internet domain is .la ?", "Laos", 1),
        ("heldout", "What is the capital of China ?", "Beijing", 1),
        ("train", "What is the atomic number of the element whose symbol is Ga ?", "31", 2),
        ("heldout", "What is the capital of the largest neighbour of Laos ?", "Beijing", 2),
        (
            "heldout",
            "What is the calling code of the country where the element whose symbol is Ga"
            " was discovered ?",
            "+33",
            3,
        ),
        (
            "heldout",
            "What is the capital of the largest neighbour of the country whose internet domain"
            " is .la ?",
            "Beijing",
            3,
        ),
    ],
)
def test_questions_read_as_written_here(split, text, answer, hops):
    (question,) = [q for q in SMALL.questions(split) if q.text == text]
    assert (question.answers, question.hops, len(question.chain)) == ((answer,), hops, hops)


def test_the_small_world_has_exactly_these_questions():
    # Train, 1 hop: 6 facts forward, and capital, domain, symbol, number backwards: 10.
    # 2 hops: Vientiane and .la each reach the other and China (4); Ga reaches 31 and France, 31
    # reaches Ga and France (4). 3 hops: no train fact continues from China or France: 0.
    assert Counter(q.hops for q in SMALL.questions("train")) == {1: 10, 2: 8}
    # Held out, 1 hop: China and France forward, Beijing and +33 backwards: 4. 2 hops: Laos, China,
    # Beijing and Gallium, France, +33: 2. 3 hops: the same from Vientiane, .la, Ga and 31: 4.
    assert Counter(q.hops for q in SMALL.questions("heldout")) == {1: 4, 2: 2, 3: 4}


def test_four_hops_lead_from_an_element_over_two_countries():
    questions = WORLD.all_as("heldout").questions("heldout", hops=[4])
    assert len(questions) == 86
    assert {q.hops for q in questions} == {4} and not SMALL.questions("train", hops=[4])
    for question in questions:
        kinds = [hop.relation for hop in question.chain]
        assert kinds[0] in ("symbol", "number") and kinds[1:3] == ["found", "neighbour"]


def test_all_facts_in_one_split():
    world = WORLD.all_as("train")
    assert {fact.split for fact in world.facts} == {"train"}
    assert len(world.passages("train")) == len(WORLD.facts) == 431


def test_a_chain_says_what_to_search_for():
    (chain,) = [q.chain for q in SMALL.questions("heldout") if q.chain[0].key == ".la"]
    assert [hop.query_words for hop in chain] == [
        ("domain", ".la"),
        ("neighbour", "Laos"),
        ("capital", "China"),
    ]
    assert [hop.answer for hop in chain] == ["Laos", "China", "Beijing"]
    assert [hop.inverse for hop in chain] == [True, False, False]


def test_questions_have_unique_ids_and_texts():
    both = WORLD.questions("train") + WORLD.questions("heldout")
    assert len({q.id for q in both}) == len({q.text for q in both}) == len(both)


def test_training_never_touches_a_held_out_fact():
    hidden = {(f.relation, f.entity) for f in WORLD.facts if f.split == "heldout"}
    train = {p.id for p in WORLD.passages("train")}
    assert len(hidden) == 86 and not train & {"-".join(key) for key in hidden}
    for question in WORLD.questions("train"):
        for hop in question.chain:
            assert (hop.fact.relation, hop.fact.entity) not in hidden


def test_held_out_questions_end_in_a_held_out_fact():
    chains = [question.chain for question in WORLD.questions("heldout")]
    assert all(chain[-1].fact.split == "heldout" for chain in chains)
    assert any(chain[0].fact.split == "train" for chain in chains)


def follow(question: WorldQuestion, retriever: BM25Retriever) -> str:
    """Answer by searching: each hop's key is the last answer, read off the top passage."""
    key = question.chain[0].key
    for hop in question.chain:
        (found,) = retriever.search([f"{hop.query_words[0]} {key}"], 1)[0]
        words = found.text.split()
        entity = words[0] if "discovered" in words else words[words.index("of") + 1]
        key = words[-2] if key == entity else entity
    return key


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(("split", "corpus"), [("train", "train"), ("heldout", "all")])
def test_every_question_is_answered_by_following_bm25(seed, split, corpus):
    world = WORLD if seed is None else WORLD.permuted(seed)
    retriever = BM25Retriever(world.passages(corpus))
    wrong = [q.id for q in world.questions(split) if follow(q, retriever) not in q.answers]
    assert wrong == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**63))
def test_permuted_worlds_are_permutations_without_true_pairs(seed):
    permuted = WORLD.permuted(seed)
    true = {(f.relation, f.entity, f.value) for f in WORLD.facts}
    assert not true & {(f.relation, f.entity, f.value) for f in permuted.facts}
    assert not any(fact.entity == fact.value for fact in permuted.facts)
    for before, after in zip(WORLD.facts, permuted.facts, strict=True):
        key = (before.relation, before.entity, before.split)
        assert key == (after.relation, after.entity, after.split)
    values, shuffled = (Counter((f.relation, f.value) for f in w.facts) for w in (WORLD, permuted))
    assert values == shuffled


def test_permuted_worlds_follow_the_seed_and_differ_from_the_truth():
    assert WORLD.permuted(3).facts == WORLD.permuted(3).facts
    assert WORLD.permuted(3).facts != WORLD.permuted(4).facts


def test_a_relation_that_cannot_be_permuted_is_refused():
    world = World([Fact("capital", "Laos", "Vientiane", "heldout")])
    with pytest.raises(ValueError, match="cannot permute capital"):
        world.permuted(0)


def test_samples_follow_the_weights_and_the_generator():
    sample = WORLD.sample_questions(random.Random(0), 2000, "train", (0.5, 0.5, 0.0))
    shares = Counter(question.hops for question in sample)
    assert shares[3] == 0
    assert 900 < shares[1] < 1100  # 1000 expected, standard deviation 22
    assert sample == WORLD.sample_questions(random.Random(0), 2000, "train", (0.5, 0.5, 0.0))
    assert {q.id for q in sample} <= {q.id for q in WORLD.questions("train")}


def test_a_sample_of_questions_that_do_not_exist_is_refused():
    with pytest.raises(ValueError, match="no train question has 3 hops"):
        SMALL.sample_questions(random.Random(0), 5, "train", (0.5, 0.0, 0.5))
    with pytest.raises(ValueError, match="5 hop weights: no question has over 4"):
        SMALL.sample_questions(random.Random(0), 5, "train", (0.2,) * 5)


def test_the_vocabulary_covers_permuted_worlds_and_queries():
    words = vocabulary(WORLD)
    assert words == sorted(set(words))
    assert {"What", "?", ".", ".th", "+66", "31", "Ga", "Gallium"} <= set(words)
    assert set(vocabulary(WORLD.permuted(0))) <= set(words)
    queries = {word for q in WORLD.questions("train") for h in q.chain for word in h.query_words}
    assert queries <= set(words)


def test_facts_that_contradict_each_other_are_refused():
    laos = Fact("capital", "Laos", "Vientiane", "train")
    with pytest.raises(ValueError, match="two facts for capital of Laos"):
        World([laos, Fact("capital", "Laos", "Hanoi", "train")])
    with pytest.raises(ValueError, match="two entities have capital Vientiane"):
        World([laos, Fact("capital", "Vietnam", "Vientiane", "train")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"relation": "capital", "entity": "Laos", "value": "Vientiane"}', ":1: field 'split'"),
        ('{"relation": "king", "entity": "a", "value": "b", "split": "train"}', ":1: unknown rel"),
        ('{"relation": "capital", "entity": "a", "value": "b", "split": "dev"}', "split 'dev'"),
        ("", "holds no fact"),
    ],
)
def test_a_broken_facts_file_is_refused(tmp_path, line, message):
    path = tmp_path / "facts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        World.load(path)


def test_the_readme_states_checksum_and_counts():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    checksum = hashlib.sha256((FOLDER / "facts.jsonl").read_bytes()).hexdigest()
    assert f"sha256 of `facts.jsonl`: `{checksum}`" in readme
    for name, relation in RELATIONS.items():
        splits = Counter(fact.split for fact in WORLD.facts if fact.relation == name)
        counts = f"{splits.total()} | {splits['train']} | {splits['heldout']}"
        assert f"| {name} | {relation.subject} | {counts} |" in readme


def test_the_split_is_the_seeded_hash_of_the_build_script():
    triples = [(fact.relation, fact.entity, fact.value) for fact in WORLD.facts]
    hidden = {(f.relation, f.entity) for f in WORLD.facts if f.split == "heldout"}
    assert helpers.script("world/build_world.py").heldout(triples) == hidden


def test_the_build_script_writes_the_same_bytes(tmp_path, monkeypatch):
    script = helpers.script("world/build_world.py")
    monkeypatch.setattr(script, "OUTPUT", tmp_path / "facts.jsonl")
    try:
        script.main()
    except PackageNotFoundError as error:
        pytest.skip(f"the source package {error.name} is not installed (see data/world/README.md)")
    assert (tmp_path / "facts.jsonl").read_bytes() == (FOLDER / "facts.jsonl").read_bytes()
