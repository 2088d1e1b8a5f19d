"""A minibatch through the model a few rows at a time, with the gradient of the whole.

Every term of the objective is a function of log-prob, entropy and the exact KL to Lp-Reg's proxy.
So the loss is first taken on scores without a graph, and its gradient by them is then carried to
the weights piece by piece: exact for any loss, at the price of one more forward pass.
"""

import torch

from lldlib.policy.head import Proxy
from lldlib.policy.score import Scores, score, score_sorted
from lldlib.types import Batch


def leaf_scores(
    model: torch.nn.Module,
    batch: Batch,
    temperature: float,
    size: int,
    *,
    entropy: bool,
    toward: Proxy | None = None,
) -> Scores:
    """Log-prob and what else is asked for, as leaves that collect a loss's gradient by them."""
    with torch.no_grad():
        found = score_sorted(model, batch, temperature, chunk=size, entropy=entropy, toward=toward)
    leaves = {name: v.requires_grad_() for name, v in vars(found).items() if v is not None}
    return Scores(**leaves)


def backward_through(
    model: torch.nn.Module,
    batch: Batch,
    leaves: Scores,
    temperature: float,
    size: int,
    toward: Proxy | None = None,
) -> None:
    """Add to the weights' gradient what the one collected in `leaf_scores` implies.

    At most `size` rows are alive with their graph; nothing happens where no gradient was collected.
    """
    reached = {n: v.grad for n, v in vars(leaves).items() if v is not None and v.grad is not None}
    if not reached:
        return
    for rows in batch.attention_mask.sum(1).argsort().split(size):
        piece = batch.rows(rows)
        width = piece.tokens.shape[1]
        wanted = {"entropy": "entropy" in reached}
        if "proxy_kl" in reached:
            wanted["toward"] = toward.at(rows, slice(width))
        scores = score(model, piece, temperature, **wanted)
        grads = [grad[rows, :width] for grad in reached.values()]
        torch.autograd.backward([getattr(scores, name) for name in reached], grads)
