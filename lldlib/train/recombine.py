"""More rows from the rows of multi-hop train files, in the shape of those.

A question of 2Wiki is asked again of other things, which have the same relations, so that the
answer follows from their facts. A step of a MuSiQue decomposition is a question of its own.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterator

from lldlib.train.facts import NATIONALITY, Chain, Fact, by_year, lead_facts, relations, row_chains

_BESIDE = 2  # paragraphs beside each gold one, from the row that it came with
_DRAWS = 20  # tries for one question, and for the second thing that it compares


def fill_steps(steps: list[dict]) -> Iterator[tuple[str, str]]:
    """The (question, answer) of each step of a decomposition, #1 replaced by the first answer."""
    answers = []
    for step in steps:
        query = step["question"].replace(" >> ", " ").strip()
        for number, answer in reversed(list(enumerate(answers, start=1))):  # #10 before #1
            query = query.replace(f"#{number}", answer)
        answers.append(step["answer"])
        yield query, step["answer"]


def step_rows(rows: list[dict]) -> list[dict]:
    """A row for each step of each decomposition of two steps and more, facts given left out."""
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
        for _ in range(_DRAWS):
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
        for _ in range(_DRAWS):
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
            for paragraph in rng.sample(near, min(_BESIDE, len(near))):
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
