"""Randomly drawn subwords, which show a model each word in many forms.

Kudo, arXiv 1804.10959 (sentencepiece's unigram model), and BPE-dropout, arXiv 1910.13267 (subword-nmt). sentencepiece's
own sampler takes its seed from the process, so a resumed training would not continue as it would have. This one depends
on the generator alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container
from pathlib import Path

from fairseq_lasformer.data.subwords import DataConfig, merges, subword_model, vocabulary

Sampler = Callable[[list[str], random.Random], list[str]]
"""Function from the subwords of a sentence to others of the same text."""

_UNKNOWN = 10.0  # sentencepiece's penalty for a character that no piece has, below the least probable piece


class UnigramSampler:
    """Sampler of segmentations, with probabilities proportional to their own to the power of ``alpha``.

    It uses forward filtering, backward sampling: the exact distribution over all segmentations (Kudo, section 3.3).

    Args:
        pieces: log probability of each piece.
        alpha: 1 draws from the model itself, 0 uniformly from all segmentations.
    """

    def __init__(self, pieces: dict[str, float], alpha: float) -> None:
        self.scores = {piece: alpha * score for piece, score in pieces.items()}
        self.longest = max(map(len, pieces))
        self.unknown = alpha * (min(pieces.values()) - _UNKNOWN)

    def __call__(self, pieces: list[str], generator: random.Random) -> list[str]:
        text, scores = "".join(pieces), self.scores
        forward, ways = [0.0], [[(0, 0.0)]]  # by position: log of the sum over all ways to it; their last pieces
        for end in range(1, len(text) + 1):
            into = []
            for start in range(max(0, end - self.longest), end):
                score = scores.get(text[start:end])
                if score is not None:
                    into.append((start, forward[start] + score))
            if not into or into[-1][0] != end - 1:
                into.append((end - 1, forward[end - 1] + self.unknown))
            best = max(score for _, score in into)
            forward.append(best + math.log(sum(math.exp(score - best) for _, score in into)))
            ways.append(into)
        drawn: list[str] = []
        end = len(text)
        while end:
            chances = [math.exp(score - forward[end]) for _, score in ways[end]]
            start = generator.choices(ways[end], chances)[0][0]
            drawn.append(text[start:end])
            end = start
        return drawn[::-1]


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
            made: list[str] = []
            start = 0
            for end, piece in enumerate(pieces, 1):
                if not piece.endswith("@@"):  # the end of a word
                    usual, start = pieces[start:end], end
                    drawn = self.bpe.segment("".join(p.removesuffix("@@") for p in usual), self.p).split()
                    made += drawn if all(p in self.known for p in drawn) else usual
            return made + pieces[start:]
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
