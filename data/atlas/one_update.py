"""What single steps from the start do to right answers: python data/atlas/one_update.py

Makes the two tables of "One step at a time" in controls.md, in about 20 seconds on one core.
"""

import copy
import random
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib import losses
from lldlib.config import RolloutConfig
from lldlib.files import markdown_table
from lldlib.policy.load import load_policy
from lldlib.policy.score import score
from lldlib.retrieval import BM25Retriever
from lldlib.rollout.batch import collate
from lldlib.rollout.loop import Rollout
from lldlib.types import Batch, Episode
from lldlib.world.environment import RULES
from lldlib.world.shuffled import planet

SEEDS, HOPS = (0, 1, 2), (0.34, 0.33, 0.33)
PARTS, SINGLE = 0.02, 0.01  # sizes of the plain steps of the two tables
LOSSES = ("GRPO", "GRPO with NTHR's factors", "right answers alone")


def answers(
    number: int, seed: int, questions: int, samples: int, **mix: tuple[float, ...]
) -> list[list[Episode]]:
    """Each question's answers by the start, on a planet of the shuffled atlas."""
    policy, world = load_policy("half_taught"), planet(number)
    tool = BM25Retriever(world.passages("all"))
    rollout = Rollout(policy.tokenizer, RULES["qa"], tool, RolloutConfig())
    asked = world.sample_questions(random.Random(seed), questions, "train", *mix.values())
    draw = torch.Generator().manual_seed(seed)
    found = rollout.run(policy.model, asked, samples=samples, temperature=1.0, generator=draw)
    return [found[i : i + samples] for i in range(0, len(found), samples)]


def stepped(model: nn.Module, loss: Float[Tensor, ""], eta: float) -> nn.Module:
    """A copy of the model after one plain gradient step."""
    moved = copy.deepcopy(model)
    gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    for weight, g in zip(moved.parameters(), gradient, strict=True):
        weight.data -= eta * g
    return moved


def by_part(model: nn.Module, batch: Batch) -> list[Float[Tensor, " n"]]:
    """Change of the rows with A > 0, nats per token and unit step, by parts A > 0 and A < 0."""
    A, mask = losses.group_advantages(batch.rewards, batch.group, scale=True), batch.action_mask
    logp, changes = score(model, batch, 1.0).logp, []
    term = losses.policy_gradient(logp, logp.detach(), A, mask) / mask.sum()
    for rows in (A > 0, A < 0):
        new = score(stepped(model, term[rows].sum(), PARTS), batch, 1.0).logp.detach()
        changes.append(((new - logp.detach()).sum(1) / mask.sum(1) / PARTS)[A > 0])
    return changes


def one_question(model: nn.Module, batch: Batch, others: Batch) -> dict[str, float]:
    """Changes of right answers by one step on a question, and what NTHR's theorem predicts."""
    A, mask = losses.group_advantages(batch.rewards, batch.group, scale=True), batch.action_mask
    with torch.no_grad():
        inner = score(model, batch, 1.0, internals=True)
        before = score(model, others, 1.0).logp.sum(1).mean().item()
    scores = losses.nthr_scores(inner.hidden, inner.errors, A > 0, mask)
    factor = losses.nthr_weights(inner.hidden, inner.errors, A, batch.group, mask)
    each = A[:, None].expand(mask.shape)
    row = {"share wrong": 1 - batch.rewards.mean().item()}
    row["predicted"] = ((each * scores).sum() / mask.sum() / (A > 0).sum()).item()
    used = (A, torch.where(each < 0, factor * each, each), A.clamp(min=0))
    logp = score(model, batch, 1.0).logp
    for name, advantages in zip(LOSSES, used, strict=True):
        term = losses.policy_gradient(logp, logp.detach(), advantages, mask)
        moved = stepped(model, losses.aggregate(term, mask, "token-mean"), SINGLE)
        with torch.no_grad():
            own, other = (score(moved, b, 1.0).logp.sum(1) for b in (batch, others))
        row[name] = (own - logp.detach().sum(1))[batch.rewards == 1].mean().item()
        row[f"{name}, others"] = other.mean().item() - before
    return row


def ranked(a: list[float], b: list[float]) -> float:
    """Rank correlation."""
    pair = [torch.tensor(x).argsort().argsort().float() for x in (a, b)]
    return torch.corrcoef(torch.stack(pair))[0, 1].item()


def main() -> None:
    """Both tables, and the rank correlations."""
    model = load_policy("half_taught").model
    lines = []
    for seed in SEEDS:
        own, other = by_part(model, collate([*chain(*answers(seed, seed, 48, 5, hops=HOPS))]))
        lowered = f"{(other < 0).float().mean():.0%}"
        lines.append(
            [str(seed), str(len(own)), f"{own.mean():+.4f}", f"{other.mean():+.4f}", lowered]
        )
    heads = ["seed", "rows with A > 0", "by the part A > 0", "by the part A < 0", "lowered by it"]
    print(markdown_table(heads, lines), end="\n\n")

    others = collate([e for (e,) in answers(0, 99, 64, 1) if e.reward == 1][:16])
    asked = [collate(group) for seed in SEEDS for group in answers(0, seed, 20, 8)]
    rows = [one_question(model, b, others) for b in asked if 0 < b.rewards.mean() < 1]
    lines = []
    for name in LOSSES:
        own, other = ([row[key] for row in rows] for key in (name, f"{name}, others"))
        fell = [f"{sum(x < 0 for x in values)} of {len(rows)}" for values in (own, other)]
        lines.append([name, f"{sum(own) / len(own):+.3f}", *fell])
    heads = ["loss", "own right answers, nats", "questions that fell", "other questions that fell"]
    print(markdown_table(heads, lines))
    for key in ("predicted", "share wrong"):
        told = ranked([row[key] for row in rows], [row["GRPO"] for row in rows])
        print(f"rank correlation of the change under GRPO with {key!r}: {told:.2f}")


if __name__ == "__main__":
    main()
