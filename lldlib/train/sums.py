"""A made maths task that a very small model learns in seconds: sums of digits, step by step.

The solutions that teach it slip now and then, and a few slips are noticed with "wait" and worked
out again, so that right and wrong rollouts, rare words and a rare second thought all exist.
"""

import random
from dataclasses import dataclass

import torch
from torch import nn

from lldlib.policy.load import EOS, Policy, tiny_model, word_tokenizer
from lldlib.rollout.batch import demonstration
from lldlib.rollout.loop import TokenText
from lldlib.train.warmstart import supervised_loss
from lldlib.types import Episode, Question
from lldlib.world.protocol import MATHS

DIGITS = range(1, 6)  # the terms of a sum
LINKS = ("so", "then", "now", "next", "and", "but", "perhaps")  # words that open a step
LINK_WEIGHTS = (50, 25, 12, 7, 3, 2, 1)
SLIPS = (-2, -1, 1, 2)  # how far off a wrong total is


@dataclass(frozen=True)
class SumsConfig:
    """The sums and how well they are taught."""

    terms: int = 3  # digits of a sum
    slip: float = 0.15  # probability that a step is wrong
    wait: float = 0.1  # probability that a wrong step is noticed and done again
    steps: int = 300  # optimiser updates
    batch: int = 32  # solutions an update
    lr: float = 4e-3  # AdamW, linear warm-up over 20 updates, then linear decay
    width: int = 48  # hidden size
    layers: int = 2  # transformer layers
    heads: int = 4  # attention heads


def sum_questions(count: int, seed: int, config: SumsConfig) -> list[Question]:
    """`count` different sums such as "3 + 1 + 5 = ?"; ValueError where there are not so many.

    A sum's id is its digits.
    """
    if count > len(DIGITS) ** config.terms:
        raise ValueError(f"there are no {count} sums of {config.terms} digits: take fewer")
    rng, found = random.Random(seed), {}
    while len(found) < count:
        digits = rng.choices(DIGITS, k=config.terms)
        text = " + ".join(map(str, digits)) + " = ?"
        found["".join(map(str, digits))] = (text, (str(sum(digits)),))
    return [Question(name, *pair) for name, pair in found.items()]


def solution(question: Question, rng: random.Random, config: SumsConfig) -> str:
    """A worked solution with its slips, ended by the boxed answer."""
    total, *rest = map(int, question.id)
    words = []
    while rest:
        wrong = rng.random() < config.slip
        found = total + rest[0] + (rng.choice(SLIPS) if wrong else 0)
        words += [*rng.choices(LINKS, LINK_WEIGHTS), f"{total} + {rest[0]} = {found} ."]
        if wrong and rng.random() < config.wait:
            words.append("wait")
        else:
            total = max(0, found)
            rest.pop(0)
    return " ".join([*words, f"\\boxed{{ {total} }}", EOS])


def sums_policy(seed: int, config: SumsConfig) -> Policy:
    """A small model of random weights, taught on solutions; one seed gives one set of weights."""
    top = config.terms * (max(DIGITS) + max(SLIPS))
    numbers = [str(number) for number in range(min(SLIPS), top + 1)]
    words = [*numbers, "+", "=", "?", ".", "wait", *LINKS, "\\boxed{", "}"]
    tokenizer = word_tokenizer([*words, *MATHS.instruction.split()])
    sizes = {"width": config.width, "layers": config.layers, "heads": config.heads}
    model = tiny_model(len(tokenizer), **sizes, seed=seed).train()
    text, rng = TokenText(tokenizer), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01, fused=True)
    questions = sum_questions(len(DIGITS) ** config.terms, seed, config)
    for step in range(config.steps):
        scale = min(1.0, (step + 1) / 20) * max(0.02, 1 - step / config.steps)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * scale
        chosen = rng.choices(questions, k=config.batch)
        loss = supervised_loss(model, [_lesson(text, q, rng, config) for q in chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return Policy(model.eval(), tokenizer)


def _lesson(text: TokenText, question: Question, rng: random.Random, config: SumsConfig) -> Episode:
    """A prompt with its solution."""
    shown = [(MATHS.prompt(question.text), False), (solution(question, rng, config), True)]
    return demonstration(text, question, shown)
