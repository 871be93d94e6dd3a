"""Linear layers that are multiplied in bfloat16 in training on a CPU, with float32 weights and float32 sums.

A processor with AMX or AVX512-BF16 multiplies matrices in bfloat16 several times as fast as in float32. Weights, their
gradients, norms, attention, selectors, loss and optimizer stay float32. torch's autocast also converts the inputs of
attention, whose backward pass is then slower than in float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.ops import FunctionContext

# Numbers of an input, and of a weight, from which bfloat16 is faster, with its conversions (benchmarks training, demo).
LEAST = 1 << 16


def available() -> bool:
    """Return whether this processor has instructions for products of bfloat16 matrices."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def chosen(dtype: str, option: str) -> bool:
    """Return whether a training multiplies linear layers in bfloat16.

    Args:
        dtype: ``float32``, ``bfloat16`` or ``auto``.
        option: the option that says so, for the message.

    Raises:
        InputError: it should, but the processor has no instructions for it.
    """
    if dtype == "bfloat16" and not available():
        raise InputError(
            f"{option}: this processor multiplies no matrices in bfloat16 (it has neither AMX nor AVX512-BF16); "
            "leave it out"
        )
    return dtype != "float32" and available()


def some_rows(n: int) -> int:
    """Round a number of rows up to one of eight in each power of two, by 12 % at most.

    oneDNN compiles a product for every new shape, which takes milliseconds; in training, every batch has a new one.
    """
    step = 1 << max(6, n.bit_length() - 4)
    return -(-n // step) * step


class BFloat16Linear(nn.Linear):
    """A linear layer that is multiplied in bfloat16 in training on a CPU, and as usual elsewhere."""

    narrow = False
    """Whether the result stays in bfloat16, because whoever reads it converts it, or multiplies it in bfloat16."""

    def converts(self, x: Tensor) -> bool:
        """Return whether an input is multiplied in bfloat16."""
        trains = self.training and x.device.type == "cpu" and self.weight.dtype == torch.float32
        return trains and (x.dtype == torch.bfloat16 or min(x.numel(), self.weight.numel()) >= LEAST)

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs], float32, or bfloat16 if ``narrow``."""
        if not self.converts(input):
            return super().forward(input)
        y = _Products.apply(input, self.weight, self.bias)[0]
        return y if self.narrow else y.float()


def products(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """Apply linear layers to the same input; those that multiply it in bfloat16 do so in one product."""
    if all(isinstance(layer, BFloat16Linear) and layer.narrow and layer.converts(x) for layer in layers):
        return _Products.apply(x, *(p for layer in layers for p in (layer.weight, layer.bias)))
    return tuple(layer(x) for layer in layers)


class _Products(torch.autograd.Function):
    """x [..., K] times weights [N_i, K], plus biases: [..., N_i], bfloat16."""

    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = ([p for p in parameters[i::2] if p is not None] for i in range(2))
        rows, weight = _rows([x]), _narrow(weights)
        y = torch.addmm(_narrow(biases), rows, weight.t()) if biases else rows @ weight.t()
        ctx.save_for_backward(rows, weight)
        ctx.shape, ctx.dtype, ctx.biased, ctx.widths = x.shape, x.dtype, bool(biases), [w.size(0) for w in weights]
        y = y[: x.shape[:-1].numel()].view(*x.shape[:-1], -1)
        return tuple(y.split(ctx.widths, -1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        d_rows = _rows(gradients)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_rows @ weight)[: ctx.shape[:-1].numel()].view(ctx.shape).to(ctx.dtype)
        d_weight = (d_rows.t() @ rows).float().split(ctx.widths)
        d_bias: Any = d_rows.sum(0).float().split(ctx.widths) if ctx.biased else [None] * len(ctx.widths)
        return d_x, *(d for pair in zip(d_weight, d_bias) for d in pair)


def _narrow(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors [N_i, ...] and convert them to bfloat16."""
    if len(parts) == 1:
        return parts[0].bfloat16()
    whole = parts[0].new_empty(sum(part.size(0) for part in parts), *parts[0].shape[1:], dtype=torch.bfloat16)
    for part, to in zip(parts, whole.split([part.size(0) for part in parts])):
        to.copy_(part)
    return whole


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors [..., N_i] as one matrix of :func:`some_rows` rows, bfloat16, filled up with 0."""
    shape, width = parts[0].shape[:-1], sum(part.size(-1) for part in parts)
    if len(parts) == 1 and some_rows(shape.numel()) == shape.numel():
        return parts[0].to(torch.bfloat16).reshape(-1, width)
    rows = parts[0].new_empty(some_rows(shape.numel()), width, dtype=torch.bfloat16)
    block = rows[: shape.numel()].view(*shape, width)
    for part, to in zip(parts, block.split([part.size(-1) for part in parts], -1)):
        to.copy_(part)
    rows[shape.numel() :].zero_()
    return rows


def use_bfloat16(model: nn.Module) -> None:
    """Let all linear layers of a model except the selectors' be :class:`BFloat16Linear`; their parameters stay.

    A module's attribute ``narrow_results`` names those of its layers whose results it accepts in bfloat16.
    """
    patterns: Any = getattr(model, "selectors", tuple)
    selectors = {id(module) for _, pattern in patterns() for module in pattern.modules()}
    for module in model.modules():
        if type(module) is nn.Linear and id(module) not in selectors:
            module.__class__ = BFloat16Linear
        for name in getattr(module, "narrow_results", ()):
            getattr(module, name).narrow = True
