"""The training loop, readable top to bottom: roll out, score, update several times.

What the updates read is made in `experience`, and what is measured of them in `measure`.

Randomness is a function of (seed, step, purpose), never a running stream, so a run resumed or
branched at a step draws what an unbroken one would have drawn.
"""

import dataclasses
import logging
import math
import random
import time
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lldlib.config import LossConfig, TrainConfig
from lldlib.losses import LossInputs, compute_loss, most_mixed, needs
from lldlib.losses.llds import dual_weight
from lldlib.losses.objective import derived
from lldlib.policy.load import Policy, reference_model
from lldlib.policy.optimizer import Schedule, adjust, make_optimizer, pack, trainable, unpack
from lldlib.policy.score import Scores, backward_through, leaf_scores, score, score_sorted
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.seeds import seed_for
from lldlib.train import measure
from lldlib.train.experience import Experience, make_experience, scored
from lldlib.train.limit import Limit
from lldlib.types import Batch, Episode, Question, StopReason
from lldlib.world.environment import Environment

GRAD_SHARE_EVERY = 5  # batches between measurements of the negative share: a pass of most rows
# weights of what reads new against old
OFF_POLICY = ("llds_coef", "old_kl_coef", "kl_cov_coef", "sapo_coef")

FIXED = {"policy", "load", "data", "seed"}  # of the config: what a run is made of

logger = logging.getLogger(__name__)


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
        self.shortened: list[tuple[float, float]] = []  # of the batch's updates, and what was kept
        self.llds_weight = config.loss.llds_coef  # lambda of the next batch

    # -- one rollout batch ---------------------------------------------------------------------

    def step(self) -> tuple[dict[str, float], list[Episode]]:
        """One rollout batch with its updates; returns its metrics (see the glossary), episodes."""
        started = time.perf_counter()
        episodes, batch = self.collect()
        rolled = time.perf_counter()
        searches = sum(e.valid_searches for e in episodes) / len(episodes)
        models = self.policy.model, self.reference
        experience = make_experience(*models, batch, searches, self.config)
        scored_at = time.perf_counter()
        metrics, fresh = self._measure_before(experience, episodes)
        ready = time.perf_counter()
        metrics |= self._update(experience)
        updated = time.perf_counter()
        metrics |= self._measure_after(experience, episodes, fresh)
        metrics |= self._follow(metrics["displacement/mixed_token"])
        metrics |= {
            "time/rollout": rolled - started,
            "time/score": scored_at - rolled,
            "time/update": updated - ready,
            "time/step": time.perf_counter() - started,
        }
        self.step_index += 1
        return metrics, episodes

    def collect(self) -> tuple[list[Episode], Batch]:
        """The episodes of this batch, and the same as tensors, with the rewards to train on.

        A rollout that ended because the search tool was down has none (nan), so its group is left
        out. Raises ConnectionError where the tool was down for more rollouts than it served.
        """
        split = self.environment.training(self.step_index)
        rng = random.Random(self._seed("questions"))
        self.rollout.tool = split.tool
        questions = rng.sample(split.questions, self.config.rollout.problems)
        episodes, batch = self._ask(questions, "sampling")
        cut = sum(_lost_its_tool(episodes))
        if cut > sum(episode.valid_searches > 0 for episode in episodes):
            raise ConnectionError(
                f"the search tool was down for {cut} of the {len(episodes)} rollouts of batch "
                f"{self.step_index}: start it, then go on with --resume"
            )
        return episodes, batch

    def _ask(self, questions: list[Question], purpose: str) -> tuple[list[Episode], Batch]:
        """Rollouts for a purpose, and the same as tensors, with the rewards to train on."""
        config = self.config.rollout
        episodes = self.rollout.run(
            self.policy.model,
            questions,
            samples=config.group_size,
            temperature=config.temperature,
            generator=torch.Generator().manual_seed(self._seed(purpose)),
        )
        batch = collate(episodes).to(self.device)
        rewards = self._trained_on(batch.rewards, purpose)
        cut = torch.tensor(_lost_its_tool(episodes), device=rewards.device)
        rewards[cut] = math.nan  # no group of theirs teaches
        return episodes, dataclasses.replace(batch, rewards=rewards)

    def _trained_on(self, rewards: Float[Tensor, " B"], purpose: str) -> Float[Tensor, " B"]:
        """The rewards, or in a control a fair coin's, or theirs shuffled within each group."""
        if self.config.rewards == "true":
            return rewards
        drawn = "fresh control" if purpose == "fresh" else "control"
        generator = torch.Generator().manual_seed(self._seed(drawn))
        if self.config.rewards == "coin":
            return torch.randint(2, rewards.shape, generator=generator).to(rewards)
        groups = rewards.view(-1, self.config.rollout.group_size)
        order = torch.rand(groups.shape, generator=generator).argsort(1).to(rewards.device)
        return groups.gather(1, order).flatten()

    def _update(self, experience: Experience) -> dict[str, float]:
        """Several optimiser updates, one minibatch of rows each; terms are averaged over them."""
        rows, count = self._trained_rows(experience)
        shuffled = torch.Generator().manual_seed(self._seed("order"))
        order = rows[torch.randperm(len(rows), generator=shuffled).to(self.device)]
        draws = torch.Generator().manual_seed(self._seed("dropped"))
        norms, stats, self.shortened = [], [], []
        rate = Schedule(self.config.lr, self.config.warmup_batches).at(self.step_index)
        adjust(self.optimizer, lr=rate, betas=self.config.betas)
        self.policy.model.train()  # where gradient checkpointing acts; nothing drops out
        for number, chosen in enumerate(order.tensor_split(count) if count else ()):
            inputs = self._inputs(experience, chosen, number, draws)
            loss, numbers = compute_loss(self.objective, inputs)
            norms.append(self._apply(loss, inputs, experience, chosen))
            stats.append(numbers)
        self.policy.model.eval()
        finite = [n for n in norms if n is not None]
        keys = stats[0] if stats else ()
        mean = {key: _finite_mean([s[key] for s in stats]) for key in keys}
        mean |= derived(self.objective, mean) if mean else {}
        # nothing to train on, such as no mixed group, is no broken gradient
        idle = not count and bool(experience.finite.all())
        norm = {
            "grad/norm": max(finite, default=math.nan if idle else math.inf),
            "grad/norm_mean": sum(finite) / max(1, len(finite)),
            "update/zero_gradient": finite.count(0.0) / max(1, count),
            "update/skipped": float(self.skipped),
            "update/left_out": float((~experience.finite).sum()),
            "update/lr": rate,
        }
        if self.shortened:
            moves, kept = zip(*self.shortened, strict=True)
            norm |= {"update/move": fmean(moves), "update/kept": fmean(kept)}
        return mean | norm

    def _trained_rows(self, experience: Experience) -> tuple[Int[Tensor, " n"], int]:
        """The rows of this batch's updates, and how many updates they make.

        Where only mixed groups are trained on there are fewer updates, of about as many rows each.
        """
        rows, share = experience.finite, self.config.keep_mixed
        updates, whole = self.config.updates_per_batch, int(rows.sum())
        if share < 1:
            rows = rows & most_mixed(experience.batch.rewards, experience.batch.group, share)
            updates = math.ceil(updates * int(rows.sum()) / max(1, whole))
        chosen = rows.nonzero()[:, 0]
        return chosen, min(updates, len(chosen))

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
        self, experience: Experience, rows: Int[Tensor, " n"], number: int, draws: torch.Generator
    ) -> LossInputs:
        part, toward = experience.minibatch(rows)
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
            old_logp=new.logp.detach() if number == 0 else cut(experience.old.logp),
            advantages=experience.advantages[rows],
            action_mask=part.action_mask,
            answer_mask=part.answer_mask,
            entropy=new.entropy,
            ref_logp=cut(experience.ref_logp),
            proxy_logp=cut(experience.old.proxy_logp),
            negative_token_weights=cut(experience.negative_token_weights),
            mean_valid_searches=experience.mean_valid_searches,
            generator=draws,
            low_logp=experience.low_logp,
            proxy_kl=new.proxy_kl,
            sampler_logp=cut(experience.batch.sampler_logp),
        )

    def _is_whole(self, rows: Int[Tensor, " n"]) -> bool:
        """Whether the minibatch goes through the model with gradient in one piece."""
        return not 0 < self.config.micro_rows < len(rows)

    def _apply(
        self,
        loss: Float[Tensor, ""],
        inputs: LossInputs,
        experience: Experience,
        rows: Int[Tensor, " n"],
    ) -> float | None:
        """One optimiser update; what is not finite is skipped, counted, never applied."""
        self.optimizer.zero_grad(set_to_none=True)
        norm = float("nan")
        # a ratio is cut off where it would overflow, so a loss can hide a log-prob without end
        if torch.isfinite(loss) and inputs.logp.isfinite().all() and loss.requires_grad:
            loss.backward()
            if not self._is_whole(rows):
                part, toward = experience.minibatch(rows)
                leaves = Scores(inputs.logp, inputs.entropy, proxy_kl=inputs.proxy_kl)
                temperature, size = self.config.rollout.temperature, self.config.micro_rows
                backward_through(self.policy.model, part, leaves, temperature, size, toward)
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))
        if not norm < float("inf"):
            self.skipped += 1
            return None
        if norm > 0 or not self.config.skip_zero_updates:
            self._step(inputs.logp.detach(), experience, rows)
        return norm

    def _step(
        self, before: Float[Tensor, "B T"], experience: Experience, rows: Int[Tensor, " n"]
    ) -> None:
        """Move the weights, no further than the limit, if there is one."""
        if not self.config.move_limit:
            self.optimizer.step()
            return
        part, size = experience.minibatch(rows)[0], self.config.micro_rows or len(rows)
        temperature = self.config.rollout.temperature

        def moved() -> float:
            now = score_sorted(self.policy.model, part, temperature, chunk=size).logp
            change = (now - before)[part.action_mask]
            return float(change.square().mean() / 2) if change.numel() else 0.0

        limit = Limit(self.parameters, self.optimizer)
        self.optimizer.step()
        self.shortened.append(limit.shorten(moved, self.config.move_limit))

    # -- measurements --------------------------------------------------------------------------

    def _measure_before(
        self, experience: Experience, episodes: list[Episode]
    ) -> tuple[dict[str, float], tuple[Batch, Float[Tensor, "B T"]] | None]:
        """What is due before the updates, and rollouts that are measured again after them.

        Those are of the same questions and not trained on, with their log-probs.
        """
        model, config, metrics, fresh = self.policy.model, self.config, {}, None
        if self._due(config.fresh_every):
            questions = [e.question for e in episodes[:: config.rollout.group_size]]
            with torch.no_grad():
                _, batch = self._ask(questions, "fresh")
                fresh = batch, scored(model, batch, config).logp
        if self._due(GRAD_SHARE_EVERY):
            metrics["grad/negative_share"] = measure.negative_share(model, experience, config)
        return metrics, fresh

    def _measure_after(
        self,
        experience: Experience,
        episodes: list[Episode],
        fresh: tuple[Batch, Float[Tensor, "B T"]] | None,
    ) -> dict[str, float]:
        model, config = self.policy.model, self.config
        row = measure.of_batch(model, experience, episodes, config)
        if fresh is not None:
            trained_on = row["displacement/mixed_token"]
            row |= measure.of_fresh(model, *fresh, config, trained_on=trained_on)
        if self.probe is not None and self._due(config.probe_every):
            row |= self.probe_metrics()
        watches, encode = self.environment.watches, self.rollout.text.encode
        return row | measure.of_words(model, watches, encode, config.rollout.temperature)

    def probe_metrics(self) -> dict[str, float]:
        """The fixed probe set of correct trajectories, scored under the current policy."""
        return measure.of_probe(self.policy.model, self.probe, self.config)

    def _due(self, every: int) -> bool:
        """Whether this batch is one of every so many; 0 = never."""
        return every > 0 and self.step_index % every == 0

    # -- knobs, checkpoints --------------------------------------------------------------------

    def turn(self, **knobs) -> None:
        """Change settings between steps: `lr`, `loss` (a LossConfig) or another field.

        Raises ValueError for what a run is made of, which cannot be changed in its midst.
        """
        config = dataclasses.replace(self.config, **knobs)
        config.check(len(self.environment.training(self.step_index).questions))
        changed = {name for name in knobs if knobs[name] != getattr(self.config, name)}
        if fixed := sorted(changed & FIXED):
            raise ValueError(f"{fixed[0]} cannot be turned in mid-run: start a new run for it")
        if "method" in changed and "loss" not in knobs:
            raise ValueError("method names a run's loss and does not change it: turn its loss too")
        if "probe_every" in changed and config.probe_every and self.probe is None:
            raise ValueError("probe_every was 0 at the start: there is no probe set to turn to")
        for name in ("eval_every", "questions_every"):
            if name in changed and getattr(config, name) and self.environment.heldout is None:
                raise ValueError(f"{name} cannot be turned: the run has no held-out questions")
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
        if "skipped" not in state:
            raise ValueError("the checkpoint is of another version: start a new run")
        self.step_index, self.skipped = state["step"], state["skipped"]
        self.llds_weight = state.get("llds_weight", self.config.loss.llds_coef)
        unpack(tensors, self.policy.model, self.optimizer)

    def _seed(self, purpose: str) -> int:
        return seed_for(purpose, self.config.seed, self.step_index)


def _lost_its_tool(episodes: list[Episode]) -> list[bool]:
    """Whether each ended because the search tool was down."""
    return [episode.stop is StopReason.TOOL_ERROR for episode in episodes]


def _finite_mean(values: list[Float[Tensor, ""]]) -> float:
    """Over the updates that gave a finite value; inf where none did. See update/skipped."""
    stacked = torch.stack(values)
    known = stacked[stacked.isfinite()]
    return float(known.mean()) if len(known) else math.inf
