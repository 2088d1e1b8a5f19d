"""Supervised warm start of the tiny searcher on noisy demonstrations.

The facts are permuted afresh all through it, so that remembering an answer never pays and the
searcher has to read; no true held-out fact is ever shown.
"""

import logging
import random
from pathlib import Path

import torch
from jaxtyping import Float
from torch import nn
from tqdm import tqdm

from lldlib.config import DemonstrationConfig, WarmstartConfig
from lldlib.policy.load import Policy, tiny_model, word_tokenizer
from lldlib.retrieval import BM25Retriever, Retriever
from lldlib.rollout.batch import collate, demonstration
from lldlib.rollout.loop import TokenText
from lldlib.train.lessons import FILLER, demonstrate
from lldlib.types import Episode
from lldlib.world.atlas import World, WorldQuestion, vocabulary
from lldlib.world.protocol import TINY

PLAIN = DemonstrationConfig(
    corrupt=0.03, stop_early=0.1, filler_words=1.0, filler_words_failing=1.0
)

logger = logging.getLogger(__name__)


def make_tiny(world: World, config: WarmstartConfig) -> Policy:
    """An untrained searcher whose vocabulary covers world, protocol and filler."""
    extra = f"{TINY.prompt('')} {TINY.invalid_message} find so".split()
    words = list(dict.fromkeys([*vocabulary(world), *extra, *FILLER]))
    tokenizer = word_tokenizer(words)
    model = tiny_model(
        len(tokenizer),
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        seed=config.seed,
    )
    return Policy(model, tokenizer)


def warm_start(world: World, config: WarmstartConfig, *, progress: bool = True) -> Policy:
    """Train a tiny searcher from nothing; one config gives one set of weights on a machine."""
    policy = make_tiny(world, config)
    model, text = policy.model.train(), TokenText(policy.tokenizer)
    rng = random.Random(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01, fused=True)
    bar = tqdm(range(config.steps), disable=not progress, desc="warm start")
    for step in bar:
        if step % config.steps_per_world == 0:
            permuted = world.permuted(config.seed * 1_000_003 + step).all_as("train")
            retriever = BM25Retriever(permuted.passages("train"))
        scale = min(1.0, (step + 1) / 100) * max(0.05, 1 - step / config.steps)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * scale
        questions = permuted.sample_questions(rng, config.batch, "train")
        style = PLAIN if step < config.plain_steps else config.demonstrations
        shown = [lesson(text, q, permuted, retriever, rng, style) for q in questions]
        loss = supervised_loss(model, shown)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
    model.eval()
    return policy


def save_policy(policy: Policy, path: Path) -> None:
    """Write weights (safetensors), configuration and tokenizer."""
    policy.model.save_pretrained(path)
    policy.tokenizer.save_pretrained(path)
    logger.info("saved the policy to %s", path)


def lesson(
    text: TokenText,
    question: WorldQuestion,
    world: World,
    retriever: Retriever,
    rng: random.Random,
    style: DemonstrationConfig,
) -> Episode:
    """One demonstration of how the question is answered in the world."""
    prompt = (TINY.prompt(question.text), False)
    return demonstration(
        text, question, [prompt, *demonstrate(world, question, retriever, rng, style)]
    )


def supervised_loss(model: nn.Module, episodes: list[Episode]) -> Float[torch.Tensor, ""]:
    """Mean cross-entropy (nats) of the policy's own tokens in demonstrations."""
    batch = collate(episodes)
    labels = batch.tokens.masked_fill(~batch.action_mask, -100)  # which are not learnt
    return model(input_ids=batch.tokens, labels=labels, use_cache=False).loss
