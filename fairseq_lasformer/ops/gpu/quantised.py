"""Decoding in 8 bits outside the CPU's packed layers: linear layers, keys and values.

Definitions: ``reference.linear_quantised``, ``reference.quantised_heads``. Kernels: ``kernels.quantised``. On CPUs,
``packed`` is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from fairseq_lasformer.ops import reference
from fairseq_lasformer.ops.backends import backend_for, current, triton_kernels
from fairseq_lasformer.ops.reference import quantised
from fairseq_lasformer.ops.types import EightBit


def _kernels(device: torch.device, backend: str) -> ModuleType | None:
    return triton_kernels("quantised") if backend_for(device, backend) == "triton" else None


@dataclass(frozen=True)
class QuantisedLinear:
    """A linear layer whose weights are in 8 bits, with one scale per output.

    Attributes:
        weight: int8 [outputs, inputs].
        scale: float32 [outputs].
        bias: float32 [outputs], or None.
        backend: one of :data:`BACKENDS`.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    backend: str = "auto"

    def outputs_of(self, chosen: Tensor) -> QuantisedLinear:
        """Return the layer with only some of its outputs, int64 [n]; their weights are copied."""
        bias = None if self.bias is None else self.bias[chosen]
        return QuantisedLinear(self.weight[chosen], self.scale[chosen], bias, self.backend)

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """Apply the layer, [..., inputs] -> [..., outputs], in the type of x; rows are also quantised.

        Args:
            relu: whether a ReLU follows.
        """
        rows, kernels = x.reshape(-1, x.size(-1)).contiguous(), _kernels(x.device, self.backend)
        if kernels is None:
            out = reference.linear_quantised(rows, self.weight, self.scale, self.bias)
            out = torch.relu(out) if relu else out
        else:
            with current(rows):
                out = kernels.linear(rows, self.weight, self.scale, self.bias, relu)
        return out.view(*x.shape[:-1], -1)


def joined_quantised(layers: Sequence[QuantisedLinear]) -> QuantisedLinear:
    """Return layers with the same inputs as one, whose results follow each other; all or none have a bias."""
    weights, scales = torch.cat([layer.weight for layer in layers]), torch.cat([layer.scale for layer in layers])
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return QuantisedLinear(weights, scales, torch.cat(biases) if biases else None, layers[0].backend)


@torch.no_grad()
def quantise_linear(weight: Tensor, bias: Tensor | None = None, backend: str = "auto") -> QuantisedLinear:
    """Quantise a linear layer.

    Args:
        weight: [outputs, inputs], finite.
        bias: [outputs], or None.

    Raises:
        ValueError: a weight is not finite.
    """
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("weights that are not finite cannot be quantised")
    numbers, scale = quantised(weight.float())
    return QuantisedLinear(numbers, scale[:, 0].contiguous(), None if bias is None else bias.detach().float(), backend)


def append_heads(
    key: Tensor, value: Tensor, newest: Tensor, keys: EightBit, values: EightBit, backend: str = "auto"
) -> None:
    """Write the newest keys and values of all rows in 8 bits.

    Args:
        key, value: [R, H*D].
        newest: int64 [R / N], the slots of an item's rows.
        keys, values: destinations.
        backend: one of :data:`BACKENDS`.
    """
    if (kernels := _kernels(key.device, backend)) is not None:
        with current(key):
            kernels.append(key, value, newest, keys, values)
        return
    for new, store in ((key, keys), (value, values)):
        for part, to in zip(reference.quantised_heads(new, store.scale.size(2)), store):
            to.index_copy_(1, newest, part.view(to.size(0), newest.numel(), -1))
