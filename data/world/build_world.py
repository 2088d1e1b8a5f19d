"""Write facts.jsonl, the facts of the built-in world, from two permissively licensed packages.

First `pip install --no-deps countryinfo==1.0.1 mendeleev==1.3.0`, then run this file.
Their data files are read directly, so neither package is imported. See README.md for provenance.
"""

import hashlib
import json
import sqlite3
from importlib.metadata import distribution
from pathlib import Path

OUTPUT = Path(__file__).with_name("facts.jsonl")
HELDOUT_SHARE = 0.2  # of the facts of every relation
SPLIT_SEED = "lldlib-world-1"  # hashed with (relation, entity)

VERSIONS = {"countryinfo": "1.0.1", "mendeleev": "1.3.0"}
COUNTRY_NAMES = {
    "United Kingdom": "Britain",
    "United States": "America",
    "Czech Republic": "Czechia",
}
CAPITAL_NAMES = {
    "Washington D.C.": "Washington",
    "Asunción": "Asuncion",
    "Bogotá": "Bogota",
    "Brasília": "Brasilia",
}
# One string each: a hundred quotation marks would hide the names.
COUNTRIES = """
Afghanistan Algeria America Armenia Australia Austria Azerbaijan Belarus Belgium Brazil Britain
Bulgaria Canada Chile China Colombia Czechia Denmark Egypt Estonia Finland France Georgia Germany
Greece Hungary Iceland Iran Ireland Italy Japan Kenya Laos Latvia Lebanon Libya Lithuania Mali
Mongolia Morocco Myanmar Nepal Norway Pakistan Paraguay Peru Poland Portugal Romania Russia Senegal
Serbia Slovakia Slovenia Spain Sweden Switzerland Syria Thailand Tunisia Turkey Ukraine Uruguay
Venezuela Vietnam
""".split()
ELEMENTS = """
Li N Ne Na Mg Si Cl K Ca Sc Cr Mn Fe Co Ni Cu Zn Ga Ge Se Kr Rb Nb Tc Ru Rh Pd Ag Cd Sn Xe Cs Ba
Pr Nd Sm Eu Gd Tb Yb Hf W Au Ra Th U Pu Cm Cf Nh
""".split()

# Codes of countries whose list in the package starts with a unit of account or a WIR code.
LEGAL_TENDER = {"Chile": "CLP", "Switzerland": "CHF", "Uruguay": "UYU"}
# Left out by hand; README.md gives the reasons.
NO_CURRENCY = {"America", "Belarus", "Bulgaria", "Syria", "Venezuela"}
NO_DIAL = {"America", "Canada", "Russia"}
NO_NEIGHBOUR = {"Britain", "Denmark", "France", "Pakistan", "Spain", "Sweden"}

DISCOVERY_COUNTRIES = {
    "England": "Britain",
    "Scotland": "Britain",
    "Great Britain": "Britain",
    "United States": "America",
}

Triple = tuple[str, str, str]  # relation, entity, value


def package_file(package: str, path: str) -> Path:
    """The path of a file of an installed package, at the pinned version."""
    found = distribution(package)
    if found.version != VERSIONS[package]:
        raise ValueError(f"{package} is {found.version}: install {package}=={VERSIONS[package]}")
    return Path(str(found.locate_file(path)))


def read_countries() -> dict[str, dict]:
    """All countries of the package by (renamed) name."""
    files = sorted(package_file("countryinfo", "countryinfo/data").glob("*.json"))
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {COUNTRY_NAMES.get(record["name"], record["name"]): record for record in records}


def currency_facts(countries: dict[str, dict]) -> list[Triple]:
    """Own currencies: a code that starts with the country's ISO 3166 letters (not EUR, XOF)."""
    facts = []
    for name in COUNTRIES:
        code = LEGAL_TENDER.get(name, countries[name]["currencies"][0])
        if name not in NO_CURRENCY and code[:2] == countries[name]["ISO"]["alpha2"]:
            facts.append(("currency", name, code))
    return facts


def neighbour_facts(countries: dict[str, dict]) -> list[Triple]:
    """The largest of ALL bordering countries, where that one is kept; an unlisted area counts 0."""
    names = {record["ISO"]["alpha3"]: name for name, record in countries.items()}
    areas = {record["ISO"]["alpha3"]: record.get("area") or 0 for record in countries.values()}
    facts = []
    for name in COUNTRIES:
        borders = countries[name]["borders"]
        if not borders or name in NO_NEIGHBOUR:
            continue
        largest = names[max(borders, key=lambda code: areas.get(code, 0))]
        if largest in COUNTRIES:
            facts.append(("neighbour", name, largest))
    return facts


def country_facts(countries: dict[str, dict]) -> list[Triple]:
    """All facts about the kept countries."""
    capitals = {name: countries[name]["capital"] for name in COUNTRIES}
    facts = [("capital", name, CAPITAL_NAMES.get(city, city)) for name, city in capitals.items()]
    facts += currency_facts(countries)
    facts += [("domain", name, countries[name]["tld"][0]) for name in COUNTRIES]
    for name in COUNTRIES:
        if name not in NO_DIAL:
            (code,) = countries[name]["callingCodes"]
            facts.append(("dial", name, f"+{code}"))
    return facts + neighbour_facts(countries)


def element_facts() -> list[Triple]:
    """Symbol, atomic number and, where it is one kept country, the country of discovery."""
    database = package_file("mendeleev", "mendeleev/elements.db")
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    rows = connection.execute(
        "SELECT symbol, name, atomic_number, discovery_location FROM elements"
        " ORDER BY atomic_number"
    ).fetchall()
    connection.close()
    kept = [row for row in rows if row[0] in ELEMENTS]
    places = {name: DISCOVERY_COUNTRIES.get(place, place) for _, name, _, place in kept}
    facts = [("symbol", name, symbol) for symbol, name, _, _ in kept]
    facts += [("number", name, str(number)) for _, name, number, _ in kept]
    return facts + [("found", name, place) for name, place in places.items() if place in COUNTRIES]


def heldout(facts: list[Triple]) -> set[tuple[str, str]]:
    """A fifth of each relation by a seeded hash; no entity loses its last train fact."""

    def rank(fact: Triple) -> str:
        return hashlib.sha256(f"{SPLIT_SEED}|{fact[0]}|{fact[1]}".encode()).hexdigest()

    left = {entity: sum(fact[1] == entity for fact in facts) for _, entity, _ in facts}
    chosen = set()
    for relation in dict.fromkeys(fact[0] for fact in facts):
        group = sorted((fact for fact in facts if fact[0] == relation), key=rank)
        wanted = round(HELDOUT_SHARE * len(group))
        for _, entity, _ in group:
            if wanted and left[entity] > 1:
                chosen.add((relation, entity))
                left[entity] -= 1
                wanted -= 1
    return chosen


def check(facts: list[Triple]) -> None:
    """Every word is one ASCII word; relations that are asked backwards are one-to-one."""
    for fact in facts:
        if not all(word.isascii() and word and " " not in word for word in fact):
            raise ValueError(f"not one ASCII word each: {fact}")
    for relation in ("capital", "currency", "domain", "dial", "symbol", "number"):
        values = [value for name, _, value in facts if name == relation]
        if len(values) != len(set(values)):
            raise ValueError(f"two entities share a {relation}: leave one out by hand")


def main() -> None:
    """Build the facts, write them and report the checksum."""
    facts = country_facts(read_countries()) + element_facts()
    check(facts)
    hidden = heldout(facts)
    lines = []
    for relation, entity, value in facts:
        split = "heldout" if (relation, entity) in hidden else "train"
        row = {"relation": relation, "entity": entity, "value": value, "split": split}
        lines.append(json.dumps(row) + "\n")
    data = "".join(lines).encode()
    OUTPUT.write_bytes(data)
    print(f"{len(facts)} facts, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
