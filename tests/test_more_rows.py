"""data/starts/more_rows.py: facts of 2Wiki rows, and rows made of other rows."""

import sys

import pytest
from benchmark_files import BENCHMARKS, needs_benchmarks, write_rows
from gold_rows import COMPARISON, FILMS, HOTPOT, JOIN, MUSIQUE, NATIONS, paragraph
from helpers import script

from lldlib.files import read_jsonl
from lldlib.train.lessons import fill_steps, load_gold_paths

more_rows = script("starts/more_rows.py")
AskAgain, Fact = more_rows.AskAgain, more_rows.Fact
by_year, lead_facts, row_chains = more_rows.by_year, more_rows.lead_facts, more_rows.row_chains
step_rows, with_path = more_rows.step_rows, more_rows.with_path

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
            again = more_rows._answer(rule, chains)
            assert again.lower() == row["golden_answers"][0].lower()


def test_the_path_of_the_search_stands_in_the_row(tmp_path):
    rows = map(with_path, (FILMS, JOIN, NATIONS, MUSIQUE))
    compared, joined, nations, musique = load_gold_paths(write_rows(tmp_path / "r.jsonl", rows))
    assert [(h.query, h.passage.title, h.finding) for h in compared.hops] == [
        ("Red Sea director", "Red Sea", "Ann Lee"),
        ("Ann Lee date of birth", "Ann Lee", "2 May 1901"),
        ("Blue Sky director", "Blue Sky", "Bo Dahl"),
        ("Bo Dahl date of birth", "Bo Dahl", "June 3, 1950"),
    ]
    assert compared.last_thought == (
        "Red Sea, Ann Lee, 2 May 1901; Blue Sky, Bo Dahl, June 3, 1950. "
        "Of 1901 and 1950, 1901 is earlier: Red Sea; 1950 is later: Blue Sky."
    )
    assert nations.last_thought == (
        "Ann Lee, Peruvian; Bo Dahl, Danish. Peruvian and Danish are not the same."
    )
    assert [h.query for h in joined.hops] == ["Red Sea director", "Ann Lee date of birth"]
    assert joined.last_thought == musique.last_thought == ""
    assert [h.query for h in musique.hops] == ["Blue Song writer", "Where was Ann Lee born?"]


@needs_benchmarks
def test_real_rows_make_rows_that_no_dev_question_is_among(tmp_path, monkeypatch):
    names = ("2wiki_context", "musique_context", "hotpotqa_distractor")
    files = [str(BENCHMARKS / f"{name}_train.jsonl") for name in names]
    monkeypatch.setattr(
        sys, "argv", ["more_rows.py", *files, "--count", "500", "--out", str(tmp_path)]
    )
    more_rows.main()
    paths = load_gold_paths(tmp_path / "made.jsonl")
    assert len(paths) > 700  # 500 asked again, and the steps of MuSiQue
    assert {len(path.hops) for path in paths} == {1, 2, 4}
    texts = {path.question.text.lower() for path in paths}
    for name in names:
        assert len(load_gold_paths(tmp_path / f"{name}_train.jsonl")) >= 100
        dev = load_gold_paths(BENCHMARKS / f"{name}_dev.jsonl")
        assert not texts & {path.question.text.lower() for path in dev}


# -- facts -------------------------------------------------------------------------------------


def triples(row: dict) -> list | None:
    chains = row_chains(row)
    return chains and [[(f.subject, f.relation, f.object) for f in chain] for chain in chains]


def test_a_row_forms_a_chain_a_side_in_the_order_of_the_question():
    assert triples(COMPARISON) == [
        [("Ann Lee", "date of birth", "2 May 1901")],
        [("Bo Dahl (painter)", "date of birth", "June 3, 1950")],
    ]
    assert triples(FILMS) == [
        [("Red Sea", "director", "Ann Lee"), ("Ann Lee", "date of birth", "2 May 1901")],
        [("Blue Sky", "director", "Bo Dahl"), ("Bo Dahl", "date of birth", "June 3, 1950")],
    ]
    paragraph = row_chains(COMPARISON)[1][0].paragraph
    assert paragraph[0] == "Bo Dahl (painter)" and "Danish" in paragraph[1]


@pytest.mark.parametrize(
    "evidences",
    [
        [],
        [["Nobody", "date of birth", "1 May 1900"]],  # no paragraph about the subject
        [["Red Sea", "director", "Ann Lee"]],  # the question does not name it
        [["Ann Lee", "date of birth", "1901"], ["Bo Dahl", "father", "Ib"]],  # not alike
    ],
)
def test_facts_that_do_not_form_chains_are_not_used(evidences):
    context = COMPARISON["context"] + FILMS["context"]
    titles = [p["title"] for p in context]
    row = COMPARISON | {"evidences": evidences, "context": context, "supporting_titles": titles}
    assert row_chains(row) is None


def test_a_row_without_facts_has_no_chains_and_one_of_half_facts_is_named():
    assert row_chains(MUSIQUE) is None
    with pytest.raises(ValueError, match=r"row 'c': want evidences \[subject, relation, object\]"):
        row_chains(COMPARISON | {"evidences": [["Ann Lee", "born"]]})


@pytest.mark.parametrize(
    ("title", "text", "found"),
    [
        (
            "Ann Lee",
            "Ann B. Lee (2 May 1901 – June 3, 1990) was an American film director.",
            {
                "date of birth": "2 May 1901",
                "date of death": "June 3, 1990",
                "country of citizenship": "American",
            },
        ),
        ("Bo Dahl", "Bo Dahl( born June 3, 1950) is a Dane.", {"date of birth": "June 3, 1950"}),
        (
            "Red Sea (1929 film)",
            "Red Sea is a 1929 American drama film directed by Ann Lee and others.",
            {"director": "Ann Lee", "publication date": "1929"},
        ),
        ("Elsewhere", "Ann Lee (2 May 1901 – June 3, 1990) was a poet.", {}),  # of another thing
        ("Ann Lee", "Ann Lee wrote. " + "x" * 240 + " (born 2 May 1901)", {}),  # past the lead
        ("Ann Lee", "Ann Lee is an American.", {}),  # no person by a date of birth
    ],
)
def test_leads_in_a_fixed_form_tell_facts(title, text, found):
    facts = lead_facts(title, text, {"American"})
    assert {fact.relation: fact.object for fact in facts} == found
    assert all(fact.subject == title and fact.paragraph == (title, text) for fact in facts)


def test_two_chains_in_the_order_of_their_years():
    def ending(subject: str, date: str) -> tuple[Fact, ...]:
        return (Fact(subject, "date of birth", date, ("", "")),)

    first, second = ending("A", "30 December 1899"), ending("B", "May 1, 1901")
    assert by_year(first, second) == by_year(second, first) == (first, second)
    assert by_year(first, ending("C", "1 January 1899")) is None  # one year
    assert by_year(first, ending("C", "Danish")) is None
