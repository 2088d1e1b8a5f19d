"""What bitsandbytes gets wrong about 4-bit weights on the CPU, done right."""

import copy

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
        state = copy.copy(self.weight.quant_state)
        shape, state.shape = state.shape, torch.Size([state.shape.numel()])
        dtype = self.compute_dtype or x.dtype
        weight = dequantize_4bit(self.weight.data, state).reshape(shape).to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return nn.functional.linear(x.to(dtype), weight, bias).to(x.dtype)
