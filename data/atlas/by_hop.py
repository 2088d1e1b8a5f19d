"""Exact match by number of hops in the shuffled atlas: python data/atlas/by_hop.py POLICY ...

Held-out questions about the true facts, the validation half, LIMIT of each number of hops,
answered greedily and sampled at temperature 1. A POLICY is a folder or a name such as smollm2.
"""

import sys
from statistics import fmean

import torch

from lldlib.evaluate.heldout import ask
from lldlib.files import markdown_table
from lldlib.policy.load import load_policy
from lldlib.recipes import train_config
from lldlib.rollout.loop import Rollout
from lldlib.world.registry import open_environment

LIMIT, HOPS = 16, (1, 2, 3)


def main() -> None:
    """A line for each policy and way of answering."""
    torch.set_num_threads(1)
    rows = []
    for name in sys.argv[1:]:
        policy = load_policy(name)
        config = train_config("grpo", 0, name, world="shuffled", heldout_limit=LIMIT)
        environment = open_environment(config)
        split = environment.heldout
        rollout = Rollout(policy.tokenizer, environment.rules, split.tool, config.rollout)
        for way, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            told = ask(policy, rollout, split.questions, temperature=temperature).episodes
            right = [fmean(e.reward for e in told if e.question.hops == n) for n in HOPS]
            answered = fmean(e.answer is not None for e in told)
            rows.append([name, way, *(f"{v:.2f}" for v in right), f"{answered:.2f}"])
    heads = ["policy", "answers", *(f"{n} hops" for n in HOPS), "gave an answer"]
    print(markdown_table(heads, rows))


if __name__ == "__main__":
    main()
