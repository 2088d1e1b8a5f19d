"""More rows for a warm start from the rows of multi-hop train files.

    python data/starts/more_rows.py 2wiki_context_train.jsonl hotpotqa_distractor_train.jsonl \\
      musique_context_train.jsonl --out rows

copies each file into the folder --out and writes made.jsonl beside the copies: a question of 2Wiki
is asked again of other things that have the same relations, so that the answer follows from their
facts; a step of a MuSiQue decomposition is a question of its own. Rows with facts get the path of
the search: `decomposition`, [{question, answer, title}], and `last_thought`, in which a comparison
sets both sides side by side. `python -m lldlib sft --files rows/*.jsonl` trains on all of it.

The recorded start of SmolLM2 was made so, in two runs: 260 updates with --seed 0, then 190 updates
from its policy with `sft --seed 1` on rows made with --seed 1; 2,000 questions asked again each
time. `data/real_models.md` has the other flags.
"""

import argparse
import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from lldlib.files import read_jsonl, write_whole
from lldlib.train.lessons import fill_steps

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
BESIDE = 2  # paragraphs beside each gold one, from the row that it came with
DRAWS = 20  # tries for one question, and for the second thing that it compares
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


def step_rows(rows: list[dict]) -> list[dict]:
    """A row for each step of each decomposition of two steps and more; 2Wiki's are left out."""
    return [
        row
        | {
            "id": f"{row['id']}-step{number}",
            "question": query,
            "golden_answers": [answer],
            "decomposition": [{"question": query, "answer": answer}],
        }
        for row in rows
        if len(row.get("decomposition", [])) > 1 and "evidences" not in row
        for number, (query, answer) in enumerate(fill_steps(row["decomposition"]), start=1)
    ]


class AskAgain:
    """Questions of `rows` with facts, asked of other subjects of all rows."""

    def __init__(self, rows: list[dict]):
        chained = [(row, chains) for row in rows if (chains := row_chains(row))]
        ruled = [(row, chains, _rule(row, chains)) for row, chains in chained]
        asked = [(row, chains, rule) for row, chains, rule in ruled if rule]
        facts = [fact for _, chains, _ in asked for chain in chains for fact in chain]
        nations = {fact.object for fact in facts if fact.relation == NATIONALITY}
        self.beside: dict[str, list[dict]] = {}  # the paragraphs that a title came with
        for row in rows:
            for paragraph in row.get("context", []):
                title = paragraph["title"]
                if title not in self.beside:
                    self.beside[title] = row["context"]
                    facts += lead_facts(title, paragraph["text"], nations)
        self.chains = _chains(facts, {relations(chains[0]) for _, chains, _ in asked})
        # names may differ along a chain, so that a row's own is not among them
        asked = [ask for ask in asked if len(self.chains[relations(ask[1][0])]) >= len(ask[1])]
        self.asked = defaultdict(list)  # by rule
        for row, chains, rule in asked:
            self.asked[rule].append((row, chains))

    def rows(self, count: int, seed: int) -> list[dict]:
        """At most `count` rows, a function of the seed: fewer, or none, where facts are few.

        Every rule is asked for equally often: few questions ask for the later of two.
        """
        rng, rules = random.Random(seed), list(self.asked)
        made = [
            self._ask(rules[number % len(rules)], rng, number)
            for number in range(count if rules else 0)
        ]
        return [row for row in made if row]

    def _ask(self, rule: str, rng: random.Random, number: int) -> dict | None:
        for _ in range(DRAWS):
            row, old = rng.choice(self.asked[rule])
            new = self._others(old, rng)
            answer = new and _answer(rule, new)
            if answer:
                return self._row(row, old, new, answer, rng, number)
        return None

    def _others(self, old: list[Chain], rng: random.Random) -> list[Chain] | None:
        """As many chains with the relations of `old`, about other things than one another."""
        pool = self.chains[relations(old[0])]
        new = [rng.choice(pool)]
        if len(old) == 1:
            return new
        alike = rng.random() < 0.5  # else hardly a pair would have the same nationality
        for _ in range(DRAWS):
            second = rng.choice(pool)
            same = second[-1].object == new[0][-1].object
            if second[0].subject != new[0][0].subject and same == alike:
                return [*new, second]
        return None

    def _row(
        self,
        row: dict,
        old: list[Chain],
        new: list[Chain],
        answer: str,
        rng: random.Random,
        number: int,
    ) -> dict:
        named = {o[0].subject: _capitals(n[0].subject) for o, n in zip(old, new, strict=True)}
        golds = {fact.paragraph[0]: fact.paragraph[1] for chain in new for fact in chain}
        others = {}
        for title in golds:
            near = [p for p in self.beside[title] if p["title"] not in golds]
            for paragraph in rng.sample(near, min(BESIDE, len(near))):
                others[paragraph["title"]] = paragraph["text"]
        return {
            "id": f"{row['id']}-again{number}",
            "question": _rename(row["question"], named),
            "golden_answers": [answer],
            "context": [{"title": t, "text": text} for t, text in (golds | others).items()],
            "supporting_titles": list(golds),
            "evidences": [[f.subject, f.relation, f.object] for chain in new for f in chain],
        }


def _chains(facts: list[Fact], wanted: set[tuple[str, ...]]) -> dict[tuple[str, ...], list[Chain]]:
    """All chains of the wanted relations, one for each thing they start at."""
    having = defaultdict(dict)
    for fact in facts:
        having[fact.relation].setdefault(fact.subject, fact)
    found = {}
    for path in wanted:
        chains = [(fact,) for fact in having[path[0]].values()]
        for relation in path[1:]:
            follow = having[relation]
            chains = [(*c, follow[c[-1].object]) for c in chains if c[-1].object in follow]
        found[path] = chains
    return found


def _rule(row: dict, chains: list[Chain]) -> str | None:
    """What a question asks of its chains: `object`, `same`, `earlier`, `later`; None if unclear."""
    if len(chains) == 1:
        return "object"
    given, ends = row["golden_answers"][0].lower(), {chain[-1].object for chain in chains}
    if given in ("yes", "no"):
        return "same" if (len(ends) == 1) == (given == "yes") else None
    ordered = by_year(*chains) or ()
    names = [chain[0].subject.lower() for chain in ordered]
    return ("earlier", "later")[names.index(given)] if given in names else None


def _answer(rule: str, chains: list[Chain]) -> str | None:
    """The answer by `_rule`; None where two dates are of one year."""
    if rule == "object":
        return chains[0][-1].object
    if rule == "same":
        return "yes" if chains[0][-1].object == chains[1][-1].object else "no"
    ordered = by_year(*chains)
    return ordered and ordered[rule == "later"][0].subject


def _rename(question: str, names: dict[str, str]) -> str:
    """The question with each name replaced, whatever its capitals."""
    longest = sorted(names, key=len, reverse=True)
    pattern = "|".join(re.escape(name) for name in longest)
    new = {name.lower(): names[name] for name in names}
    return re.sub(pattern, lambda match: new[match.group().lower()], question, flags=re.IGNORECASE)


def _capitals(name: str) -> str:
    """Every word begun by a capital, as 2Wiki's questions have it."""
    return " ".join(word[:1].upper() + word[1:] for word in name.split(" "))


def with_path(row: dict) -> dict:
    """The row with the path of its search, if it has facts that form one."""
    chains = row_chains(row)
    if not chains:
        return row
    steps = [
        {"question": f"{f.subject} {f.relation}", "answer": f.object, "title": f.paragraph[0]}
        for chain in chains
        for f in chain
    ]
    thought = {"last_thought": gather(*chains)} if len(chains) == 2 else {}
    return row | {"decomposition": steps} | thought


def gather(first: Chain, second: Chain) -> str:
    """What both sides of a comparison came to, then the two ends alone, side by side, compared."""
    chains = first, second
    sides = "; ".join(", ".join([c[0].subject, *(fact.object for fact in c)]) for c in chains)
    ends, ordered = [year(c) or c[-1].object for c in chains], by_year(first, second)
    if ordered is None:
        same = "the same" if ends[0] == ends[1] else "not the same"
        return f"{sides}. {ends[0]} and {ends[1]} are {same}."
    told_by = zip(ordered, ("earlier", "later"), strict=True)
    told = "; ".join(f"{year(c)} is {word}: {c[0].subject}" for c, word in told_by)
    return f"{sides}. Of {ends[0]} and {ends[1]}, {told}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="questions that are asked again")
    parser.add_argument("--seed", type=int, default=0, help="of the questions asked again")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tables = {file.name: [row for _, row in read_jsonl(file)] for file in given.files}
    rows = [row for table in tables.values() for row in table]
    tables["made.jsonl"] = step_rows(rows) + AskAgain(rows).rows(given.count, given.seed)
    for name, table in tables.items():
        lines = [json.dumps(with_path(row), ensure_ascii=False) + "\n" for row in table]
        write_whole(given.out / name, "".join(lines))
        print(f"{given.out / name}: {len(table)} rows")


if __name__ == "__main__":
    main()
