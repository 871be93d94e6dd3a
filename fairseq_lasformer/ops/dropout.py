"""Dropout whose mask is a hash of row, place and seed: the same in every pass, thread and process.

On a CPU, torch's dropout draws its numbers one after the other in a single thread: 4 to 17 % of an update.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops.cpu import kernels
from fairseq_lasformer.ops.types import DropoutMask, FunctionContext


def factors(mask: DropoutMask, rows: Tensor, places: Tensor) -> Tensor:
    """Return the factors of a mask, 0 or 1 / (1 - p), float32.

    Args:
        rows: int64, index of each row.
        places: int64, broadcastable to ``rows``: index in the row.
    """
    (p, seed), word = mask, 0xFFFFFFFF
    least = int(p * 2**32)
    x = (rows * 0x9E3779B1 + places * 0x85EBCA77 + (seed & word)) & word
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & word
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & word
    return ((x ^ (x >> 16)) >= least).float().mul_(1.0 / (1.0 - p))


def dropped(x: Tensor, mask: DropoutMask, added: Tensor | None = None) -> Tensor:
    """Multiply x [..., N] by the factors of a mask; its rows are counted through all dimensions but the last.

    Args:
        added: a tensor of the same shape that is added to the product.
    """
    if x.device.type == "cpu" and x.dtype == torch.float32 and kernels() is not None:
        return torch.ops.fairseq_lasformer.dropout(x, added, *mask)
    n = x.size(-1)
    rows = torch.arange(x.numel() // max(1, n), device=x.device)[:, None]
    y = x * factors(mask, rows, torch.arange(n, device=x.device)).view(x.shape).to(x.dtype)
    return y if added is None else added + y


def dropout(x: Tensor, p: float, added: Tensor | None = None) -> Tensor:
    """Apply dropout with probability ``p`` to x [..., N]; a seed is drawn from torch's generator.

    Args:
        added: see :func:`dropped`.
    """
    if x.device.type == "cpu":
        return _Dropout.apply(x, added, DropoutMask.drawn(p))
    y = F.dropout(x, p)
    return y if added is None else added + y


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, added: Tensor | None, mask: DropoutMask) -> Tensor:
        ctx.mask = mask
        return dropped(x, mask, added)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_out: Tensor) -> tuple[Tensor | None, ...]:
        d_x = dropped(d_out, ctx.mask) if ctx.needs_input_grad[0] else None
        return d_x, d_out if ctx.needs_input_grad[1] else None, None
