"""Facts of 2Wiki rows, (subject, relation, object), each with the paragraph that tells it.

A row comes with its facts; dates, nationality and director are also read off the leads of the
paragraphs that came with it.
"""

import re
from dataclasses import dataclass

_MONTHS = "|".join(
    "January February March April May June July August September October November December".split()
)
_DATE = rf"(?:\d{{1,2}} (?:{_MONTHS}) \d{{4}}|(?:{_MONTHS}) \d{{1,2}}, \d{{4}})"
_LEADS = {
    "date of birth": rf"\( ?(?:born )?(?:on )?({_DATE})",
    "date of death": rf"{_DATE} ?[–-] ?({_DATE})\)",
    "director": r"directed by ((?:[A-Z][\w'-]+ )+[A-Z][\w'-]+)",
    "publication date": r"^[^.]* is an? (?:upcoming )?(\d{4}) [^.]*\bfilm\b",
}
NATIONALITY = "country of citizenship"
_LEAD = 250  # characters of a paragraph in which its lead is looked for


@dataclass(frozen=True)
class Fact:
    """What a paragraph (title, text) tells: `object` is the `relation` of `subject`."""

    subject: str
    relation: str
    object: str
    paragraph: tuple[str, str]


Chain = tuple[Fact, ...]  # the object of each fact is the subject of the next


def base(title: str) -> str:
    """A title without what tells it from its namesakes, in lower case."""
    return title.split(" (")[0].strip().lower()


def relations(chain: Chain) -> tuple[str, ...]:
    """The relations of a chain, first to last."""
    return tuple(fact.relation for fact in chain)


def row_chains(row: dict) -> list[Chain] | None:
    """The one or two chains that a row's `evidences` form, two with the same relations.

    A chain starts at something that the question names; the one named first comes first. None for
    a row without such facts, or where a fact has no gold paragraph about its subject.
    """
    facts, question = _row_facts(row), row["question"].lower()
    known = {base(fact.object) for fact in facts}
    grown = [[fact] for fact in facts if base(fact.subject) not in known]
    for fact in facts:
        if base(fact.subject) in known:
            before = [chain for chain in grown if base(chain[-1].object) == base(fact.subject)]
            if len(before) != 1:
                return None
            before[0].append(fact)
    chains = sorted(map(tuple, grown), key=lambda chain: question.find(chain[0].subject.lower()))
    named = all(chain[0].subject.lower() in question for chain in chains)
    alike = len({relations(chain) for chain in chains}) == 1
    return chains if named and alike and len(chains) <= 2 else None


def _row_facts(row: dict) -> list[Fact]:
    golds, question = row.get("supporting_titles", []), row["question"].lower()
    about = {base(p["title"]): p for p in row.get("context", []) if p["title"] in golds}
    facts = []
    for evidence in row.get("evidences", []):
        if len(evidence) != 3:
            raise ValueError(
                f"row '{row['id']}': want evidences [subject, relation, object], got {evidence}"
            )
        subject, relation, found = evidence
        paragraph = about.get(base(subject))
        if paragraph is None:
            return []
        title = paragraph["title"]
        name = title if title.lower() in question else subject
        facts.append(Fact(name, relation, found, (title, paragraph["text"])))
    return facts


def lead_facts(title: str, text: str, nationalities: set[str]) -> list[Fact]:
    """The facts that stand in a paragraph's lead in a fixed form; a nationality is a person's."""
    lead = text[:_LEAD]
    if not base(title) or base(title).split()[0] not in lead.lower():
        return []
    matches = {relation: re.search(pattern, lead) for relation, pattern in _LEADS.items()}
    found = {relation: match.group(1) for relation, match in matches.items() if match}
    nation = re.search(r"\b(?:is|was) an? ([A-Z]\w+)", lead)
    if "date of birth" in found and nation and nation.group(1) in nationalities:
        found[NATIONALITY] = nation.group(1)
    return [Fact(title, relation, object, (title, text)) for relation, object in found.items()]


def year(chain: Chain) -> str | None:
    """The year in which a chain ends, None if it ends in no date."""
    found = re.search(r"\b\d{4}\b", chain[-1].object)
    return found and found.group()


def by_year(first: Chain, second: Chain) -> tuple[Chain, Chain] | None:
    """The chain that ends in the earlier year, then the other; None without two different years."""
    years = year(first), year(second)
    if None in years or years[0] == years[1]:
        return None
    return (first, second) if years[0] < years[1] else (second, first)
