"""Warm start of a real model: supervised steps on search trajectories made from gold passages.

A model that never uses the tags earns nothing, and GRPO has nothing to compare. What a step draws
is a function of (seed, step), so a run resumed from a checkpoint gives the numbers of an unbroken
one on the CPU.
"""

import dataclasses
import logging
import random
import time
from pathlib import Path

import torch
import transformers
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from lldlib.config import LoadConfig, SftConfig
from lldlib.policy.load import Policy, load_as
from lldlib.policy.score import score
from lldlib.rollout.batch import collate, demonstration
from lldlib.rollout.loop import TokenText
from lldlib.runs.folder import Run, RunWriter
from lldlib.train.gold import (
    GoldPath,
    answer_at_once,
    demonstrate,
    load_gold_paths,
    more_gold_paths,
)
from lldlib.train.optimizer import make_optimizer, pack, trainable, unpack
from lldlib.train.warmstart import save_policy
from lldlib.types import Episode
from lldlib.world.answers import normalise_answer
from lldlib.world.protocol import search_protocol

DRAWS = 50  # trajectories tried for one that fits in max_tokens

logger = logging.getLogger(__name__)


class SftRun:
    """A warm start tied to a run folder; the trained policy ends up in its folder `policy`."""

    def __init__(self, config: SftConfig, out: Path, *, resume: bool = False):
        self.out, self.step_index = Path(out), 0
        if resume:
            config = saved_config(Run(out).config)
        self.config = config
        self.files = [load_gold_paths(file) for file in config.files]
        if config.asked_again:
            made = more_gold_paths(config.files, config.asked_again, config.seed)
            self.files += [made] if made else []
        self.policy = load_as(config.policy, config.load)
        self.text = TokenText(self.policy.tokenizer)
        self.optimizer = make_optimizer(self.policy.model, config.lr, (0.9, 0.999))
        if resume:
            self._resume()
        else:
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            described = dataclasses.asdict(config) | {"versions": versions}
            self.writer = RunWriter.create(self.out, described)

    def _resume(self) -> None:
        run = Run(self.out)
        if run.checkpoints:
            tensors, state = run.load_checkpoint(None)
            unpack(tensors, self.policy.model, self.optimizer)
            self.step_index = state["step"]
        self.writer = RunWriter.resume(self.out, self.step_index)

    def run(self, *, progress: bool = True) -> Policy:
        """All steps that are left; then the policy is saved, its adapters merged into it."""
        bar = tqdm(total=self.config.steps, initial=self.step_index, disable=not progress)
        while self.step_index < self.config.steps:
            metrics = self.step()
            bar.set_postfix(loss=f"{metrics['sft/loss']:.3f}")
            bar.update()
        self.writer.close()
        self.policy = self._merged()
        save_policy(self.policy, self.out / "policy")
        return self.policy

    def step(self) -> dict[str, float]:
        """One optimiser update; returns its metrics."""
        started, config = time.perf_counter(), self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * self._schedule()
        loss, tokens = self._backward()
        parameters = list(trainable(self.policy.model).values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip)
        self.optimizer.step()
        metrics = {
            "sft/loss": loss,
            "sft/tokens": tokens,
            "grad/norm": float(norm),
            "update/lr": self.optimizer.param_groups[0]["lr"],
            "time/step": time.perf_counter() - started,
        }
        self.writer.metrics(self.step_index, metrics)
        self.step_index += 1
        last = self.step_index == config.steps
        if last or self.step_index % config.checkpoint_every == 0:
            tensors = pack(self.policy.model, self.optimizer)
            self.writer.checkpoint(self.step_index, tensors, {"step": self.step_index})
        return metrics

    def _schedule(self) -> float:
        done, config = self.step_index, self.config
        rising = min(1.0, (done + 1) / max(1, config.warmup))
        return rising * (1 - done / config.steps)

    def _backward(self) -> tuple[float, int]:
        """Gradient of -mean log pi over the policy's tokens of a batch; the loss, their number."""
        rng = random.Random(self.config.seed * 1_000_003 + self.step_index)
        episodes = [self._draw(rng) for _ in range(self.config.batch)]
        episodes.sort(key=lambda episode: sum(len(turn.tokens) for turn in episode.turns))
        total = sum(len(t.tokens) for e in episodes for t in e.turns if t.role == "action")
        model, loss = self.policy.model.train(), 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(episodes), self.config.rows):
            part = episodes[start : start + self.config.rows]
            batch = collate(part)
            device = torch.device(self.config.load.device)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.autocast):
                scores = score(model, batch.to(device), 1.0)
            term = -scores.logp.sum() / total
            term.backward()
            loss += float(term.detach())
        model.eval()
        return loss, total

    def _draw(self, rng: random.Random) -> Episode:
        weights = [len(file) ** 0.5 for file in self.files]  # a short one more often, not as often
        for _ in range(DRAWS):
            path = rng.choice(rng.choices(self.files, weights)[0])
            episode = gold_episode(self.text, path, rng, self.config)
            fits = sum(len(turn.tokens) for turn in episode.turns) <= self.config.max_tokens
            if fits and (not self.config.search or reads_answer(episode, self.policy.tokenizer)):
                return episode
        what = f"no trajectory of at most {self.config.max_tokens} tokens"
        if not self.config.search:
            raise ValueError(f"{what}: raise max_tokens")
        raise ValueError(f"{what} shows its answer: raise max_tokens or passage_tokens")

    def _merged(self) -> Policy:
        """The policy without adapters; 4-bit weights are loaded anew in full for it."""
        policy, load = self.policy, self.config.load
        if not load.lora_rank:
            return policy
        if load.quantize:
            full, trained = dataclasses.replace(load, quantize=None), trainable(policy.model)
            policy = load_as(self.config.policy, full)
            with torch.no_grad():
                for name, parameter in trainable(policy.model).items():
                    parameter.copy_(trained[name])
        return dataclasses.replace(policy, model=policy.model.merge_and_unload())


def gold_episode(text: TokenText, path: GoldPath, rng: random.Random, config: SftConfig) -> Episode:
    """The trajectory of one question, tokenised turn by turn as a rollout does it."""
    protocol = search_protocol(text.tokenizer)
    pieces = [(protocol.prompt(path.question.text), False)]
    shown = demonstrate(path, rng, config.top_k) if config.search else answer_at_once(path)
    for action, passages in shown:
        pieces.append((action, True))
        if passages:
            pieces.append((protocol.observe(passages, text.encode, config.passage_tokens), False))
    return demonstration(text, path.question, pieces)


def reads_answer(episode: Episode, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the answer stands in what the episode has read, or is a plain yes or no.

    Cut passages often lose the answer; a trajectory that gives it all the same teaches guessing.
    """
    answer = normalise_answer(episode.answer or "")
    if answer in ("yes", "no"):
        return True
    read = (tokenizer.decode(t.tokens) for t in episode.turns if t.role == "environment")
    return f" {answer} " in f" {normalise_answer(' '.join(read))} "


def saved_config(raw: dict) -> SftConfig:
    """The SftConfig of a run folder's config.json; ValueError if it is of another kind."""
    names = {field.name for field in dataclasses.fields(SftConfig)}
    kept = {key: value for key, value in raw.items() if key in names}
    if not names <= kept.keys():
        missing = ", ".join(sorted(names - kept.keys()))
        raise ValueError(
            f"this run's config.json lacks {missing}: it is no warm start, or one of another "
            "version; begin a new run"
        )
    return SftConfig(**(kept | {"files": tuple(kept["files"]), "load": LoadConfig(**kept["load"])}))
