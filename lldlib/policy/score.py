"""Log-probs of given tokens, and the next token of a rollout.

Only this file and lean.py, the head in chunks, see logits.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lldlib.config import LossConfig
from lldlib.losses import prediction_error
from lldlib.policy.head import Proxy, head_scores
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
        every = prediction_error(head(hidden).float() / temperature, batch.tokens[:, 1:])
        scores["hidden"] = nn.functional.pad(hidden.float(), pad)
        scores["errors"] = nn.functional.pad(every, pad)
    return Scores(**scores)


def next_token(
    head: nn.Module,
    hidden: Float[Tensor, "B H"],
    *,
    temperature: float,
    uniform: Float[Tensor, " B"] | None,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw each row's next token by inverse CDF from its own `uniform` number, with its log-prob.

    The token is the first whose cumulated probability exceeds u, u float32 in [0, 1).
    `temperature` 0 takes the most likely token (its log-prob is then given at temperature 1).
    """
    logits = head(hidden).float()
    if temperature == 0:
        log_probs = torch.log_softmax(logits, dim=-1)
        drawn = log_probs.argmax(-1, keepdim=True)
    else:
        log_probs = torch.log_softmax(logits / temperature, dim=-1)
        # In float64, u < 1 of float32 times the total is less than the total to the bit, and so a
        # token is always found, and never one of probability 0.
        cumulated = log_probs.exp().cumsum(-1, dtype=torch.float64)
        sought = uniform.double()[:, None] * cumulated[:, -1:]
        drawn = torch.searchsorted(cumulated, sought, right=True)
    return drawn[:, 0], log_probs.gather(-1, drawn)[:, 0]


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
