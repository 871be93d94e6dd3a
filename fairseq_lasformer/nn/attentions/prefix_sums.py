"""Sums over the keys up to each query's own, for attentions whose weights are products."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64
"""Queries that see each other by a matrix, and all earlier ones by their sums."""


def prefix_products(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a_t sum_{j <= t} b_j^T c_j, [..., N, E]; time and memory grow linearly with N.

    Args:
        a, b: [..., N, M].
        c: [..., N, E].
    """
    n = a.size(-2)
    a, b, c = (pad(t, (0, 0, 0, -n % CHUNK)).unflatten(-2, (-1, CHUNK)) for t in (a, b, c))
    sums = b.transpose(-1, -2) @ c
    before = sums.cumsum(-3) - sums
    own = (a @ b.transpose(-1, -2)).tril()
    return (a @ before + own @ c).flatten(-3, -2)[..., :n, :]
