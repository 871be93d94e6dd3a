"""Detection of misplaced lines, where line i of a translation does not translate line i of its source.

A model that loses its place in a document leaves a sentence out, or translates one twice, and goes on as if nothing had
happened: the number of lines is right, but each is paired with the wrong source line. The model is unsure of itself
where this happens. So the lines with the lowest scores, and those around them, are scored again as translations of
their own source line alone. Where that is unlikely, they are also scored with the neighbouring source lines. A line
that fits a neighbour better is out of place.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from torch import Tensor

SHARE = 0.02
"""Share of a document's lines, those with the lowest scores, that are checked (at least one line)."""

AROUND = (-1, 0, 1, 2)
"""Lines around each of them that are also checked."""

MARGIN = 0.5
"""Minimum significant difference in log probability per token."""

BACK = 6
"""Number of lines before a misplaced one that are searched for where it began."""

NEIGHBOURS = (-1, 1, -2, 2)
"""Source lines that a line is compared with, relative to its own."""

Score = Callable[[Sequence[tuple[Tensor, Tensor]]], list[float]]
"""Function that returns the mean log probability per token of each pair of a source line and a translated line."""


class Checked(NamedTuple):
    """A translated document that is checked."""

    sources: Sequence[Tensor]  # tokens of its source lines
    lines: Sequence[Tensor]  # tokens of its translation, as many lines
    scores: Sequence[float]  # score of each line, given the document
    # numbers of lines whose translation was given: they are in their place, however unlikely
    given: Collection[int] = ()


def first_misplaced(
    documents: Sequence[Checked], starts: Sequence[int], score: Score, edges: Sequence[int] = ()
) -> list[int | None]:
    """Find the first line of each document where the model lost its place; None where no such line is found.

    Args:
        starts: first line of each document that is checked.
        edges: first line of each document after those that were translated again; it is checked as well, with those
            after it. 0 for none.
    """
    looked = []
    for d, (document, start) in enumerate(zip(documents, starts)):
        n = len(document.lines)
        ranked = sorted(set(range(start, n)) - set(document.given), key=lambda i: document.scores[i])
        lowest = ranked[: max(1, math.ceil(SHARE * n))]
        near = {i + j for i in lowest for j in AROUND}
        if edges and edges[d]:
            near |= {edges[d] + j for j in AROUND}
        looked += [(d, i) for i in sorted(near - set(document.given)) if start <= i < n]
    first: list[int | None] = [None] * len(starts)
    for d, i in _misplaced(looked, documents, score):
        known = first[d]
        if known is None or i < known:
            first[d] = i
    # back to where it began: the lines before are out of place as well, up to a few in a row that are not
    lost = {d: i for d, i in enumerate(first) if i is not None}
    while lost:
        before = [
            (d, j) for d, i in lost.items() for j in range(max(starts[d], i - BACK), i) if j not in documents[d].given
        ]
        alone = _score(before, 0, documents, score)
        doubtful = [(d, j) for d, j in before if alone[d, j] < documents[d].scores[j] - MARGIN]
        lost = {d: min(j for other, j in doubtful if other == d) for d in {d for d, _ in doubtful}}
        for d, i in lost.items():
            first[d] = i
    return first


def all_misplaced(documents: Sequence[Checked], starts: Sequence[int], score: Score) -> dict[tuple[int, int], float]:
    """Find all lines that are out of place; see :func:`first_misplaced`.

    Returns:
        for each, by document and number, its score as the translation of its own source line alone.
    """
    looked = [
        (d, i)
        for d, (document, start) in enumerate(zip(documents, starts))
        for i in range(start, len(document.lines))
        if i not in document.given
    ]
    return _misplaced(looked, documents, score)


def _misplaced(
    looked: Sequence[tuple[int, int]], documents: Sequence[Checked], score: Score
) -> dict[tuple[int, int], float]:
    """Return which of some lines are unlikely alone and fit a neighbour better, see :func:`all_misplaced`."""
    alone = _score(looked, 0, documents, score)
    doubtful = [(d, i) for (d, i) in looked if alone[d, i] < documents[d].scores[i] - MARGIN]
    misplaced: set[tuple[int, int]] = set()
    for offset in NEIGHBOURS:
        here = [(d, i) for d, i in doubtful if 0 <= i + offset < len(documents[d].sources) and (d, i) not in misplaced]
        other = _score(here, offset, documents, score)
        misplaced |= {place for place in here if other[place] > alone[place] + MARGIN}
    return {place: alone[place] for place in sorted(misplaced)}


def _score(
    places: Sequence[tuple[int, int]], offset: int, documents: Sequence[Checked], score: Score
) -> dict[tuple[int, int], float]:
    """Score lines as translations of the source lines ``offset`` after their own."""
    return dict(zip(places, score([(documents[d].sources[i + offset], documents[d].lines[i]) for d, i in places])))
