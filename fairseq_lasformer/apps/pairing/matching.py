"""Pairs of units, and of their sentences, in two files: the best monotone alignment (Gale and Church, 1993)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_lasformer.apps.pairing.evidence import Comparison
from fairseq_lasformer.apps.pairing.units import Reading, Unit

SAME_KEY = 50.0
"""Log odds of units with the same key."""

SAME_KIND, OTHER_KIND = 0.5, -2.0
"""Log odds of units of the same kind, and of different ones."""

EQUAL = 4.0
"""Log odds of equal texts."""

RIVAL = 1.0
"""Weight of the log odds by which the words of another pair of one of the units fit better."""

NEARBY = 3.0
"""Maximum log odds of each of the two neighbours of a pair."""

MOVED = 4.0
"""Log odds that units out of order need."""

MOVES = 8
"""Number of times that what is left is searched for units that were moved together."""

MERGED = -2.0
"""Log odds of a sentence that is two in the other language."""

BEADS = ((1, 1), (2, 1), (1, 2))


def match(source: Reading, target: Reading, compare: Comparison) -> list[tuple[int, int]]:
    """Pair the units of a file and its translation.

    Units with the same key belong together. Others are paired in order, by kind, length and words; what is left,
    in any order if the words leave no doubt.

    Returns:
        pairs of a source unit and a target unit, by the first.
    """
    keyed = _by_key(source.units, target.units)
    if source.only_keys or target.only_keys or not source.units or not target.units:
        return sorted(keyed)
    sides = [[unit.text for unit in side.units] for side in (source, target)]
    words = compare.words(*sides)
    rivals = np.maximum(words.max(1, keepdims=True), words.max(0, keepdims=True)) - words
    gain = words - RIVAL * rivals + compare.lengths(*sides) + _kinds(source.units, target.units) + _around(words)
    gain += EQUAL * np.array([[a == b for b in sides[1]] for a in sides[0]])
    for i, j in keyed:
        gain[i, :], gain[:, j] = -SAME_KEY, -SAME_KEY
    for i, j in keyed:
        gain[i, j] = SAME_KEY
    pairs = {bead.source: bead.target for bead in monotone({(1, 1): gain})} | dict(keyed)
    for _ in range(MOVES):
        used = set(pairs.values())
        free = [[i for i in range(len(sides[0])) if i not in pairs], [j for j in range(len(sides[1])) if j not in used]]
        if not free[0] or not free[1]:
            break
        rest = np.where(words > 0, gain - MOVED, -1)[np.ix_(*free)]
        moved = {free[0][bead.source]: free[1][bead.target] for bead in monotone({(1, 1): rest})}
        if not moved:
            break
        pairs |= moved
    return sorted(pairs.items())


def _by_key(source: Sequence[Unit], target: Sequence[Unit]) -> list[tuple[int, int]]:
    """Pair units by their keys; a key that occurs several times counts if both sides have as many."""
    places: list[dict[str, list[int]]] = []
    for side in (source, target):
        by_key: dict[str, list[int]] = defaultdict(list)
        for i, unit in enumerate(side):
            if unit.key:
                by_key[unit.key].append(i)
        places.append(by_key)
    return [
        pair
        for key, here in places[0].items()
        if len(there := places[1].get(key, [])) == len(here)
        for pair in zip(here, there)
    ]


def _kinds(source: Sequence[Unit], target: Sequence[Unit]) -> np.ndarray:
    """Return the log odds [N, M] of the kinds of units; 0 if one is unknown."""
    odds = {True: SAME_KIND, False: OTHER_KIND}
    return np.array([[odds[a.kind == b.kind] if a.kind and b.kind else 0.0 for b in target] for a in source])


def _around(words: np.ndarray) -> np.ndarray:
    """Return the log odds [N, M] of neighbours: what precedes and follows a pair should belong together as well."""
    near = np.clip(words, -NEARBY, NEARBY)
    sums = np.zeros_like(words)
    sums[1:, 1:] += near[:-1, :-1] / 2
    sums[:-1, :-1] += near[1:, 1:] / 2
    return sums


class Lines(NamedTuple):
    """The sentences of a pair of units."""

    pairs: list[tuple[str, str]]  # lines that are translations of each other
    left: tuple[list[str], list[str]] = ([], [])  # sentences without a partner, of both sides


def match_sentences(source: Unit, target: Unit, compare: Comparison) -> Lines:
    """Pair the sentences of a pair of units; two of one side may belong to one of the other.

    Units whose sentences do not fit together at all are one line.
    """
    a, b = source.sentences, target.sentences
    if len(a) + len(b) <= 3:
        return Lines([(" ".join(a), " ".join(b))])
    gains = {}
    for shape in BEADS:
        sides = [_neighbours(side, size) for side, size in zip((a, b), shape)]
        if sides[0] and sides[1]:
            gains[shape] = compare.texts(*sides) + (MERGED if shape != (1, 1) else SAME_KIND)
    beads = monotone(gains)
    if not beads:
        return Lines([(" ".join(a), " ".join(b))])
    return Lines(
        [(" ".join(a[x.source : x.source + x.n_source]), " ".join(b[x.target : x.target + x.n_target])) for x in beads],
        (_outside(a, [(x.source, x.n_source) for x in beads]), _outside(b, [(x.target, x.n_target) for x in beads])),
    )


def _neighbours(sentences: Sequence[str], size: int) -> list[str]:
    return [" ".join(sentences[i : i + size]) for i in range(len(sentences) - size + 1)]


def _outside(sentences: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[str]:
    inside = {i for start, size in spans for i in range(start, start + size)}
    return [sentence for i, sentence in enumerate(sentences) if i not in inside]


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
