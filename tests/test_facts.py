"""Facts of made 2Wiki rows, and facts read off leads."""

import pytest
from gold_rows import COMPARISON, FILMS, MUSIQUE

from lldlib.train.facts import Fact, by_year, lead_facts, row_chains


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
