"""4-bit weights on the CPU: unpacked rightly where bitsandbytes errs, and once for a rollout."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from torch import Tensor, nn

BLOCK = 64  # weights that share a scale


class FlatLinear4bit(Linear4bit):
    """A 4-bit layer whose number of inputs is no multiple of BLOCK, on the CPU.

    Blocks run over the whole matrix, but the CPU kernel of bitsandbytes 0.50 begins a new block
    with every row, and so gives most weights another block's scale. Here the matrix is unpacked as
    one row.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b, computed in the layer's compute dtype; gradient flows to `x` alone."""
        return _linear(self, unpack(self, self.compute_dtype or x.dtype), x)


def unpack(layer: Linear4bit, dtype: torch.dtype) -> Tensor:
    """The weights of a 4-bit layer, (outputs, inputs), in `dtype`; unpacked as one row."""
    state = copy.copy(layer.weight.quant_state)
    shape, state.shape = state.shape, torch.Size([state.shape.numel()])
    return dequantize_4bit(layer.weight.data, state).reshape(shape).to(dtype)


@contextmanager
def unpacked(model: nn.Module) -> Iterator[None]:
    """In this context 4-bit layers on the CPU compute from weights unpacked once, not every call.

    The numbers are the same. A rollout feeds token after token, and unpacking was half of what a
    token cost SmolLM2; for as long as the context lasts the unpacked weights take their memory.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, Linear4bit) and module.weight.device.type == "cpu"
    ]
    weights = [unpack(layer, layer.compute_dtype or torch.float32) for layer in layers]
    for layer, weight in zip(layers, weights, strict=True):
        layer.forward = partial(_linear, layer, weight)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _linear(layer: Linear4bit, weight: Tensor, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.to(weight.dtype)
    return nn.functional.linear(x.to(weight.dtype), weight, bias).to(x.dtype)
