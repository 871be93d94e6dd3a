"""A residual connection and the layer norm that follows it in one kernel. Definition: ``reference.add_norm``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 4096
"""Largest width: a row is held by one program."""


@triton.jit
def _add_norm(x, added, weight, bias, total, normed, width, eps, WIDTH: tl.constexpr):
    """Store one row's x + added, rounded to its type, and the layer norm of that."""
    row, d = tl.program_id(0).to(tl.int64) * width, tl.arange(0, WIDTH)
    inside = d < width
    own = tl.load(x + row + d, mask=inside, other=0.0).to(tl.float32)
    own = (own + tl.load(added + row + d, mask=inside, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + row + d, own, mask=inside)
    own = own.to(tl.float32)
    centred = tl.where(inside, own - tl.sum(own, 0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    gain = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + d, centred * scale * gain + shift, mask=inside)


def add_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + added and its layer norm; arguments as in ``reference.add_norm``, contiguous."""
    n_rows, width = x.shape
    total, normed = torch.empty_like(x), torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    _add_norm[(n_rows,)](
        x, added, weight, bias, total, normed, width, eps, WIDTH=padded, num_warps=max(1, min(8, padded // 256))
    )  # fmt: skip
    return total, normed
