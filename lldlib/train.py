"""The training loop, readable top to bottom: roll out, score, update several times, measure, log.

Randomness is a function of (seed, step, purpose), never a running stream, so a run resumed or branched at a step
draws what an unbroken one would have drawn.
"""

import dataclasses
import random
import time

import torch
from jaxtyping import Float
from torch import Tensor

from lldlib import diagnostics
from lldlib.advantages import group_advantages
from lldlib.batching import collate
from lldlib.config import TrainConfig
from lldlib.losses import nthr_weights
from lldlib.objective import LossInputs, compute_loss, needs
from lldlib.policies import Policy
from lldlib.retrieval import Retriever
from lldlib.rewards import exact_match
from lldlib.rollout import Rollout
from lldlib.scoring import Scores, score, score_sorted
from lldlib.types import Batch, Episode, Question

GRAD_SHARE_EVERY = (
    5  # batches between measurements of the negative share, which costs three more passes
)
QUESTIONS, SAMPLING, ORDER = range(3)  # purposes of random draws


def draw_seed(seed: int, step: int, purpose: int) -> int:
    """A seed of its own for every (run, batch, purpose)."""
    return (seed * 1_000_003 + step) * 8 + purpose


def _check(config: TrainConfig, questions: list[Question]) -> None:
    """One-line errors for settings under which no update means anything."""
    rollout = config.rollout
    if rollout.group_size < 2:
        raise ValueError(
            f"group_size is {rollout.group_size}: GRPO compares rollouts of one question, use 2 or more"
        )
    if not 1 <= rollout.problems <= len(questions):
        raise ValueError(
            f"{len(questions)} questions for batches of {rollout.problems}: change rollout.problems"
        )
    if not rollout.temperature > 0:
        raise ValueError(f"temperature is {rollout.temperature}: training samples, use more than 0")
    if config.updates_per_batch < 1:
        raise ValueError(f"updates_per_batch is {config.updates_per_batch}: use 1 or more")


class Trainer:
    """GRPO with regularizers on a search agent; one `step()` is one rollout batch and its updates."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        retriever: Retriever,
        questions: list[Question],
        probe: Batch | None = None,
    ):
        _check(config, questions)
        self.config, self.policy, self.questions, self.probe = config, policy, questions, probe
        self.rollout = Rollout(policy.tokenizer, policy.protocol, retriever, config.rollout)
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.reference = self._frozen_copy() if config.loss.kl_coef else None
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=config.betas, weight_decay=0.0, fused=True
        )
        self.step_index, self.skipped = 0, 0

    # -- one rollout batch ------------------------------------------------------------------------------------

    def step(self) -> tuple[dict[str, float], list[Episode]]:
        """Do one rollout batch with its updates; returns its metrics (see the glossary) and episodes."""
        started = time.perf_counter()
        episodes, batch = self._collect()
        rolled = time.perf_counter()
        old = self._score_old(batch)
        advantages = group_advantages(
            batch.rewards, batch.group, scale=self.config.loss.scale_advantage
        )
        weights = self._nthr(batch, advantages)
        scored = time.perf_counter()
        searches = sum(e.valid_searches for e in episodes) / len(episodes)
        metrics = self._update(batch, old, advantages, weights, searches)
        updated = time.perf_counter()
        metrics |= self._measure(batch, old, advantages, episodes)
        metrics |= {
            "time/rollout": rolled - started,
            "time/score": scored - rolled,
            "time/update": updated - scored,
            "time/step": time.perf_counter() - started,
        }
        self.step_index += 1
        return metrics, episodes

    def _collect(self) -> tuple[list[Episode], Batch]:
        size = self.config.rollout.group_size
        rng = random.Random(self._seed(QUESTIONS))
        chosen = rng.sample(self.questions, self.config.rollout.problems)
        generator = torch.Generator().manual_seed(self._seed(SAMPLING))
        episodes = self.rollout.run(
            self.policy.model,
            [question for question in chosen for _ in range(size)],
            temperature=self.config.rollout.temperature,
            generator=generator,
        )
        rewards = [exact_match(e.answer, e.question.answers) for e in episodes]
        groups = [row // size for row in range(len(episodes))]
        return episodes, collate(episodes, rewards, groups, self.rollout.text)

    @torch.no_grad()
    def _score_old(self, batch: Batch) -> tuple[Scores, Float[Tensor, "B T"] | None]:
        """The policy that made the batch, and the reference where the objective needs it."""
        temperature = self.config.rollout.temperature
        proxy = self.config.loss if "proxy_logp" in needs(self.config.loss) else None
        old = score_sorted(self.policy.model, batch, temperature, entropy=True, proxy=proxy)
        if "ref_logp" not in needs(self.config.loss):
            return old, None
        return old, score_sorted(self.reference, batch, temperature).logp

    @torch.no_grad()
    def _nthr(self, batch: Batch, advantages: Float[Tensor, " B"]) -> Float[Tensor, "B T"] | None:
        if "nthr" not in needs(self.config.loss):
            return None
        inner = score(self.policy.model, batch, self.config.rollout.temperature, internals=True)
        return nthr_weights(inner.hidden, inner.errors, advantages, batch.group, batch.action_mask)

    def _update(self, batch, old, advantages, weights, searches: float) -> dict[str, float]:
        """Several optimiser updates, one minibatch of rows each."""
        scores, ref_logp = old
        count = min(self.config.updates_per_batch, len(advantages))
        order = torch.randperm(
            len(advantages), generator=torch.Generator().manual_seed(self._seed(ORDER))
        )
        norms, stats, share = [], [], {}
        self._set_lr()
        for number, rows in enumerate(order.tensor_split(count)):
            part = batch.rows(rows)
            inputs = self._inputs(
                part, rows, scores, ref_logp, advantages, weights, searches, number
            )
            if number == count - 1 and self.step_index % GRAD_SHARE_EVERY == 0:
                share = {"grad/negative_share": self._negative_share(inputs)}
            loss, numbers = compute_loss(self.config.loss, inputs)
            norms.append(self._apply(loss))
            stats.append(numbers)
        finite = [n for n in norms if n is not None]
        mean = {
            key: float(torch.stack([s[key] for s in stats]).mean())
            for key in (stats[0] if stats else ())
        }
        return (
            mean
            | share
            | {
                "grad/norm": max(finite, default=float("nan")),
                "grad/norm_mean": sum(finite) / max(1, len(finite)),
                "update/skipped": float(self.skipped),
                "update/lr": self.optimizer.param_groups[0]["lr"],
            }
        )

    def _inputs(
        self, part, rows, scores, ref_logp, advantages, weights, searches, number
    ) -> LossInputs:
        width = part.tokens.shape[1]

        def cut(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows, :width]

        entropy = "entropy" in needs(self.config.loss)
        new = score(self.policy.model, part, self.config.rollout.temperature, entropy=entropy)
        return LossInputs(
            logp=new.logp,
            # Before the first update both policies are one; rounding of another batch shape must not open a gate.
            old_logp=new.logp.detach() if number == 0 else cut(scores.logp),
            advantages=advantages[rows],
            action_mask=part.action_mask,
            answer_mask=part.answer_mask,
            entropy=new.entropy,
            ref_logp=cut(ref_logp),
            proxy_logp=cut(scores.proxy_logp),
            negative_token_weights=cut(weights),
            mean_valid_searches=searches,
            generator=torch.Generator().manual_seed(self._seed(ORDER) + number),
        )

    def _apply(self, loss: Float[Tensor, ""]) -> float | None:
        """One optimiser update; a non-finite loss or gradient is skipped, counted, and never reaches the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        norm = float("nan")
        if torch.isfinite(loss) and loss.requires_grad:
            loss.backward()
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))
        if not norm < float("inf"):
            self.skipped += 1
            return None
        self.optimizer.step()
        return norm

    def _negative_share(self, inputs: LossInputs) -> float:
        """Share of the negative-advantage rows in the policy term's gradient (two norms, not their sum)."""
        bare = dataclasses.replace(self.config.loss, **REGULARIZERS_OFF)
        norms = []
        for keep in (inputs.advantages.clamp(max=0), inputs.advantages.clamp(min=0)):
            # a generator of its own: a measurement must not move the draws of the update
            part = dataclasses.replace(inputs, advantages=keep, generator=torch.Generator())
            loss, _ = compute_loss(bare, part)
            grads = torch.autograd.grad(loss, self.parameters, retain_graph=True, allow_unused=True)
            norms.append(float(sum(g.square().sum() for g in grads if g is not None) ** 0.5))
        return diagnostics.grad_share(*norms)

    # -- measurements -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _measure(self, batch: Batch, old, advantages, episodes) -> dict[str, float]:
        scores, temperature = old[0], self.config.rollout.temperature
        new = score_sorted(self.policy.model, batch, temperature).logp
        mask, loss = batch.action_mask, self.config.loss
        std = batch.rewards.view(-1, self.config.rollout.group_size).std(1)
        row = {
            "reward/mean": float(batch.rewards.mean()),
            "reward/std": float(std.mean()),
            "reward/mixed_groups": float((std > 0).float().mean()),
            "policy/entropy": diagnostics.mean_logp(scores.entropy, mask),
        }
        row |= diagnostics.likelihood(scores.logp, batch.rewards, mask)
        row |= diagnostics.displacement(scores.logp, new, batch.rewards, mask)
        row |= diagnostics.low_probability(
            scores.logp, scores.proxy_logp, advantages, mask, loss.lp_reg_quantile
        )
        row |= diagnostics.sampler_gap(batch.sampler_logp, scores.logp, mask)
        row |= diagnostics.episode_stats(episodes)
        if self.probe is not None and self.step_index % self.config.probe_every == 0:
            row |= self.probe_metrics()
        return row

    @torch.no_grad()
    def probe_metrics(self) -> dict[str, float]:
        """The fixed probe set of correct trajectories, scored under the current policy."""
        logp = score_sorted(self.policy.model, self.probe, self.config.rollout.temperature).logp
        return diagnostics.probe_report(logp, self.probe.action_mask, self.probe.span)

    # -- knobs, checkpoints -----------------------------------------------------------------------------------

    def turn(self, **knobs) -> None:
        """Change settings between steps: `lr`, `updates_per_batch`, `loss` (a LossConfig), any other field."""
        config = dataclasses.replace(self.config, **knobs)
        _check(config, self.questions)
        if config.loss.kl_coef and self.reference is None:
            raise ValueError(
                "kl_coef was 0 at the start, so there is no reference policy: restart with kl_coef > 0"
            )
        self.config, self.rollout.config = config, config.rollout

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """Everything a resumed run needs: tensors (weights, optimiser moments) and plain numbers."""
        tensors = {f"model.{k}": v for k, v in self._named().items()}
        for name, p in self._named().items():
            for key, value in self.optimizer.state.get(p, {}).items():
                tensors[f"optimizer.{key}.{name}"] = value
        config = dataclasses.asdict(self.config)
        return tensors, {"step": self.step_index, "skipped": self.skipped, "config": config}

    def load_state(self, tensors: dict[str, Tensor], state: dict) -> None:
        """Continue from a checkpoint's content, bit for bit on the CPU."""
        self.step_index, self.skipped = state["step"], state["skipped"]
        self.optimizer.state.clear()
        with torch.no_grad():
            for name, p in self._named().items():
                p.copy_(tensors[f"model.{name}"])
                moments = {
                    k: tensors.get(f"optimizer.{k}.{name}")
                    for k in ("step", "exp_avg", "exp_avg_sq")
                }
                if moments["step"] is not None:
                    self.optimizer.state[p] = {
                        k: v.clone().to(p.device) for k, v in moments.items()
                    }

    def _named(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.policy.model.named_parameters() if p.requires_grad}

    def _seed(self, purpose: int) -> int:
        return draw_seed(self.config.seed, self.step_index, purpose)

    def _set_lr(self) -> None:
        warm = self.config.warmup_batches
        scale = min(1.0, (self.step_index + 1) / warm) if warm else 1.0
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = self.config.lr * scale, self.config.betas

    def _frozen_copy(self):
        import copy

        return copy.deepcopy(self.policy.model).requires_grad_(False)


REGULARIZERS_OFF = {
    "kl_coef": 0.0,
    "entropy_coef": 0.0,
    "old_kl_coef": 0.0,
    "llds_coef": 0.0,
    "lp_reg_coef": 0.0,
    "kl_cov_coef": 0.0,
}
