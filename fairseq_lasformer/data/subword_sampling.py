"""Randomly drawn subwords, which show a model each word in many forms.

Kudo, arXiv 1804.10959 (sentencepiece's unigram model), and BPE-dropout, arXiv 1910.13267 (subword-nmt). sentencepiece's
own sampler takes its seed from the process, so a resumed training would not continue as it would have. This one depends
on the generator alone.
"""

import bisect
import itertools
import math
import random
import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.data.subwords import DataConfig, merges, subword_model, vocabulary

Sampler = Callable[[list[str], random.Random], list[str]]
"""Function from the subwords of a sentence to others of the same text."""

_UNKNOWN = 10.0  # sentencepiece's penalty for a character that no piece has, below the least probable piece
_SPACE = "\u2581"  # by which sentencepiece replaces a space
_WORDS = 1 << 15  # lattices that are kept, of 1 to 2 KB each


class Lattice(NamedTuple):
    """All segmentations of a word, by the position at which a piece ends, from 1."""

    starts: tuple[tuple[int, ...], ...]  # where the pieces that end there start
    chances: tuple[tuple[float, ...], ...]  # the cumulative probabilities of these pieces, without the last, which is 1


class UnigramSampler:
    """Sampler of segmentations, with probabilities proportional to their own to the power of ``alpha``.

    It uses forward filtering, backward sampling: the exact distribution over all segmentations (Kudo, section 3.3).
    Pieces do not cross a space, unless the model has some that do: so words are drawn one by one, and their lattices
    are kept.

    Args:
        pieces: log probability of each piece.
        alpha: 1 draws from the model itself, 0 uniformly from all segmentations.
    """

    def __init__(self, pieces: dict[str, float], alpha: float) -> None:
        self.scores = {piece: alpha * score for piece, score in pieces.items()}
        self.longest = max(map(len, pieces))
        self.unknown = alpha * (min(pieces.values()) - _UNKNOWN)
        crossing = any(_SPACE in piece[1:] for piece in pieces)
        self.word = re.compile(".+" if crossing else f"{_SPACE}?[^{_SPACE}]+|{_SPACE}", re.DOTALL)
        self.lattices: dict[str, Lattice] = {}

    def __call__(self, pieces: list[str], generator: random.Random) -> list[str]:
        drawn: list[str] = []
        for word in self.word.findall("".join(pieces)):
            starts, chances = self.lattices.get(word) or self._lattice(word)
            end, ways = len(word), []
            while end:
                known = chances[end - 1]
                start = starts[end - 1][bisect.bisect_right(known, generator.random()) if known else 0]
                ways.append(word[start:end])
                end = start
            drawn += ways[::-1]
        return drawn

    def _lattice(self, word: str) -> Lattice:
        """Filter forward, and keep the result."""
        scores, forward = self.scores, [0.0]  # by position: log of the sum over all ways to it
        starts, chances = [], []
        for end in range(1, len(word) + 1):
            first = max(0, end - self.longest)
            into = [(start, scores[word[start:end]]) for start in range(first, end) if word[start:end] in scores]
            if not into or into[-1][0] != end - 1:
                into.append((end - 1, self.unknown))
            ways = [forward[start] + score for start, score in into]
            best = max(ways)
            sums = list(itertools.accumulate(math.exp(way - best) for way in ways))
            forward.append(best + math.log(sums[-1]))
            starts.append(tuple(start for start, _ in into))
            chances.append(tuple(s / sums[-1] for s in sums[:-1]))
        if len(self.lattices) >= _WORDS:
            self.lattices.clear()
        return self.lattices.setdefault(word, Lattice(tuple(starts), tuple(chances)))


class BpeDropout:
    """Byte pair encoding that leaves out each merge with a given probability.

    A word keeps its usual subwords if one of the new ones is missing from the dictionary.

    Args:
        codes: file of the merges.
        p: probability of leaving out a merge.
        known: the dictionary.
    """

    def __init__(self, codes: Path, p: float, known: Container[str]) -> None:
        self.bpe = merges(codes)
        self.p, self.known = p, known

    def __call__(self, pieces: list[str], generator: random.Random) -> list[str]:
        state = random.getstate()
        random.seed(generator.getrandbits(64))  # subword-nmt draws from the global generator
        try:
            sampled: list[str] = []
            start = 0
            for end, piece in enumerate(pieces, 1):
                if not piece.endswith("@@"):  # the end of a word
                    usual, start = pieces[start:end], end
                    drawn = self.bpe.segment("".join(p.removesuffix("@@") for p in usual), self.p).split()
                    sampled += drawn if all(p in self.known for p in drawn) else usual
            return sampled + pieces[start:]
        finally:
            random.setstate(state)


def sampler(folder: Path, settings: DataConfig, language: str, alpha: float, known: Container[str]) -> Sampler:
    """Return the sampler for a language of a prepared folder.

    Args:
        alpha: see :class:`UnigramSampler`; for BPE, p of :class:`BpeDropout`.
        known: the dictionary of the language.
    """
    model = subword_model(folder, settings.bpe, "" if settings.joined_dictionary else language)
    if settings.bpe == "subword-nmt":
        return BpeDropout(model, alpha, known)
    return UnigramSampler(vocabulary(model), alpha)
