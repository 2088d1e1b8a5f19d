"""The shuffled atlas trained by TRL with the adapter: a run folder per arm and seed, resumable.

    python tests/adapters/collapse_in_trl.py --out runs/trl --grid method=grpo,llds seed=0,1,2 \
        lr=1e-3 llds_coef=0.5 policy=half_taught steps=40 eval_every=10

Any setting of `python -m lldlib sweep` can stand in the grid; TRL splits the rows of a batch evenly
over the updates. Held-out questions are asked every `eval_every` batches, which changes nothing in
the training. Whole runs are skipped, a killed one goes on from its last checkpoint. `lldlib report`
reads them.
"""

import argparse
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint

from lldlib.adapters.search import completions, rollout_reward
from lldlib.adapters.trl import LLDGRPOConfig, LLDGRPOTrainer
from lldlib.adapters.trl_config import SETTINGS
from lldlib.adapters.watch import Watch
from lldlib.config import TrainConfig
from lldlib.evaluate.heldout import ask
from lldlib.policy.load import Policy, load_as
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Run
from lldlib.train.sweep import grid_cells, parse_grid
from lldlib.world.environment import Environment
from lldlib.world.registry import open_environment

CHECKPOINT_EVERY = 10  # rollout batches


def settings(config: TrainConfig, folder: Path) -> LLDGRPOConfig:
    """The same run in TRL's words; ValueError where the rows do not split over the updates."""
    rows, updates = config.rollout.problems * config.rollout.group_size, config.updates_per_batch
    if rows % updates:
        raise ValueError(f"{rows} rows do not split into {updates} equal minibatches for TRL")
    loss = config.loss
    return LLDGRPOConfig(
        output_dir=str(folder / "trl"),
        run_folder=str(folder),
        seed=config.seed,
        max_steps=config.steps * updates,
        per_device_train_batch_size=rows // updates,
        steps_per_generation=updates,
        gradient_accumulation_steps=1,
        num_generations=config.rollout.group_size,
        max_completion_length=config.rollout.max_tokens,
        temperature=config.rollout.temperature,
        learning_rate=config.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=float(config.warmup_batches * updates),  # floats, as HF annotates them
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        weight_decay=0.0,
        max_grad_norm=config.grad_clip,
        beta=loss.kl_coef,
        epsilon=loss.clip_low,
        epsilon_high=loss.clip_high,
        loss_type="bnpo",  # a token mean over the minibatch, as ours
        **{name: getattr(loss, name) for name in SETTINGS},
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        logging_steps=float(updates),
        save_strategy="steps",
        save_steps=float(CHECKPOINT_EVERY * updates),
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )


def planets(
    config: TrainConfig, environment: Environment, runner: Rollout
) -> Callable[[list[str], Any], dict[str, list | None]]:
    """A `rollout_func` that draws questions of a new planet for every rollout batch.

    TRL's prompts only say how many rollouts there are, and which belong to one question.
    """
    size = config.rollout

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list | None]:
        groups = [prompts[i : i + size.group_size] for i in range(0, len(prompts), size.group_size)]
        if len(groups) != size.problems or any(len(set(group)) != 1 for group in groups):
            raise ValueError(f"{len(prompts)} prompts are no {size.problems} groups of one text")
        index = trainer.state.global_step // config.updates_per_batch
        split, rng = environment.training(index), random.Random(f"{config.seed} {index}")
        runner.tool = split.tool
        drawn = rng.sample(split.questions, size.problems)
        model = trainer.accelerator.unwrap_model(trainer.model)
        asked = [question for question in drawn for _ in range(size.group_size)]
        episodes = runner.run(model, asked, temperature=trainer.temperature)
        return completions(episodes, filler=trainer.processing_class.eos_token_id)

    return rollout


class Examined(Watch):
    """A watch that also logs held-out exact match, sampled as in training and greedy."""

    def __init__(self, folder: Path, config: TrainConfig, policy: Policy, environment: Environment):
        super().__init__(folder)
        self.config, self.policy, self.split = config, policy, environment.heldout
        self.runner = Rollout(policy.tokenizer, environment.rules, self.split.tool, config.rollout)
        self.start: dict[str, float] = {}

    def open(self, config: Mapping[str, Any], batch: int | None) -> None:
        """As a watch does; the start is examined before the first batch."""
        super().open(config, batch)
        if batch is None and self.config.eval_every:
            self.start = self._exam("start")

    def batch(self, index: int, row: Mapping[str, float]) -> dict[str, float]:
        """As a watch does, with the scores when they are due."""
        every, done = self.config.eval_every, index + 1
        if every and (done % every == 0 or done == self.config.steps):
            row = {**row, **self._exam("heldout")}
        start, self.start = self.start, {}
        return super().batch(index, {**row, **start})

    def _exam(self, name: str) -> dict[str, float]:
        sampled, greedy = (
            ask(
                self.policy,
                self.runner,
                self.split.questions,
                temperature=temperature,
                samples=self.split.samples,
            ).reward
            for temperature in (self.config.rollout.temperature, 0.0)
        )
        return {f"eval/{name}_em": sampled, f"eval/{name}_em_greedy": greedy}


def train(config: TrainConfig, folder: Path) -> None:
    """One run, from its last checkpoint if it has one."""
    policy, environment = load_as(config.policy, config.load), open_environment(config)
    runner = Rollout(
        policy.tokenizer, environment.rules, environment.training(0).tool, config.rollout
    )
    trainer = LLDGRPOTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=rollout_reward,
        rollout_func=planets(config, environment, runner),
        train_dataset=Dataset.from_list(
            [{"prompt": f"group {number}"} for number in range(config.rollout.problems)]
        ),
        args=settings(config, folder),
    )
    trainer.watch = Examined(folder, config, policy, environment)
    checkpoint = get_last_checkpoint(folder / "trl") if (folder / "trl").is_dir() else None
    if checkpoint is None and folder.exists():
        shutil.rmtree(folder)  # killed before its first checkpoint
    trainer.train(resume_from_checkpoint=checkpoint)
    shutil.rmtree(folder / "trl", ignore_errors=True)


def is_whole(folder: Path, steps: int) -> bool:
    return (folder / "config.json").exists() and len(Run(folder).metrics) >= steps


def main() -> None:
    """Every cell of the grid, one after the other, on one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--grid", nargs="+", required=True, metavar="NAME=VALUE,VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for cell in grid_cells(parse_grid(arguments.grid), arguments.out):
        if not is_whole(cell.path, cell.config.steps):
            train(cell.config, cell.path)


if __name__ == "__main__":
    main()
