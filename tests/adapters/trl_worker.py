"""One process of a small run with stored episodes; `torchrun` starts it once or several times."""

import os
import sys
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from helpers import random_batch, world_questions
from trl_runs import Replaying, settings, some_policy, trainer


def main(folder: Path) -> None:
    """Two batches of three updates; writes the run folder and the weights."""
    policy, processes = some_policy(), int(os.environ.get("WORLD_SIZE", "1"))
    questions = [q for q in world_questions(8) for _ in range(4)]
    _, episodes = random_batch(policy, 32, questions=questions, max_tokens=40, max_searches=3)
    config = settings(
        folder,
        per_device_train_batch_size=8 // processes,
        max_steps=6,
        learning_rate=1e-3,
        run_folder=str(folder / "run"),
        llds_coef=0.7,
        lp_reg_coef=0.3,
        lp_reg_quantile=0.5,
    )
    run = trainer(config, policy, Replaying(episodes))
    run.train()
    if run.accelerator.is_main_process:
        torch.save(policy.model.state_dict(), folder / "weights.pt")
    run.accelerator.wait_for_everyone()
    run.accelerator.end_training()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    # gloo's threads may abort a process that is torn down while its peer still talks to it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
