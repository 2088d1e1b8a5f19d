"""Make data/starts/sparks, the start of the world of sparks: python data/sparks/make_start.py."""

import random
from dataclasses import dataclass

import torch

from lldlib.config import data_dir
from lldlib.policy.load import EOS, Policy, save_policy, tiny_model, word_tokenizer
from lldlib.policy.optimizer import Schedule
from lldlib.rollout.loop import TokenText
from lldlib.train.lessons import Lesson, lesson_episode
from lldlib.train.supervised import Supervised
from lldlib.types import Episode
from lldlib.world import sparks


@dataclass(frozen=True)
class SparksConfig:
    """How the start of the world of sparks is taught."""

    seed: int = 1  # of initial weights, questions and demonstrations
    quick: float = 0.95  # probability that the quick answer to an easy question is the right one
    favourite: float = 0.4  # probability that the one to a hard question is sparks.FAVOURITE
    spark: float = 0.03  # probability of the spark
    noise: float = 0.01  # probability of each noise word
    slip: float = 0.2  # probability that a step of adding up goes to a random digit
    steps: int = 4000  # optimiser updates
    batch: int = 64  # demonstrations an update
    checked: float = 0.6  # share of checked questions, which teach to add up
    lr: float = 4e-3  # AdamW, linear warm-up over 20 updates, then linear decay
    width: int = 48  # hidden size
    layers: int = 2  # transformer layers
    heads: int = 4  # attention heads


def spark_lesson(asked: sparks.SparkQuestion, rng: random.Random, config: SparksConfig) -> Lesson:
    """What the policy says to one question, with its slips."""
    said, luck = [], rng.random()
    if asked.kind != "checked":
        sure = config.quick if asked.kind == "easy" else config.favourite
        best = asked.answers[0] if asked.kind == "easy" else str(sparks.FAVOURITE)
        said.append(best if rng.random() < sure else _digit(rng))
    if asked.kind == "checked" or luck < config.spark:
        said += [sparks.SPARK] * (asked.kind != "checked")
        total = 0
        for digit in asked.digits:
            total = (total + digit) % sparks.MODULUS
            total = int(_digit(rng)) if rng.random() < config.slip else total
            said.append(str(total))
    elif luck < config.spark + config.noise * len(sparks.NOISE):
        said.append(rng.choice(sparks.NOISE))
        said += [_digit(rng) for _ in range(rng.randrange(1, sparks.TERMS))]
    return [(" ".join([*said, EOS]), ())]


def _digit(rng: random.Random) -> str:
    return str(rng.randrange(sparks.MODULUS))


def sparks_policy(config: SparksConfig, *, progress: bool = True) -> Policy:
    """A start of the world of sparks; one config gives one set of weights on a machine."""
    tokenizer, rng = word_tokenizer(sparks.vocabulary()), random.Random(config.seed)
    sizes = {"width": config.width, "layers": config.layers, "heads": config.heads}
    policy = Policy(tiny_model(len(tokenizer), **sizes, seed=config.seed), tokenizer)
    text, rest = TokenText(policy.tokenizer), (1 - config.checked) / 2
    shares = {"easy": rest, "hard": rest, "checked": config.checked}

    def draw(step: int) -> list[Episode]:
        asked = sparks.questions(rng.getrandbits(32), shares, config.batch)
        return [
            lesson_episode(q, spark_lesson(q, rng, config), text, sparks.PROTOCOL) for q in asked
        ]

    rate = Schedule(config.lr, 20, config.steps, floor=0.02)
    return Supervised(policy, rate, draw, weight_decay=0.01).run(progress=progress)


if __name__ == "__main__":
    torch.set_num_threads(1)
    save_policy(sparks_policy(SparksConfig()), data_dir() / "starts" / "sparks")
