"""LLDS and Lp-Reg in TRL's GRPOTrainer, with this project's diagnostics, run folder and alarm.

The policy term, KL and rollouts stay TRL's. Three more passes without gradient per rollout batch:
Lp-Reg's proxy (if it is on), the batch after its updates, and the probe set. Image inputs are not
supported. TRL pads prompts on the left and completions on the right: T here is completion tokens.
"""

import time
from collections import defaultdict
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from trl import GRPOTrainer

from lldlib.adapters.trl_config import VERSIONS, LLDGRPOConfig
from lldlib.adapters.trl_report import BatchReport, Rows, action_mask, joined
from lldlib.adapters.watch import Watch, given_spans, read_spans, tool_results
from lldlib.losses import (
    Counts,
    LossInputs,
    low_log_prob,
    needs,
    preserved_mask,
    proxy_log_prob,
    regularizers,
)
from lldlib.types import Span

__all__ = ["VERSIONS", "LLDGRPOConfig", "LLDGRPOTrainer"]


class LLDGRPOTrainer(GRPOTrainer):
    """GRPOTrainer plus the terms of `LLDGRPOConfig`; full fine-tuning, LoRA and QLoRA.

    Actions are completion_mask * tool_mask; a response is correct where its reward is over 0.5.
    One that no reward function scored (all None) counts as incorrect; TRL gives it A = 0, so LLDS
    keeps it under llds_preserve "nonnegative". What a weight is worth depends on `loss_type`: see
    `LLDGRPOConfig`.

    TRL's logs gain the glossary's keys, `phase` (live: 0 steady, 1 learning, 2 stagnation,
    3 decay, 4 collapse) and `alarm` (1 once it rang), on the last update of each rollout batch.
    Raises TypeError for a plain GRPOConfig, FileExistsError where `run_folder` holds a run.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, LLDGRPOConfig):
            raise TypeError(
                "LLDGRPOTrainer reads llds_* and lp_reg_*: pass args=LLDGRPOConfig(...)"
            )
        self.terms = self.args.terms
        main = self.accelerator.is_main_process
        self.watch = Watch(self.args.run_folder if main else None)
        self.piece = cache(lambda token: self._tokenizer.decode([token]))
        self._live: tuple[Tensor, Tensor | None] | None = None
        self._counts: list[Counts] = []
        self._divided: list[Rows] | None = None
        self.add_callback(BatchReport(self))

    # -- rollouts: what the terms and the diagnostics need is added to each row ------------------

    def _calculate_rewards(self, *args, **kwargs) -> Tensor:
        out = super()._calculate_rewards(*args, **kwargs)
        if self.model.training:  # of all processes
            self.rewards = (out * self.reward_weights.to(out.device)).nansum(1).float()
        return out

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
        began = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        if "pixel_values" in output:
            raise ValueError("the TRL adapter scores text only: train on rows without images")
        mask = action_mask(output)
        span, searches = read_spans(output["completion_ids"], mask, self.piece)
        if None not in (told := [row.get("spans") for row in inputs]):  # by a rollout function
            span = given_spans(told, output["completion_ids"])
        searches = self._searches(inputs, output, searches)
        mean = torch.tensor(searches, dtype=torch.float32, device=mask.device).mean()
        count = len(mask)
        first = self.accelerator.process_index * count
        extra = {"lld_span": span, "lld_reward": self.rewards[first : first + count]}
        old = output.get("old_per_token_logps")
        extra["lld_logp"] = self.score(output) if old is None else old
        if "proxy_logp" in needs(self.terms):
            extra["lld_proxy"] = self._proxy(output)
        self.low_logp = self._low_logp(extra["lld_logp"], mask)
        self.valid_searches = float(self.accelerator.reduce(mean, reduction="mean"))
        self.began, self.sums, self.norms = began, defaultdict(float), []
        return output | extra

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
        out = self._get_per_token_logps_and_entropies(
            self.model,
            ids,
            attention,
            rows["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size,
        )
        self._live = live
        return torch.where(action_mask(rows), out[0].float(), 0.0)

    @torch.no_grad()
    def _proxy(self, rows: Rows) -> Float[Tensor, "B T"]:
        """Lp-Reg's proxy of the sampling policy: the one pass that needs real logits."""
        name = "kappa" if self.terms.lp_reg_filter == "min-p" else "tau"
        settings = {name: self.terms.lp_reg_threshold}
        ids, attention = joined(rows)
        width, size = rows["completion_ids"].shape[1], self.args.per_device_train_batch_size
        parts = []
        for some, mask in zip(ids.split(size), attention.split(size), strict=True):
            with self.accelerator.autocast():
                out = self.model(input_ids=some, attention_mask=mask, logits_to_keep=width + 1)
            logits = out.logits[:, -width - 1 : -1].float() / self.temperature
            parts.append(proxy_log_prob(logits, some[:, -width:], **settings))
        return torch.cat(parts)

    def _low_logp(
        self, logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> Float[Tensor, ""] | None:
        """Lp-Reg's delta over the rollout batch of all processes, as a log-prob."""
        if "low_logp" not in needs(self.terms):
            return None
        accelerator, chosen = self.accelerator, logp[mask].float()
        chosen = accelerator.pad_across_processes(chosen, dim=0, pad_index=torch.inf)
        every = accelerator.gather(chosen)[None]
        return low_log_prob(every, every < torch.inf, self.terms.lp_reg_quantile)

    # -- updates -------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._buffered_inputs is not self._divided:
            self._divided = self._buffered_inputs
            size = self.args.gradient_accumulation_steps
            starts = range(0, len(self._divided), size)
            self._counts = [self._counted(self._divided[s : s + size]) for s in starts]
        return inputs

    def _counted(self, window: list[Rows]) -> Counts:
        """The tokens of one update."""
        masks = [action_mask(rows) for rows in window]
        kept = [
            preserved_mask(rows["advantages"], mask, self.terms.llds_preserve)
            for rows, mask in zip(window, masks, strict=True)
        ]
        local = torch.stack([sum(m.sum() for m in part) for part in (kept, masks)]).float()
        counts = self.accelerator.reduce(local, reduction="sum") / self.accelerator.num_processes
        return Counts(preserved=counts[0], actions=counts[1])

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._live = out[0], out[1]  # the last call before a loss is that of the live policy
        return out

    def _compute_loss(self, model, inputs: Rows) -> Float[Tensor, ""]:
        loss = super()._compute_loss(model, inputs)
        (logp, entropy), self._live = self._live, None
        if not self.model.training:
            return loss
        mask, accumulated = action_mask(inputs), self.args.gradient_accumulation_steps
        self.sums["entropy"] += float(entropy.detach()[mask].sum())
        self.sums["tokens"] += float(mask.sum())
        # Before the first update both policies are one; rounding must not open a gate.
        passes = self.args.steps_per_generation * self.num_iterations
        untouched = self._step % passes < accumulated
        x = LossInputs(
            logp=logp,
            old_logp=logp.detach() if untouched else inputs["lld_logp"],
            advantages=inputs["advantages"],
            action_mask=mask,
            answer_mask=inputs["lld_span"] == Span.ANSWER,
            proxy_logp=inputs.get("lld_proxy"),
            mean_valid_searches=self.valid_searches,
            low_logp=self.low_logp,
        )
        window = self._step % self.args.steps_per_generation // accumulated
        terms, stats = regularizers(self.terms, x, self._counts[window])
        for key, value in stats.items():
            self.sums[key] += float(value) / self.args.updates_per_batch
        return loss + terms

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        self.norms.append(float(norm))
        return norm
