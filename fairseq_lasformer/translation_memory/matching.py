"""Search for the sentences of a memory that are like a given one: found by rare words, ranked by likeness.

A word in few sentences says more than one in many: its weight is the logarithm of the number of sentences over the
number of those that contain it. Candidates are the sentences with the largest weight of shared words. Their likeness is
the mean of the share of the weight that is shared and of rapidfuzz's ratio of the characters.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from rapidfuzz import fuzz

from fairseq_lasformer.translation_memory.store import FREQUENT, MemoryStore, words_of

WORDS = 6
"""Maximum number of words of a sentence, the rarest ones, that are looked up."""

ENOUGH = 500
"""Number of sentences with one of these words after which no further word is looked up."""

CANDIDATES = 24
"""Number of sentences that are compared with the given one."""

LIKENESS = 0.3
"""Minimum likeness of a match."""


class Match(NamedTuple):
    """A sentence of a memory that is like one to be translated."""

    number: int  # number of the pair in the memory
    source: str
    target: str
    similarity: float  # from 0 to 1, where 1 is the same sentence
    shared: Mapping[str, float]  # words of both sentences, with their weights

    def shown(self) -> dict[str, object]:
        """Return the fields that users see."""
        return {"source": self.source, "translation": self.target, "similarity": round(self.similarity, 2)}


class Matcher:
    """Lookup of sentences in a memory.

    Args:
        store: an open memory; pairs added later are also found.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.frequent, self.size = store.frequent(), max(1, len(store))

    def find(self, sentence: str, most: int = 5) -> list[Match]:
        """Return the sentences most like this one, best first.

        Args:
            most: maximum number of sentences.
        """
        words = set(words_of(sentence))
        weights: dict[str, float] = {}
        scores: defaultdict[int, float] = defaultdict(float)
        rarest = sorted(words, key=lambda word: (self.frequent.get(word, 0), -len(word), word))[:WORDS]
        for word in rarest:
            if len(scores) >= ENOUGH:
                break
            ids = self.store.holding([word])
            weights[word] = math.log(1 + self.size / max(1, self.frequent.get(word, 0), len(ids)))
            for number in ids:
                scores[number] += weights[word]
        if len(scores) < ENOUGH and len(common := [word for word in rarest if word in self.frequent]) > 1:
            for number in self.store.holding(common[:3]):  # the lists of single frequent words are cut
                scores[number] += sum(weights[word] for word in common[:3] if word in weights)
        for word in words - weights.keys():
            weights[word] = math.log(1 + self.size / max(FREQUENT, self.frequent.get(word, 0)))
        best = heapq.nlargest(CANDIDATES, scores, key=scores.__getitem__)
        total = sum(weights.values())
        matches = []
        for number, pair in self.store.pairs(best).items():
            shared = {word: weights[word] for word in words_of(pair.source) if word in weights}
            ratio = fuzz.ratio(sentence, pair.source) / 100
            similarity = (sum(shared.values()) / total + ratio) / 2
            if similarity >= LIKENESS:
                matches.append(Match(number, pair.source, pair.target, similarity, shared))
        matches.sort(key=lambda match: (-match.similarity, -match.number))
        return _diverse(matches, most)

    def exact(self, sentence: str) -> str | None:
        """Return the translation of exactly this sentence; None if there is none."""
        return self.store.exact(sentence)


def _diverse(matches: list[Match], most: int) -> list[Match]:
    """Choose the best of ranked matches, then those covering most words that no better match covers; best first."""
    left, taken, shown = list(matches), list[Match](), set[str]()
    while left and len(taken) < most:
        best = max(left, key=lambda match: sum(w for word, w in match.shared.items() if word not in shown))
        best = best if taken else left[0]
        left.remove(best)
        taken.append(best)
        shown |= best.shared.keys()
    return sorted(taken, key=lambda match: (-match.similarity, -match.number))
