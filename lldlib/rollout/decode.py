"""How a model is fed during a rollout: rows of tokens in, the state of each row's last token out.

A Qwen2 or Llama of full attention, with LoRA and quantised layers too, is fed any number of tokens
a row (`RaggedDecoder`); any other model the same number in every row (`LockstepDecoder`). A decoder
is made for one rollout, during which the weights must not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaModel, Qwen2Model

from lldlib.policy.head import CHUNK_ELEMENTS
from lldlib.rollout.cache import RaggedCache, new_cache

NEVER = float("-inf")
PLAIN = (Qwen2Model, LlamaModel)  # rotated grouped heads, RMS norms, one MLP a layer
SMALL = 2**20  # matrices of up to so many weights are copied: side by side, inputs first
FEW = 8  # a model of at most so many heads has a cache that lies by token on a CPU
PIECE = CHUNK_ELEMENTS  # attention scores, or a layer's widest numbers, while long texts are fed


class LockstepDecoder:
    """Feeds all rows the same number of tokens at a time, through transformers' own forward."""

    ragged = False

    def __init__(self, decoder: nn.Module, layers: int, capacity: int):
        self.decoder = decoder
        self.device = next(decoder.parameters()).device
        self.cache = new_cache(layers, capacity)

    def feed(self, tokens: Sequence[Sequence[int]]) -> Float[Tensor, "B H"]:
        """Feed every row its tokens, equally many in each; the last hidden state of each row."""
        inputs = torch.tensor(tokens, device=self.device)
        out = self.decoder(input_ids=inputs, past_key_values=self.cache, use_cache=True)
        return out.last_hidden_state[:, -1]

    def move(self, sources: list[int], targets: list[int], size: int) -> None:
        """Let rows `targets` become copies of `sources`, then keep the first `size` rows only."""
        for layer in self.cache.layers:
            layer.move(sources, targets, size)


@dataclass(frozen=True)
class Step:
    """The tokens of one pass as one flat list of N, and where they go."""

    tokens: Int[Tensor, " N"]
    row: Int[Tensor, " N"]
    position: Int[Tensor, " N"]  # within the row
    rows: slice | Int[Tensor, " B"]  # the rows that are fed
    width: int  # columns of the cache that attention looks at
    mask: Float[Tensor, "B 1 width"]  # of each row's last token, added to attention scores
    last: Int[Tensor, " B"] | None = None  # where the rows' last tokens are; None: one token a row
    long: "_Long | None" = None


class RaggedDecoder:
    """Feeds every row any number of tokens at a time, without padding but inside attention.

    Every row has a cache length of its own. transformers' forward, which wants a rectangle, spends
    most of a small model's time on masks and on calls; this is the same arithmetic in fewer. In
    bfloat16 its log-probs are .04 nats per token from scoring's (mean of the absolute gap, SmolLM2
    on a CPU), as are those of transformers' forward with a cache, .05; of both hardly any is bias.
    """

    ragged = True

    def __init__(self, decoder: Qwen2Model | LlamaModel, rows: int, capacity: int):
        config, weight = decoder.config, decoder.norm.weight
        self.decoder, self.device = decoder, weight.device
        self.layers = [_Layer.of(layer) for layer in decoder.layers]
        self.norm = _norm(decoder.norm)
        self.head_size = decoder.layers[0].self_attn.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.widest = config.intermediate_size
        places = torch.arange(capacity, device=self.device)
        cos, sin = decoder.rotary_emb(weight, places[None])
        half = self.head_size // 2  # rotating by halves is rolling with the first half negated
        self.cos, self.sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
        # a CPU is slow at a small product for each row and head
        self.by_token = self.device.type == "cpu" and self.heads == self.kv_heads <= FEW
        self.cache = RaggedCache(weight, config, rows, capacity, self.head_size, self.by_token)
        # windows on one line of numbers: window i begins with capacity - i zeros
        line = weight.new_zeros(2 * capacity, dtype=_working(weight))
        line[capacity:] = NEVER
        self.windows, self.capacity = line.unfold(0, capacity, 1), capacity
        self.lengths = [0] * rows  # tokens fed so far

    def feed(self, tokens: Sequence[Sequence[int]]) -> Float[Tensor, "B H"]:
        """Feed every row its tokens, at least one; the last hidden state of each row."""
        once = list(dict.fromkeys(map(tuple, tokens)))
        if not any(self.lengths) and len(once) < len(tokens):  # equal prompts are fed once
            return self._shared([tuple(row) for row in tokens], once)
        longest, long = max(map(len, tokens)), sum(len(row) > 1 for row in tokens)
        width = longest + max(self.lengths)
        piece = max(1, PIECE // (max(1, long) * max(self.heads * width, self.widest)))
        while max(map(len, tokens)) > piece:
            rows = [row for row, fed in enumerate(tokens) if len(fed) > piece]
            self.states(self._ragged(rows, [tokens[row][:piece] for row in rows]))
            tokens = [fed[piece:] if len(fed) > piece else fed for fed in tokens]
        if max(map(len, tokens)) > 1:
            return self.states(self._ragged(range(len(tokens)), tokens))
        flat = [[row[0] for row in tokens], self.lengths]
        self.lengths = [length + 1 for length in self.lengths]
        ids, position = torch.tensor(flat, device=self.device)
        return self.states(self.single(ids, position, max(self.lengths)))

    def _shared(
        self, tokens: list[tuple[int, ...]], once: list[tuple[int, ...]]
    ) -> Float[Tensor, "B H"]:
        """Feed each of the different texts to one row, then give it to all rows that begin so.

        No row copies from one behind it, so none is overwritten before it is read.
        """
        self.lengths = [0] * len(once)
        hidden = self.feed(once)
        place = {text: row for row, text in enumerate(once)}
        source = [place[text] for text in tokens]
        self.move(source, list(range(len(tokens))), len(tokens))
        return hidden[torch.tensor(source, device=self.device)]

    def single(self, tokens: Int[Tensor, " B"], position: Int[Tensor, " B"], width: int) -> Step:
        """One token a row, at the given positions, all below `width`."""
        mask = self._sees(position)[:, None, :width]
        rows = self.cache.rows[: len(tokens)]
        return Step(tokens, rows, position, slice(len(tokens)), width, mask)

    def states(self, step: Step) -> Float[Tensor, "B H"]:
        """The last hidden state of each row after the step."""
        turn = self.cos[step.position][:, None], self.sin[step.position][:, None]
        states = self.decoder.embed_tokens(step.tokens)
        for number, layer in enumerate(self.layers):
            attention = self._attention(number, layer.before(states), step, *turn)
            if len(attention) < len(states):  # the last layer's, of the last tokens only
                states = states[step.last]
            states = layer.out(states, attention)
            gate, up = layer.gate_up(layer.between(states))
            states = layer.down(states, layer.act(gate).mul_(up))
        return self.norm(states)

    def move(self, sources: list[int], targets: list[int], size: int) -> None:
        """Let rows `targets` become copies of `sources`, then keep the first `size` rows only."""
        self.cache.move(sources, targets, max(self.lengths))
        moved = dict(zip(targets, sources, strict=True))
        self.lengths = [self.lengths[moved.get(row, row)] for row in range(size)]

    def _sees(self, position: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape capacity"]:
        """Masks in which a token sees the columns up to its own position."""
        return self.windows[self.capacity - 1 - position]

    def _ragged(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Step:
        """Lay the rows' tokens one behind the other, each row going on at its length so far."""
        counts = [len(fed) for fed in tokens]
        flat = [
            (token, row, self.lengths[row] + offset)
            for row, fed in zip(rows, tokens, strict=True)
            for offset, token in enumerate(fed)
        ]
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
        ids, row, position = torch.tensor(flat, device=self.device).T
        last = torch.tensor(list(accumulate(counts)), device=self.device) - 1
        width = max(self.lengths[row] for row in rows)
        every = len(rows) == len(self.lengths)
        chosen = slice(len(rows)) if every else torch.tensor(rows, device=self.device)
        long = _Long.make(counts, rows, self.device)
        mask = self._sees(position[last])[:, None, :width]
        return Step(ids, row, position, chosen, width, mask, last, long)

    def _attention(
        self,
        number: int,
        states: Float[Tensor, "N H"],
        step: Step,
        cos: Float[Tensor, "N 1 D"],
        sin: Float[Tensor, "N 1 D"],
    ) -> Float[Tensor, "n H"]:
        """Of all N tokens, in the last layer of each row's last; not yet through its matrix."""
        heads = self.layers[number].project(states).view(len(states), -1, self.head_size)
        both, values = heads.tensor_split([-self.kv_heads], dim=1)
        both = torch.addcmul(both * cos, both.roll(self.head_size // 2, -1), sin)
        queries, keys = both.tensor_split([-self.kv_heads], dim=1)
        self.cache.write(number, step.row, step.position, keys, values)
        used = self.cache.read(number, step.rows, step.width)
        single = queries if step.long is None else queries[step.last]
        if self.by_token:
            attended = _attend_once(single, *used, step.mask)
        else:
            attended = _attend(single[:, None], *used, step.mask)
        if step.long is None or number == len(self.layers) - 1:
            return attended.flatten(1)
        out, long = torch.empty_like(queries), step.long
        out[step.last] = attended
        mask = self._sees(step.position[long.rectangle])[..., : step.width]
        seen = self.cache.read(number, long.rows, step.width)
        out[long.flat] = _attend(queries[long.rectangle], *seen, mask)[long.place]
        return out.flatten(1)


@dataclass(frozen=True)
class _Long:
    """The rows of a step that are fed several tokens, padded to a rectangle (R, width)."""

    rows: Int[Tensor, " R"]
    rectangle: Int[Tensor, "R width"]  # the token in the flat list; padding repeats the row's last
    flat: Int[Tensor, " n"]  # where their tokens stand in the flat list
    place: Int[Tensor, " n"]  # and in the flattened rectangle

    @classmethod
    def make(cls, counts: list[int], rows: Sequence[int], device: torch.device) -> "_Long | None":
        """None where no row is fed more than one token."""
        fed = [at for at, count in enumerate(counts) if count > 1]
        if not fed:
            return None
        width, starts = max(counts), [0, *accumulate(counts)]
        inside = [
            (starts[at] + offset, line * width + offset)
            for line, at in enumerate(fed)
            for offset in range(counts[at])
        ]
        rectangle = [[starts[at] + min(i, counts[at] - 1) for i in range(width)] for at in fed]
        flat, place = torch.tensor(inside, device=device).T
        chosen = torch.tensor([rows[at] for at in fed], device=device)
        return cls(chosen, torch.tensor(rectangle, device=device), flat, place)


@dataclass(frozen=True)
class _Layer:
    """What one layer computes, as functions; a plain matrix is called without its module."""

    before: Callable[[Tensor], Tensor]
    project: Callable[[Tensor], Tensor]  # to queries, keys and values, side by side
    out: Callable[[Tensor, Tensor], Tensor]  # (states, attended) -> states + o_proj(attended)
    between: Callable[[Tensor], Tensor]
    gate_up: Callable[[Tensor], tuple[Tensor, Tensor]]
    down: Callable[[Tensor, Tensor], Tensor]
    act: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, layer: nn.Module) -> "_Layer":
        """The parts of a transformers layer of the Llama or Qwen2 family."""
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            before=_norm(layer.input_layernorm),
            project=_joined([attention.q_proj, attention.k_proj, attention.v_proj]),
            out=_added(attention.o_proj),
            between=_norm(layer.post_attention_layernorm),
            gate_up=_both(mlp.gate_proj, mlp.up_proj),
            down=_added(mlp.down_proj),
            act=mlp.act_fn,
        )


def _linear(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    if type(layer) is not nn.Linear:
        return layer
    return partial(functional.linear, weight=layer.weight, bias=layer.bias)


def _small(layers: list[nn.Module]) -> bool:
    """Whether all are plain matrices, few enough weights in all to be copied for a rollout."""
    plain = all(type(x) is nn.Linear and type(x.weight) is nn.Parameter for x in layers)
    return plain and sum(layer.weight.numel() for layer in layers) <= SMALL


def _joined(layers: list[nn.Module]) -> Callable[[Float[Tensor, "N H"]], Float[Tensor, "N P"]]:
    """The outputs side by side; small plain matrices by one product with a copy of them.

    With its inputs first, a small matrix is read as it lies: on a CPU twice as fast at best.
    """
    if not _small(layers):
        apart = [_linear(layer) for layer in layers]
        return lambda states: torch.cat([layer(states) for layer in apart], dim=-1)
    weight = torch.cat([layer.weight for layer in layers]).T.contiguous()
    if layers[0].bias is None:
        return lambda states: torch.mm(states, weight)
    bias = torch.cat([layer.bias for layer in layers])
    return lambda states: torch.addmm(bias, states, weight)


def _both(first: nn.Module, second: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The outputs of two equally wide layers; on a CPU small plain ones as those of `_joined`."""
    if not _small([first, second]) or first.weight.device.type != "cpu":
        apart = _linear(first), _linear(second)
        return lambda states: (apart[0](states), apart[1](states))
    joined = _joined([first, second])
    return lambda states: joined(states).chunk(2, dim=-1)


def _added(layer: nn.Module) -> Callable[[Float[Tensor, "N H"], Float[Tensor, "N P"]], Tensor]:
    """A layer's output on top of the states; on a CPU a small plain matrix is copied, as above."""
    if not _small([layer]) or layer.bias is not None or layer.weight.device.type != "cpu":
        linear = _linear(layer)
        return lambda states, inner: states + linear(inner)
    weight = layer.weight.T.contiguous()
    return lambda states, inner: torch.addmm(states, inner, weight)


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """x w / sqrt(mean(x^2) + eps), in float32 on a CPU by half of the calls of PyTorch's own."""
    weight, shape = norm.weight, tuple(norm.weight.shape)
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return lambda x: torch.rms_norm(x, shape, weight, norm.variance_epsilon)
    eps = torch.full((1, 1), norm.variance_epsilon, device=weight.device)

    def normed(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(eps, length, length, value=1 / shape[0]).rsqrt_()
        return (x * scale).mul_(weight)

    return normed


def _working(values: Tensor) -> torch.dtype:
    """Softmax is taken in float32, in float64 where the model computes in that."""
    return torch.promote_types(values.dtype, torch.float32)


def _attend(
    queries: Float[Tensor, "B L Q D"],
    keys: Float[Tensor, "B K D T"],
    values: Float[Tensor, "B K T D"],
    mask: Float[Tensor, "B L T"],
) -> Float[Tensor, "n Q D"]:
    """Attention of Q heads over K <= Q heads of keys and values; (B * L, Q, D).

    Two products, batched over rows and heads of keys. For one query a row they cost less than the
    fused kernels of PyTorch, which on a CPU take blocks of queries and on a GPU copy grouped heads.
    """
    rows, length, heads, size = queries.shape
    groups, width = keys.shape[1], keys.shape[3]
    each = heads // groups * length  # queries that read the same keys
    asked = queries.view(rows, length, groups, -1, size).transpose(1, 2)
    scores = torch.bmm(asked.reshape(-1, each, size), keys.flatten(0, 1))
    scores = scores.view(rows, groups, length, -1, width)
    scores = torch.add(mask[:, None, :, None], scores, alpha=size**-0.5)
    shares = scores.softmax(-1).to(values.dtype).view(-1, each, width)
    out = torch.bmm(shares, values.flatten(0, 1)).view(rows, groups, length, -1, size)
    return out.transpose(1, 2).reshape(-1, heads, size)


def _attend_once(
    queries: Float[Tensor, "B Q D"],
    keys: Float[Tensor, "B Q D T"],
    values: Float[Tensor, "B Q T D"],
    mask: Float[Tensor, "B 1 T"],
) -> Float[Tensor, "B Q D"]:
    """The same for one query a row, as many heads of keys as of queries, and a cache by token.

    One product a row: each query is laid over the columns of its own keys, with zeros elsewhere.
    That multiplies Q times as often, but reads the cache as it lies, which is what takes the time.
    """
    rows, heads, size = queries.shape
    own = torch.eye(heads, dtype=queries.dtype, device=queries.device)[:, :, None]
    asked = (queries[:, :, None] * own).flatten(2)
    scores = torch.bmm(asked, keys.flatten(1, 2))
    shares = torch.add(mask, scores, alpha=size**-0.5).softmax(-1).to(values.dtype)
    out = torch.bmm(shares, values.transpose(1, 2).flatten(2)).view(rows, heads, heads, size)
    return out.diagonal(dim1=1, dim2=2).transpose(1, 2)


def make_decoder(model: nn.Module, rows: int, capacity: int) -> LockstepDecoder | RaggedDecoder:
    """The fastest way to feed `model`, for `rows` rows of at most `capacity` tokens."""
    decoder = model.get_decoder()
    plain = type(decoder) in PLAIN and not getattr(decoder, "has_sliding_layers", False)
    if plain and decoder.rotary_emb.rope_type == "default":
        return RaggedDecoder(decoder, rows, capacity)
    return LockstepDecoder(decoder, model.config.num_hidden_layers, capacity)
