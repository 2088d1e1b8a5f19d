"""What training on retrieved text does: python data/atlas/unmasked.py (about three minutes)

Trains the half-taught searcher for a few small batches twice per seed, with the action mask and
with a mask that takes retrieved text for the policy's own, and writes unmasked.csv.
"""

import csv
from pathlib import Path

from lldlib.policy.load import load_policy
from lldlib.recipes import train_config
from lldlib.rollout.loop import Rollout
from lldlib.train.trainer import Trainer
from lldlib.types import Span
from lldlib.world.registry import open_environment

HERE = Path(__file__).parent
SEEDS, BATCHES = range(5), 24
SMALL = {"problems": 16, "updates_per_batch": 4, "lr": 2e-4, "warmup_batches": 0, "kl_coef": 0.0}
KEYS = {"reward/mean": "reward", "grad/norm": "norm", "policy/ratio_max": "ratio"}


class Unmasked(Rollout):
    """Says that the policy wrote everything after the prompt."""

    def run(self, *args, **kwargs):
        """The episodes, with the environment's turns marked as actions."""
        episodes = super().run(*args, **kwargs)
        for episode in episodes:
            for turn in episode.turns[1:]:
                turn.role, turn.spans = "action", [span or Span.FREE for span in turn.spans]
        return episodes


def trained(seed: int, kind: type[Rollout]) -> list[list[object]]:
    """A line a batch; both kinds of a seed are asked the same questions."""
    config = train_config("grpo", seed, "half_taught", eval_every=0, probe_every=0, **SMALL)
    policy, environment = load_policy(config.policy), open_environment(config)
    trainer = Trainer(config, policy, environment)
    trainer.rollout = kind(
        policy.tokenizer, environment.rules, trainer.rollout.tool, config.rollout
    )
    found = []
    for batch in range(BATCHES):
        metrics, _ = trainer.step()
        found.append([batch, *(f"{metrics[key]:.4g}" for key in KEYS)])
    return found


if __name__ == "__main__":
    with (HERE / "unmasked.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "mask", "batch", *KEYS.values()])
        for seed in SEEDS:
            for mask, kind in (("yes", Rollout), ("no", Unmasked)):
                writer.writerows([seed, mask, *line] for line in trained(seed, kind))
