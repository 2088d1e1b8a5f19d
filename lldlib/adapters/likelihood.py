"""Our likelihood measurements in somebody else's training, without our loss.

A plain GRPOTrainer of TRL: `watch_likelihood(trainer)`. verl: its policy loss `llds` with
`llds_coef=0` logs `advantage_likelihood` (lldlib.adapters.verl).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lldlib.runs import measures

log = logging.getLogger(__name__)
LEFT_PADDED = ("prompt_ids", "prompt_mask")
KEPT = (*LEFT_PADDED, "completion_ids", "completion_mask", "tool_mask", "advantages")


def advantage_likelihood(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> dict[str, float]:
    """What a micro-batch tells without rewards, as means over tokens in nats; 0 where none is.

    Keys: `actor/likelihood_positive` and `_negative`, the log-prob under the policy that sampled
    where A > 0 and A < 0; `actor/displacement_positive`, new - old log-prob where A > 0, by the
    updates before this one; `actor/displacement_all`, over all tokens. verl logs a plain mean over
    micro-batches, so zeros shrink it: `actor/positive_here` and `actor/negative_here` are 1 where
    there is such a token, else 0, and their mean is what to divide by.
    """
    good, bad, change = mask & (advantages > 0), mask & (advantages < 0), logp - old_logp
    told = {
        "actor/likelihood_positive": measures.masked_mean(old_logp, good),
        "actor/likelihood_negative": measures.masked_mean(old_logp, bad),
        "actor/displacement_positive": measures.masked_mean(change, good),
        "actor/displacement_all": measures.masked_mean(change, mask),
    }
    told = {key: value if value == value else 0.0 for key, value in told.items()}
    return told | {
        "actor/positive_here": float(good.any()),
        "actor/negative_here": float(bad.any()),
    }


def watch_likelihood(trainer: Any, every: int = 1) -> "LikelihoodWatch":
    """Log `likelihood/*` and `displacement/*` of the glossary from a GRPOTrainer, TRL's own.

    One call before `trainer.train()`; its loss, its random numbers and its updates stay as they
    are. Each `every`-th rollout batch costs one forward pass without gradient after its updates,
    and one before them where TRL computes no old log-probs itself. The numbers stand in TRL's logs
    of the batch's last update. A response is correct where its weighted reward is over 0.5. A
    failure is logged once, and ends the measuring, not the training. Returns the watch. Raises
    ValueError for what is no such trainer.
    """
    needed = ("_generate_and_score_completions", "_calculate_rewards", "_buffered_inputs")
    lost = [name for name in needed if not hasattr(trainer, name)]
    if lost:
        raise ValueError(f"no GRPOTrainer of TRL 1.16: it has no {lost[0]}")
    from transformers import TrainerCallback

    watch = LikelihoodWatch(trainer, every)

    class Report(TrainerCallback):
        """After the last update of a rollout batch."""

        def on_step_end(self, args, state, control, **kwargs):
            """transformers calls this after each optimiser update, before it logs."""
            if trainer._step % (args.steps_per_generation * args.num_iterations) == 0:
                watch.guarded(watch.report)

    trainer.add_callback(Report())
    return watch


class LikelihoodWatch:
    """Keeps what a GRPOTrainer generates, and measures it after the batch's updates."""

    def __init__(self, trainer: Any, every: int):
        self.trainer, self.every = trainer, every
        self.batches = 0
        self.failed = False
        self.rewards: Float[Tensor, " N"] | None = None  # of all processes
        self.rows: dict[str, Tensor] | None = None
        self._listen("_calculate_rewards", self._rewarded)
        self._listen("_generate_and_score_completions", self._generated)

    def guarded(self, step: Callable[..., None], *args: Any) -> None:
        """Run a step; a failure ends the measuring."""
        if self.failed:
            return
        try:
            step(*args)
        except Exception as error:  # a training goes on whatever is measured
            self.failed, self.rows = True, None
            log.warning("likelihood is no longer measured: %s: %s", type(error).__name__, error)

    def _listen(self, name: str, hear: Callable[[Any], None]) -> None:
        original = getattr(self.trainer, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            out = original(*args, **kwargs)
            if self.trainer.model.training:
                self.guarded(hear, out)
            return out

        setattr(self.trainer, name, wrapped)

    def _rewarded(self, parts: Float[Tensor, "N F"]) -> None:
        weights = self.trainer.reward_weights.to(parts.device)
        self.rewards = (parts * weights).nansum(1).float()

    def _generated(self, output: Mapping[str, Any]) -> None:
        wanted, self.rows = self.batches % self.every == 0, None
        self.batches += 1
        if not wanted or "pixel_values" in output:
            return
        rows = {key: output[key] for key in KEPT if key in output}
        first = self.trainer.accelerator.process_index * len(rows["completion_ids"])
        rows["reward"] = self.rewards[first : first + len(rows["completion_ids"])]
        old = output.get("old_per_token_logps")
        rows["logp"] = self._score(rows) if old is None else old.float()
        self.rows = rows

    @torch.no_grad()
    def _score(self, rows: Mapping[str, Tensor]) -> Float[Tensor, "B T"]:
        """Log-probs of the completions under the current policy, as TRL computes them."""
        ids, attention = (
            torch.cat([rows[f"prompt_{what}"], rows[f"completion_{what}"]], dim=1)
            for what in ("ids", "mask")
        )
        width, size = rows["completion_ids"].shape[1], self.trainer.args.per_device_train_batch_size
        score = self.trainer._get_per_token_logps_and_entropies
        devices = [ids.device] if ids.is_cuda else []
        with torch.random.fork_rng(devices):  # dropout must not draw from the training's numbers
            return score(self.trainer.model, ids, attention, width, batch_size=size)[0].float()

    def report(self) -> None:
        """Measure the batch that has had its last update, and hand it to TRL's logs."""
        rows, self.rows = self.rows, None
        if rows is None:
            return
        rows["new_logp"] = self._score(rows)
        everyone = {key: self._gathered(key, value) for key, value in rows.items()}
        mask = everyone["completion_mask"]
        mask = (mask * everyone["tool_mask"] if "tool_mask" in everyone else mask).bool()
        old, new = (torch.where(mask, everyone[name], 0.0) for name in ("logp", "new_logp"))
        rewards, advantages = everyone["reward"], everyone["advantages"]
        row = measures.likelihood(old, rewards, mask)
        row |= measures.official_likelihood(old, advantages, mask)
        row |= measures.displacement(old, new, rewards, mask)
        row |= measures.token_displacement(old, new, advantages, mask)
        for key, value in row.items():
            if value == value:  # nan: nothing was measured
                self.trainer._metrics["train"][key].append(value)

    def _gathered(self, key: str, value: Tensor) -> Tensor:
        """The rows of all processes, padded to one width."""
        accelerator = self.trainer.accelerator
        if value.dim() > 1:
            first = key in LEFT_PADDED
            value = accelerator.pad_across_processes(value, dim=1, pad_first=first)
        return accelerator.gather(value)
