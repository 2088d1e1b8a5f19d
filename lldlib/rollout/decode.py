"""How a model is fed during a rollout: rows of tokens in, the state of each row's last token out.

A Qwen2 or Llama of full attention, with LoRA and quantised layers too, is fed any number of tokens
a row (`RaggedDecoder`); any other model the same number in every row (`LockstepDecoder`). A decoder
is made for one rollout, during which the weights must not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaModel, Qwen2Model

from lldlib.rollout.cache import new_cache

NEVER = float("-inf")
# what RaggedDecoder computes: rotated grouped heads, RMS norms, one MLP a layer
PLAIN = (Qwen2Model, LlamaModel)


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
        """Let rows `sources` take the places `targets`, then keep the first `size` rows only."""
        for layer in self.cache.layers:
            layer.move(sources, targets, size)


class RaggedDecoder:
    """Feeds every row any number of tokens at a time, without padding but inside attention.

    Every row has a cache length of its own. transformers' forward, which wants a rectangle, spends
    most of a small model's time on masks and on calls; this is the same arithmetic in fewer.
    """

    ragged = True

    def __init__(self, decoder: Qwen2Model | LlamaModel, rows: int, capacity: int):
        config, weight = decoder.config, decoder.norm.weight
        self.decoder, self.capacity = decoder, capacity
        self.head_size = decoder.layers[0].self_attn.head_dim
        places = torch.arange(capacity, device=weight.device)
        cos, sin = decoder.rotary_emb(weight, places[None])
        half = self.head_size // 2  # rotating by halves is rolling with the first half negated
        self.cos, self.sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
        shape = (2, config.num_hidden_layers, rows, capacity, config.num_key_value_heads)
        # zeros, not empty: what attention masks it still multiplies with 0
        self.keys, self.values = weight.new_zeros(*shape, self.head_size)
        self.lengths = [0] * rows  # tokens fed so far
        attentions = [layer.self_attn for layer in decoder.layers]
        self.projections = [_joined([a.q_proj, a.k_proj, a.v_proj]) for a in attentions]

    def feed(self, tokens: Sequence[Sequence[int]]) -> Float[Tensor, "B H"]:
        """Feed every row its tokens, at least one; the last hidden state of each row."""
        step = _Step.make(tokens, self.lengths, self.cos.device)
        self.lengths = step.lengths
        turn = self.cos[step.position][:, None], self.sin[step.position][:, None]
        states = self.decoder.embed_tokens(step.tokens)
        for number, layer in enumerate(self.decoder.layers):
            normed = _norm(layer.input_layernorm, states)
            states = states + self._attention(number, normed, step, *turn)
            states = states + layer.mlp(_norm(layer.post_attention_layernorm, states))
        last = states if step.long is None else states[step.last]
        return _norm(self.decoder.norm, last)

    def move(self, sources: list[int], targets: list[int], size: int) -> None:
        """Let rows `sources` take the places `targets`, then keep the first `size` rows only."""
        used = max(self.lengths)
        for states in (self.keys, self.values):
            states[:, targets, :used] = states[:, sources, :used]
        for source, target in zip(sources, targets, strict=True):
            self.lengths[target] = self.lengths[source]
        self.lengths = self.lengths[:size]

    def _attention(
        self,
        layer: int,
        states: Float[Tensor, "N H"],
        step: "_Step",
        cos: Float[Tensor, "N 1 D"],
        sin: Float[Tensor, "N 1 D"],
    ) -> Float[Tensor, "N H"]:
        module = self.decoder.layers[layer].self_attn
        heads = self.projections[layer](states).view(len(states), -1, self.head_size)
        both, values = heads.tensor_split([-self.keys.shape[-2]], dim=1)
        both = torch.addcmul(both * cos, both.roll(self.head_size // 2, -1), sin)
        queries, keys = both.tensor_split([-self.keys.shape[-2]], dim=1)
        cached = self.keys[layer], self.values[layer]
        cached[0][step.row, step.position], cached[1][step.row, step.position] = keys, values
        used = [states[: len(step.lengths), : max(step.lengths)] for states in cached]
        if step.long is None:  # the flat list is a list of the rows
            return module.o_proj(_attend(queries[:, None], *used, step.mask).flatten(1))
        out, long = torch.empty_like(queries), step.long
        seen = [states[long.rows] for states in used]
        out[long.flat] = _attend(queries[long.rectangle], *seen, long.mask)[long.place]
        out[step.last] = _attend(queries[step.last][:, None], *used, step.mask)
        return module.o_proj(out.flatten(1))


@dataclass(frozen=True)
class _Long:
    """The rows of a step that are fed several tokens, padded to a rectangle (R, width)."""

    rows: Int[Tensor, " R"]
    rectangle: Int[Tensor, "R width"]  # the token in the flat list; padding repeats the row's last
    flat: Int[Tensor, " n"]  # where their tokens stand in the flat list
    place: Int[Tensor, " n"]  # and in the flattened rectangle
    mask: Float[Tensor, "R 1 width used"]

    @classmethod
    def make(cls, counts: list[int], sees: Callable[[Tensor], Tensor], device) -> "_Long | None":
        """None where no row is fed more than one token."""
        rows = [row for row, count in enumerate(counts) if count > 1]
        if not rows:
            return None
        width, starts = max(counts), [0, *accumulate(counts)]
        inside = [
            (place, offset) for place, row in enumerate(rows) for offset in range(counts[row])
        ]
        flat = torch.tensor([starts[rows[at]] + offset for at, offset in inside], device=device)
        place = torch.tensor([at * width + offset for at, offset in inside], device=device)
        rectangle = torch.tensor(
            [[starts[row] + min(at, counts[row] - 1) for at in range(width)] for row in rows],
            device=device,
        )
        return cls(torch.tensor(rows, device=device), rectangle, flat, place, sees(rectangle))


@dataclass(frozen=True)
class _Step:
    """The tokens of one call of `RaggedDecoder.feed` as one flat list of N, and where they go."""

    tokens: Int[Tensor, " N"]
    row: Int[Tensor, " N"]
    position: Int[Tensor, " N"]  # within the row
    last: Int[Tensor, " B"]  # where each row's last token stands in the flat list
    mask: Float[Tensor, "B 1 1 used"]  # of the last tokens, added to attention scores
    long: _Long | None
    lengths: list[int]  # of the rows, these tokens included

    @classmethod
    def make(
        cls, tokens: Sequence[Sequence[int]], lengths: list[int], device: torch.device
    ) -> "_Step":
        """Lay the rows' tokens one behind the other, each row going on at its length so far."""
        counts = [len(row) for row in tokens]
        flat = [
            (token, row, lengths[row] + offset)
            for row, fed in enumerate(tokens)
            for offset, token in enumerate(fed)
        ]
        ids, row, position = torch.tensor(flat, device=device).T
        ends = [length + count for length, count in zip(lengths, counts, strict=True)]
        columns = torch.arange(max(ends), device=device)

        def sees(chosen: Int[Tensor, "R width"]) -> Float[Tensor, "R 1 width used"]:
            hidden = columns > position[chosen][:, None, :, None]
            return torch.zeros(hidden.shape, device=device).masked_fill(hidden, NEVER)

        last = torch.tensor(list(accumulate(counts)), device=device) - 1
        long = _Long.make(counts, sees, device)
        return cls(ids, row, position, last, sees(last[:, None]), long, ends)


def _attend(
    queries: Float[Tensor, "B L Q D"],
    keys: Float[Tensor, "B T K D"],
    values: Float[Tensor, "B T K D"],
    mask: Float[Tensor, "B 1 L T"],
) -> Float[Tensor, "_ Q D"]:
    """Attention of Q heads over K <= Q heads of keys and values; (B * L, Q, D)."""
    out = functional.scaled_dot_product_attention(
        *(states.transpose(1, 2) for states in (queries, keys, values)),
        attn_mask=mask.to(queries.dtype),
        enable_gqa=queries.shape[2] != keys.shape[2],
    )
    return out.transpose(1, 2).flatten(0, 1)


def _joined(layers: list[nn.Module]) -> Callable[[Float[Tensor, "N H"]], Float[Tensor, "N P"]]:
    """The outputs side by side; where all are plain, by one product with a copy of the weights."""
    if any(type(layer) is not nn.Linear for layer in layers):
        return lambda states: torch.cat([layer(states) for layer in layers], dim=-1)
    weight = torch.cat([layer.weight for layer in layers])
    biased = layers[0].bias is not None
    bias = torch.cat([layer.bias for layer in layers]) if biased else None
    return lambda states: functional.linear(states, weight, bias)


def _norm(norm: nn.Module, states: Float[Tensor, "N H"]) -> Float[Tensor, "N H"]:
    return functional.rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def make_decoder(model: nn.Module, rows: int, capacity: int) -> LockstepDecoder | RaggedDecoder:
    """The fastest way to feed `model`, for `rows` rows of at most `capacity` tokens."""
    decoder = model.get_decoder()
    plain = type(decoder) in PLAIN and not getattr(decoder, "has_sliding_layers", False)
    if plain and decoder.rotary_emb.rope_type == "default":
        return RaggedDecoder(decoder, rows, capacity)
    return LockstepDecoder(decoder, model.config.num_hidden_layers, capacity)
