"""Is LLDS a smaller step in disguise? python data/atlas/smaller_step.py FOLDER [SEED ...]

At the hot rate, where GRPO dies and LLDS lives, five arms a seed:

- llds: GRPO + LLDS .5. It notes how far each update moves the policy on the rows of the update:
  half of the mean squared change of an action token's log-prob, about the KL divergence in nats.
- matched: GRPO. Each update is shortened until it moves no further than the same update of llds.
- brake: GRPO, whose step AdamW clips and scales as if LLDS's gradient were there: the whole
  gradient goes into the clip and the second moment, the policy gradient alone into the first. It
  is LLDS's share in the size of a step, without its direction.
- capped: GRPO. Each update is shortened until it moves no further than CAP, whatever LLDS does.
- plain: GRPO as it is, on the same questions.

Writes run folders; data/atlas/collect.py gathers them into smaller_step.jsonl.gz, of which the
script prints the table of smaller_step.md where no FOLDER is given.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from collect import gathered
from jaxtyping import Float
from torch import Tensor

from lldlib.config import TrainConfig
from lldlib.files import markdown_table
from lldlib.losses import LossInputs, compute_loss
from lldlib.losses.objective import policy_only
from lldlib.policy.score import score
from lldlib.recipes import train_config
from lldlib.runs.phases import find_collapse
from lldlib.train.run import TrainingRun
from lldlib.train.trainer import Trainer
from lldlib.types import Episode

BATCHES, EVERY, SEEDS = 40, 5, (0, 1, 2)
MOVES = "moves.json"  # of every update
ARMS = {"llds": "llds", "matched": "grpo", "brake": "llds", "capped": "grpo"}  # methods
ARMS["plain"] = "grpo"
LIKELIER = "displacement/mixed_token"  # missing where no group is mixed
CAP = 0.01  # about the median move of an update of llds, over the three seeds
ENOUGH, TRIES = 1.02, 8  # share of the allowed move that is near enough; shortenings at most


class Watched(Trainer):
    """Notes how far each update moves the policy on its own rows."""

    def __init__(self, *args):
        super().__init__(*args)
        self.moves: list[list[float]] = []
        self.shares: list[float] = []  # of the step that is kept

    def _inputs(self, experience, rows, number, draws) -> LossInputs:
        self.part, self.number = experience.minibatch(rows)[0], number
        if number == 0:
            self.moves.append([])
        return super()._inputs(experience, rows, number, draws)

    def step(self) -> tuple[dict[str, float], list[Episode]]:
        """A batch, with the mean move of its updates and the share of the steps that was kept."""
        metrics, episodes = super().step()
        kept = fmean(self.shares[-len(self.moves[-1]) :]) if self.shares else 1.0
        return metrics | {"control/move": fmean(self.moves[-1]), "control/share": kept}, episodes

    def moved(self, before: Float[Tensor, "B T"]) -> float:
        """Half of the mean squared change of the log-probs of the action tokens."""
        with torch.no_grad():
            now = score(self.policy.model, self.part, self.config.rollout.temperature).logp
        return float((now - before)[self.part.action_mask].square().mean() / 2)

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        norm = super()._apply(loss, inputs, experience, pieces)
        self.moves[-1].append(self.moved(inputs.logp.detach()))
        return norm


class Matched(Watched):
    """Shortens each update until it moves no further than the paired run's."""

    allowed: list[list[float]]

    @property
    def limit(self) -> float:
        """How far this update may move."""
        return self.allowed[self.step_index][self.number]

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        start = [p.detach().clone() for p in self.parameters]
        norm = super()._apply(loss, inputs, experience, pieces)
        ends = [p.detach().clone() for p in self.parameters]
        target, share = self.limit, 1.0
        before, move = inputs.logp.detach(), self.moves[-1][-1]
        for _ in range(TRIES):
            if move <= ENOUGH * target:
                break
            share *= min(0.9, (target / move) ** 0.5) if move < float("inf") else 0.5
            for p, a, b in zip(self.parameters, start, ends, strict=True):
                p.data.copy_(torch.lerp(a, b, share))
            move = self.moved(before)
        self.moves[-1][-1] = move
        self.shares.append(share)
        return norm


class Capped(Matched):
    """Shortens each update until it moves no further than CAP."""

    limit = CAP


class Brake(Watched):
    """AdamW whose clip and second moment see LLDS's gradient too, and whose first does not."""

    def __init__(self, *args):
        super().__init__(*args)
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.count = 0

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        before, config = inputs.logp.detach(), self.config
        bare, _ = compute_loss(policy_only(self.objective), inputs)
        whole, alone = (
            [0 * p if g is None else g for p, g in zip(self.parameters, found, strict=True)]
            for found in (
                torch.autograd.grad(one, self.parameters, retain_graph=True, allow_unused=True)
                for one in (loss, bare)
            )
        )
        norm = float(sum(g.square().sum() for g in whole) ** 0.5)
        kept = min(1.0, config.grad_clip / (norm + 1e-6))
        self.count += 1
        b1, b2 = config.betas
        rate = self.optimizer.param_groups[0]["lr"]
        for p, g, h, m, v in zip(
            self.parameters, whole, alone, self.first, self.second, strict=True
        ):
            m.lerp_(kept * h, 1 - b1)
            v.lerp_((kept * g).square(), 1 - b2)
            size = (v / (1 - b2**self.count)).sqrt().add_(1e-8)
            p.data.addcdiv_(m / (1 - b1**self.count), size, value=-rate)
        self.moves[-1].append(self.moved(before))
        return norm


KINDS = {"llds": Watched, "matched": Matched, "brake": Brake, "capped": Capped}
KINDS["plain"] = Watched


def config_of(arm: str, seed: int) -> TrainConfig:
    """The main study's hot setting."""
    settings = {"steps": BATCHES, "eval_every": EVERY, "probe_every": 0, "checkpoint_every": 0}
    return train_config(ARMS[arm], seed, "half_taught", **settings)


def named(arm: str, seed: int) -> str:
    """The folder's name, which `gathered` reads."""
    return f"method={ARMS[arm]},arm={arm},seed={seed}"


def train(
    folder: Path,
    arm: str,
    seed: int,
    config_of: Callable[[str, int], TrainConfig] = config_of,
    named: Callable[[str, int], str] = named,
) -> None:
    """One run by its arm's settings and name, unless it is there already."""
    out = folder / named(arm, seed)
    if (out / MOVES).exists():
        return
    run = TrainingRun(config_of(arm, seed), out)
    trainer = KINDS[arm](run.config, run.setting.policy, run.setting.environment)
    if arm == "matched":
        trainer.allowed = json.loads((folder / named("llds", seed) / MOVES).read_text())
    run.trainer = trainer
    while run.next_batch < run.config.steps:
        run.step()
    run.writer.close()
    (out / MOVES).write_text(json.dumps(trainer.moves))


HEADS = ["arm", "seed", "reward, means of eight batches", "end", "collapse"]
HEADS += ["move of an update", "correct rows, nats per token"]


def print_tables(
    name: str, last: str, value: Callable[[Sequence[Mapping[str, float]]], str]
) -> None:
    """Each gathered run's reward and end, how far its updates moved, and `last`; the mean ends."""
    rows, ends = [], defaultdict(list)
    for given, metrics in gathered(name):
        reward = [row["reward/mean"] for row in metrics]
        held = [row["eval/heldout_em"] for row in metrics if "eval/heldout_em" in row]
        ends[given["arm"]].append(fmean(held[-2:]))
        collapse = find_collapse(reward).known
        rows.append(
            [
                *(given["arm"], given["seed"]),
                " ".join(f"{fmean(reward[i : i + 8]):.2f}" for i in range(0, BATCHES, 8)),
                f"{ends[given['arm']][-1]:.2f}",
                "-" if collapse is None else str(collapse),
                f"{fmean(row['control/move'] for row in metrics[:10]):.4f}",
                f"{fmean(row[LIKELIER] for row in metrics[:10] if LIKELIER in row):+.3f}",
                value(metrics),
            ]
        )
    print(markdown_table([*HEADS, last], rows))
    for arm, values in ends.items():
        print(f"{arm}: {fmean(values):.2f}")


def kept_share(metrics: Sequence[Mapping[str, float]]) -> str:
    """Of the steps of the first ten batches, what was kept."""
    return f"{fmean(row['control/share'] for row in metrics[:10]):.2f}"


def main() -> None:
    """Train, or print the tables."""
    if len(sys.argv) == 1:
        print_tables("smaller_step.jsonl.gz", "share of a step kept", kept_share)
        return
    torch.set_num_threads(1)
    for seed in map(int, sys.argv[2:] or SEEDS):
        for arm in KINDS:
            train(Path(sys.argv[1]), arm, seed)


if __name__ == "__main__":
    main()
