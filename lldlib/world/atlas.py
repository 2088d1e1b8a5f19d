"""The built-in world: true facts, one-sentence passages, 1- to 4-hop questions, permuted copies."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from lldlib.config import HELDOUT_QUESTIONS, TRAIN_QUESTIONS, TrainConfig, data_dir
from lldlib.files import read_jsonl, text_field
from lldlib.retrieval import BM25Retriever, Passage
from lldlib.types import Question
from lldlib.world.environment import ATLAS, Environment, Split

SplitName = Literal["train", "heldout"]
HOP_WEIGHTS = (0.2, 0.4, 0.4)  # share of 1-, 2- and 3-hop questions in a sample
MAX_HOPS = 4  # no chain is longer


class Relation(NamedTuple):
    """How a relation is worded: in sentences (`words`), in a query, and what its ends are."""

    subject: str  # kind of the entity
    words: str  # as in "The <words> of Thailand is ..."
    query: str  # the word that a good search query holds
    target: str | None  # kind of the value where it is an entity itself, else None
    invertible: bool  # the value names the entity


RELATIONS = {
    "capital": Relation("country", "capital", "capital", None, True),
    "currency": Relation("country", "currency", "currency", None, True),
    "domain": Relation("country", "internet domain", "domain", None, True),
    "dial": Relation("country", "calling code", "code", None, True),
    "neighbour": Relation("country", "largest neighbour", "neighbour", "country", False),
    "symbol": Relation("element", "symbol", "symbol", None, True),
    "number": Relation("element", "atomic number", "number", None, True),
    "found": Relation("element", "", "discovered", "country", False),
}
_BY_SUBJECT = {
    kind: [name for name, relation in RELATIONS.items() if relation.subject == kind]
    for kind in ("country", "element")
}


@dataclass(frozen=True)
class Fact:
    """One true statement, and whether training may see it."""

    relation: str
    entity: str
    value: str
    split: SplitName


@dataclass(frozen=True)
class Hop:
    """One look-up: from `key`, an end of `fact`, to `answer`, its other end."""

    relation: str
    key: str
    fact: Fact
    answer: str
    query_words: tuple[str, str]  # what a good search query says, such as ("capital", "Bangkok")

    @property
    def inverse(self) -> bool:
        """True where the key is the fact's value, as in "the country whose capital is Bangkok"."""
        return self.key != self.fact.entity

    @property
    def leads_to(self) -> str | None:
        """The kind of entity that the answer is, or None where no hop can follow."""
        relation = RELATIONS[self.relation]
        return relation.subject if self.inverse else relation.target


Chain = tuple[Hop, ...]


@dataclass(frozen=True)
class WorldQuestion(Question):
    """A question with the look-ups that answer it, in order."""

    chain: Chain = field(kw_only=True)


class World:
    """A set of facts and what is made of them."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        """Check the facts: ValueError for a repeated fact or a value that should be unique."""
        self.facts = tuple(facts)
        self._hops: dict[tuple[str, str], Hop] = {}  # (relation, entity) -> forward hop
        self._inverse: dict[tuple[str, str], Hop] = {}  # (relation, value) -> inverse hop
        for fact in self.facts:
            name, relation = fact.relation, RELATIONS[fact.relation]
            if (name, fact.entity) in self._hops:
                raise ValueError(f"two facts for {name} of {fact.entity}: keep one")
            words = (relation.query, fact.entity)
            self._hops[name, fact.entity] = Hop(name, fact.entity, fact, fact.value, words)
            if relation.invertible:
                if (name, fact.value) in self._inverse:
                    raise ValueError(f"two entities have {name} {fact.value}: keep one")
                words = (relation.query, fact.value)
                self._inverse[name, fact.value] = Hop(name, fact.value, fact, fact.entity, words)

    @classmethod
    def load(cls, path: Path | str | None = None) -> "World":
        """The world of a facts file; None takes the one in data/ (see data/world/README.md)."""
        path = path or data_dir() / "world" / "facts.jsonl"
        facts = []
        for where, row in read_jsonl(path):
            names = ("relation", "entity", "value", "split")
            relation, entity, value, split = (text_field(row, name, where) for name in names)
            if relation not in RELATIONS or split not in ("train", "heldout"):
                raise ValueError(f"{where}: unknown relation '{relation}' or split '{split}'")
            facts.append(Fact(relation, entity, value, split))
        if not facts:
            raise ValueError(f"{path}: holds no fact")
        return cls(facts)

    def passages(self, split: Literal["train", "all"]) -> list[Passage]:
        """One sentence a fact under its entity's name; "train" leaves out the held-out facts."""
        kept = [fact for fact in self.facts if split == "all" or fact.split == "train"]
        return [Passage(f"{f.relation}-{f.entity}", _sentence(f), f.entity) for f in kept]

    def questions(self, split: SplitName, hops: Sequence[int] = (1, 2, 3)) -> list[WorldQuestion]:
        """All questions of these numbers of hops: every fact train, or the last one held out."""
        groups = (self._chains[split][number - 1] for number in hops)
        return [_question(chain) for group in groups for chain in group]

    def sample_questions(
        self,
        rng: random.Random,
        n: int,
        split: SplitName,
        hop_weights: Sequence[float] = HOP_WEIGHTS,
    ) -> list[WorldQuestion]:
        """`n` questions with replacement: draw the number of hops by weight, then uniformly.

        `hop_weights` has an entry for 1 hop, for 2, and so on. ValueError where it has more than
        MAX_HOPS or gives weight to a number of hops without questions.
        """
        if len(hop_weights) > MAX_HOPS:
            raise ValueError(f"{len(hop_weights)} hop weights: no question has over {MAX_HOPS}")
        chains = self._chains[split][: len(hop_weights)]
        for hops, (group, weight) in enumerate(zip(chains, hop_weights, strict=True), start=1):
            if weight and not group:
                raise ValueError(f"no {split} question has {hops} hops: set its weight to 0")
        groups = rng.choices(chains, weights=hop_weights, k=n)
        return [_question(rng.choice(group)) for group in groups]

    def permuted(self, seed: int) -> "World":
        """A world in which the values of each relation are shuffled among its entities.

        Splits stay with the entities. No pair (entity, value) of this world occurs, and nothing is
        its own neighbour. ValueError where that is impossible.
        """
        rng = random.Random(seed)
        groups: dict[str, list[Fact]] = {}
        for fact in self.facts:
            groups.setdefault(fact.relation, []).append(fact)
        values = {name: _shuffled(group, rng) for name, group in groups.items()}
        return World(
            Fact(f.relation, f.entity, values[f.relation][f.entity], f.split) for f in self.facts
        )

    def all_as(self, split: SplitName) -> "World":
        """The same facts, all in one split."""
        return World(replace(fact, split=split) for fact in self.facts)

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """What can be looked up by each relation in training: the ends of its train facts."""
        keys: dict[str, list[str]] = {name: [] for name in RELATIONS}
        for (name, key), hop in (*self._hops.items(), *self._inverse.items()):
            if hop.fact.split == "train":
                keys[name].append(key)
        return keys

    @cached_property
    def _chains(self) -> dict[str, list[list[Chain]]]:
        """Chains of each split, in one list per number of hops."""
        level = [(hop,) for hop in (*self._hops.values(), *self._inverse.values())]
        chains: dict[str, list[list[Chain]]] = {"train": [], "heldout": []}
        for _ in range(MAX_HOPS):
            train = [c for c in level if all(hop.fact.split == "train" for hop in c)]
            chains["train"].append(train)
            chains["heldout"].append([c for c in level if c[-1].fact.split == "heldout"])
            level = [(*chain, hop) for chain in level for hop in self._next(chain[-1])]
        return chains

    def _next(self, last: Hop) -> list[Hop]:
        """The hops that may follow; not the same relation, which would lead back or in circles."""
        if last.leads_to is None:
            return []
        names = (name for name in _BY_SUBJECT[last.leads_to] if name != last.relation)
        hops = (self._hops.get((name, last.answer)) for name in names)
        return [hop for hop in hops if hop is not None]


def vocabulary(world: World) -> list[str]:
    """Every word of the passages and of the questions of both splits, sorted."""
    texts = [passage.text for passage in world.passages("all")]
    texts += [q.text for split in ("train", "heldout") for q in world.questions(split)]
    return sorted({word for text in texts for word in text.split()})


def _sentence(fact: Fact) -> str:
    if fact.relation == "found":
        return f"{fact.entity} was discovered in {fact.value} ."
    return f"The {RELATIONS[fact.relation].words} of {fact.entity} is {fact.value} ."


def _question(chain: Chain) -> WorldQuestion:
    phrase = name = chain[0].key
    for hop in chain:
        relation = RELATIONS[hop.relation]
        name += f"/{hop.relation}" + ("~" if hop.inverse else "")
        if hop.inverse:
            phrase = f"the {relation.subject} whose {relation.words} is {phrase}"
        elif hop.relation == "found":
            phrase = f"the country where {phrase} was discovered"
        else:
            phrase = f"the {relation.words} of {phrase}"
    return WorldQuestion(name, f"What is {phrase} ?", (chain[-1].answer,), len(chain), chain=chain)


def _shuffled(facts: list[Fact], rng: random.Random) -> dict[str, str]:
    """A value for each entity: shuffle, then swap the forbidden pairs away one by one."""
    banned = {(f.entity, f.value) for f in facts}
    entities = [fact.entity for fact in facts]
    values = [fact.value for fact in facts]
    rng.shuffle(values)

    def bad(i: int, value: str) -> bool:
        return entities[i] == value or (entities[i], value) in banned

    for i in range(len(facts)):
        if bad(i, values[i]):
            partners = [
                j for j in range(len(facts)) if not (bad(i, values[j]) or bad(j, values[i]))
            ]
            if not partners:
                raise ValueError(f"cannot permute {facts[i].relation}: too few different values")
            j = rng.choice(partners)
            values[i], values[j] = values[j], values[i]
    return dict(zip(entities, values, strict=True))


# -- the first world: the facts as they are ------------------------------------------------------


def environment(config: TrainConfig) -> Environment:
    """The true facts; training searches its train facts only and never meets a held-out one."""
    world = World.load()
    return Environment.fixed(
        ATLAS,
        Split(
            fixed_questions(world, TRAIN_QUESTIONS, "train"),
            BM25Retriever(world.passages("train")),
        ),
        Split(
            fixed_questions(world, HELDOUT_QUESTIONS, "heldout"),
            BM25Retriever(world.passages("all")),
        ),
    )


def fixed_questions(world: World, total: int, split: str) -> list[Question]:
    """At most `total` different questions, the same draw in every run."""
    drawn = world.sample_questions(random.Random(0), total, split)
    return list({question.id: question for question in drawn}.values())
