"""The language-model head, the one file that sees logits: scores of tokens, and the next token.

Scores are taken in chunks over tokens, so that (N, V) logits never exist at once. In the backward
pass a chunk's logits are computed again where the head's weight is trained. Where it is frozen
(LoRA, QLoRA) the forward pass keeps, for each token, the direction in which the token's score
changes with its hidden state: (N, H) numbers, after which the backward pass is one product.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from lldlib.config import LossConfig
from lldlib.losses import prediction_error, proxy_log_prob, proxy_logits

CHUNK_ELEMENTS = 2**25  # logits held at a time: 128 MiB in float32
# On a CPU, where no chunk is computed twice: 16 MiB stay in the processor's cache, and the
# allocator gives them out again without asking the system for pages.
CPU_ELEMENTS = 2**22
CPU_ROWS = 128  # but at least so many rows: fewer read a large head too often for what they compute


@dataclass(frozen=True)
class Proxy:
    """Lp-Reg's proxy in full, at many places: of each the vocabulary it keeps, all in one list.

    A place's part of the list is `count` entries from `start` on; `start` and `count` have any
    shape, (N,) or (B, T), and 0 for a place without a proxy.
    """

    start: Int[Tensor, "*places"]
    count: Int[Tensor, "*places"]
    ids: Int[Tensor, " M"]  # of the vocabulary
    logp: Float[Tensor, " M"]  # ln proxy

    def at(self, *index: slice | Tensor) -> "Proxy":
        """The places that tensors of the shape of `start` have under `index`."""
        return replace(self, start=self.start[index], count=self.count[index])


@dataclass(frozen=True)
class HeadScores:
    """Scores of N tokens in float32 (float64 for float64 states); what was not asked for is None.

    `logp`, `entropy` and `proxy_kl` carry gradient, the others are constants.
    """

    logp: Float[Tensor, " N"]
    entropy: Float[Tensor, " N"] | None = None  # nats
    proxy_logp: Float[Tensor, " N"] | None = None  # losses.proxy_log_prob
    top1: Float[Tensor, " N"] | None = None  # probability of the most likely token
    proxy: Proxy | None = None  # losses.proxy_logits, for lp_reg_kl "exact"
    proxy_kl: Float[Tensor, " N"] | None = None  # losses.forward_kl to another policy's proxy


def head_scores(
    head: nn.Module,
    hidden: Float[Tensor, "N H"],
    targets: Int[Tensor, " N"],
    temperature: float,
    *,
    entropy: bool = False,
    proxy: LossConfig | None = None,
    top1: bool = False,
    toward: Proxy | None = None,
    elements: int | None = None,
) -> HeadScores:
    """Scores of `targets` under softmax(head(hidden) / temperature), in one pass over the head.

    At most `elements` logits are held at a time (None: as many as suit the device): what fits in
    one chunk takes the plain formula. A head with a bias does too. `proxy` holds Lp-Reg's filter
    settings. What its exact KL takes, the proxy in full and the KL of the policy `toward` one, is a
    pass of its own.
    """
    elements = elements or _elements(head, hidden)
    found = _scores(head, hidden, targets, temperature, entropy, proxy, top1, elements)
    if proxy is not None and proxy.lp_reg_kl == "exact":
        found = replace(found, proxy=_full_proxy(head, hidden, temperature, proxy, elements))
    if toward is not None:
        found = replace(found, proxy_kl=_proxy_kl(head, hidden, temperature, toward, elements))
    return found


def _elements(head: nn.Module, hidden: Tensor) -> int:
    """Logits to hold at a time; a head that is trained computes those of several chunks twice."""
    trained = torch.is_grad_enabled() and any(p.requires_grad for p in head.parameters())
    if trained or hidden.device.type != "cpu":
        return CHUNK_ELEMENTS
    return min(CHUNK_ELEMENTS, max(CPU_ELEMENTS, CPU_ROWS * getattr(head, "out_features", 0)))


def _scores(head, hidden, targets, temperature, entropy, proxy, top1, elements) -> HeadScores:
    lean = isinstance(head, nn.Linear) and head.bias is None
    if not lean or len(targets) * head.weight.shape[0] <= elements:
        return _plain(head, hidden, targets, temperature, entropy, proxy, top1)
    chunk = max(1, elements // head.weight.shape[0])
    return HeadScores(
        *_LeanHead.apply(
            hidden, head.weight, targets, temperature, chunk, entropy, _filter(proxy), top1
        )
    )


def next_token(
    head: nn.Module,
    hidden: Float[Tensor, "B H"],
    *,
    temperature: float,
    uniform: Float[Tensor, " B"] | None,
    noise: float = 0.0,
    top_p: float = 1.0,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw each row's next token by inverse CDF from its own `uniform` number, with its log-prob.

    The token is the first whose cumulated probability exceeds u, u float32 in [0, 1).
    `temperature` 0 takes the most likely token (its log-prob is then given at temperature 1).
    Otherwise `noise` is the deviation of Gaussian noise on the logits, nats, and only the likeliest
    tokens whose probability together reaches `top_p` are drawn. Log-probs are those drawn from.
    """
    logits = head(hidden)
    logits = logits.to(_working(logits))
    if temperature == 0:
        probs = logits.softmax(-1)
        drawn = probs.argmax(-1, keepdim=True)
    else:
        if temperature != 1:
            logits = logits / temperature
        if noise:
            logits = logits + noise * _gaussian(uniform, logits.shape[-1]).to(logits)
        probs = logits.softmax(-1)
        if top_p < 1:
            probs = nucleus(probs, top_p)
        # In float64, u < 1 of float32 times the total is less than the total to the bit, and so a
        # token is always found, and never one of probability 0.
        cumulated = probs.cumsum(-1, dtype=torch.float64)
        sought = uniform.double()[:, None] * cumulated[:, -1:]
        drawn = torch.searchsorted(cumulated, sought, right=True)
        drawn = drawn.clamp(max=probs.shape[-1] - 1)  # of logits that are not finite: any token
    return drawn[:, 0], probs.gather(-1, drawn)[:, 0].log()


def nucleus(probs: Float[Tensor, "B V"], top_p: float) -> Float[Tensor, "B V"]:
    """(B, V) the likeliest tokens whose probability together reaches `top_p`, scaled to sum to 1.

    Source: nucleus sampling, 1904.09751.
    """
    ordered, index = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p, ordered, 0.0)
    return torch.zeros_like(probs).scatter(-1, index, kept / kept.sum(-1, keepdim=True))


def _gaussian(uniform: Float[Tensor, " B"], size: int) -> Float[Tensor, "B V"]:
    """(B, V) standard normal numbers that depend on a row's `uniform` number alone.

    A row so draws the same, whatever rows are drawn beside it and on which device.
    """
    place = torch.arange(1, size + 1, device=uniform.device, dtype=torch.float64)
    row = uniform.double()[:, None]
    first, second = (
        (torch.sin(row * a + place * b) * 43758.5453).frac().abs()
        for a, b in ((7919.31, 12.9898), (5281.77, 78.233))
    )
    return (-2 * (1 - first).clamp(min=1e-12).log()).sqrt() * torch.cos(2 * math.pi * second)


def prediction_errors(
    head: nn.Module,
    hidden: Float[Tensor, "B L H"],
    targets: Int[Tensor, "B L"],
    temperature: float,
) -> Float[Tensor, "B L V"]:
    """losses.prediction_error of every position; NTHR needs them all at once, in float32."""
    return prediction_error(head(hidden).float() / temperature, targets)


def _plain(head, hidden, targets, temperature, entropy, proxy, top1) -> HeadScores:
    logits = head(hidden)
    logits = logits.to(_working(logits)) / temperature  # (N, V)
    log_probs = torch.log_softmax(logits, dim=-1)
    filtering = _filter(proxy)
    return HeadScores(
        logp=log_probs.gather(-1, targets[:, None])[:, 0],
        entropy=-(log_probs.exp() * log_probs).sum(-1) if entropy else None,
        proxy_logp=_proxy(logits, targets, filtering) if filtering else None,
        top1=log_probs.detach().amax(-1).exp() if top1 else None,
    )


def _working(values: Tensor) -> torch.dtype:
    """Softmax is taken in float32, in float64 where the model computes in that."""
    return torch.promote_types(values.dtype, torch.float32)


def _filter(proxy: LossConfig | None) -> dict[str, float] | None:
    if proxy is None:
        return None
    return {"kappa" if proxy.lp_reg_filter == "min-p" else "tau": proxy.lp_reg_threshold}


def _proxy(logits: Tensor, targets: Tensor, filtering: dict[str, float]) -> Tensor:
    return proxy_log_prob(logits[None], targets[None], **filtering)[0]


def _logits(head: nn.Module, hidden: Tensor, temperature: float) -> Tensor:
    logits = head(hidden)
    return logits.to(_working(logits)) / temperature


@torch.no_grad()
def _full_proxy(head, hidden, temperature, proxy: LossConfig, elements: int) -> Proxy:
    counts, ids, logps = [], [], []
    for part in hidden.split(max(1, elements // _vocabulary(head))):
        logits = proxy_logits(_logits(head, part, temperature)[None], **_filter(proxy))[0]
        kept = logits > -math.inf
        counts.append(kept.sum(-1))
        ids.append(kept.nonzero()[:, 1])
        logps.append(logits.log_softmax(-1)[kept])
    count = torch.cat(counts)
    return Proxy(count.cumsum(0) - count, count, torch.cat(ids), torch.cat(logps))


def _proxy_kl(head, hidden, temperature, toward: Proxy, elements: int) -> Tensor:
    """(N,) losses.forward_kl, 0 where there is no proxy; the backward pass makes logits again."""
    places = toward.count.nonzero()[:, 0]
    out = hidden.new_zeros(len(hidden), dtype=_working(hidden))
    parts = places.split(max(1, elements // _vocabulary(head)))
    values = [
        checkpoint(
            _kl_of_chunk, head, hidden[some], temperature, toward.at(some), use_reentrant=False
        )
        for some in parts
    ]
    return out.index_add(0, places, torch.cat(values))


def _kl_of_chunk(head, hidden, temperature, toward: Proxy) -> Tensor:
    log_probs = _logits(head, hidden, temperature).log_softmax(-1)
    count = toward.count
    place = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    first = count.cumsum(0) - count
    entry = torch.arange(len(place), device=count.device) + (toward.start - first)[place]
    wanted = toward.logp[entry].to(log_probs.dtype)
    gap = wanted.exp() * (wanted - log_probs[place, toward.ids[entry]])
    return log_probs.new_zeros(len(count)).index_add(0, place, gap)


def _vocabulary(head: nn.Module) -> int:
    return head.weight.shape[0]


def _chunks(tokens: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, tokens, chunk)]


def _log_probs(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """log softmax(hidden weight^T / temperature) of one chunk, in the buffer of the logits."""
    logits = hidden @ weight.T
    logits = logits.to(_working(logits)).div_(temperature)
    return logits.sub_(logits.logsumexp(-1, keepdim=True))


def _entropy(probs: Tensor, log_probs: Tensor) -> Tensor:
    return -torch.einsum("nv,nv->n", probs, log_probs)  # without the product as a (N, V) tensor


def _toward(probs: Tensor, targets: Tensor) -> Tensor:
    """d logp / d logits = onehot(target) - probs, in the buffer of `probs`."""
    rows = torch.arange(len(targets), device=targets.device)
    toward = probs.neg_()
    toward[rows, targets] += 1.0
    return toward


class _LeanHead(torch.autograd.Function):
    """(logp, entropy, proxy_logp, top1) of N tokens, `chunk` of them at a time."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, temperature, chunk, entropy, filtering, top1):
        """Scores chunk by chunk; keeps directions where only `hidden` wants a gradient."""
        ctx.set_materialize_grads(False)
        ctx.settings = (temperature, chunk)
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        # directions d logp / d hidden and d entropy / d hidden
        keep = need_hidden and not need_weight
        out = {
            name: hidden.new_empty(len(targets), dtype=_working(hidden))
            for name, wanted in zip(
                ("logp", "entropy", "proxy", "top1"), (True, entropy, filtering, top1), strict=True
            )
            if wanted
        }
        directions = [torch.empty_like(hidden) for _ in range(1 + bool(entropy))] if keep else []
        for rows in _chunks(len(targets), chunk):
            aim = targets[rows]
            log_probs = _log_probs(hidden[rows], weight, temperature)
            out["logp"][rows] = log_probs.gather(-1, aim[:, None])[:, 0]
            if top1:
                out["top1"][rows] = log_probs.amax(-1).exp()
            if filtering:
                out["proxy"][rows] = _proxy(log_probs, aim, filtering)
            probs = log_probs.exp() if entropy or keep else None
            if entropy:
                out["entropy"][rows] = _entropy(probs, log_probs)
            if entropy and keep:
                log_probs.add_(out["entropy"][rows, None]).mul_(probs).neg_()  # d entropy / d z
                directions[1][rows] = log_probs.to(weight.dtype) @ weight
            if keep:
                directions[0][rows] = _toward(probs, aim).to(weight.dtype) @ weight
            del log_probs, probs  # before the next chunk's are made
        values = tuple(out.get(name) for name in ("logp", "entropy", "proxy", "top1"))
        ctx.mark_non_differentiable(*(v for v in values[2:] if v is not None))
        ctx.keep = keep
        ctx.save_for_backward(*(directions if keep else (hidden, weight, targets)))
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx, by_logp, by_entropy, *_):
        """Gradients of `hidden` and `weight`; proxy and top-1 carry none."""
        temperature, chunk = ctx.settings
        grads = (by_logp, by_entropy)
        if by_logp is None and by_entropy is None:
            return (None,) * 8
        if ctx.keep:
            pairs = zip(ctx.saved_tensors, grads, strict=False)
            parts = [g[:, None] / temperature * d for d, g in pairs if g is not None]
            return (sum(parts).to(ctx.saved_tensors[0].dtype), *[None] * 7)
        hidden, weight, targets = ctx.saved_tensors
        by_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        by_weight = weight.new_zeros(weight.shape, dtype=_working(weight))
        for rows in _chunks(len(targets), chunk):
            slope = _slope(hidden[rows], weight, targets[rows], temperature, grads, rows)
            if by_hidden is not None:
                by_hidden[rows] = slope.to(weight.dtype) @ weight
            by_weight.addmm_(slope.T, hidden[rows].to(slope.dtype))
            del slope
        return (by_hidden, by_weight.to(weight.dtype), *[None] * 6)


def _slope(hidden, weight, targets, temperature, grads, rows) -> Tensor:
    """The loss's gradient in the chunk's logits, which are computed again."""
    by_logp, by_entropy = grads
    log_probs = _log_probs(hidden, weight, temperature)
    probs = log_probs.exp()
    slope = 0.0
    if by_entropy is not None:
        weights = by_entropy[rows, None] / temperature
        entropy = _entropy(probs, log_probs)[:, None]
        slope = log_probs.add_(entropy).mul_(probs).mul_(-weights)
    if by_logp is not None:
        slope = _toward(probs, targets).mul_(by_logp[rows, None] / temperature).add_(slope)
    return slope
