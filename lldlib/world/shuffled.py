"""The shuffled atlas: a planet that does not exist, made anew for every rollout batch.

It has the entities of the built-in world, but the values of each relation are shuffled among them
so that no true pair occurs: a false capital in its passages is false on purpose. Nothing can be
remembered, so whoever answers has read. Its library misses now and then, so that the outcome of a
good search stays uncertain. Held out are the true facts, which training never shows, and questions
of one hop more than training asks.
"""

import random
from collections import Counter
from collections.abc import Sequence

from lldlib.config import ExamHalf, TrainConfig
from lldlib.retrieval import BM25Retriever, Passage
from lldlib.seeds import seed_for
from lldlib.world.atlas import MAX_HOPS, World, WorldQuestion
from lldlib.world.environment import ATLAS, EXAM_SAMPLES, Environment, Split

PLANET_QUESTIONS = 256  # drawn for a rollout batch, which asks some of them
EXAM = 64  # held-out questions of each number of hops, half for validation and half for the test


class MissingRetriever:
    """A retriever that with probability `misses` returns random passages in place of the best.

    The luck of a search follows from the seed, the query and how often that query was asked before,
    so it does not depend on the order of searches for different things.
    """

    def __init__(self, inner: BM25Retriever, misses: float, seed: int) -> None:
        """ValueError for a probability outside 0 to 1."""
        if not 0 <= misses <= 1:
            raise ValueError(f"misses is {misses}: give a probability from 0 to 1")
        self.inner, self.misses, self.seed = inner, misses, seed
        self._asked: Counter[str] = Counter()

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """As the inner retriever, where the search does not miss."""
        found = self.inner.search(queries, k)
        return [self._luck(*pair, k) for pair in zip(queries, found, strict=True)]

    def _luck(self, query: str, found: list[Passage], k: int) -> list[Passage]:
        self._asked[query] += 1
        draw = random.Random(f"{self.seed}/{query}/{self._asked[query]}")
        if draw.random() >= self.misses:
            return found
        return draw.sample(self.inner.passages, min(k, len(self.inner.passages)))


def planet(seed: int) -> World:
    """The built-in world with no true pair left, every fact for training."""
    return World.load().permuted(seed).all_as("train")


def exam_questions(
    hops: Sequence[int], half: ExamHalf, limit: int = EXAM // 2
) -> list[WorldQuestion]:
    """Questions about the true facts, at most `limit` and EXAM / 2 of each number of hops.

    The draw is the same in every run; "validation" and "test" are its even and its odd places.
    Raises ValueError for more hops than MAX_HOPS.
    """
    if max(hops) > MAX_HOPS:
        raise ValueError(f"no question has {max(hops)} hops: train on at most {MAX_HOPS - 1}")
    world, rng, start = World.load().all_as("heldout"), random.Random(0), half == "test"
    drawn = []
    for number in hops:
        group = world.questions("heldout", hops=[number])
        drawn += rng.sample(group, min(EXAM, len(group)))[start::2][:limit]
    return drawn


def environment(config: TrainConfig) -> Environment:
    """A planet without a true pair for every batch; held out are the true facts.

    Training and the exam "missing" search a library that misses; the exam "further" asks one hop
    more than training does. Raises ValueError where no question is one hop longer.
    """
    data, truth = config.data, BM25Retriever(World.load().passages("all"))
    if not any(data.hop_weights):
        raise ValueError("data.hop_weights are all 0: give at least one number of hops a share")
    hops = [number for number, weight in enumerate(data.hop_weights, start=1) if weight]
    near, far = (
        exam_questions(part, data.exam_half, data.heldout_limit) for part in (hops, [max(hops) + 1])
    )

    def training(batch: int) -> Split:
        seed = seed_for("training planet", config.seed, batch)
        world, rng = planet(seed), random.Random(seed)
        questions = world.sample_questions(rng, PLANET_QUESTIONS, "train", data.hop_weights)
        tool = MissingRetriever(BM25Retriever(world.passages("train")), data.misses, seed)
        return Split(questions, tool)

    def exams() -> dict[str, Split]:
        missing = MissingRetriever(truth, data.misses, seed=0)
        return {
            "missing": Split(near, missing, EXAM_SAMPLES),
            "further": Split(far, truth, EXAM_SAMPLES),
        }

    return Environment(ATLAS, training, Split(near, truth, EXAM_SAMPLES), exams)
