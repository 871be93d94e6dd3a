"""Alignment of the lines of a translation with those of the reference: pairs, omissions and additions.

The alignment is monotone, by dynamic programming (as in Gale and Church, 1993, but by similarity instead of length).
It maximises the sum of the similarities of paired lines, less a threshold per pair.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

THRESHOLD = 0.25
"""Lines that are less similar than this are not paired."""

BAND = 30
"""Maximum distance between paired lines, in addition to the difference between the numbers of lines."""


class AlignedLines(NamedTuple):
    """The alignment of a document."""

    pairs: list[tuple[int, int]]  # (line of the translation, line of the reference), in order
    omitted: list[int]  # lines of the reference without a partner
    added: list[int]  # lines of the translation without a partner


def _trigrams(line: str) -> Counter[str]:
    text = f" {line.lower()} "
    return Counter(text[i : i + 3] for i in range(max(1, len(text) - 2)))


def similarity(a: Counter[str], b: Counter[str]) -> float:
    """Return the Dice coefficient of two multisets of character trigrams, 0 to 1."""
    return 2.0 * (a & b).total() / max(1, a.total() + b.total())


def align(hypothesis: Sequence[str], reference: Sequence[str]) -> AlignedLines:
    """Pair the lines of a translation with those of its reference; see the module."""
    n, m = len(hypothesis), len(reference)
    grams = [[_trigrams(line) for line in side] for side in (hypothesis, reference)]
    reach = BAND + abs(n - m)
    best = np.zeros((n + 1, m + 1))
    gain = np.full((n, m), -1.0)
    for i in range(n):
        for j in range(max(0, i - reach), min(m, i + reach + 1)):
            gain[i, j] = similarity(grams[0][i], grams[1][j]) - THRESHOLD
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            best[i, j] = max(best[i - 1, j], best[i, j - 1], best[i - 1, j - 1] + gain[i - 1, j - 1])
    pairs: list[tuple[int, int]] = []
    i, j = n, m
    while i and j:
        if gain[i - 1, j - 1] > 0 and best[i, j] == best[i - 1, j - 1] + gain[i - 1, j - 1]:
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    pairs.reverse()
    here, there = {a for a, _ in pairs}, {b for _, b in pairs}
    return AlignedLines(pairs, [j for j in range(m) if j not in there], [i for i in range(n) if i not in here])
