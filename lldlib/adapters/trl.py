"""LLDS and Lp-Reg in TRL's GRPOTrainer, with this project's diagnostics, run folder and alarm.

The policy term, KL and rollouts stay TRL's. A rollout batch that is measured takes two more passes
without gradient: the batch after its updates, and the probe set. Lp-Reg takes another where one
update goes over a rollout batch in several micro-batches. Image inputs are not supported. TRL pads
prompts on the left and completions on the right: T here is completion tokens.
"""

import time
from collections import defaultdict
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from lldlib.adapters.trl_config import VERSIONS, LLDGRPOConfig, check_trainer
from lldlib.adapters.trl_report import BatchReport
from lldlib.adapters.trl_rows import (
    Pass,
    Rows,
    action_mask,
    backbone,
    joined,
    listening,
    proxy,
    silenced,
    tied,
)
from lldlib.adapters.watch import Watch, given_spans, read_spans, tool_results
from lldlib.losses import Counts, LossInputs, low_log_prob, needs, preserved_mask, regularizers
from lldlib.types import Span

__all__ = ["VERSIONS", "LLDGRPOConfig", "LLDGRPOTrainer"]


class LLDGRPOTrainer(GRPOTrainer):
    """GRPOTrainer plus the terms of `LLDGRPOConfig`; full fine-tuning, LoRA and QLoRA.

    Actions are completion_mask * tool_mask; a response is correct where its reward is over 0.5.
    One that no reward function scored (all None) counts as incorrect; TRL gives it A = 0, so LLDS
    keeps it under llds_preserve "nonnegative". What a weight is worth depends on `loss_type`: see
    `LLDGRPOConfig`.

    While a term is on, a group of equal rewards has A = 0 exactly, where TRL's rounding gives it
    some 1e-4; and what TRL's importance-sampling or off-policy masks take from the policy term,
    LLDS and Lp-Reg leave alone too, since the sampler of such a token was not this policy.
    `top_entropy_quantile` silences the policy term alone: a token without a policy gradient of its
    own loses likelihood through the others', which is what LLDS is for.

    TRL's logs gain the glossary's keys, `phase` (live: 0 steady, 1 learning, 2 stagnation,
    3 decay, 4 collapse) and `alarm` (1 once it rang), on the last update of each rollout batch;
    without measurements the terms' own alone. Raises TypeError for a plain GRPOConfig,
    FileExistsError where `run_folder` holds a run, ValueError for dropout and for other settings
    under which a term means nothing.
    """

    def __init__(self, model, reward_funcs=None, args=None, *rest, **kwargs):
        if args is None:  # as TRL, which makes one of the model's name
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = LLDGRPOConfig(f"{name.split('/')[-1]}-GRPO")
        if not isinstance(args, LLDGRPOConfig):
            raise TypeError(
                "LLDGRPOTrainer reads llds_* and lp_reg_*: pass args=LLDGRPOConfig(...)"
            )
        super().__init__(model, reward_funcs, args, *rest, **kwargs)
        self.terms, self.active = args.terms, args.active
        check_trainer(self)
        main = self.accelerator.is_main_process
        self.watch = Watch(args.run_folder if main else None)
        self.piece = cache(lambda token: self._tokenizer.decode([token]))
        self.measured = False  # the present rollout batch
        self._live: tuple[Tensor, Tensor | None] | None = None
        self._passes: list[Pass] | None = None  # scored while a rollout batch was made
        self._counts: list[Counts] = []
        self.low_logp: Tensor | None = None  # Lp-Reg's delta of the present rollout batch
        self._divided: list[Rows] | None = None
        if self.active or args.measure_every:
            self.add_callback(BatchReport(self))

    @property
    def extended(self) -> bool:
        """Whether the present step is more than TRL's."""
        return bool(self.active or self.args.measure_every) and self.model.training

    # -- rollouts: what the terms and the diagnostics need is added to each row ------------------

    def _calculate_rewards(self, *args, **kwargs) -> Tensor:
        out = super()._calculate_rewards(*args, **kwargs)
        if self.extended:  # of all processes
            self.reward_parts = out
            self.rewards = (out * self.reward_weights.to(out.device)).nansum(1).float()
        return out

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
        if not self.extended:
            return super()._generate_and_score_completions(inputs)
        began, needed = time.perf_counter(), needs(self.terms)
        self._passes = [] if "proxy_logp" in needed else None
        output = super()._generate_and_score_completions(inputs)
        if "pixel_values" in output:
            raise ValueError("the TRL adapter scores text only: train on rows without images")
        every, batch = self.args.measure_every, self.state.global_step
        self.measured = every > 0 and batch // self.args.updates_per_batch % every == 0
        output["lld_mask"] = mask = action_mask(output)
        first = self.accelerator.process_index * len(mask)
        own = slice(first, first + len(mask))
        if self.active:
            output["advantages"] = output["advantages"].masked_fill(self._tied()[own], 0.0)
        old = output.get("old_per_token_logps")
        if old is None and needed & {"proxy_logp", "low_logp"} and not self._at_once:
            old = self.score(output)
        if old is not None:  # else the live policy is the one that sampled
            self._sampled(output, old)
        self._passes = None
        if self.measured or self.args.reads_text:
            output["lld_span"], self.valid_searches = self._read(inputs, output)
        if self.measured:
            output["lld_reward"] = self.rewards[own]
        self.began, self.sums, self.norms = began, defaultdict(float), []
        return output

    def _tied(self) -> Bool[Tensor, " B"]:
        """Rows of all processes whose group has one reward."""
        by_part = self.multi_objective_aggregation == "normalize_then_sum"
        weights = self.reward_weights.to(self.reward_parts.device)
        return tied(self.reward_parts, weights, self.num_generations, by_part=by_part)

    def _read(self, inputs: list[dict], output: Rows) -> tuple[Tensor, float]:
        """What each token is there for, and the mean number of valid searches of a rollout."""
        span, tagged = read_spans(output["completion_ids"], output["lld_mask"], self.piece)
        if None not in (told := [row.get("spans") for row in inputs]):  # by a rollout function
            span = given_spans(told, output["completion_ids"])
        searches = self._searches(inputs, output, tagged)
        mean = torch.tensor(searches, dtype=torch.float32, device=span.device).mean()
        return span, float(self.accelerator.reduce(mean, reduction="mean"))

    def _searches(self, inputs: list[dict], output: Rows, tagged: list[int]) -> list[int]:
        """What the environments or the rollout function counted, or tags, or results of tools."""
        counters = self.environments or []
        if counters and all(hasattr(e, "valid_searches") for e in counters):
            return [e.valid_searches for e in counters]
        rows = [row.get("valid_searches") for row in inputs]
        if None not in rows:
            return rows
        if not any(tagged) and "tool_mask" in output:
            return tool_results(output["completion_mask"], output["tool_mask"])
        if not any(tagged) and "mean_valid_searches" in needs(self.terms):
            raise ValueError(
                "LLDS-MA weighs answers by the number of searches, and nothing counts them: train "
                "with tools, or let the environment or the rollout function give valid_searches"
            )
        return tagged

    @torch.no_grad()
    def score(self, rows: Rows) -> Float[Tensor, "B T"]:
        """Log-probs of the completions under the current policy, as TRL computes them."""
        live = self._live
        ids, attention = joined(rows)
        logp, *_ = self._get_per_token_logps_and_entropies(
            self.model,
            ids,
            attention,
            rows["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size,
        )
        self._live = live
        return logp

    @property
    def _at_once(self) -> bool:
        """Whether a rollout batch is one micro-batch of one update: its live pass tells all."""
        return self.args.steps_per_generation == self.num_iterations == 1

    def _sampled(self, rows: Rows, old: Float[Tensor, "B T"]) -> None:
        """Add what the terms read of the policy that sampled, once it has scored the rows."""
        needed = needs(self.terms)
        rows["lld_logp"] = old.detach()
        if "proxy_logp" in needed:
            rows["lld_proxy"] = self._proxy(rows, old)
        if "low_logp" in needed:
            self.low_logp = self._low_logp(rows["lld_logp"], rows["lld_mask"])

    def _proxy(self, output: Rows, old: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """The proxy of the sampling policy, from the pass that scored it; Lp-Reg reads A < 0."""
        advantages = output["advantages"]
        (states,) = [states for logp, states in self._passes if logp is old]
        every = not {"llds", "lp_reg"}.issuperset(self.active)  # another term may read it all
        wanted = (advantages < 0) | every
        rows = states, output["completion_ids"], wanted
        return proxy(self.model, self.accelerator, *rows, self.terms, self.temperature)

    def _low_logp(self, logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Lp-Reg's delta over the rollout batch of all processes, as a log-prob."""
        accelerator, chosen = self.accelerator, logp[mask].float()
        chosen = accelerator.pad_across_processes(chosen, dim=0, pad_index=torch.inf)
        every = accelerator.gather(chosen)[None]
        return low_log_prob(every, every < torch.inf, self.terms.lp_reg_quantile)

    # -- updates -------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.active and self.model.training and self._buffered_inputs is not self._divided:
            self._divided = self._buffered_inputs
            size = self.args.gradient_accumulation_steps
            starts = range(0, len(self._divided), size)
            self._counts = [self._counted(self._divided[s : s + size]) for s in starts]
        return inputs

    def _counted(self, window: list[Rows]) -> Counts:
        """The tokens of one update."""
        masks = [rows["lld_mask"] for rows in window]
        kept = [
            preserved_mask(rows["advantages"], mask, self.terms.llds_preserve)
            for rows, mask in zip(window, masks, strict=True)
        ]
        local = torch.stack([sum(m.sum() for m in part) for part in (kept, masks)]).float()
        counts = self.accelerator.reduce(local, reduction="sum") / self.accelerator.num_processes
        return Counts(preserved=counts[0], actions=counts[1])

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
    ):
        asked = (model, input_ids, attention_mask, logits_to_keep, *args)
        bare = self.accelerator.unwrap_model(model)
        if self._passes is None or bare is not self.accelerator.unwrap_model(self.model):
            out = super()._get_per_token_logps_and_entropies(*asked, **kwargs)
        else:
            with listening(backbone(bare), logits_to_keep) as heard:
                out = super()._get_per_token_logps_and_entropies(*asked, **kwargs)
            self._passes.append((out[0], torch.cat(heard)))
        if self.extended:
            self._live = out[0], out[1]  # the last call before a loss is that of the live policy
        return out

    def _compute_loss(self, model, inputs: Rows) -> Float[Tensor, ""]:
        if not self.extended:
            return super()._compute_loss(model, inputs)
        if "lld_logp" not in inputs and "proxy_logp" in needs(self.terms):
            self._passes = []
        loss = super()._compute_loss(model, inputs)
        (logp, entropy), self._live = self._live, None
        if self.measured:
            self.sums["entropy"] += (entropy.detach() * inputs["lld_mask"]).sum()
            self.sums["tokens"] += inputs["lld_mask"].sum()
        if "lld_logp" not in inputs:
            self._sampled(inputs, logp)
        self._passes = None
        if not self.active:
            return loss
        accumulated = self.args.gradient_accumulation_steps
        # Before the first update both policies are one; rounding must not open a gate.
        passes = self.args.steps_per_generation * self.num_iterations
        untouched = self._step % passes < accumulated
        window = self._step % self.args.steps_per_generation // accumulated
        x = self._inputs(inputs, logp, entropy, untouched)
        terms, stats = regularizers(self.terms, x, self._counts[window])
        for key, value in stats.items():
            self.sums[key] += value / self.args.updates_per_batch
        return loss + terms

    def _inputs(self, rows: Rows, logp: Tensor, entropy: Tensor, untouched: bool) -> LossInputs:
        """What the terms read of a micro-batch."""
        mask, old = rows["lld_mask"], logp.detach() if untouched else rows["lld_logp"]
        proxy, span = rows.get("lld_proxy"), rows.get("lld_span")
        if (silent := silenced(self, rows, logp)) is not None:
            old = torch.where(silent, logp.detach(), old)  # no fall
            proxy = None if proxy is None else proxy.masked_fill(silent, -torch.inf)  # dropped
        return LossInputs(
            logp=logp,
            old_logp=old,
            advantages=rows["advantages"],
            action_mask=mask,
            answer_mask=torch.zeros_like(mask) if span is None else span == Span.ANSWER,
            entropy=entropy,
            ref_logp=rows.get("ref_per_token_logps"),
            proxy_logp=proxy,
            mean_valid_searches=self.valid_searches if self.args.reads_text else None,
            low_logp=self.low_logp,
        )

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if self.extended and self.measured:
            self.norms.append(norm)
        return norm
