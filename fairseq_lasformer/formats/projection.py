"""Projection of a sentence's markup onto its translation.

The markup divides a sentence into segments. Their order stays. Each word of the translation is assigned to a segment
such that as much attention as possible falls on words that look the same (a dynamic programme over words and segments).
So every piece of markup survives, in order and well nested.
"""

import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_lasformer.text.units import units

_PART = re.compile(r"[-'’.,:/]*\w+|\W+")

OWN = 0.25
"""Weight of the segment itself, among those that look the same."""

PLACE = 0.15
"""Weight of being at the same place in the sentence."""

EMPTY = 1.5
"""Cost of a segment that loses its words."""


class AlignedWords(NamedTuple):
    """An alignment of a translation's words with those of its source."""

    weights: np.ndarray  # [target units, source units], rows with a sum of at most 1; see `units`


def by_place(source: str, target: str) -> AlignedWords:
    """Align two sentences about which nothing is known: along the diagonal, and equal words with each other."""
    rows, columns = len(units(target)), len(units(source))
    weights = np.zeros((rows, columns))
    for i in range(rows):
        weights[i, min(columns - 1, (2 * i + 1) * columns // (2 * rows))] = 1.0
    return AlignedWords(with_equal_words(source, target, weights))


def with_equal_words(source: str, target: str, weights: np.ndarray) -> np.ndarray:
    """Return weights that align words that occur once on each side, spelt the same, with each other."""
    sides = []
    for text in (source, target):
        words = [text[a:b] for a, b in units(text)]
        sides.append({word: i for i, word in enumerate(words) if words.count(word) == 1 and re.search(r"\w", word)})
    raised = weights.copy()
    for word in sides[0].keys() & sides[1].keys():
        raised[sides[1][word]] = 0.0
        raised[sides[1][word], sides[0][word]] = 1.0
    return raised


def place(
    segments: Sequence[str], states: Sequence[Hashable], breaks: Sequence[bool], translation: str, aligned: AlignedWords
) -> list[str]:
    """Divide the translation among the segments of its source.

    Args:
        segments: text of the source in each segment.
        states: formatting of each segment; equal states look alike.
        breaks: for each place between segments, whether there is a break, which separates words by itself.
        aligned: alignment of the whole source and translation.

    Returns:
        one text per segment.
    """
    target = units(translation)
    if not target:
        return ["" if any(breaks) else translation, *[""] * (len(segments) - 1)]
    weights = aligned.weights
    joined, starts = _joined(segments, breaks)
    source = units(joined)
    if len(source) == weights.shape[1] and any(a < start < b for a, b in source for start in starts):
        (source, columns), (target, rows) = _finer(joined, source), _finer(translation, target)
        weights = weights[rows][:, columns]
    counts, middles = _source_units(segments, joined, starts, source, weights.shape[1])
    scores = _scores(segments, states, counts, middles, translation, target, weights)
    cuts = _at_spaces(_best_cuts(scores, [bool(count) for count in counts]), breaks, translation, target)
    return _texts(segments, states, breaks, translation, target, cuts)


def _joined(segments: Sequence[str], breaks: Sequence[bool]) -> tuple[str, list[int]]:
    """Return the text of all segments, and where each begins in it."""
    joined, starts = "", []
    for i, segment in enumerate(segments):
        joined += " " if i and breaks[i - 1] else ""
        starts.append(len(joined))
        joined += segment
    return joined, starts


def _finer(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Divide units at the marks within them, as in ``a-b``; return the parts, and the unit of each."""
    parts = [((a + m.start(), a + m.end()), i) for i, (a, b) in enumerate(spans) for m in _PART.finditer(text[a:b])]
    return [place for place, _ in parts], [i for _, i in parts]


def _source_units(
    segments: Sequence[str], joined: str, starts: Sequence[int], spans: Sequence[tuple[int, int]], total: int
) -> tuple[list[int], list[float]]:
    """Return each segment's number of source units, by where they begin, and its end, from 0 to 1."""
    lead = len(joined) - len(joined.lstrip())
    counts: list[int] = [0] * len(segments)
    for a, b in spans:
        middle = (a + b - 1) / 2
        counts[max(i for i, start in enumerate(starts) if start <= max(middle, lead))] += 1
    known = len(spans)
    if not known:
        counts[-1] = total
    elif known != total:  # the sentence was cleaned: its units are not quite those of the block
        scaled = np.cumsum(counts) * total / known
        counts = [int(n) for n in np.diff(np.round(scaled), prepend=0)]
    ends = [(start + len(segment)) / max(1, len(joined)) for start, segment in zip(starts, segments)]
    return counts, ends


def _scores(
    segments: Sequence[str],
    states: Sequence[Hashable],
    counts: Sequence[int],
    ends: Sequence[float],
    translation: str,
    target: Sequence[tuple[int, int]],
    weights: np.ndarray,
) -> np.ndarray:
    """Rate how well each unit of the translation fits each segment, [units, segments]."""
    owner = np.repeat(np.arange(len(segments)), counts)
    weights_of = np.stack([weights[:, owner == i].sum(1) for i in range(len(segments))], 1)
    known: dict[Hashable, int] = {}
    kinds = np.array([known.setdefault(state, len(known)) for state in states])
    alike = (kinds[:, None] == kinds).astype(float)
    middles = np.array([(a + b) / 2 / max(1, len(translation)) for a, b in target])
    starts = np.array([0.0, *ends[:-1]])
    near = (middles[:, None] >= starts) & (middles[:, None] <= np.array(ends))
    # punctuation attends to anything: it mostly stays with the words next to it
    trust = np.array([1.0 if translation[a].isalnum() else 0.3 for a, _ in target])[:, None]
    return trust * (weights_of @ alike + OWN * weights_of) + PLACE * near


def _best_cuts(scores: np.ndarray, full: Sequence[bool]) -> list[int]:
    """Return the end of each segment, as a number of units, such that the sum of the scores is highest."""
    total, n = scores.shape
    best = np.full(total + 1, -np.inf)
    best[0] = 0.0
    choices = np.zeros((n, total + 1), dtype=int)
    for i in range(n):
        sums = np.concatenate([[0.0], np.cumsum(scores[:, i])])
        new = best - (EMPTY if full[i] else 0.0)
        choices[i] = np.arange(total + 1)
        if full[i]:  # a segment without words takes none
            begins = best[:-1] - sums[:-1]
            ahead = np.maximum.accumulate(begins)  # the best score to begin with, and its place below
            is_new = np.append(True, begins[1:] > ahead[:-1])
            at = np.maximum.accumulate(np.where(is_new, np.arange(total), 0))
            better = ahead + sums[1:] > new[1:]
            new[1:][better] = (ahead + sums[1:])[better]
            choices[i, 1:][better] = at[better]
        best = new
    if not np.isfinite(best[total]):
        return [*[0] * (n - 1), total]
    cuts, end = [0] * n, total
    for i in reversed(range(n)):
        cuts[i], end = end, int(choices[i, end])
    return cuts


def _at_spaces(
    cuts: Sequence[int], breaks: Sequence[bool], translation: str, target: Sequence[tuple[int, int]]
) -> list[int]:
    """Return cuts of which those at breaks are at the next space, if there is one beside them."""
    places = list(cuts)
    spaces = {0, len(target), *(i for i in range(1, len(target)) if target[i - 1][1] < target[i][0])}
    for i, cut in enumerate(places[:-1]):
        word = cut < len(target) and translation[target[cut][0]].isalnum()
        near = [cut + n for n in ((0, -1, -2, 1, 2) if word else (0, 1, 2, 3, -1, -2)) if cut + n in spaces]
        if breaks[i] and near and (i == 0 or places[i - 1] <= near[0]) and near[0] <= places[i + 1]:
            places[i] = near[0]
    return places


def _texts(
    segments: Sequence[str],
    states: Sequence[Hashable],
    breaks: Sequence[bool],
    translation: str,
    target: Sequence[tuple[int, int]],
    cuts: Sequence[int],
) -> list[str]:
    """Return the text of each segment; the space at a cut goes to the side where the source has it."""
    texts = [""] * len(segments)
    edges = [0, *cuts]
    holders = [i for i in range(len(segments)) if edges[i + 1] > edges[i]]
    for i in holders:
        texts[i] = translation[target[edges[i]][0] : target[edges[i + 1] - 1][1]]
    _put(texts, segments, breaks, states, -1, holders[0], translation[: target[0][0]])
    for left, right in zip(holders, holders[1:]):
        gap = translation[target[cuts[left] - 1][1] : target[cuts[left]][0]]
        if not gap and states[left] == states[right] and right == left + 1 and not breaks[left]:
            # something separate is between them: code, an image
            gap = " " if segments[left][-1:].isspace() else ""
            texts[left] += gap
        else:
            _put(texts, segments, breaks, states, left, right, gap)
    _put(texts, segments, breaks, states, holders[-1], len(segments), translation[target[-1][1] :])
    return texts


def _put(
    texts: list[str],
    segments: Sequence[str],
    breaks: Sequence[bool],
    states: Sequence[Hashable],
    left: int,
    right: int,
    gap: str,
) -> None:
    """Put the space between two segments with words where the source has it."""
    if not gap:
        return
    first, last = left < 0, right == len(segments)
    before, after = not first and segments[left][-1:].isspace(), not last and segments[right][:1].isspace()
    inner = [i for i in range(left + 1, right) if segments[i].isspace()]
    if not (before or inner or after):
        if any(breaks[max(left, 0) : right]):
            return  # a break is space enough
        # outside the formatted text
        after = first or (not last and _depth(states[right]) < _depth(states[left]))
        before = not after
    for i in inner:
        texts[i] = segments[i]
    if before:
        texts[left] += gap
    if after:
        texts[right] = gap + texts[right]


def _depth(state: Hashable) -> int:
    """Return the amount of formatting in a state."""
    return sum(map(_depth, state)) if isinstance(state, tuple) else int(state is not None)
