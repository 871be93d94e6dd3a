"""Sinusoidal positions as Vaswani et al. 2017 and Marian have them; fairseq's differ in their frequencies."""

from __future__ import annotations

import math
from typing import Any

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor


class VaswaniPositions(SinusoidalPositionalEmbedding):
    """Position p has sin(p f_j) and, after all of them, cos(p f_j), with f_j = 10000^(-2j/d); the first position is 0.

    "Attention Is All You Need", section 3.5; fairseq's frequencies are 10000^(-j/(d/2-1)). Otherwise as fairseq's: rows
    are counted from the padding symbol's, which is zero.
    """

    def __init__(self, dim: int, padding_idx: int, init_size: int) -> None:
        super().__init__(dim, padding_idx, padding_idx + 1)
        self.weights = self.table(init_size)

    def table(self, rows: int) -> Tensor:
        """The table [rows, d]; row ``padding_idx`` + 1 is position 0."""
        frequencies = torch.exp(torch.arange(0, self.embedding_dim, 2) * (-math.log(10000.0) / self.embedding_dim))
        angles = (torch.arange(rows) - self.padding_idx - 1)[:, None] * frequencies
        made = torch.cat([angles.sin(), angles.cos()], 1)
        made[: self.padding_idx + 1] = 0
        return made

    def forward(self, input: Tensor, incremental_state: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """int64 [B, N] -> [B, N, d]; see fairseq's."""
        rows = self.padding_idx + 1 + input.size(1)
        if rows > self.weights.size(0):
            self.weights = self.table(2 * rows).to(self.weights)
        return super().forward(input, incremental_state, *args, **kwargs)
