"""Supervised training on lessons: one loop makes the tiny searcher and warm-starts real models.

A model that never uses the tags earns nothing, and GRPO has nothing to compare.
"""

import dataclasses
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from lldlib.config import DemonstrationConfig, LoadConfig, SftConfig, WarmstartConfig
from lldlib.files import new_folder
from lldlib.policy.load import (
    Policy,
    check_device,
    check_length,
    load_as,
    save_policy,
    tiny_model,
    word_tokenizer,
)
from lldlib.policy.optimizer import Schedule, adjust, make_optimizer, pack, trainable, unpack
from lldlib.policy.score import score
from lldlib.retrieval import BM25Retriever
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import TokenText
from lldlib.runs.folder import Held, Run, RunWriter, refuse_run
from lldlib.runs.measures import known
from lldlib.seeds import seed_for
from lldlib.train import lessons
from lldlib.types import Episode
from lldlib.world.answers import normalise_answer
from lldlib.world.atlas import World, vocabulary
from lldlib.world.protocol import TINY, atlas_protocol, search_protocol

DRAWS = 50  # trajectories tried for one that fits in max_tokens
PLAIN = DemonstrationConfig(
    corrupt=0.03, stop_early=0.1, filler_words=1.0, filler_words_failing=1.0
)


class Supervised:
    """AdamW on -mean log pi over the policy's tokens of the episodes that `draw(step)` gives."""

    def __init__(
        self,
        policy: Policy,
        rate: Schedule,
        draw: Callable[[int], list[Episode]],
        *,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        rows: int | None = None,  # episodes scored at a time; None: all
        autocast: bool = False,  # matrix products in bfloat16
    ):
        self.policy, self.rate, self.draw = policy, rate, draw
        self.grad_clip, self.rows, self.autocast = grad_clip, rows, autocast
        self.step_index, self.skipped = 0, 0
        self.optimizer = make_optimizer(policy.model, rate.lr, weight_decay=weight_decay)

    def step(self) -> dict[str, float]:
        """One optimiser update; returns its metrics. What is not finite is skipped and counted."""
        started = time.perf_counter()
        adjust(self.optimizer, lr=self.rate.at(self.step_index))
        self.optimizer.zero_grad(set_to_none=True)
        loss, tokens = self._backward(self.draw(self.step_index))
        parameters = list(trainable(self.policy.model).values())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.grad_clip))
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
        else:
            self.skipped += 1
        self.step_index += 1
        return {
            "sft/loss": known(loss),
            "sft/tokens": tokens,
            "grad/norm": known(norm),
            "update/skipped": self.skipped,
            "update/lr": self.optimizer.param_groups[0]["lr"],
            "time/step": time.perf_counter() - started,
        }

    def _backward(self, episodes: list[Episode]) -> tuple[float, int]:
        """Gradient of the loss, some rows of similar length at a time; the loss, its tokens."""
        episodes = sorted(episodes, key=_length)
        total = sum(len(t.tokens) for e in episodes for t in e.turns if t.role == "action")
        model, loss = self.policy.model.train(), 0.0
        device, rows = next(model.parameters()).device, self.rows or len(episodes)
        for start in range(0, len(episodes), rows):
            part = episodes[start : start + rows]
            batch = collate(part)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.autocast):
                scores = score(model, batch.to(device), 1.0)
            term = -scores.logp.sum() / total
            term.backward()
            loss += float(term.detach())
        model.eval()
        return loss, total

    def run(self, *, progress: bool = True) -> Policy:
        """All updates that are left; returns the policy."""
        steps = self.rate.steps
        with tqdm(total=steps, initial=self.step_index, disable=not progress) as bar:
            while self.step_index < steps:
                bar.set_postfix(loss=f"{self.step()['sft/loss']:.3f}", refresh=False)
                bar.update()
        return self.policy


def _length(episode: Episode) -> int:
    return sum(len(turn.tokens) for turn in episode.turns)


# -- small models from nothing ---------------------------------------------------------------------


def make_tiny(world: World, config: WarmstartConfig) -> Policy:
    """An untrained searcher whose vocabulary covers world, protocol and filler."""
    extra = f"{TINY.prompt('')} {TINY.invalid_message} find so".split()
    tokenizer = word_tokenizer([*vocabulary(world), *extra, *lessons.FILLER])
    sizes = {"width": config.width, "layers": config.layers, "heads": config.heads}
    return Policy(tiny_model(len(tokenizer), **sizes, seed=config.seed), tokenizer)


def warm_start(world: World, config: WarmstartConfig, *, progress: bool = True) -> Policy:
    """A searcher of the atlas, tiny or real; one config, one set of weights on a machine.

    A tokenizer without the tags means a real model, which is taught plain English. The facts are
    permuted afresh all through it, so that remembering an answer never pays and the searcher has to
    read; no true fact is ever shown.
    """
    config.check()
    check_device(config.device)
    policy = load_as(config.start, LoadConfig()) if config.start else make_tiny(world, config)
    policy.model.to(config.device)
    rng = random.Random(config.seed)
    text, permuted, retriever = TokenText(policy.tokenizer), world, None
    protocol = atlas_protocol(policy.tokenizer)

    def draw(step: int) -> list[Episode]:
        """The lessons of an update, on a planet that is made anew every few updates."""
        nonlocal permuted, retriever
        if step % config.steps_per_world == 0:
            planet = seed_for("warm-start planet", config.seed, step)
            permuted = world.permuted(planet).all_as("train")
            retriever = BM25Retriever(permuted.passages("train"))
        questions = permuted.sample_questions(rng, config.batch, "train", config.hop_weights)
        style = PLAIN if step < config.plain_steps else config.demonstrations
        plain = protocol is not TINY
        return [
            lessons.lesson_episode(
                q,
                lessons.atlas_lesson(permuted, q, retriever, rng, style, plain=plain),
                text,
                protocol,
            )
            for q in questions
        ]

    rate = Schedule(config.lr, config.warmup, config.steps, floor=0.05)
    learner = Supervised(
        policy,
        rate,
        draw,
        weight_decay=0.01,
        rows=config.rows or None,
        autocast=config.autocast,
    )
    return learner.run(progress=progress)


# -- real models -----------------------------------------------------------------------------------


class SftRun(Supervised):
    """A warm start tied to a run folder; the trained policy ends up in its folder `policy`.

    What a step draws is a function of (seed, step), so a run resumed from a checkpoint gives the
    numbers of an unbroken one on the CPU.
    """

    def __init__(self, config: SftConfig, out: Path, *, resume: bool = False):
        self.out = Path(out)
        if resume:
            config = sft_config_from(Run(out).config)
            Held(self.out).close()  # in use: said before anything is loaded
        else:
            refuse_run(self.out)
        config.check()
        self.config = config
        self.files = [lessons.load_gold_paths(file) for file in config.files]
        super().__init__(
            load_as(config.policy, config.load),
            Schedule(config.lr, config.warmup, config.steps),
            self._draw,
            grad_clip=config.grad_clip,
            rows=config.rows,
            autocast=config.autocast,
        )
        check_length(self.policy.model, config.max_tokens)
        self.text = TokenText(self.policy.tokenizer)
        if resume:
            self._resume()
        else:
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            described = dataclasses.asdict(config) | {"versions": versions}
            self.writer = RunWriter.create(self.out, described)

    def _resume(self) -> None:
        with Held(self.out).freed_by_errors() as held:
            run = Run(self.out)
            if run.checkpoints:  # else from its first step
                tensors, state = run.load_checkpoint(run.resumes_at())
                unpack(tensors, self.policy.model, self.optimizer)
                self.step_index, self.skipped = state["step"], state.get("skipped", 0)
            self.writer = RunWriter.resume(self.out, self.step_index, held)

    def run(self, *, progress: bool = True) -> Policy:
        """All steps that are left; then the policy is saved, its adapters merged into it."""
        try:
            super().run(progress=progress)
        finally:  # so that a new SftRun may resume it, also in the same notebook
            self.writer.close()
        self.policy = self._merged()
        shutil.rmtree(self.out / "policy", ignore_errors=True)
        with new_folder(self.out / "policy") as fresh:
            save_policy(self.policy, fresh)
        return self.policy

    def step(self) -> dict[str, float]:
        """One update, logged; a checkpoint where one is due."""
        metrics = super().step()
        done = self.step_index
        self.writer.metrics(done - 1, metrics)
        every = self.config.checkpoint_every
        if done == self.config.steps or (every and done % every == 0):
            tensors = pack(self.policy.model, self.optimizer)
            state = {"step": done, "skipped": self.skipped}
            self.writer.checkpoint(done, tensors, state)
        return metrics

    def _draw(self, step: int) -> list[Episode]:
        rng = random.Random(seed_for("warm-start rows", self.config.seed, step))
        return [self._draw_one(rng) for _ in range(self.config.batch)]

    def _draw_one(self, rng: random.Random) -> Episode:
        config = self.config
        weights = [len(file) ** 0.5 for file in self.files]  # a short one more often, not as often
        for _ in range(DRAWS):
            path = rng.choice(rng.choices(self.files, weights)[0])
            episode = gold_episode(self.text, path, rng, config)
            if _length(episode) <= config.max_tokens and (
                not config.search or reads_answer(episode, self.policy.tokenizer)
            ):
                return episode
        what = f"no trajectory of at most {config.max_tokens} tokens"
        if not config.search:
            raise ValueError(f"{what}: raise max_tokens")
        raise ValueError(f"{what} shows its answer: raise max_tokens or passage_tokens")

    def _merged(self) -> Policy:
        """The policy without adapters; 4-bit weights are loaded anew in full for it."""
        policy, load = self.policy, self.config.load
        if not load.lora_rank:
            return policy
        if load.quantize:
            full, trained = replace(load, quantize=None), trainable(policy.model)
            policy = load_as(self.config.policy, full)
            with torch.no_grad():
                for name, parameter in trainable(policy.model).items():
                    parameter.copy_(trained[name])
        return replace(policy, model=policy.model.merge_and_unload())


def gold_episode(
    text: TokenText, path: lessons.GoldPath, rng: random.Random, config: SftConfig
) -> Episode:
    """The trajectory of one question: a search for each hop, or the answer at once."""
    if config.search:
        lesson = lessons.gold_lesson(path, rng, config.top_k)
    else:
        lesson = lessons.answer_at_once(path)
    protocol = search_protocol(text.tokenizer)
    return lessons.lesson_episode(path.question, lesson, text, protocol, config.passage_tokens)


def reads_answer(episode: Episode, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the answer stands in what the episode has read, or is a plain yes or no.

    Cut passages often lose the answer; a trajectory that gives it all the same teaches guessing.
    """
    answer = normalise_answer(episode.answer or "")
    if answer in ("yes", "no"):
        return True
    read = (tokenizer.decode(t.tokens) for t in episode.turns if t.role == "environment")
    return f" {answer} " in f" {normalise_answer(' '.join(read))} "


def sft_config_from(raw: dict) -> SftConfig:
    """The SftConfig of a run folder's config.json; ValueError if it is of another kind."""
    names = {field.name for field in dataclasses.fields(SftConfig)}
    kept = {key: value for key, value in raw.items() if key != "versions"}
    if other := ", ".join(sorted(names ^ kept.keys())):
        raise ValueError(
            f"this run's config.json differs in {other}: it is no warm start, or one of another "
            "version; begin a new run"
        )
    try:
        if not isinstance(kept["files"], list):
            raise TypeError("files is no list")
        config = kept | {"files": tuple(kept["files"]), "load": LoadConfig(**kept["load"])}
        return SftConfig(**config)
    except TypeError as error:
        raise ValueError(
            f"this run's config.json is of another version ({error}): begin a new run"
        ) from error
