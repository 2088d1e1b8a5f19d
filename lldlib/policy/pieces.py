"""A minibatch through the model a few rows at a time, with the gradient of the whole.

Every term of the objective is a function of log-prob and entropy. So the loss is first taken on
scores without a graph, and its gradient by them is then carried to the weights piece by piece:
exact for any loss, at the price of one more forward pass.
"""

import torch

from lldlib.policy.score import Scores, score, score_sorted
from lldlib.types import Batch


def leaf_scores(
    model: torch.nn.Module, batch: Batch, temperature: float, size: int, *, entropy: bool
) -> Scores:
    """Log-prob and, if asked for, entropy as leaves that collect a loss's gradient by them."""
    with torch.no_grad():
        found = score_sorted(model, batch, temperature, chunk=size, entropy=entropy)
    return Scores(found.logp.requires_grad_(), found.entropy.requires_grad_() if entropy else None)


def backward_through(
    model: torch.nn.Module, batch: Batch, leaves: Scores, temperature: float, size: int
) -> None:
    """Add to the weights' gradient what the one collected in `leaf_scores` implies.

    At most `size` rows are alive with their graph; nothing happens where no gradient was collected.
    """
    reached = {n: v.grad for n, v in vars(leaves).items() if v is not None and v.grad is not None}
    if not reached:
        return
    for rows in batch.attention_mask.sum(1).argsort().split(size):
        piece = batch.rows(rows)
        scores = score(model, piece, temperature, entropy="entropy" in reached)
        grads = [grad[rows, : piece.tokens.shape[1]] for grad in reached.values()]
        torch.autograd.backward([getattr(scores, name) for name in reached], grads)
