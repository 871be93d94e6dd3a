"""Linear layers with packed weights for a few rows at a time, float32 and int8 (CPUs).

A product of 5 rows, a decoding step at beam 5, is limited by the speed of reading weights. Packed weights are read once
and in order, and as int8 they are a quarter of the size. Definitions: ``F.linear``, ``reference.linear_int8``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops import cpu
from fairseq_lasformer.ops.reference import quantised, quantised_heads

NO_ACTIVATION, RELU, GELU, GELU_TANH, SWISH = range(5)
"""Activations between the layers of a feed-forward network, numbered as in arithmetic/arithmetic.h."""

PANEL = 16  # adjacent outputs, as in arithmetic/arithmetic.h


@dataclass(frozen=True)
class PackedLinear:
    """Weights of a linear layer, packed for the CPU kernels; see ``arithmetic/arithmetic.h`` for the layout."""

    weight: Tensor  # float32 or int8
    scale: Tensor  # float32 [N], scale of an output's int8 weights; empty in float32. N is padded to a multiple of 16.
    sums: Tensor  # int32 [N], 128 times the sums of an output's int8 weights; empty in float32
    bias: Tensor  # float32 [outputs]; empty if there is none
    outputs: int  # number of outputs

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """weight, scale, sums and bias."""
        return self.weight, self.scale, self.sums, self.bias

    def outputs_of(self, chosen: Tensor) -> PackedLinear:
        """Return the layer with only some of its outputs, int64 [n]; their weights are copied."""
        rows = F.pad(chosen, (0, -chosen.numel() % PANEL), value=int(chosen[-1]))  # padded with the last one
        panels, lanes = rows // PANEL, rows % PANEL
        # four int8 inputs are adjacent: [panels, inputs / 4, 16, 4]; float32: [panels, inputs, 16]
        weight = self.weight.flatten(2).view(torch.float32) if self.scale.numel() else self.weight
        those = weight[panels, :, lanes].view(-1, PANEL, weight.size(1)).transpose(1, 2).contiguous()
        weight = those.view(self.weight.dtype).view(-1, *self.weight.shape[1:])
        scale, sums = (t[rows] if t.numel() else t for t in (self.scale, self.sums))
        bias = self.bias[chosen] if self.bias.numel() else self.bias
        return PackedLinear(weight, scale, sums, bias, chosen.numel())

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer, [..., inputs] float32 -> [..., outputs]."""
        rows = x.reshape(-1, x.size(-1))
        out = torch.ops.fairseq_lasformer.packed_linear(rows, *self.tensors, self.outputs)
        return out.view(*x.shape[:-1], self.outputs)


@torch.no_grad()
def pack_linear(weight: Tensor, bias: Tensor | None = None, int8: bool = False) -> PackedLinear:
    """Pack a linear layer.

    Args:
        weight: float32 [outputs, inputs], finite.
        bias: float32 [outputs], or None.
        int8: quantise the weights, with one scale per output.

    Raises:
        ValueError: a weight to be quantised is not finite.
    """
    outputs, inputs = weight.shape
    bias = weight.new_empty(0) if bias is None else bias.detach().clone()
    rows = -outputs % PANEL
    if not int8:
        full = F.pad(weight.detach(), (0, 0, 0, rows)).view(-1, PANEL, inputs)
        empty = weight.new_empty(0)
        return PackedLinear(full.transpose(1, 2).contiguous(), empty, empty.int(), bias, outputs)
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("weights that are not finite cannot be quantised")
    numbers, scale = quantised(F.pad(weight.detach(), (0, -inputs % 4, 0, rows)))
    sums = 128 * numbers.sum(1, dtype=torch.int32)
    panels = numbers.view(numbers.size(0) // PANEL, PANEL, numbers.size(1) // 4, 4).transpose(1, 2).contiguous()
    return PackedLinear(panels, scale[:, 0].contiguous(), sums.int(), bias, outputs)


def quantise_heads(x: Tensor, n_heads: int) -> tuple[Tensor, Tensor]:
    """Quantise keys or values, with one scale per head: x [..., H*D] -> int8 [..., H*D], float32 [..., H].

    Definition: ``reference.quantised_heads``, which is used without the kernels.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or cpu.kernels() is None:
        return quantised_heads(x, n_heads)
    return torch.ops.fairseq_lasformer.quantise_heads(x, n_heads)


def decode_step(
    x: Tensor,
    norms: list[Tensor],
    linears: list[Tensor],
    stores: list[Tensor],
    given: list[Tensor],
    biases: list[Tensor],
    own: list[Tensor],
    rotation: Tensor | None,
    *index: object,
) -> Tensor:
    """Run the layers of a decoder on the newest positions, x [R, d] -> [R, d]; see ``binding/step.cpp``."""
    lists = norms, linears, stores, given, biases, own
    return torch.ops.fairseq_lasformer.decode_step(x.contiguous(), *lists, rotation, *index)
