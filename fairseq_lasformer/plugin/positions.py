"""Sinusoidal positions of Vaswani et al. 2017 and Marian, and reproducible versions of these and fairseq's."""

import decimal
import math
from typing import Any

import numpy as np
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor


class _Growing(SinusoidalPositionalEmbedding):
    """Positions whose table grows with the longest input."""

    weights: Tensor

    def table(self, rows: int) -> Tensor:
        """Return the table [rows, d]."""
        raise NotImplementedError

    def forward(self, input: Tensor, incremental_state: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Embed int64 [B, N] -> [B, N, d]; see fairseq's."""
        rows = self.padding_idx + 1 + input.size(1)
        if rows > self.weights.size(0):
            self.weights = self.table(2 * rows).to(self.weights)
        return super().forward(input, incremental_state, *args, **kwargs)


class VaswaniPositions(_Growing):
    """Position p has sin(p f_j) and, after all of them, cos(p f_j), with f_j = 10000^(-2j/d); the first position is 0.

    "Attention Is All You Need", section 3.5; fairseq's frequencies are 10000^(-j/(d/2-1)). Otherwise as fairseq's: rows
    are counted from the padding symbol's, which is zero.
    """

    def __init__(self, dim: int, padding_idx: int, init_size: int) -> None:
        super().__init__(dim, padding_idx, padding_idx + 1)
        self.weights = self.table(init_size)

    def table(self, rows: int) -> Tensor:
        """Return the table [rows, d]; row ``padding_idx`` + 1 is position 0."""
        frequencies = torch.exp(torch.arange(0, self.embedding_dim, 2) * (-math.log(10000.0) / self.embedding_dim))
        angles = (torch.arange(rows) - self.padding_idx - 1)[:, None] * frequencies
        values = torch.cat([angles.sin(), angles.cos()], 1)
        values[: self.padding_idx + 1] = 0
        return values


class ReproduciblePositions(_Growing):
    """The table of other positions, the same on every processor: PyTorch's sines differ in the last bit.

    Args:
        of: fairseq's positions, or :class:`VaswaniPositions`.
    """

    def __init__(self, of: SinusoidalPositionalEmbedding) -> None:
        super().__init__(of.embedding_dim, of.padding_idx, of.padding_idx + 1)
        self.first = of.padding_idx + 1 if isinstance(of, VaswaniPositions) else 0
        dim, half = of.embedding_dim, of.embedding_dim // 2
        if isinstance(of, VaswaniPositions):
            exponents = np.arange(0, dim, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / dim)
        else:
            exponents = np.arange(half, dtype=np.float32) * np.float32(-(math.log(10000) / (half - 1)))
        self.frequencies = np.array([float(decimal.Decimal(float(x)).exp()) for x in exponents], np.float32)
        self.weights = self.table(of.weights.size(0)).to(of.weights)

    def table(self, rows: int) -> Tensor:
        """Return the table, see :class:`VaswaniPositions`; for fairseq's positions, row p is position p."""
        positions = np.arange(rows, dtype=np.float32) - np.float32(self.first)
        values = np.zeros((rows, self.embedding_dim), np.float32)
        both = np.concatenate(_sines(positions[:, None] * self.frequencies), 1)
        values[:, : both.shape[1]] = both
        values[: self.padding_idx + 1 if self.first else 0] = 0
        values[self.padding_idx] = 0
        return torch.from_numpy(values)


def _sines(angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute sine and cosine with only sums and products in float64, which every processor rounds alike.

    Args:
        angles: float32, below 10^6 in size.

    Returns:
        float32, correctly rounded except for 1 in 10^7.
    """
    x = angles.astype(np.float64)
    quarters = np.rint(x * (2 / math.pi))
    # pi/2 in two parts; the first has few enough bits for exact products
    x = (x - quarters * 1.57079632673412561417) - quarters * 6.07710050650619224932e-11
    square = x * x

    def series(first: int) -> np.ndarray:
        y = np.zeros_like(square)
        for n in range(first + 16, first - 1, -2):
            y = (1.0 / math.factorial(n)) - y * square
        return y

    sine, cosine = (x * series(1)).astype(np.float32), series(0).astype(np.float32)
    turn = quarters.astype(np.int64) % 4
    swapped = turn % 2 == 1
    return (
        np.where(swapped, cosine, sine) * np.where(turn >= 2, np.float32(-1), np.float32(1)),
        np.where(swapped, sine, cosine) * np.where((turn == 1) | (turn == 2), np.float32(-1), np.float32(1)),
    )
