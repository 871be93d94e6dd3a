"""Keys kept by patterns, by the definitions of their papers: slow and literal."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fairseq_lasformer.nn.others.relational import LINE
from fairseq_lasformer.nn.sparsity import SparsityRule

Definition = Callable[[int, int], Collection[int]]
RULE = SparsityRule(threshold=0.95, step=0.001, minimum=0.01, freeze_above=0.5)


def nearest(size: int) -> Definition:
    """Return a definition: the ``size`` keys nearest to the query, earlier ones first."""
    return lambda p, n: sorted(range(n), key=lambda j: (abs(j - p), j))[:size]


def strided_heads(p: int, n: int, stride: int) -> set[int]:
    """Return A1 and A2 of "strided" in section 4.2 of arXiv 1904.10509, on both sides."""
    return {j for j in range(n) if abs(p - j) < stride or (p - j) % stride == 0}


def fixed_heads(p: int, n: int, stride: int, summary: int) -> set[int]:
    """Return A1 and A2 of "fixed" there."""
    return {j for j in range(n) if j // stride == p // stride or j % stride >= stride - summary}


def segments(p: int, n: int, size: int) -> list[int]:
    """Return the keys of section 3.2 of arXiv 1901.02860: a segment, and the one before."""
    return [j for j in range(n) if p // size - 1 <= j // size <= p // size]


def ends_at(n: int) -> list[bool]:
    """Return the ends of lines of 25 tokens, as costs are counted."""
    return [j % LINE == LINE - 1 for j in range(n)]


def longformer(p: int, n: int, size: int, ends: list[bool], crossed: bool = False) -> set[int]:
    """Return the keys of section 3.1 of arXiv 2004.05150: a window, and tokens linked with all others both ways."""
    if not crossed and ends[p]:
        return set(range(n))
    return set(nearest(size)(p, n)) | {j for j in range(n) if ends[j]}


def etc(p: int, n: int, size: int, ends: list[bool], crossed: bool = False) -> set[int]:
    """Return the keys of section 3.1 of arXiv 2004.08483: global tokens attend to each other and to their line."""
    every_end = {j for j in range(n) if ends[j]}
    if crossed or not ends[p]:
        return set(nearest(size)(p, n)) | every_end
    first = max((j + 1 for j in range(p) if ends[j]), default=0)
    return every_end | set(range(first, min(n, p + 1)))


def bigbird(p: int, n: int, size: int, of_all: int, random: int) -> set[int]:
    """Return a window, the first tokens both ways, and keys drawn by a generator for the position."""
    if p < of_all:
        return set(range(n))
    drawn = set()
    for i in range(random):
        x = p * random + i
        for factor, shift in ((2_654_435_761, 15), (2_246_822_519, 13)):
            x = x * factor % 2**32
            x ^= x >> shift
        drawn.add(x % n)
    return set(nearest(size)(p, n)) | set(range(min(n, of_all))) | drawn


OF_LINES = {
    "longformer:window=4": longformer,
    "longformer:window=30": longformer,
    "etc:window=1": etc,
    "etc:window=6": etc,
}
