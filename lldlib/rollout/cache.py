"""Key-value caches written in place, so that a token costs no copy of what came before it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer


class RaggedCache:
    """Keys and values of all layers, rows and positions, in fixed buffers.

    Keys are (layers, rows, heads, d, capacity), values (layers, rows, heads, capacity, d). In
    memory they lie in that order too, so that scores are a product with rows of numbers that lie
    side by side; or, `by_token`, as (layers, rows, capacity, heads, d), all of a token together.
    """

    def __init__(
        self,
        like: Tensor,
        config: PretrainedConfig,
        rows: int,
        capacity: int,
        size: int,
        by_token: bool,
    ):
        layers, heads = config.num_hidden_layers, config.num_key_value_heads
        # zeros, not empty: what attention masks it still multiplies with 0
        if by_token:
            shape = (layers, rows, capacity, heads, size)
            self.keys = like.new_zeros(shape).permute(0, 1, 3, 4, 2)
            self.values = like.new_zeros(shape).transpose(2, 3)
        else:
            self.keys = like.new_zeros(layers, rows, heads, size, capacity)
            self.values = like.new_zeros(layers, rows, heads, capacity, size)
        self.rows = torch.arange(rows, device=like.device)

    def write(
        self,
        layer: int,
        row: Int[Tensor, " N"],
        position: Int[Tensor, " N"],
        keys: Float[Tensor, "N K D"],
        values: Float[Tensor, "N K D"],
    ) -> None:
        """Put N tokens at their positions in their rows."""
        self.keys[layer][row, :, :, position] = keys
        self.values[layer][row, :, position] = values

    def read(
        self, layer: int, rows: slice | Int[Tensor, " R"], width: int
    ) -> tuple[Float[Tensor, "R K D width"], Float[Tensor, "R K width D"]]:
        """The first `width` positions of the rows."""
        return self.keys[layer, rows, ..., :width], self.values[layer, rows, :, :width]

    def move(self, sources: list[int], targets: list[int], used: int) -> None:
        """Let rows `targets` become copies of `sources`, up to position `used`, the last first."""
        for states in (self.keys[..., :used], self.values[..., :used, :]):
            for source, target in reversed(list(zip(sources, targets, strict=True))):
                states[:, target].copy_(states[:, source])


class PreallocatedLayer(DynamicLayer):
    """One layer's keys and values (B, heads, capacity, d) in a fixed buffer.

    `update` returns views of the used part; transformers' DynamicLayer concatenates at every token,
    which copies the whole cache each time.
    """

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.used = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers in the shape and type of the first states."""
        self.dtype, self.device = key_states.dtype, key_states.device
        rows, heads, _, size = key_states.shape
        self.key_buffer = key_states.new_empty(rows, heads, self.capacity, size)
        size = value_states.shape[-1]
        self.value_buffer = value_states.new_empty(rows, heads, self.capacity, size)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Write the new states behind the used part and return views of all of it."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[-2]
        self.key_buffer[:, :, self.used : end] = key_states
        self.value_buffer[:, :, self.used : end] = value_states
        self.used = end
        self._expose()
        return self.keys, self.values

    def move(self, sources: list[int], targets: list[int], size: int) -> None:
        """Let rows `sources` take the places `targets`, then keep the first `size` rows only."""
        for name in ("key_buffer", "value_buffer"):
            buffer = getattr(self, name)
            buffer[targets, :, : self.used] = buffer[sources, :, : self.used]
            setattr(self, name, buffer[:size])
        self._expose()

    def _expose(self) -> None:
        self.keys = self.key_buffer[:, :, : self.used]
        self.values = self.value_buffer[:, :, : self.used]


def new_cache(layers: int, capacity: int) -> Cache:
    """An empty cache of `capacity` tokens per row."""
    return Cache(layers=[PreallocatedLayer(capacity) for _ in range(layers)])
