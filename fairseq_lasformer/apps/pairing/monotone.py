"""The best monotone alignment of two sequences, by dynamic programming (Gale and Church, 1993)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Bead(NamedTuple):
    """Neighbouring items of both sides that belong together, from ``source`` and ``target`` on."""

    source: int
    target: int
    n_source: int = 1
    n_target: int = 1


def monotone(gains: Mapping[tuple[int, int], np.ndarray]) -> list[Bead]:
    """Return beads, in order, whose gains have the largest sum; items without a partner are in none.

    Args:
        gains: for each shape of a bead, such as (1, 1) or (2, 1), the gain [N - a + 1, M - b + 1] of a bead of a and b
            items that begins at each place; (1, 1) is required.
    """
    n, m = gains[1, 1].shape
    best = np.zeros((n + 1, m + 1))
    for i in range(1, n + 1):
        row = best[i - 1].copy()
        for (a, b), gain in gains.items():
            if i >= a and m >= b:
                np.maximum(row[b:], best[i - a, : m - b + 1] + gain[i - a], out=row[b:])
        np.maximum.accumulate(row, out=best[i])
    beads: list[Bead] = []
    i, j = n, m
    while i and j:
        here = best[i, j]
        if here == best[i - 1, j]:
            i -= 1
        elif here == best[i, j - 1]:
            j -= 1
        else:
            fitting = (
                shape
                for shape, gain in gains.items()
                if i >= shape[0]
                and j >= shape[1]
                and here == best[i - shape[0], j - shape[1]] + gain[i - shape[0], j - shape[1]]
            )
            a, b = next(fitting)
            i, j = i - a, j - b
            beads.append(Bead(i, j, a, b))
    return beads[::-1]
