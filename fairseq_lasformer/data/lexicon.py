"""Word translation probabilities: IBM's Model 1 (Brown et al., 1993), over lines of prepared training data.

P(t | s) is estimated by expectation and maximisation: every target word of a line pair is shared among the source words
of the line and a null word, in proportion to the current estimates.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_lasformer.base.terminal import progress_bar

ROUNDS = 5
"""Rounds of expectation and maximisation; a usual number."""

MINIMUM = 1e-4
"""Minimum probability of a translation; less probable ones are not kept."""

_AT_A_TIME = 2_000_000
"""Pairs of tokens that are indexed at a time."""

MOST = 150_000_000
"""Maximum number of token pairs in memory, 4 bytes each; of larger corpora, every n-th line is read."""

Numbers = np.ndarray
LinePair = tuple[Numbers, Numbers]


class Lexicon(NamedTuple):
    """Translations of source words; those of word s are at ``starts[s]`` to ``starts[s + 1]``, most likely first."""

    starts: Numbers  # int64 [source words + 1]
    words: Numbers  # int32, target words
    # read, lines: number of line pairs that were read, and of all line pairs
    read: int
    lines: int


class _Part(NamedTuple):
    """Some line pairs as pairs of tokens; the source words of each target token are adjacent."""

    pairs: Numbers  # int32, index of the pair of words of each pair of tokens
    firsts: Numbers  # int64, where the source words of each target token begin
    sizes: Numbers  # int64, number of source words of each target token


def line_pairs(source: Numbers, target: Numbers, separators: tuple[int | None, int | None]) -> list[LinePair]:
    """Split an example into line pairs, without their ends; none if the sides have different numbers of lines.

    Args:
        source, target: the example's tokens, with end of sentence.
        separators: indices of the separator in both dictionaries; None where there is none.
    """
    sides = [_split(side[:-1], separator) for side, separator in zip((source, target), separators)]
    return list(zip(*sides)) if len(sides[0]) == len(sides[1]) else []


def _split(tokens: Numbers, separator: int | None) -> list[Numbers]:
    if separator is None:
        return [tokens]
    ends = np.flatnonzero(tokens == separator)
    return [part[part != separator] for part in np.split(tokens, ends)]


def lexicon(lines: Sequence[LinePair], n_words: tuple[int, int], best: int) -> Lexicon:
    """Estimate P(t | s) and keep the ``best`` translations of each source word.

    Args:
        lines: source and target tokens of line pairs.
        n_words: sizes of the source and target dictionaries.
        best: maximum number of translations of a source word.
    """
    total = sum((s.size + 1) * t.size for s, t in lines)
    every = -(-total // MOST) if total else 1
    chosen = lines[::every]
    keys, parts = _index(_parts(chosen, n_words))
    of = keys // n_words[1]  # the source word; the last one is the null word
    p = np.ones(keys.size, dtype=np.float32)
    for _ in progress_bar(range(ROUNDS), desc="estimating translations", unit=" rounds"):
        counts = np.zeros(keys.size, dtype=np.float64)
        for part in parts:
            share = p[part.pairs]
            share /= np.repeat(np.add.reduceat(share, part.firsts), part.sizes)
            counts += np.bincount(part.pairs, share, keys.size)
        p = (counts / np.bincount(of, counts, n_words[0] + 1)[of]).astype(np.float32)
    likely = np.flatnonzero((p >= MINIMUM) & (of < n_words[0]))
    likely = likely[np.lexsort((-p[likely], of[likely]))]
    rank = np.arange(likely.size) - np.searchsorted(of[likely], of[likely])
    likely = likely[rank < best]
    starts = np.searchsorted(of[likely], np.arange(n_words[0] + 1))
    return Lexicon(starts.astype(np.int64), (keys[likely] % n_words[1]).astype(np.int32), len(chosen), len(lines))


def _parts(lines: Iterable[LinePair], n_words: tuple[int, int]) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield pairs of words as numbers, and where the source words of each target token begin, some at a time."""
    keys: list[Numbers] = []
    sizes: list[Numbers] = []
    n = 0
    for source, target in progress_bar(lines, desc="reading lines", unit=" lines"):
        if not target.size:
            continue
        those = np.append(source.astype(np.int64), n_words[0])
        keys.append((those * n_words[1] + target[:, None]).ravel())
        sizes.append(np.full(target.size, those.size))
        n += keys[-1].size
        if n >= _AT_A_TIME:
            yield _joined(keys, sizes)
            keys, sizes, n = [], [], 0
    if keys:
        yield _joined(keys, sizes)


def _joined(keys: list[Numbers], sizes: list[Numbers]) -> tuple[Numbers, Numbers, Numbers]:
    size = np.concatenate(sizes)
    return np.concatenate(keys), np.cumsum(size) - size, size


def _index(parts: Iterable[tuple[Numbers, Numbers, Numbers]]) -> tuple[Numbers, list[_Part]]:
    """Return all pairs of words that occur, in order, and each part with indices into them."""
    rows: list[Numbers] = []
    arrays: list[_Part] = []
    for keys, firsts, sizes in parts:
        unique, places = np.unique(keys, return_inverse=True)
        rows.append(unique)
        arrays.append(_Part(places.astype(np.int32), firsts, sizes))
    every = np.unique(np.concatenate(rows)) if rows else np.empty(0, np.int64)
    return every, [
        part._replace(pairs=np.searchsorted(every, unique).astype(np.int32)[part.pairs])
        for unique, part in zip(rows, arrays)
    ]
