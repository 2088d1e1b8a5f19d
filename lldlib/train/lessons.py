"""Noisy demonstrations of the protocol: what the tiny searcher is warm-started on.

A hop's query is corrupted now and then; after a wrong passage the agent searches again or answers
wrongly from what it read, and half-way it may stop and answer too early. Every think block holds
free-form filler, longer where a hop fails: without it the policy has no wording to lose, and the
collapse does not show.
"""

import random

from lldlib.config import DemonstrationConfig
from lldlib.retrieval import Retriever
from lldlib.world.atlas import World, WorldQuestion

FILLER = (
    "but wait perhaps alternatively however then maybe so now first next let me think about "
    "this again we need to know which one it could be that here also still just really since "
    "because if not sure yes okay hmm well look for check find see recall note step by more "
    "clue fact place name thing question hint likely probably should would might must can try "
    "another way back over before after once always never often indeed actually simply "
    "clearly rather quite almost only even too very much many some any each both either other "
    "same good"
).split()
_WEIGHTS = [1 / (rank + 1) for rank in range(8)]  # Zipf


def _bigrams() -> dict[str, list[str]]:
    """Eight possible successors of each filler word; fixed for the project."""
    rng = random.Random(123)
    return {word: rng.sample(FILLER, 8) for word in FILLER}


_NEXT = _bigrams()


def filler(rng: random.Random, mean: float) -> list[str]:
    """Free-form reasoning: a Zipf-weighted bigram walk of 1 to 2 * mean - 1 words.

    The length is uniform, so that an end comes ever more surely: a greedy policy does not walk in
    circles.
    """
    words = rng.choices(FILLER[:8], _WEIGHTS)
    for _ in range(rng.randint(0, round(2 * mean) - 2)):
        words += rng.choices(_NEXT[words[-1]], _WEIGHTS)
    return words


def demonstrate(
    world: World,
    question: WorldQuestion,
    retriever: Retriever,
    rng: random.Random,
    config: DemonstrationConfig,
) -> list[tuple[str, bool]]:
    """Pieces of one episode after the prompt: (text, whether the policy wrote it)."""
    pieces: list[tuple[str, bool]] = []
    hops, searches = list(question.chain), 0
    while hops:
        hop = hops[0]
        bad = rng.random() < config.corrupt
        key = rng.choice(world.keys[hop.relation]) if bad else hop.key
        mean = config.filler_words_failing if bad else config.filler_words
        words = [hop.query_words[0], key]
        rng.shuffle(words)
        think = " ".join([*filler(rng, mean), "find", key])
        pieces.append((f"<think> {think} </think> <search> {' '.join(words)} </search>", True))
        found = retriever.search([" ".join(words)], 1)[0]
        passage = found[0].text if found else ""
        pieces.append((f"<information> {passage} </information>", False))
        searches += 1
        if bad and passage and rng.random() < config.give_up:
            return [*pieces, _answer(rng, passage.split()[-4 if hop.inverse else -2], mean)]
        if not bad:
            hops.pop(0)
            if hops and rng.random() < config.stop_early:
                return [*pieces, _answer(rng, hop.answer, config.filler_words)]
        if searches >= config.max_searches and hops:
            return pieces
    return [*pieces, _answer(rng, question.answers[0], config.filler_words)]


def _answer(rng: random.Random, answer: str, mean: float) -> tuple[str, bool]:
    think = " ".join([*filler(rng, mean), "so", answer])
    return f"<think> {think} </think> <answer> {answer} </answer>", True
