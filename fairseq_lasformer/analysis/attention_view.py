"""Attention matrices in the form that the report page shows."""

from __future__ import annotations

from torch import Tensor


def sparse(weights: Tensor, most: int = 64, least: float = 0.002) -> list[list[list[float]]]:
    """The kept keys with the highest weights, as ``[index, weight]`` for every query.

    Args:
        weights: attention weights, [queries, keys].
        most: maximum number of keys per query.
        least: minimum weight.
    """
    rows = []
    for row in weights:
        value, index = row.topk(min(most, row.numel()))
        rows.append([[int(i), round(float(v), 4)] for i, v in zip(index, value) if float(v) >= least])
    return rows
