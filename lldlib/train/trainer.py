"""The training loop, readable top to bottom: roll out, score, update several times, measure.

Randomness is a function of (seed, step, purpose), never a running stream, so a run resumed or
branched at a step draws what an unbroken one would have drawn.
"""

import dataclasses
import logging
import math
import random
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lldlib.config import LossConfig, TrainConfig
from lldlib.losses import (
    LossInputs,
    compute_loss,
    group_advantages,
    low_log_prob,
    needs,
    nthr_weights,
)
from lldlib.losses.llds import dual_weight
from lldlib.losses.objective import derived, policy_only
from lldlib.policy.head import Proxy
from lldlib.policy.load import Policy, adapters_off, reference_model
from lldlib.policy.optimizer import make_optimizer, pack, trainable, unpack
from lldlib.policy.score import (
    ROWS,
    Scores,
    backward_through,
    leaf_scores,
    next_probability,
    score,
    score_sorted,
)
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.runs import measures as diagnostics
from lldlib.seeds import seed_for
from lldlib.types import Batch, Episode, Question
from lldlib.world.environment import Environment

GRAD_SHARE_EVERY = 5  # batches between measurements of the negative share: a pass of most rows
OFF_POLICY = ("llds_coef", "old_kl_coef", "kl_cov_coef")  # weights of what reads new against old

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A rollout batch with all that its updates read and that does not change between them."""

    batch: Batch
    old: Scores  # of the policy that made the batch
    advantages: Float[Tensor, " B"]
    ref_logp: Float[Tensor, "B T"] | None
    negative_token_weights: Float[Tensor, "B T"] | None
    low_logp: Float[Tensor, ""] | None
    mean_valid_searches: float

    def minibatch(self, rows: Int[Tensor, " n"]) -> tuple[Batch, Proxy | None]:
        """The chosen rows, and Lp-Reg's proxy of the policy that sampled, if its KL is exact."""
        part, full = self.batch.rows(rows), self.old.proxy
        return part, None if full is None else full.at(rows, slice(part.tokens.shape[1]))


class Trainer:
    """GRPO with regularizers on a search agent; `step()` is one rollout batch and its updates."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        environment: Environment,
        probe: Batch | None = None,
    ):
        first = environment.training(0)
        config.check(len(first.questions))
        if config.updates_per_batch == 1 and (
            idle := [n for n in OFF_POLICY if getattr(config.loss, n)]
        ):
            logger.warning(
                "%s: no effect with updates_per_batch 1, as a policy has not moved from itself; "
                "use 2 or more",
                ", ".join(idle),
            )
        self.config, self.policy, self.environment = config, policy, environment
        self.device = next(policy.model.parameters()).device
        self.probe = None if probe is None else probe.to(self.device)
        self.rollout = Rollout(policy.tokenizer, environment.rules, first.tool, config.rollout)
        self.parameters = list(trainable(policy.model).values())
        self.reference = reference_model(policy.model) if config.loss.kl_coef else None
        self.optimizer = make_optimizer(policy.model, config.lr, config.betas)
        self.step_index, self.skipped = 0, 0
        self.llds_weight = config.loss.llds_coef  # lambda of the next batch

    # -- one rollout batch ---------------------------------------------------------------------

    def step(self) -> tuple[dict[str, float], list[Episode]]:
        """One rollout batch with its updates; returns its metrics (see the glossary), episodes."""
        started = time.perf_counter()
        episodes, batch = self._collect()
        rolled = time.perf_counter()
        prepared = self._prepare(batch, episodes)
        scored = time.perf_counter()
        fresh = self._fresh(episodes)
        ready = time.perf_counter()
        metrics = self._update(prepared)
        updated = time.perf_counter()
        metrics |= self._measure(prepared, episodes, fresh)
        metrics |= self._follow(metrics["displacement/mixed_token"])
        metrics |= {
            "time/rollout": rolled - started,
            "time/score": scored - rolled,
            "time/update": updated - ready,
            "time/step": time.perf_counter() - started,
        }
        self.step_index += 1
        return metrics, episodes

    def _collect(self) -> tuple[list[Episode], Batch]:
        split = self.environment.training(self.step_index)
        rng = random.Random(self._seed("questions"))
        self.rollout.tool = split.tool
        questions = rng.sample(split.questions, self.config.rollout.problems)
        episodes, batch = self._ask(questions, "sampling")
        return episodes, dataclasses.replace(batch, rewards=self._trained_on(batch.rewards))

    def _ask(self, questions: list[Question], purpose: str) -> tuple[list[Episode], Batch]:
        config = self.config.rollout
        episodes = self.rollout.run(
            self.policy.model,
            questions,
            samples=config.group_size,
            temperature=config.temperature,
            generator=torch.Generator().manual_seed(self._seed(purpose)),
        )
        return episodes, collate(episodes).to(self.device)

    def _trained_on(self, rewards: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The rewards, or in a control a fair coin's, or theirs shuffled within each group."""
        if self.config.rewards == "true":
            return rewards
        generator = torch.Generator().manual_seed(self._seed("control"))
        if self.config.rewards == "coin":
            return torch.randint(2, rewards.shape, generator=generator).to(rewards)
        groups = rewards.view(-1, self.config.rollout.group_size)
        order = torch.rand(groups.shape, generator=generator).argsort(1).to(rewards.device)
        return groups.gather(1, order).flatten()

    @torch.no_grad()
    def _fresh(self, episodes: list[Episode]) -> tuple[Batch, Float[Tensor, "B T"]] | None:
        """When due, other rollouts of the same questions, only measured, with their log-probs."""
        every = self.config.fresh_every
        if not every or self.step_index % every:
            return None
        questions = [e.question for e in episodes[:: self.config.rollout.group_size]]
        _, batch = self._ask(questions, "fresh")
        return batch, self._scored(self.policy.model, batch).logp

    @torch.no_grad()
    def _prepare(self, batch: Batch, episodes: list[Episode]) -> Prepared:
        """Score the batch under the policy that made it, and what else the objective needs."""
        config = self.config.loss
        wanted = needs(config)
        proxy = config if "proxy_logp" in wanted else None
        old = self._scored(self.policy.model, batch, entropy=True, proxy=proxy)
        advantages = group_advantages(batch.rewards, batch.group, scale=config.scale_advantage)
        if old.proxy is not None:  # Lp-Reg acts on rows of A < 0 alone
            count = old.proxy.count * (advantages < 0)[:, None]
            old = dataclasses.replace(old, proxy=dataclasses.replace(old.proxy, count=count))
        ref_logp = weights = low = None
        if "low_logp" in wanted:
            low = low_log_prob(old.logp, batch.action_mask, config.lp_reg_quantile)
        if "ref_logp" in wanted:
            with adapters_off(self.reference):
                ref_logp = self._scored(self.reference, batch).logp
        if "negative_token_weights" in wanted:
            weights = self._nthr(batch, advantages)
        searches = sum(e.valid_searches for e in episodes) / len(episodes)
        return Prepared(batch, old, advantages, ref_logp, weights, low, searches)

    def _nthr(self, batch: Batch, advantages: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
        """NTHR's factors; where memory is bounded, of one group at a time, which is the least."""
        temperature = self.config.rollout.temperature
        parts = batch.group.unique() if self.config.micro_rows else [None]
        weights = torch.ones(batch.action_mask.shape, device=self.device)
        for group in parts:
            rows = torch.arange(len(advantages), device=self.device)
            if group is not None:
                rows = rows[batch.group == group]
            part = batch.rows(rows)
            inner = score(self.policy.model, part, temperature, internals=True)
            weights[rows, : part.tokens.shape[1]] = nthr_weights(
                inner.hidden, inner.errors, advantages[rows], part.group, part.action_mask
            )
        return weights

    def _scored(self, model: torch.nn.Module, batch: Batch, **wanted) -> Scores:
        """Without gradient, and so never more rows at a time than an update may hold."""
        rows = self.config.micro_rows or ROWS
        return score_sorted(model, batch, self.config.rollout.temperature, chunk=rows, **wanted)

    def _update(self, prepared: Prepared) -> dict[str, float]:
        """Several optimiser updates, one minibatch of rows each; terms are averaged over them."""
        rows = len(prepared.advantages)
        count = min(self.config.updates_per_batch, rows)
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(self._seed("order")))
        draws = torch.Generator().manual_seed(self._seed("dropped"))
        norms, stats, share = [], [], {}
        self._set_lr()
        self.policy.model.train()  # where gradient checkpointing acts; nothing drops out
        if self.step_index % GRAD_SHARE_EVERY == 0:
            share = {"grad/negative_share": self._negative_share(prepared)}
        for number, chosen in enumerate(order.to(self.device).tensor_split(count)):
            inputs = self._inputs(prepared, chosen, number, draws)
            loss, numbers = compute_loss(self.objective, inputs)
            pieces = None if self._is_whole(chosen) else chosen
            norms.append(self._apply(loss, inputs, prepared, pieces))
            stats.append(numbers)
        self.policy.model.eval()
        finite = [n for n in norms if n is not None]
        mean = {key: float(torch.stack([s[key] for s in stats]).mean()) for key in stats[0]}
        mean |= derived(self.objective, mean)
        norm = {
            "grad/norm": max(finite, default=float("nan")),
            "grad/norm_mean": sum(finite) / max(1, len(finite)),
            "update/skipped": float(self.skipped),
            "update/lr": self.optimizer.param_groups[0]["lr"],
        }
        return mean | share | norm

    @property
    def objective(self) -> LossConfig:
        """The loss of the next batch: the settings', with lambda of LLDS where it stands now."""
        if self.config.llds_target is None:
            return self.config.loss
        return dataclasses.replace(self.config.loss, llds_coef=self.llds_weight)

    def _follow(self, moved: float) -> dict[str, float]:
        """Move lambda towards the target by what a batch's updates did to its correct rows."""
        target, used = self.config.llds_target, self.llds_weight
        if target is None:
            return {}
        self.llds_weight = dual_weight(used, moved, target)
        return {"llds/weight": used}

    def _inputs(
        self, prepared: Prepared, rows: Int[Tensor, " n"], number: int, draws: torch.Generator
    ) -> LossInputs:
        part, toward = prepared.minibatch(rows)
        width = part.tokens.shape[1]

        def cut(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows, :width]

        temperature, size = self.config.rollout.temperature, self.config.micro_rows
        wanted = {"entropy": "entropy" in needs(self.config.loss), "toward": toward}
        if self._is_whole(rows):
            new = score(self.policy.model, part, temperature, **wanted)
        else:
            new = leaf_scores(self.policy.model, part, temperature, size, **wanted)
        return LossInputs(
            logp=new.logp,
            # Before the first update both policies are one; the rounding of another batch shape
            # must not open a gate.
            old_logp=new.logp.detach() if number == 0 else cut(prepared.old.logp),
            advantages=prepared.advantages[rows],
            action_mask=part.action_mask,
            answer_mask=part.answer_mask,
            entropy=new.entropy,
            ref_logp=cut(prepared.ref_logp),
            proxy_logp=cut(prepared.old.proxy_logp),
            negative_token_weights=cut(prepared.negative_token_weights),
            mean_valid_searches=prepared.mean_valid_searches,
            generator=draws,
            low_logp=prepared.low_logp,
            proxy_kl=new.proxy_kl,
        )

    def _is_whole(self, rows: Int[Tensor, " n"]) -> bool:
        """Whether the minibatch goes through the model with gradient in one piece."""
        return not 0 < self.config.micro_rows < len(rows)

    def _apply(
        self,
        loss: Float[Tensor, ""],
        inputs: LossInputs,
        prepared: Prepared,
        pieces: Int[Tensor, " n"] | None,
    ) -> float | None:
        """One optimiser update; what is not finite is skipped, counted, never applied.

        `pieces` are the minibatch's rows where it has to pass through the model in pieces.
        """
        self.optimizer.zero_grad(set_to_none=True)
        norm = float("nan")
        if torch.isfinite(loss) and loss.requires_grad:
            loss.backward()
            if pieces is not None:
                part, toward = prepared.minibatch(pieces)
                leaves = Scores(inputs.logp, inputs.entropy, proxy_kl=inputs.proxy_kl)
                temperature, size = self.config.rollout.temperature, self.config.micro_rows
                backward_through(self.policy.model, part, leaves, temperature, size, toward)
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))
        if not norm < float("inf"):
            self.skipped += 1
            return None
        self.optimizer.step()
        return norm

    def _negative_share(self, prepared: Prepared) -> float:
        """Share of negative-advantage rows in the policy term's gradient: of two norms' sum.

        Over all rows and before the first update, where both policies are one.
        """
        batch, old, bare = prepared.batch, prepared.old, policy_only(self.config.loss)
        norms = []
        for kept in (prepared.advantages.clamp(max=0), prepared.advantages.clamp(min=0)):
            inputs = LossInputs(
                logp=old.logp.clone().requires_grad_(),
                old_logp=old.logp,
                advantages=kept,
                action_mask=batch.action_mask,
                answer_mask=batch.answer_mask,
                entropy=old.entropy,
                negative_token_weights=prepared.negative_token_weights,
                # of its own: a measurement must not move the draws of the update
                generator=torch.Generator(),
            )
            compute_loss(bare, inputs)[0].backward()
            norms.append(self._norm_through(batch, inputs.logp))
        return diagnostics.grad_share(*norms)

    def _norm_through(self, batch: Batch, leaf: Float[Tensor, "B T"]) -> float:
        """Norm of the weights' gradient that a gradient by log-probs implies; none is left."""
        rows = leaf.grad.any(1).nonzero()[:, 0]  # the others have no part in it
        if not len(rows):
            return 0.0
        part = batch.rows(rows)
        # no more at a time than a minibatch has, for which there is memory
        size = self.config.micro_rows or math.ceil(len(leaf) / self.config.updates_per_batch)
        chosen = leaf.detach()[rows, : part.tokens.shape[1]]
        chosen.grad = leaf.grad[rows, : part.tokens.shape[1]]
        self.optimizer.zero_grad(set_to_none=True)
        temperature = self.config.rollout.temperature
        backward_through(self.policy.model, part, Scores(chosen), temperature, size)
        grads = [p.grad for p in self.parameters if p.grad is not None]
        self.optimizer.zero_grad(set_to_none=True)
        return float(sum(g.square().sum() for g in grads) ** 0.5)

    # -- measurements --------------------------------------------------------------------------

    @torch.no_grad()
    def _measure(
        self,
        prepared: Prepared,
        episodes: list[Episode],
        fresh: tuple[Batch, Float[Tensor, "B T"]] | None,
    ) -> dict[str, float]:
        batch, scores = prepared.batch, prepared.old
        new = self._scored(self.policy.model, batch).logp
        mask, loss = batch.action_mask, self.config.loss
        std = batch.rewards.view(-1, self.config.rollout.group_size).std(1)
        row = {
            "reward/mean": float(torch.tensor([e.reward for e in episodes], device="cpu").mean()),
            "reward/std": float(std.mean()),
            "reward/mixed_groups": float((std > 0).float().mean()),
            "policy/entropy": diagnostics.mean_logp(scores.entropy, mask),
        }
        row |= diagnostics.likelihood(scores.logp, batch.rewards, mask)
        row |= diagnostics.official_likelihood(scores.logp, prepared.advantages, mask)
        row |= diagnostics.displacement(scores.logp, new, batch.rewards, mask)
        row |= diagnostics.token_displacement(scores.logp, new, prepared.advantages, mask)
        if fresh is not None:
            row |= self._fresh_displacement(*fresh, row["displacement/mixed_token"])
        row |= diagnostics.low_probability(
            scores.logp, scores.proxy_logp, prepared.advantages, mask, loss.lp_reg_quantile
        )
        row |= diagnostics.sampler_gap(batch.sampler_logp, scores.logp, mask)
        row |= diagnostics.episode_stats(episodes)
        every = self.config.probe_every
        if self.probe is not None and every and self.step_index % every == 0:
            row |= self.probe_metrics()
        return row | self._watched()

    def _watched(self) -> dict[str, float]:
        """After the updates, how probable the words are that the environment watches."""
        encode, temperature = self.rollout.text.encode, self.config.rollout.temperature
        found = {}
        for name, watch in self.environment.watches.items():
            rows = [encode(text) for text in watch.texts]
            tokens = [token for word in watch.words for token in encode(word)]
            found[f"watch/{name}"] = next_probability(self.policy.model, rows, tokens, temperature)
        return found

    def _fresh_displacement(
        self, batch: Batch, old: Float[Tensor, "B T"], trained_on: float
    ) -> dict[str, float]:
        new = self._scored(self.policy.model, batch).logp
        advantages = group_advantages(batch.rewards, batch.group, scale=False)
        return diagnostics.fresh_displacement(
            old, new, batch.rewards, advantages, batch.action_mask, trained_on=trained_on
        )

    @torch.no_grad()
    def probe_metrics(self) -> dict[str, float]:
        """The fixed probe set of correct trajectories, scored under the current policy."""
        logp = self._scored(self.policy.model, self.probe).logp
        return diagnostics.probe_report(logp, self.probe.action_mask, self.probe.span)

    # -- knobs, checkpoints --------------------------------------------------------------------

    def turn(self, **knobs) -> None:
        """Change settings between steps: `lr`, `loss` (a LossConfig) or any other field."""
        config = dataclasses.replace(self.config, **knobs)
        config.check(len(self.environment.training(self.step_index).questions))
        if config.loss.kl_coef and self.reference is None:
            raise ValueError("kl_coef was 0 at the start: there is no reference policy to turn to")
        if config.loss.llds_coef != self.config.loss.llds_coef:
            self.llds_weight = config.loss.llds_coef
        self.config, self.rollout.config = config, config.rollout

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """All that a resumed run needs: tensors (weights, optimiser moments), plain numbers."""
        config = dataclasses.asdict(self.config)
        numbers = {"step": self.step_index, "skipped": self.skipped, "config": config}
        numbers["llds_weight"] = self.llds_weight
        return pack(self.policy.model, self.optimizer), numbers

    def load_state(self, tensors: dict[str, Tensor], state: dict) -> None:
        """Continue from a checkpoint's content, bit for bit on the CPU."""
        self.step_index, self.skipped = state["step"], state["skipped"]
        self.llds_weight = state.get("llds_weight", self.config.loss.llds_coef)
        unpack(tensors, self.policy.model, self.optimizer)

    def _seed(self, purpose: str) -> int:
        return seed_for(purpose, self.config.seed, self.step_index)

    def _set_lr(self) -> None:
        warm = self.config.warmup_batches
        scale = min(1.0, (self.step_index + 1) / warm) if warm else 1.0
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = self.config.lr * scale, self.config.betas
