"""Why do greedy answers fail where sampled ones hold? python data/atlas/greedy_answers.py RUN

RUN is a run folder with a checkpoint at its end. Asks the held-out questions of its half at
several temperatures, and prints a table of the answers, then the first greedy failures.
"""

import sys
from collections import Counter
from pathlib import Path
from statistics import fmean

import torch

from lldlib.config import train_config_from
from lldlib.evaluate.heldout import ask, policy_of
from lldlib.files import markdown_table
from lldlib.policy.load import Policy
from lldlib.rollout.loop import Rollout
from lldlib.runs.folder import Run
from lldlib.types import Episode
from lldlib.world.registry import open_environment

TEMPERATURES = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
SHOWN = 5


def words(episode: Episode, policy: Policy) -> str:
    """What the agent and the tool wrote, in one line."""
    turns = (policy.tokenizer.decode(turn.tokens) for turn in episode.turns)
    return " ".join(" | ".join(turns).split())


def main() -> None:
    """The table, then transcripts."""
    torch.set_num_threads(1)
    run = Run(Path(sys.argv[1]))
    config, policy = train_config_from(run.config), policy_of(run, None)
    environment = open_environment(config)
    split = environment.heldout
    rollout = Rollout(policy.tokenizer, environment.rules, split.tool, config.rollout)
    rows = []
    for temperature in TEMPERATURES:
        told = ask(policy, rollout, split.questions, temperature=temperature).episodes
        right = [e.reward == 1.0 for e in told]
        rows.append(
            [
                f"{temperature:g}",
                f"{fmean(right):.2f}",
                f"{fmean(e.answer is not None for e in told):.2f}",
                f"{fmean(e.valid_searches for e in told):.2f}",
                ", ".join(f"{n} {why}" for why, n in Counter(e.stop for e in told).most_common()),
            ]
        )
        if not temperature:
            failed = [e for e in told if e.reward != 1.0]
    heads = ["temperature", "right", "gave an answer", "searches", "ended by"]
    print(markdown_table(heads, rows))
    hops = Counter(e.question.hops for e in failed)
    print(f"\n{len(failed)} greedy answers fail, by hops: {dict(sorted(hops.items()))}\n")
    for episode in failed[:SHOWN]:
        print(
            f"- {episode.question.text} ({episode.question.answers[0]})\n  {words(episode, policy)}"
        )


if __name__ == "__main__":
    main()
