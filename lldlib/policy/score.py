"""Log-probs of given tokens: of a whole batch, of rows of similar length, or in pieces.

In pieces, a minibatch goes through the model a few rows at a time with the gradient of the whole.
Every term of the objective is a function of log-prob, entropy and the exact KL to Lp-Reg's proxy.
So the loss is first taken on scores without a graph, and its gradient by them is then carried to
the weights piece by piece: exact for any loss, at the price of one more forward pass.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib.config import LossConfig
from lldlib.policy.head import Proxy, head_scores, prediction_errors
from lldlib.types import Batch

ROWS = 24  # scored at a time where nothing else is said


@dataclass(frozen=True)
class Scores:
    """Per-token scores of a batch, 0 outside `action_mask`; what was not asked for is None."""

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"] | None = None  # nats
    proxy_logp: Float[Tensor, "B T"] | None = None  # Lp-Reg's proxy; -inf for a filtered token
    top1: Float[Tensor, "B T"] | None = None  # probability of the most likely token
    proxy: Proxy | None = None  # Lp-Reg's proxy in full, for its exact KL
    proxy_kl: Float[Tensor, "B T"] | None = None  # exact KL(proxy || policy), nats
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
    toward: Proxy | None = None,
    internals: bool = False,
) -> Scores:
    """Log-prob of every action token, log softmax(z / temperature)[token], in float32.

    The head runs on action positions only, a chunk of them at a time, so (B, T, V) logits never
    exist; `internals`, which NTHR needs, is the exception. `proxy` holds Lp-Reg's filter settings;
    `toward` is the proxy (B, T) of the policy that sampled. Gradient flows unless the caller
    forbids it.
    """
    decoder, head = _decoder_and_head(model)
    # Right padding needs no attention mask: causal attention never looks right.
    hidden = decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
    mask = batch.action_mask[:, 1:]
    targets = batch.tokens[:, 1:][mask]
    index = torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1)
    found = head_scores(
        head,
        hidden[mask],
        targets,
        temperature,
        entropy=entropy,
        proxy=proxy,
        top1=top1,
        toward=None if toward is None else toward.at(index),
    )

    def spread(values: Tensor) -> Tensor:
        out = torch.zeros(batch.tokens.shape, dtype=values.dtype, device=values.device)
        return out.masked_scatter(index, values)

    scores = {name: spread(v) for name, v in vars(found).items() if isinstance(v, Tensor)}
    if (full := found.proxy) is not None:
        scores["proxy"] = replace(full, start=spread(full.start), count=spread(full.count))
    if internals:
        pad = (0, 0, 1, 0)
        every = prediction_errors(head, hidden, batch.tokens[:, 1:], temperature)
        scores["hidden"] = nn.functional.pad(hidden.float(), pad)
        scores["errors"] = nn.functional.pad(every, pad)
    return Scores(**scores)


@torch.no_grad()
def next_probability(
    model: nn.Module, rows: Sequence[Sequence[int]], tokens: Sequence[int], temperature: float
) -> float:
    """Mean over rows of the probability that one of `tokens` follows the row, 0 to 1."""
    decoder, head = _decoder_and_head(model)
    device = next(model.parameters()).device
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    last = torch.tensor([len(row) - 1 for row in rows], device=device)
    hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    logits = head(hidden[torch.arange(len(rows), device=device), last]).float() / temperature
    return float(logits.softmax(-1)[:, list(tokens)].sum(1).mean())


def score_sorted(
    model: nn.Module,
    batch: Batch,
    temperature: float,
    *,
    chunk: int = ROWS,
    toward: Proxy | None = None,
    **kwargs,
) -> Scores:
    """`score`, to rounding, over chunks of rows of similar length: little of the work is padding.

    Gives the (B, T) scores only, without `internals`.
    """
    order = batch.attention_mask.sum(1).argsort()
    chunks = order.split(chunk)
    parts = []
    for rows in chunks:
        piece = batch.rows(rows)
        aim = None if toward is None else toward.at(rows, slice(piece.tokens.shape[1]))
        parts.append((rows, score(model, piece, temperature, toward=aim, **kwargs)))

    def spread(values: list[Tensor]) -> Tensor:
        out = torch.zeros(batch.tokens.shape, dtype=values[0].dtype, device=values[0].device)
        for (rows, _), some in zip(parts, values, strict=True):
            out[rows, : some.shape[1]] = some
        return out

    def merge(name: str) -> Tensor | None:
        values = [getattr(scores, name) for _, scores in parts]
        return None if values[0] is None else spread([some.float() for some in values])

    names = ("logp", "entropy", "proxy_logp", "top1", "proxy_kl")
    proxies = [scores.proxy for _, scores in parts]
    return Scores(
        **{name: merge(name) for name in names},
        proxy=None if proxies[0] is None else _merged(proxies, spread),
    )


def _merged(proxies: list[Proxy], spread: Callable[[list[Tensor]], Tensor]) -> Proxy:
    """One list for all, after which each part's places start further on."""
    before = itertools.accumulate((len(proxy.ids) for proxy in proxies), initial=0)
    starts = [proxy.start + far for proxy, far in zip(proxies, before, strict=False)]
    return Proxy(
        spread(starts),
        spread([proxy.count for proxy in proxies]),
        torch.cat([proxy.ids for proxy in proxies]),
        torch.cat([proxy.logp for proxy in proxies]),
    )


def leaf_scores(
    model: nn.Module,
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
    model: nn.Module,
    batch: Batch,
    leaves: Scores,
    temperature: float,
    size: int,
    toward: Proxy | None = None,
) -> None:
    """Add to the weights' gradient what the one collected in `leaf_scores` implies.

    At most `size` rows are alive with their graph, and only those that the gradient reaches: in a
    group whose rewards are equal the advantages are 0. Nothing happens where none was collected.
    """
    reached = {n: v.grad for n, v in vars(leaves).items() if v is not None and v.grad is not None}
    if not reached:
        return
    order = batch.attention_mask.sum(1).argsort()
    touched = torch.stack([(grad != 0).any(1) for grad in reached.values()]).any(0)[order]
    kept = order[touched] if touched.any() else order[:1]  # gradients of 0, where None is no update
    for rows in kept.split(size):
        piece = batch.rows(rows)
        width = piece.tokens.shape[1]
        wanted = {"entropy": "entropy" in reached}
        if "proxy_kl" in reached:
            wanted["toward"] = toward.at(rows, slice(width))
        scores = score(model, piece, temperature, **wanted)
        grads = [grad[rows, :width] for grad in reached.values()]
        torch.autograd.backward([getattr(scores, name) for name in reached], grads)
