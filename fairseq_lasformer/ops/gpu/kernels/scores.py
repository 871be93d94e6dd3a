"""Scores of a sample of the queries on GPUs, shared by the kernels that teach a selector.

All tensors may be strided, except along their last dimension. Row r of a sample is query ``first + r * step``, counted
like the keys: with a causal mask, it may attend to keys 0 to ``first + r * step``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.types import AttentionMask

TILE = 64
FEW = 16  # rows of a program that processes all keys: the sample has few rows, a GPU many processors
FULL = 128  # programs that fill a large GPU: with that many full tiles of rows, a program takes a tile
CHANGING = ["n_rows", "n_keys", "first", "step", "padding_stride"]


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
def _allowed(padding, i, j, n_rows, n_keys, first, step, CAUSAL: tl.constexpr, PADDING: tl.constexpr):
    """Return which keys j the rows i of the sample may attend to."""
    allowed = (i[:, None] < n_rows) & (j[None, :] < n_keys)
    if CAUSAL:
        allowed = allowed & (j[None, :] <= (first + i * step)[:, None])
    if PADDING:
        allowed = allowed & (tl.load(padding + j, mask=j < n_keys, other=1) == 0)[None, :]
    return allowed


@triton.jit
def _seen(i_end, n_keys, first, step, CAUSAL: tl.constexpr):
    """Return the number of leading keys that rows before ``i_end`` may attend to."""
    if CAUSAL:
        return tl.minimum(n_keys, first + (i_end - 1) * step + 1)
    return n_keys


@triton.jit
def _scores(query, k, j, n_keys, row_stride, scale, width, WIDTH: tl.constexpr):
    key = _rows(k, j, n_keys, row_stride, width, WIDTH)
    return tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale


@triton.jit
def _weights(scores, allowed, norm):
    return tl.exp(tl.where(allowed, scores - norm[:, None], float("-inf")))


@triton.jit
def _added(scores, allowed, high, sums):
    """Add a tile to a running maximum and sum of exponentials; also return the factor of earlier sums."""
    new = tl.maximum(high, tl.max(tl.where(allowed, scores, -1e30), 1))
    fade = tl.exp(high - new)
    return new, sums * fade + tl.sum(_weights(scores, allowed, new), 1), fade


@triton.jit
def _norm(high, sums):
    """Return the log-normaliser: +inf for rows without keys, whose weights are 0."""
    return tl.where(sums > 0, high + tl.log(tl.where(sums > 0, sums, 1.0)), float("inf"))


class Rows(NamedTuple):
    """Position of a sample block's rows among all queries.

    Attributes:
        mask: attention mask; only the first K keys of its padding are used.
        first: the last key that the first row may attend to, if the mask is causal.
        step: the sample's stride.
    """

    mask: AttentionMask
    first: int
    step: int


class Launch:
    """Launch parameters shared by the kernels of one block of a sample.

    Args:
        q, k: [B, H, R or K, D], with any strides except along D.
        few: whether a program processes all keys instead of one tile; it takes few rows, unless there are many.
        narrow: whether tiles have half as many rows, for kernels that need more memory per row.
    """

    def __init__(self, q: Tensor, k: Tensor, where: Rows, few: bool = False, narrow: bool = False) -> None:
        mask, first, step = where
        self.n_batch, self.n_heads, self.n_rows, width = q.shape
        self.n_keys, padding = k.size(2), mask.key_padding
        padded = max(16, triton.next_power_of_2(width))
        tile = max(16, min(TILE, 4096 // padded) // (1 + (q.dtype == torch.float32)) // (1 + narrow))
        many = self.n_rows // tile * self.n_heads * self.n_batch >= FULL
        self.rows, self.keys = FEW if few and not many else tile, max(32, tile)
        given = q if padding is None else padding.view(torch.uint8)
        self.tensors = q, k
        self.padding = given
        self.scalars: tuple[Any, ...] = (
            *(*q.stride()[:3], *k.stride()[:3], given.stride(0)),
            *(self.n_rows, self.n_keys, first, step, width**-0.5, width),
        )
        self.constants: dict[str, Any] = {
            **{"CAUSAL": mask.causal, "PADDING": padding is not None, "ROWS": self.rows, "KEYS": self.keys},
            **{"WIDTH": padded, "num_warps": 4},
        }

    def by_rows(self) -> tuple[int, int, int]:
        """Return a grid with a program per block of rows, head and item."""
        return triton.cdiv(self.n_rows, self.rows), self.n_heads, self.n_batch

    def by_tiles(self) -> tuple[int, int, int]:
        """Return a grid with a program per tile and item, for all heads."""
        return triton.cdiv(self.n_rows, self.rows), triton.cdiv(self.n_keys, self.keys), self.n_batch

    def by_keys(self) -> tuple[int, int, int]:
        """Return a grid with a program per block of keys, head and item."""
        return triton.cdiv(self.n_keys, self.keys), self.n_heads, self.n_batch
