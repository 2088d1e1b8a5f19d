"""What else does what LLDS does at the hot rate? python data/atlas/other_steps.py FOLDER [SEED ...]

GRPO with one thing changed, each arm once a seed:

- half clip: the gradient's norm is clipped at .5 in place of 1;
- quick Adam: beta2 of .95 in place of .999;
- large epsilon: AdamW's epsilon is 1e-3, about the root of its second moment here;
- long ramp: the rate rises over 20 batches in place of 5;
- cosine: after the ramp the rate falls to 0 along a cosine;
- entropy: a bonus whose weight follows the entropy of the LLDS run of the same seed;
- gentle entropy: the same, in smaller moves and within smaller bounds.

And LLDS .5 with one thing changed:

- random rows: the rows that it keeps are drawn at random, as many as have A > 0;
- random tokens: random action tokens are made likelier, as many as LLDS works on;
  both have the norm that LLDS's own gradient has at that policy;
- after the clip: LLDS's gradient is added to the policy's when that one has been clipped.

Writes run folders; data/atlas/collect.py gathers them into other_steps.jsonl.gz, of which the
script prints the table of smaller_step.md where no FOLDER is given. Gentle entropy, LLDS with the
cosine, and others at lower rates: smaller_step_misses.py.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from collect import gathered
from smaller_step import BATCHES, SEEDS, Watched, config_of, print_tables
from torch import Tensor

from lldlib.config import TrainConfig
from lldlib.losses import LossInputs, compute_loss
from lldlib.losses.llds import llds_parts
from lldlib.policy.optimizer import adjust
from lldlib.train.run import TrainingRun

DONE = "done"
EPSILON = 1e-3


class Split(Watched):
    """LLDS's gradient apart from the rest, put in again by `joined`."""

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        bare, _ = compute_loss(dataclasses.replace(self.objective, llds_coef=0.0), inputs)
        whole, alone = self.gradient(loss), self.gradient(bare)
        own = [g - h for g, h in zip(whole, alone, strict=True)]
        norm = float(_norm(alone))
        for p, g in zip(self.parameters, self.joined(alone, own, inputs), strict=True):
            p.grad = g
        self.optimizer.step()
        self.moves[-1].append(self.moved(inputs.logp.detach()))
        return norm

    def gradient(self, loss: Tensor) -> list[Tensor]:
        """Of each weight; the graph is kept."""
        found = torch.autograd.grad(loss, self.parameters, retain_graph=True, allow_unused=True)
        return [0 * p if g is None else g for p, g in zip(self.parameters, found, strict=True)]

    def clipped(self, gradient: list[Tensor]) -> list[Tensor]:
        """At the norm of the settings."""
        share = min(1.0, self.config.grad_clip / (float(_norm(gradient)) + 1e-6))
        return [share * g for g in gradient]

    def joined(self, alone: list[Tensor], own: list[Tensor], inputs: LossInputs) -> list[Tensor]:
        """What AdamW gets."""
        raise NotImplementedError


class AfterClip(Split):
    """LLDS's gradient is not clipped."""

    def joined(self, alone, own, inputs):
        return [g + h for g, h in zip(self.clipped(alone), own, strict=True)]


class Random(Split):
    """Another gradient stands in for LLDS's, at the norm of LLDS's."""

    def joined(self, alone, own, inputs):
        other = self.gradient(self.other(inputs))
        share = float(_norm(own)) / max(float(_norm(other)), 1e-12)
        return self.clipped([g + share * h for g, h in zip(alone, other, strict=True)])

    def order(self, count: int) -> Tensor:
        """A random order, another in each update."""
        seed = 1000 * self._seed("control") + self.number
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


class RandomRows(Random):
    """Keeps random rows, as many as have A > 0."""

    def other(self, inputs: LossInputs) -> Tensor:
        """LLDS alone, with the advantages given to other rows."""
        shuffled = inputs.advantages[self.order(len(inputs.advantages))]
        given = dataclasses.replace(inputs, advantages=shuffled)
        whole, _ = compute_loss(self.objective, given)
        bare, _ = compute_loss(dataclasses.replace(self.objective, llds_coef=0.0), given)
        return whole - bare


class RandomTokens(Random):
    """Makes random action tokens likelier, as many as LLDS works on."""

    def other(self, inputs: LossInputs) -> Tensor:
        """Minus the log-probs of those tokens."""
        x, loss = inputs, self.objective
        rows = x.logp, x.old_logp, x.advantages, x.action_mask
        parts = llds_parts(*rows, gate=loss.llds_gate, preserve=loss.llds_preserve)
        count = int((parts.penalty > 0).sum())
        found = x.logp[x.action_mask]
        return -found[self.order(len(found))[:count]].sum()


class Epsilon(Watched):
    """A large epsilon."""

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        adjust(self.optimizer, eps=EPSILON)
        return super()._apply(loss, inputs, experience, pieces)


class Cosine(Watched):
    """A rate that falls to 0."""

    def _apply(self, loss, inputs, experience, pieces) -> float | None:
        rising = min(1.0, (self.step_index + 1) / self.config.warmup_batches)
        falling = (1 + math.cos(math.pi * self.step_index / BATCHES)) / 2
        adjust(self.optimizer, lr=self.config.lr * rising * falling)
        return super()._apply(loss, inputs, experience, pieces)


class Entropy(Watched):
    """A bonus that follows the entropy of the LLDS run of the same seed."""

    aim: Sequence[float]
    weight, factor, least, most = 0.01, 1.5, 1e-3, 0.5  # the first weight, each move, its range

    def step(self):
        """One batch, then the weight of the next."""
        self.turn(loss=dataclasses.replace(self.config.loss, entropy_coef=self.weight))
        metrics, episodes = super().step()
        low = metrics["policy/entropy"] < self.aim[self.step_index - 1]
        weight = self.weight * self.factor if low else self.weight / self.factor
        self.weight = min(max(weight, self.least), self.most)
        return metrics, episodes


class Gentle(Entropy):
    """The same in smaller moves."""

    weight, factor, least, most = 0.002, 1.1, 1e-4, 0.02


def _norm(gradient: list[Tensor]) -> Tensor:
    return torch.stack([g.square().sum() for g in gradient]).sum().sqrt()


ARMS = {  # method of smaller_step's arm, trainer, settings
    "half clip": ("capped", Watched, {"grad_clip": 0.5}),
    "quick Adam": ("capped", Watched, {"betas": (0.9, 0.95)}),
    "large epsilon": ("capped", Epsilon, {}),
    "long ramp": ("capped", Watched, {"warmup_batches": 20}),
    "cosine": ("capped", Cosine, {}),
    "entropy": ("capped", Entropy, {}),
    "random rows": ("llds", RandomRows, {}),
    "random tokens": ("llds", RandomTokens, {}),
    "after the clip": ("llds", AfterClip, {}),
}
HOT = tuple(ARMS)  # those that were run at the hot rate
ARMS["gentle entropy"] = ("capped", Gentle, {})
ARMS["cosine llds"] = ("llds", Cosine, {})


def settings(
    arm: str, seed: int, base: Callable[[str, int], TrainConfig] = config_of
) -> TrainConfig:
    """Of the study's GRPO or LLDS, the main one's at the hot rate, with the arm's change."""
    method, _, changed = ARMS[arm]
    return dataclasses.replace(base(method, seed), **changed)


def train(
    folder: Path,
    arm: str,
    seed: int,
    base: Callable[[str, int], TrainConfig] = config_of,
    more: str = "",
    aim: Sequence[float] = (),
) -> None:
    """One run, unless it is there already; `more` of its name, the entropy that a bonus follows."""
    method = "llds" if ARMS[arm][0] == "llds" else "grpo"
    out = folder / f"method={method},arm={arm},{more}seed={seed}"
    if (out / DONE).exists():
        return
    run = TrainingRun(settings(arm, seed, base), out)
    trainer = ARMS[arm][1](run.config, run.setting.policy, run.setting.environment)
    if isinstance(trainer, Entropy):
        trainer.aim = aim
    run.trainer = trainer
    while run.next_batch < BATCHES:
        run.step()
    run.writer.close()
    (out / DONE).write_text("")


def entropy_of_llds(seed: int) -> list[float]:
    """Of the hot rate's LLDS run, after each batch."""
    (found,) = (
        [row["policy/entropy"] for row in rows]
        for given, rows in gathered("smaller_step.jsonl.gz")
        if (given["arm"], int(given["seed"])) == ("llds", seed)
    )
    return found


def main() -> None:
    """Train, or print the tables."""
    if len(sys.argv) == 1:
        last = "entropy at the end"
        print_tables("other_steps.jsonl.gz", last, lambda rows: f"{rows[-1]['policy/entropy']:.2f}")
        return
    torch.set_num_threads(1)
    for seed in map(int, sys.argv[2:] or SEEDS):
        for arm in HOT:
            train(Path(sys.argv[1]), arm, seed, aim=entropy_of_llds(seed))


if __name__ == "__main__":
    main()
