"""What the TRL adapter tells of a rollout batch once its last update is done."""

import datetime
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

from lldlib.adapters.trl_config import SETTINGS
from lldlib.adapters.trl_rows import Rows, action_mask
from lldlib.adapters.watch import Probe, Seen, episode_record, measure
from lldlib.config import PROBE_ROWS
from lldlib.losses import mixed_group_share
from lldlib.losses.objective import derived

PROBE_FILE = "probe.safetensors"  # in the run folder
EPISODES_LOGGED = 2  # per rollout batch, of the main process
NAN = math.nan
CORRECT = 0.5  # a response is correct where its reward is over this
LEFT_PADDED = ("prompt_ids", "prompt_mask")
SCORED = (*LEFT_PADDED, "completion_ids", "completion_mask", "tool_mask", "lld_span")
READ = (*SCORED, "advantages", "lld_logp", "lld_proxy", "lld_reward")


class BatchReport(TrainerCallback):
    """Opens the run folder, reports every rollout batch of `trainer`, closes the folder."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.probe: Rows | None = None
        self.wants_probe = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Start the run folder, or go on with it and its probe set after a resume."""
        started = state.global_step == 0
        batch = None if started else state.global_step // args.updates_per_batch
        self.trainer.watch.open(self._describe(state.max_steps), batch)
        self.wants_probe = started
        file = Path(args.run_folder or "", PROBE_FILE)
        if not started and args.run_folder and file.exists():
            self.probe = {k: v.to(args.device) for k, v in load_file(file).items()}

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Report after the last update of a rollout batch."""
        if self.trainer._step % (args.steps_per_generation * args.num_iterations) == 0:
            self._report(state.global_step // args.updates_per_batch - 1)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Close the run folder."""
        self.trainer.watch.close()

    @torch.no_grad()
    def _report(self, index: int) -> None:
        trainer = self.trainer
        row = self._sums()
        if trainer.args.measure_every:
            row |= self._rewards()
            if trainer.measured:
                row |= self._measured(index)
            row |= {
                "update/lr": trainer._get_learning_rate(),
                "time/step": time.perf_counter() - trainer.began,
            }
            row |= trainer.watch.batch(index, row)
        for key, value in row.items():
            if value == value:  # nan: nothing was measured
                trainer._metrics["train"][key].append(value)

    def _measured(self, index: int) -> dict[str, float]:
        """What two more passes tell of the batch; a few episodes go to the run folder."""
        trainer, parts = self.trainer, self.trainer._buffered_inputs
        rows = {key: torch.cat([part[key] for part in parts]) for key in READ if key in parts[0]}
        rows["lld_new_logp"] = trainer.score(rows)
        for record in self._records(rows):
            trainer.watch.rollout(index, record)
        everyone = {key: self._gathered(key, value) for key, value in rows.items()}
        return self._likelihood(everyone) | {"search/valid": trainer.valid_searches}

    def _gathered(self, key: str, value: Tensor) -> Tensor:
        """The rows of all processes, padded to one width."""
        accelerator = self.trainer.accelerator
        if value.dim() > 1:
            first = key in LEFT_PADDED
            value = accelerator.pad_across_processes(value, dim=1, pad_first=first)
        return accelerator.gather(value)

    def _sums(self) -> dict[str, float]:
        """What was summed over the updates: the terms, the entropy, the gradient norms."""
        trainer = self.trainer
        if not trainer.sums:
            return {}
        keys = sorted(trainer.sums)
        local = torch.stack([trainer.sums[key].double() for key in keys])
        reduced = trainer.accelerator.reduce(local, reduction="mean").tolist()
        mean = dict(zip(keys, reduced, strict=True))
        tokens, entropy = mean.pop("tokens", 0.0), mean.pop("entropy", NAN)
        row = mean | derived(trainer.terms, mean)
        if trainer.measured:
            norms = [norm for norm in map(float, trainer.norms) if norm < math.inf]
            row["policy/entropy"] = entropy / tokens if tokens else NAN
            row["grad/norm"] = max(norms, default=NAN)
            row["grad/norm_mean"] = sum(norms) / len(norms) if norms else NAN
        return row

    def _rewards(self) -> dict[str, float]:
        rewards, size = self.trainer.rewards, self.trainer.num_generations
        group = torch.arange(len(rewards), device=rewards.device) // size
        return {
            "reward/mean": float(rewards.mean()),
            "reward/std": float(rewards.view(-1, size).std(1).mean()),
            "reward/mixed_groups": mixed_group_share(rewards, group),
        }

    def _likelihood(self, rows: Rows) -> dict[str, float]:
        mask = action_mask(rows)
        seen = Seen(
            logp=torch.where(mask, rows["lld_logp"].float(), 0.0),
            new_logp=torch.where(mask, rows["lld_new_logp"].float(), 0.0),
            rewards=rows["lld_reward"],
            advantages=rows["advantages"],
            action_mask=mask,
            proxy_logp=rows.get("lld_proxy"),
            quantile=self.trainer.terms.lp_reg_quantile,
            selection=self.trainer.terms.lp_reg_selection,
        )
        return measure(seen, self._probe(rows))

    def _probe(self, rows: Rows) -> Probe | None:
        """The first correct responses that the run gave, under the current policy."""
        if self.wants_probe:
            right = (rows["lld_reward"] > CORRECT).nonzero()[:PROBE_ROWS, 0]
            if len(right):
                self.probe = {key: rows[key][right] for key in SCORED if key in rows}
                self.wants_probe = False
                if self.trainer.watch.folder is not None:  # a resumed run needs the same one
                    save_file(self.probe, Path(self.trainer.watch.folder, PROBE_FILE))
        if self.probe is None:
            return None
        logp, mask = self.trainer.score(self.probe).float(), action_mask(self.probe)
        return Probe(torch.where(mask, logp, 0.0), mask, self.probe["lld_span"])

    def _records(self, rows: Rows) -> list[dict[str, Any]]:
        """A few episodes for the run folder, of this process."""
        mask, records = action_mask(rows), []
        for at in range(min(EPISODES_LOGGED, len(mask))):
            length = int(rows["completion_mask"][at].sum())
            prompt = rows["prompt_ids"][at][rows["prompt_mask"][at].bool()]
            records.append(
                episode_record(
                    prompt.tolist(),
                    rows["completion_ids"][at, :length].tolist(),
                    mask[at, :length].tolist(),
                    rows["lld_logp"][at, :length].tolist(),
                    float(rows["lld_reward"][at]),
                    self._decode,
                )
            )
        return records

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.trainer._tokenizer.decode(tokens)

    def _describe(self, max_steps: int) -> dict[str, Any]:
        """The run folder's config.json."""
        args = self.trainer.args
        versions = {m.__name__: m.__version__ for m in (torch, transformers, trl)}
        return {
            "engine": "trl",
            "method": "_".join(args.active) or "grpo",
            "seed": args.seed,
            "steps": max_steps // args.updates_per_batch,
            "updates_per_batch": args.updates_per_batch,
            "lr": args.learning_rate,
            "grad_clip": args.max_grad_norm,
            "rows": args.generation_batch_size,
            "group_size": args.num_generations,
            "measure_every": args.measure_every,
            "processes": self.trainer.accelerator.num_processes,
            "loss": {"kl_coef": args.beta} | {name: getattr(args, name) for name in SETTINGS},
            "loss_type": args.loss_type,
            "created": datetime.date.today().isoformat(),
            "versions": versions,
            "device": str(args.device),
        }
