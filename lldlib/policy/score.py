"""Log-probs of given tokens: of a whole batch, of rows of similar length, or in pieces.

In pieces, a minibatch goes through the model a few rows at a time with the gradient of the whole.
Every term of the objective is a function of log-prob and entropy. So the loss is first taken on
scores without a graph, and its gradient by them is then carried to the weights piece by piece:
exact for any loss, at the price of one more forward pass.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib.config import LossConfig
from lldlib.policy.head import head_scores, prediction_errors
from lldlib.types import Batch

ROWS = 24  # scored at a time where nothing else is said


@dataclass(frozen=True)
class Scores:
    """Per-token scores of a batch, 0 outside `action_mask`; what was not asked for is None."""

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"] | None = None  # nats
    proxy_logp: Float[Tensor, "B T"] | None = None  # Lp-Reg's proxy; -inf for a filtered token
    top1: Float[Tensor, "B T"] | None = None  # probability of the most likely token
    hidden: Float[Tensor, "B T H"] | None = None  # last hidden state that predicts the token
    errors: Float[Tensor, "B T V"] | None = None  # losses.prediction_error


def _decoder_and_head(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The part below the language-model head, and the head; a PEFT wrapper passes both through."""
    return model.get_decoder(), model.get_output_embeddings()


def score(
    model: nn.Module,
    batch: Batch,
    temperature: float,
    *,
    entropy: bool = False,
    proxy: LossConfig | None = None,
    top1: bool = False,
    internals: bool = False,
) -> Scores:
    """Log-prob of every action token, log softmax(z / temperature)[token], in float32.

    The head runs on action positions only, a chunk of them at a time, so (B, T, V) logits never
    exist; `internals`, which NTHR needs, is the exception. `proxy` holds Lp-Reg's filter settings.
    Gradient flows unless the caller forbids it.
    """
    decoder, head = _decoder_and_head(model)
    # Right padding needs no attention mask: causal attention never looks right.
    hidden = decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
    mask = batch.action_mask[:, 1:]
    targets = batch.tokens[:, 1:][mask]
    found = head_scores(
        head, hidden[mask], targets, temperature, entropy=entropy, proxy=proxy, top1=top1
    )

    def spread(values: Float[Tensor, " N"]) -> Float[Tensor, "B T"]:
        out = torch.zeros(batch.tokens.shape, dtype=values.dtype, device=values.device)
        index = torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1)
        return out.masked_scatter(index, values)

    scores = {name: spread(v) for name, v in vars(found).items() if v is not None}
    if internals:
        pad = (0, 0, 1, 0)
        every = prediction_errors(head, hidden, batch.tokens[:, 1:], temperature)
        scores["hidden"] = nn.functional.pad(hidden.float(), pad)
        scores["errors"] = nn.functional.pad(every, pad)
    return Scores(**scores)


def score_sorted(
    model: nn.Module, batch: Batch, temperature: float, *, chunk: int = ROWS, **kwargs
) -> Scores:
    """`score`, to rounding, over chunks of rows of similar length: little of the work is padding.

    Gives the (B, T) scores only, without `internals`.
    """
    order = batch.attention_mask.sum(1).argsort()
    chunks = order.split(chunk)
    parts = [(rows, score(model, batch.rows(rows), temperature, **kwargs)) for rows in chunks]

    def merge(name: str) -> Tensor | None:
        if getattr(parts[0][1], name) is None:
            return None
        out = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        for rows, scores in parts:
            values = getattr(scores, name)
            out[rows, : values.shape[1]] = values
        return out

    return Scores(**{name: merge(name) for name in ("logp", "entropy", "proxy_logp", "top1")})


def leaf_scores(
    model: nn.Module, batch: Batch, temperature: float, size: int, *, entropy: bool
) -> Scores:
    """Log-prob and, if asked for, entropy as leaves that collect a loss's gradient by them."""
    with torch.no_grad():
        found = score_sorted(model, batch, temperature, chunk=size, entropy=entropy)
    return Scores(found.logp.requires_grad_(), found.entropy.requires_grad_() if entropy else None)


def backward_through(
    model: nn.Module, batch: Batch, leaves: Scores, temperature: float, size: int
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
