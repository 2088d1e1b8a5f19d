"""One batch of each method, and its rare words in wrong answers: data/sparks/one_batch.py

Makes the table "One batch, seven methods" of README.md, in about 15 seconds on one core.
"""

import copy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib import losses
from lldlib.files import markdown_table
from lldlib.losses import group_advantages
from lldlib.policy.load import load_policy
from lldlib.recipes import train_config
from lldlib.rollout.batch import collate
from lldlib.train.trainer import Trainer
from lldlib.types import Batch
from lldlib.world.registry import open_environment

NAMES = {
    "grpo": "GRPO",
    "grpo_entropy": "entropy bonus .002",
    "clip_higher": "Clip-Higher",
    "top_entropy": "80/20",
    "kl_cov": "KL-Cov",
    "gspo": "GSPO",
    "lp_reg": "Lp-Reg",
}
KAPPA, RHO, SEEDS = 0.02, 0.05, (0, 1, 2)
HOW = {"updates_per_batch": 8, "lp_reg_quantile": RHO, "warmup_batches": 0, "lr": 3e-4}


def one_batch(name: str, seed: int) -> tuple[Batch, nn.Module]:
    """A rollout batch of the start, and the model after the method's eight updates."""
    start = load_policy("sparks")
    policy = replace(start, model=copy.deepcopy(start.model))
    config = train_config(name, seed, "sparks", **HOW)
    trainer = Trainer(config, policy, open_environment(config))
    _, episodes = trainer.step()
    return collate(episodes), policy.model


def read(model: nn.Module, batch: Batch) -> tuple[Float[Tensor, "B T"], ...]:
    """Log-prob of each drawn token, entropy and largest probability of its place."""
    with torch.no_grad():
        every = model(batch.tokens).logits[:, :-1].float().log_softmax(-1)
    logp = every.gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return logp, -(every.exp() * every).sum(-1), every.amax(-1).exp()


def main() -> None:
    """A row a method: change of rare tokens with A < 0, kept and dropped, and of the entropy."""
    model, lines = load_policy("sparks").model, []
    for name, label in NAMES.items():
        changes = {"kept": [], "dropped": [], "entropy": []}
        for seed in SEEDS:
            batch, after = one_batch(name, seed)
            A = group_advantages(batch.rewards, batch.group, scale=True)
            (logp, entropy, largest), new = read(model, batch), read(after, batch)
            on = batch.action_mask[:, 1:]
            rare = on & (logp < losses.low_log_prob(logp, on, RHO)) & (A < 0)[:, None]
            kept = logp.exp() > KAPPA * largest
            for key, these in (("kept", rare & kept), ("dropped", rare & ~kept)):
                changes[key].append((new[0] - logp)[these].mean().item())
            changes["entropy"].append((new[1] - entropy)[on].mean().item())
        means = [f"{sum(values) / len(SEEDS):+.3f}" for values in changes.values()]
        lines.append([label, *means])
    print(markdown_table(["method", "rare and kept", "rare and dropped", "entropy"], lines))


if __name__ == "__main__":
    main()
