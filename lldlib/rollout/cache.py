"""A key-value cache written in place, so that a token costs no copy of what came before it."""

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


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
    """An empty cache of `capacity` tokens a row."""
    return Cache(layers=[PreallocatedLayer(capacity) for _ in range(layers)])
