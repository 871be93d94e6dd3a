"""Scores of a sample of the queries on GPUs, shared by the kernels that teach a selector.

All tensors may be strided, except along their last dimension. Row r of a sample may attend to keys 0 to ``first + r *
step``, the row's own place if the mask is causal, without padding. A kernel's constants do not depend on the mask, so
that batches of all kinds run the same kernels. Logarithms are to base 2, which GPUs compute in one instruction.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.types import AttentionMask

TILE = 64
FEW = 16  # rows of a program that processes all keys: the sample has few rows, a GPU many processors
FULL = 528  # programs that fill a large GPU: with that many full tiles of rows, a program takes a tile
ANY = 1 << 30
"""Last key that a row may attend to, if the mask is not causal: larger than any number of keys."""
CHANGING = ["n_rows", "n_keys", "first", "step", "padding_stride", "padded", "more"]
"""Integers that differ between batches; specialised, each divisibility would compile a kernel."""
LOG2E = math.log2(math.e)
_LOG2E = tl.constexpr(LOG2E)
_LN2 = tl.constexpr(1 / LOG2E)
_ANY = tl.constexpr(ANY)


@triton.jit
def _rows(x, i, n, row_stride, width, WIDTH: tl.constexpr):
    """Load rows i of a matrix [n, width]; 0 beyond it."""
    d = tl.arange(0, WIDTH)
    return tl.load(
        x + i.to(tl.int64)[:, None] * row_stride + d[None, :],
        mask=(i[:, None] < n) & (d[None, :] < width),
        other=0.0,
    )


@triton.jit
def _last(i, n_rows, n_keys, first, step):
    """Return the last key that each row i of the sample may attend to; -1 beyond the sample."""
    return tl.where(i < n_rows, tl.minimum(n_keys - 1, first + i * step), -1)


@triton.jit
def _allowed(padding, padded, j, last):
    """Return which keys j rows may attend to; of the first ``padded`` keys, those whose byte of ``padding`` is 0."""
    hidden = tl.load(padding + j, mask=j < padded, other=0) != 0
    return tl.where(hidden, _ANY + _ANY // 2, j)[None, :] <= last[:, None]


@triton.jit
def _seen(i_end, n_keys, first, step):
    """Return the number of leading keys that rows before ``i_end`` may attend to."""
    return tl.minimum(n_keys, first + (i_end - 1) * step + 1)


@triton.jit
def _scores(query, k, j, n_keys, row_stride, width, WIDTH: tl.constexpr):
    """Compute products of queries and keys j, not yet scaled."""
    key = _rows(k, j, n_keys, row_stride, width, WIDTH)
    return tl.dot(query, tl.trans(key), input_precision="tf32x3")


@triton.jit
def _weights(scores, scale, norm):
    """Compute weights from scores, -inf where not allowed; the scale contains log2(e), the normaliser is to base 2."""
    return tl.exp2(scores * scale - norm[:, None])


@triton.jit
def _added(scores, scale, high, sums):
    """Add a tile to a running maximum and sum of exponentials; also return its own, and the factor of earlier sums."""
    new = tl.maximum(high, tl.max(scores, 1) * scale)
    weights, fade = _weights(scores, scale, new), tl.exp2(high - new)
    return new, sums * fade + tl.sum(weights, 1), weights, fade


@triton.jit
def _norm(high, sums):
    """Return the log-normaliser to base 2: +inf for rows without keys, whose weights are 0."""
    return tl.where(sums > 0, high + tl.log2(tl.where(sums > 0, sums, 1.0)), float("inf"))


class Rows(NamedTuple):
    """Position of a sample block's rows among all queries."""

    mask: AttentionMask  # attention mask; only the first K keys of its padding are used
    first: int  # the last key that the first row may attend to, if the mask is causal
    step: int  # the sample's stride


class Launch:
    """Launch parameters shared by the kernels of one block of a sample.

    Args:
        q, k: [B, H, R or K, D], with any strides except along D.
        few: whether a program processes all keys instead of one tile; it takes few rows, unless there are many.
        wide: tiles of keys that such a program takes at once, because it mostly waits; of narrow heads in 16 bits.
        narrow: whether tiles have half as many rows, for kernels that need more memory per row.
    """

    def __init__(
        self, q: Tensor, k: Tensor, where: Rows, few: bool = False, wide: int = 1, narrow: bool = False
    ) -> None:
        mask, first, step = where
        self.n_batch, self.n_heads, self.n_rows, width = q.shape
        self.n_keys, padding = k.size(2), mask.key_padding
        padded = max(16, triton.next_power_of_2(width))
        tile = max(16, min(TILE, 4096 // padded) // (1 + (q.dtype == torch.float32)) // (1 + narrow))
        many = self.n_rows // tile * self.n_heads * self.n_batch >= FULL
        self.rows, self.keys = FEW if few and not many else tile, max(32, tile)
        if self.rows == FEW and padded <= 64 and q.dtype != torch.float32:
            self.keys *= wide
        self.padding = (q if padding is None else padding).view(torch.uint8)
        self.scalars: tuple[Any, ...] = (
            *(*q.stride()[:3], *k.stride()[:3], self.padding.stride(0), 0 if padding is None else self.n_keys),
            *(self.n_rows, self.n_keys, first if mask.causal else ANY, step, width**-0.5, width),
        )
        self.constants: dict[str, Any] = {"ROWS": self.rows, "KEYS": self.keys, "WIDTH": padded, "num_warps": 4}

    def by_rows(self) -> tuple[int, int, int]:
        """Return a grid with a program per head, block of rows and item: heads next to each other read the same."""
        return self.n_heads, triton.cdiv(self.n_rows, self.rows), self.n_batch

    def by_tiles(self) -> tuple[int, int, int]:
        """Return a grid with a program per tile and item, for all heads."""
        return triton.cdiv(self.n_rows, self.rows), triton.cdiv(self.n_keys, self.keys), self.n_batch

    def by_keys(self) -> tuple[int, int, int]:
        """Return a grid with a program per head, block of keys and item."""
        return self.n_heads, triton.cdiv(self.n_keys, self.keys), self.n_batch
