"""The next tokens of all rows: one at a time on a CPU, on a GPU a block without a look in between.

In a block every drawn token is fed at once and the next one drawn, all on the device. What a row
draws after the end of its turn is surplus, which the loop drops by `rewind`; a row's later tokens
overwrite it. On a GPU the step of a token is recorded as a CUDA graph, once for every number of
rows and width of the cache (both rounded up), and played back as one launch.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lldlib.policy.head import next_token
from lldlib.rollout.decode import RaggedDecoder, make_decoder

BLOCK = 16  # tokens a GPU draws before the loop looks at them
WIDTH = 256  # the smallest recorded width of the cache; others are its doubles

logger = logging.getLogger(__name__)


class Drawer:
    """Feeds rows and draws their next tokens; `block` of them at a time, where rows may differ.

    Its cache and its recordings live as long as it does: nothing it holds refers back to it.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: int,
        capacity: int,
        *,
        temperature: float,
        noise: float = 0.0,
        top_p: float = 1.0,
        block: int | None = None,
    ):
        self.device = next(model.parameters()).device
        block = block or (1 if self.device.type == "cpu" else BLOCK)
        head = model.get_output_embeddings()
        how = {"temperature": temperature, "noise": noise, "top_p": top_p}
        self.next = partial(next_token, head, **how)
        with current(self.device):
            self.decoder = make_decoder(model, rows, capacity + block)
            self.ragged = self.decoder.ragged
            self.block = block if self.ragged else 1
            self.move = self.decoder.move
            if self.block > 1:
                self.steps = _Steps(self.decoder, self.next, rows, self.block)

    def draw(
        self, tokens: list[list[int]], chance: Float[Tensor, "B k"]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Feed every row its tokens, then draw `block` of each: their ids and log-probs, (B, k).

        `chance` holds the uniform numbers they are drawn with.
        """
        with current(self.device):
            hidden, uniform = self.decoder.feed(tokens), chance.to(self.device)
            drawn, logp = self.next(hidden, uniform=uniform[:, 0])
            if self.block == 1:
                return drawn[:, None].tolist(), logp[:, None].tolist()
            return self.steps.go_on(drawn, logp, uniform)

    def rewind(self, lengths: list[int]) -> None:
        """Forget what the rows were fed beyond these lengths."""
        if self.ragged:
            self.decoder.lengths = lengths


def current(device: torch.device) -> AbstractContextManager:
    """In this context `device` is the current one, on whose stream graphs are recorded."""
    if device.index is None:
        return nullcontext()
    return torch.get_device_module(device).device(device)


class _Steps:
    """All tokens of a block but the first, in tensors that stay where they are."""

    def __init__(self, decoder: RaggedDecoder, draw: Callable, rows: int, block: int):
        self.decoder, self.draw, self.block = decoder, draw, block
        self.accelerator, device = torch.get_device_module(decoder.device), decoder.device
        self.captured = hasattr(self.accelerator, "CUDAGraph") and device.type != "cpu"
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.position = torch.zeros_like(self.tokens)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.uniform = torch.zeros(block, rows, device=device)
        self.drawn = torch.zeros(block, rows, dtype=torch.long, device=device)
        self.logp = torch.zeros_like(self.uniform, dtype=torch.float64)
        self.seen: set[tuple[int, int]] = set()
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def go_on(
        self, drawn: Tensor, logp: Tensor, uniform: Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Feed the first drawn tokens and draw the rest of the block."""
        size = len(drawn)
        rows, width = self._shape(size, max(self.decoder.lengths) + self.block)
        self.tokens.zero_()[:size] = drawn
        lengths = torch.tensor(self.decoder.lengths, device=drawn.device)
        self.position.zero_()[:size] = lengths
        self.uniform[:, :size], self.drawn[0, :size], self.logp[0, :size] = uniform.T, drawn, logp
        self.column.zero_()
        for _ in range(self.block - 1):
            self._step(rows, width)
        return self.drawn[:, :size].T.tolist(), self.logp[:, :size].T.tolist()

    def _shape(self, rows: int, width: int) -> tuple[int, int]:
        """Rounded up where steps are recorded: rows to eighths of a power of 2, widths to one."""
        if not self.captured:
            return rows, width
        grain = max(1, 2 ** (rows.bit_length() - 3))
        wide = WIDTH
        while wide < width:
            wide *= 2
        rows = -(-rows // grain) * grain
        return min(rows, len(self.tokens)), min(wide, self.decoder.capacity)

    def _step(self, rows: int, width: int) -> None:
        """Feed and draw once: by the recording of this shape, which is made where there is none."""
        key = (rows, width)
        if self.captured and key in self.seen and key not in self.graphs:
            self._record(key)  # not before a first run, which starts the kernels up
        if key in self.graphs:
            self.graphs[key].replay()
            return
        self.seen.add(key)
        self._advance(rows, width)

    def _record(self, key: tuple[int, int]) -> None:
        """Record a step of this shape, which does not run it; no more of them after an error."""
        graph = self.accelerator.CUDAGraph()
        other = next(iter(self.graphs.values()), None)
        try:
            with self.accelerator.graph(graph, pool=None if other is None else other.pool()):
                self._advance(*key)
        except RuntimeError as error:
            logger.warning("steps are not recorded, which is slower: %s", error)
            self.captured = False
        else:
            self.graphs[key] = graph

    def _advance(self, rows: int, width: int) -> None:
        """Feed the last drawn tokens and draw the next ones, without a look at any number."""
        tokens, position = self.tokens[:rows], self.position[:rows]
        hidden = self.decoder.states(self.decoder.single(tokens, position, width))
        self.column += 1
        uniform = self.uniform.index_select(0, self.column)[0, :rows]
        drawn, logp = self.draw(hidden, uniform=uniform)
        self.drawn[:, :rows].index_copy_(0, self.column, drawn[None])
        self.logp[:, :rows].index_copy_(0, self.column, logp[None].double())
        tokens.copy_(drawn)
        position += 1
