"""Rows made of other rows: the answers follow from the facts."""

import pytest
from benchmark_files import BENCHMARKS, needs_benchmarks
from gold_rows import COMPARISON, FILMS, HOTPOT, JOIN, MUSIQUE, NATIONS, paragraph

from lldlib.files import read_jsonl
from lldlib.train import recombine
from lldlib.train.gold import load_gold_paths, more_gold_paths
from lldlib.train.recombine import AskAgain, fill_steps, step_rows

ROWS = [COMPARISON, FILMS, JOIN, NATIONS, HOTPOT, MUSIQUE]
BORN = {"Ann Lee": 1901, "Bo Dahl": 1950, "Cy Poe": 1925}
FILM_BY = {"Red Sea": "Ann Lee", "Blue Sky": "Bo Dahl", "Grey Fog": "Cy Poe"}


def named(row: dict, names: dict) -> list[str]:
    """Which of the names the question holds, in its order."""
    text = row["question"]
    return sorted((name for name in names if name in text), key=text.find)


def test_questions_are_asked_of_other_things_and_answered_from_their_facts():
    made = AskAgain(ROWS).rows(200, seed=0)
    assert len(made) == 200 and len({row["id"] for row in made}) == 200
    seen = set()
    for row in made:
        answer, evidences = row["golden_answers"][0], row["evidences"]
        if row["question"].startswith("Who was born later"):
            sides = named(row, BORN)
            assert answer.split(" (")[0] == max(sides, key=BORN.get)
        elif row["question"].startswith("Which film has the older director"):
            sides = named(row, FILM_BY)
            assert answer == min(sides, key=lambda film: BORN[FILM_BY[film]])
        elif row["question"].startswith("When was the director"):
            film = named(row, FILM_BY)[0]
            assert str(BORN[FILM_BY[film]]) in answer and answer == evidences[1][2]
            sides = [film]
        else:
            assert answer == ("yes" if evidences[0][2] == evidences[1][2] else "no")
            sides = [evidence[0] for evidence in evidences]
        assert len(set(sides)) == len(sides) > 0
        seen.add((row["question"], answer))
        assert [p["title"] for p in row["context"]][: len(evidences)] == row["supporting_titles"]
    answers = {answer for question, answer in seen if question.startswith("Are")}
    assert answers == {"yes", "no"}
    assert len(seen) > 12  # beyond the four that were read


def test_every_rule_is_asked_for_equally_often():
    """However few rows have it: one of these three asks for the later of two, as on real rows."""
    made = AskAgain([FILMS, FILMS | {"id": "f2"}, COMPARISON]).rows(100, seed=0)
    later = [row for row in made if row["question"].startswith("Who was born later")]
    assert len(made) == 100 and len(later) == 50


def test_a_paragraph_of_a_row_that_is_not_gold_gives_facts_too():
    """Grey Fog and Cy Poe stand nowhere but among a row's other paragraphs."""
    assert all("Grey Fog" not in str(row.get("evidences")) for row in ROWS)
    assert any("Grey Fog" in row["question"] for row in AskAgain(ROWS).rows(100, seed=0))


def test_made_rows_are_a_function_of_the_seed():
    assert AskAgain(ROWS).rows(20, seed=1) == AskAgain(ROWS).rows(20, seed=1)
    assert AskAgain(ROWS).rows(20, seed=1) != AskAgain(ROWS).rows(20, seed=2)
    assert AskAgain([HOTPOT, MUSIQUE]).rows(20, seed=1) == []


@pytest.mark.parametrize("given", ["Ann Lee", "yes", "Somebody"])
def test_a_row_whose_answer_does_not_follow_from_its_facts_is_not_asked_again(given):
    wrong = NATIONS if given == "yes" else COMPARISON
    made = AskAgain([wrong | {"golden_answers": [given]}, JOIN]).rows(30, seed=0)
    # "Ann Lee" only turns the question round: who of the two is the earlier one
    assert any("When" not in row["question"] for row in made) == (given == "Ann Lee")


def test_few_facts_make_few_rows_and_no_end():
    facts = [["Red Sea", "director", "ANN LEE"], JOIN["evidences"][1]]  # no chain by exact names
    context = [paragraph("Red Sea", "A film."), paragraph("Ann Lee", "A person.")]
    assert AskAgain([JOIN | {"evidences": facts, "context": context}]).asked == {}
    lone = AskAgain([COMPARISON])
    lone.chains = {path: chains[:1] for path, chains in lone.chains.items()}
    assert lone.rows(5, seed=0) == []  # nothing to compare with, and yet it ends
    beside = AskAgain([COMPARISON, JOIN])
    beside.chains[("date of birth",)] = beside.chains[("date of birth",)][:1]
    made = beside.rows(6, seed=0)
    assert [row["question"][:4] for row in made] == ["When"] * 3  # the others are not held up


def test_steps_are_questions_of_their_own():
    assert list(fill_steps(MUSIQUE["decomposition"])) == [
        ("Blue Song writer", "Ann Lee"),
        ("Where was Ann Lee born?", "Lima"),
    ]
    rows = step_rows([MUSIQUE, HOTPOT, COMPARISON])
    asked = [(row["id"], row["question"], row["golden_answers"]) for row in rows]
    assert asked == [
        ("m-step1", "Blue Song writer", ["Ann Lee"]),
        ("m-step2", "Where was Ann Lee born?", ["Lima"]),
    ]
    assert step_rows(rows) == []


@needs_benchmarks
def test_real_rows_asked_of_their_own_things_give_their_own_answers():
    rows = [row for _, row in read_jsonl(BENCHMARKS / "2wiki_context_train.jsonl")]
    asked = AskAgain(rows).asked
    assert sum(map(len, asked.values())) > 400
    for rule, of_rule in asked.items():
        for row, chains in of_rule:
            again = recombine._answer(rule, chains)
            assert again.lower() == row["golden_answers"][0].lower()


@needs_benchmarks
def test_real_rows_make_paths_that_no_dev_question_is_among():
    names = ("2wiki_context", "musique_context", "hotpotqa_distractor")
    paths = more_gold_paths([BENCHMARKS / f"{name}_train.jsonl" for name in names], 500, seed=0)
    assert len(paths) > 700  # 500 asked again, and the steps of MuSiQue
    assert {len(path.hops) for path in paths} == {1, 2, 4}
    texts = {path.question.text.lower() for path in paths}
    for name in names:
        dev = load_gold_paths(BENCHMARKS / f"{name}_dev.jsonl")
        assert not texts & {path.question.text.lower() for path in dev}
