"""TRL's GRPOTrainer on the workload, one whole step at a time, in a process of its own.

It runs in the environment that `steps.py` makes. Every line read from standard input asks for one
step; a JSON object {seconds, rollout, reward, tokens} on standard output answers it. Nothing here
imports TRL before `main`, so the conversion below can be tested without it.
"""

import json
import os
import sys
import tempfile

import torch

from lldlib.config import TrainConfig
from lldlib.types import Episode

from .search_r1 import SearchR1Loop
from .timing import clock
from .workload import Workload, policy_tokens


def completions(episodes: list[Episode]) -> dict[str, list | None]:
    """What a TRL `rollout_func` returns: tokens, and `env_mask` 1 where the policy chose.

    `logprobs` is None: TRL reads them for vLLM only. `episode_reward` reaches the reward function.
    """
    out: dict[str, list | None] = {"logprobs": None}
    out["prompt_ids"] = [e.turns[0].tokens for e in episodes]
    out["completion_ids"] = [[t for turn in e.turns[1:] for t in turn.tokens] for e in episodes]
    out["env_mask"] = [
        [int(turn.role == "action") for turn in e.turns[1:] for _ in turn.tokens] for e in episodes
    ]
    out["episode_reward"] = [e.reward for e in episodes]
    return out


def settings(config: TrainConfig) -> dict[str, object]:
    """The GRPOConfig fields that make TRL do the same work as our step.

    Raises ValueError where the rows of a batch do not split evenly over the updates.
    """
    rows = config.rollout.problems * config.rollout.group_size
    size, rest = divmod(rows, config.updates_per_batch)
    if rest:
        raise ValueError(
            f"{rows} rows do not split into {config.updates_per_batch} equal updates, which TRL "
            "needs: change problems, group_size or updates_per_batch"
        )
    return {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": config.updates_per_batch,
        "num_generations": config.rollout.group_size,
        "max_completion_length": config.rollout.max_tokens,
        "temperature": config.rollout.temperature,
        "learning_rate": config.lr,
        "lr_scheduler_type": "constant",
        "adam_beta1": config.betas[0],
        "adam_beta2": config.betas[1],
        "weight_decay": 0.0,
        "max_grad_norm": config.grad_clip,
        "optim": "adamw_torch_fused",
        "beta": config.loss.kl_coef,
        "epsilon": config.loss.clip_low,
        "loss_type": "bnpo",  # a token mean over the minibatch, as ours
        "shuffle_dataset": False,  # the same questions in the same order as ours
        "gradient_checkpointing": False,  # TRL's default would make it slower
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
        "logging_steps": config.updates_per_batch,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def serve(work: Workload, count: int, answers) -> None:
    """Train on `count` batches of questions in a circle, each step from the first weights."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    loop = SearchR1Loop(*work.parts)
    asked = [q for batch in work.batches(count) for q in batch]
    by_text = {q.text: q for q in asked}
    start = {k: v.clone() for k, v in work.policy.model.state_dict().items()}
    updates, seen = work.config.updates_per_batch, {}

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list | None]:
        began = clock()
        rows = [by_text[prompt] for prompt in prompts]
        temperature = work.config.rollout.temperature
        episodes = loop.run(trainer.model, rows, temperature=temperature)
        seen["rollout"] = clock() - began
        seen["tokens"] = policy_tokens(episodes) / len(episodes)
        result = completions(episodes)
        seen["reward"] = sum(result["episode_reward"]) / len(episodes)
        return result

    class OneStepAtATime(TrainerCallback):
        def on_step_begin(self, args, state, control, *, model, optimizer, **kwargs):
            if state.global_step % updates == 0:
                model.load_state_dict(start)
                optimizer.state.clear()
                if not sys.stdin.readline():
                    sys.exit(0)
                seen["began"] = clock()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % updates == 0:
                answer = {"seconds": clock() - seen.pop("began")} | seen
                print(json.dumps(answer), file=answers, flush=True)

    GRPOTrainer(
        model=work.policy.model,
        processing_class=work.policy.tokenizer,
        reward_funcs=lambda episode_reward, **_: episode_reward,
        rollout_func=rollout,
        train_dataset=Dataset.from_list([{"prompt": q.text} for q in asked]),
        args=GRPOConfig(output_dir=tempfile.gettempdir(), max_steps=10**6, **settings(work.config)),
        callbacks=[OneStepAtATime()],
    ).train()


def main() -> None:
    """Read {policy, overrides, batches} from the command line and serve."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    torch.set_num_threads(1)
    order = json.loads(sys.argv[1])
    serve(Workload.make(order["policy"], **order["overrides"]), order["batches"], answers)


if __name__ == "__main__":
    main()
