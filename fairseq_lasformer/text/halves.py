"""Lines cut in two, at the same place on both sides: each half needs the other, which only a document model reads.

After "Divide and Rule" (arXiv 2103.17151), in which models of documents learn to use context from such lines.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

from fairseq_lasformer.text.documents import Pair

SEED = 1
"""Of the cuts of test sets: the same in every run."""

LEAST = 7
"""Words that a line must have on both sides to be cut."""

NEAR = 0.12
"""Distance, as a share of the line, up to which punctuation marks of the two sides are taken for the same."""

INSIDE, BETWEEN, AFTER_MARK = 0, 1, 2
"""What is before a unit of a line: the same word, another one, or a punctuation mark."""

MARKS = ",;:–—，；：、。"


class Cut(NamedTuple):
    """Number of units before the cut of a line, on both sides."""

    source: int
    target: int


def cut(source: Sequence[int], target: Sequence[int], generator: random.Random) -> Cut | None:
    """Choose where to cut a line: after punctuation that both sides have, otherwise at about the same share.

    Args:
        source, target: what is before each unit (token or character) of the line; see :data:`INSIDE`.

    Returns:
        the cut; None if a side is too short or a single word.
    """
    share = 0.35 + 0.3 * generator.random()
    if min(_words(source), _words(target)) < LEAST:
        return None
    n, m = len(source), len(target)
    marks = [[i for i in range(1, len(side)) if side[i] == AFTER_MARK] for side in (source, target)]
    pairs = [(abs(i / n - j / m), i, j) for i in marks[0] for j in marks[1] if 0.25 <= i / n <= 0.75]
    if pairs and min(pairs)[0] <= NEAR:
        return Cut(*min(pairs)[1:])
    first = _nearest(source, share * n)
    return Cut(first, _nearest(target, first / n * m))


def _words(side: Sequence[int]) -> int:
    return sum(kind != INSIDE for kind in side[1:]) + bool(side)


def _nearest(side: Sequence[int], place: float) -> int:
    """Return the boundary between words that is nearest to a place."""
    return min((i for i in range(1, len(side)) if side[i] != INSIDE), key=lambda i: abs(i - place))


def boundaries(text: str) -> list[int]:
    """Return what is before each character of a line; Chinese characters and their like are words of their own."""
    kinds, last = [], ""
    for before, character in zip((" ", *text), text):
        starts = before.isspace() or bool({east_asian_width(before), east_asian_width(character)} & {"W", "F"})
        if character.isspace() or not starts:
            kinds.append(INSIDE)
        else:
            kinds.append(AFTER_MARK if last and last in MARKS else BETWEEN)
        last = last if character.isspace() else character
    return kinds


def halves(source: str, target: str, generator: random.Random) -> list[tuple[str, str]]:
    """Return a pair of lines cut in two; itself, if it is too short."""
    where = cut(boundaries(source), boundaries(target), generator)
    if where is None:
        return [(source, target)]
    parts = [(text[:i].strip(), text[i:].strip()) for text, i in zip((source, target), where)]
    return [*zip(*parts)] if all(map(all, parts)) else [(source, target)]


def fragments(documents: Sequence[Pair]) -> list[Pair]:
    """Return documents whose lines are cut in two, wherever they are long enough; a seed is fixed."""
    generator, pieces = random.Random(SEED), []
    for document in documents:
        lines = [half for pair in zip(*document) for half in halves(*pair, generator)]
        pieces.append(Pair(*(list(side) for side in zip(*lines))))
    return pieces
