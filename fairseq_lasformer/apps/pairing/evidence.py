"""Evidence that two texts are translations of each other: their words and lengths, as log odds."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_lasformer.data.lexicon import lexicon

HIT = 0.8
"""Probability that a word which both languages have is in the translation of its text."""

SUREST = 0.9
"""Maximum probability that a translation of a word is in the translation of its text."""

LIFT = 2.0
"""How many times as frequent a translation of a word is beside it as elsewhere, at least."""

STRONGEST = 4.0
"""Maximum log odds of a single word."""

SEEN = 3
"""Number of pairs in which a word must occur for its translations to count; below, a pair would confirm itself."""

BEST = 4
"""Number of translations of a word that count."""

VARIANCE = 6.8
"""Variance of the length of a translation, per character (Gale and Church, 1993, section 3.2)."""

CLOSE = 0.5
"""Log odds of texts whose lengths agree."""

FARTHEST = -6.0
"""Minimum log odds of lengths."""

# scripts without spaces between words are read character by character
_WORD = re.compile(r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0002ffff]|\w+")

Words = frozenset[str]


def words_of(text: str) -> Words:
    """Return the different words of a text, in lower case."""
    return frozenset(_WORD.findall(text.lower()))


class Evidence(NamedTuple):
    """Knowledge about the words of one direction."""

    translations: Mapping[str, Words]  # of each known word
    # present, absent: log odds, for each known word, of a text with and without one of its translations
    present: Mapping[str, float]
    absent: Mapping[str, float]

    def between(self, source: Sequence[Words], target: Sequence[Words]) -> np.ndarray:
        """Return the log odds [N, M] of the words of N texts, given M texts."""
        known = sorted({word for text in source for word in text} & self.translations.keys())
        if not known:
            return np.zeros((len(source), len(target)), dtype=np.float32)
        row = {word: i for i, word in enumerate(known)}
        among = np.zeros((len(source), len(known)), dtype=np.float32)
        for i, text in enumerate(source):
            among[i, [row[word] for word in text if word in row]] = 1
        places: dict[str, list[int]] = {}
        for j, text in enumerate(target):
            for word in text:
                places.setdefault(word, []).append(j)
        hits = np.zeros((len(known), len(target)), dtype=np.float32)
        for i, word in enumerate(known):
            for other in self.translations[word]:
                hits[i, places.get(other, [])] = 1
        present, absent = (np.array([odds[w] for w in known], np.float32) for odds in (self.present, self.absent))
        return among @ (hits * (present - absent)[:, None] + absent[:, None])


def evidence(
    translations: Mapping[str, Words],
    frequency: Mapping[str, int],
    n_texts: int,
    hits: Mapping[str, float] | None = None,
) -> Evidence:
    """Weigh translations by how rare they are.

    Args:
        frequency: number of target texts in which each word occurs, of ``n_texts``.
        hits: for each word, the probability that one of its translations is in the translation of its text; default:
            :data:`HIT`.
    """
    present, absent = {}, {}
    for word, others in translations.items():
        chance = (sum(frequency.get(other, 0) for other in others) + 0.5) / (n_texts + 1)
        hit = HIT if hits is None else hits[word]
        useful = chance < hit
        present[word] = min(STRONGEST, float(np.log(hit / chance))) if useful else 0.0
        absent[word] = float(np.log((1 - hit) / (1 - chance))) if useful else 0.0
    return Evidence(translations, present, absent)


class Comparison(NamedTuple):
    """Comparison of texts in two languages."""

    # forward, backward: evidence of source words, and of target words
    forward: Evidence
    backward: Evidence
    ratio: float  # characters of a translation per character of its source

    def words(self, source: Sequence[str], target: Sequence[str]) -> np.ndarray:
        """Return the log odds [N, M] of the words of texts, the mean of both directions."""
        a, b = [words_of(text) for text in source], [words_of(text) for text in target]
        return (self.forward.between(a, b) + self.backward.between(b, a).T) / 2

    def lengths(self, source: Sequence[str], target: Sequence[str]) -> np.ndarray:
        """Return the log odds [N, M] of the lengths of texts."""
        n = np.array([len(text) for text in source], dtype=np.float32)[:, None] * self.ratio
        m = np.array([len(text) for text in target], dtype=np.float32)
        z = (m - n) ** 2 / (VARIANCE * (m + n) / 2)
        return np.maximum(CLOSE - z / 2, FARTHEST)

    def texts(self, source: Sequence[str], target: Sequence[str]) -> np.ndarray:
        """Return the log odds [N, M] that texts are translations of each other; all texts have words or signs."""
        return self.words(source, target) + self.lengths(source, target)


def common_words(source: Iterable[str], target: Iterable[str], ratio: float = 1.0) -> Comparison:
    """Compare texts by words that both languages have: numbers, names."""
    sides = [Counter(word for text in set(texts) for word in words_of(text)) for texts in (source, target)]
    shared = {word: frozenset((word,)) for word in sides[0].keys() & sides[1].keys()}
    columns = []
    for side in (sides[1], sides[0]):
        weighed = evidence(shared, side, max(side.values(), default=1) + len(side))
        # a word that is missing may have been translated; a number would not be
        absent = {word: -1.0 if word.isdecimal() else 0.0 for word in shared}
        columns.append(weighed._replace(absent=absent))
    return Comparison(columns[0], columns[1], ratio)


def learned_words(pairs: Iterable[tuple[str, str]]) -> Comparison:
    """Compare texts by translations learned from pairs of texts, most of which belong together (IBM's Model 1)."""
    unique = sorted(set(pairs))
    texts = [[words_of(pair[side]) for pair in unique] for side in (0, 1)]
    frequency = [Counter(word for text in side for word in text) for side in texts]
    names = [sorted(side) for side in frequency]
    numbers = [{word: i for i, word in enumerate(side)} for side in names]
    lines = [
        [np.array(sorted(numbers[side][w] for w in text), dtype=np.int64) for text in texts[side]] for side in (0, 1)
    ]
    entries = []
    for a, b in ((0, 1), (1, 0)):
        learned = lexicon(list(zip(lines[a], lines[b])), (len(names[a]), len(names[b])), BEST)
        likely = {
            word: frozenset(names[b][i] for i in learned.words[learned.starts[k] : learned.starts[k + 1]])
            for k, word in enumerate(names[a])
            if frequency[a][word] >= SEEN
        }
        translations, hits = _associated(likely, texts[a], texts[b], frequency[a], frequency[b])
        entries.append(evidence(translations, frequency[b], len(unique), hits))
    sizes = [sum(len(pair[side]) for pair in unique) for side in (0, 1)]
    return Comparison(entries[0], entries[1], sizes[1] / max(1, sizes[0]))


def _associated(
    likely: Mapping[str, Words],
    source: Sequence[Words],
    target: Sequence[Words],
    n_source: Mapping[str, int],
    n_target: Mapping[str, int],
) -> tuple[dict[str, Words], dict[str, float]]:
    """Keep the translations that are more frequent beside their word than elsewhere, and count how often one is there.

    Args:
        likely: candidates, among which Model 1 also leaves words that are frequent everywhere.
        source, target: the words of each pair of texts.
        n_source, n_target: number of texts in which each word occurs.
    """
    both: Counter[tuple[str, str]] = Counter()
    for here, there in zip(source, target):
        both.update((word, other) for word in here for other in likely.get(word, ()) if other in there)
    n = len(source)
    associated = {
        word: frozenset(t for t in others if both[word, t] * n >= LIFT * n_source[word] * n_target[t])
        for word, others in likely.items()
    }
    hits: Counter[str] = Counter()
    for here, there in zip(source, target):
        hits.update(word for word in here if associated.get(word, frozenset()) & there)
    translations = {word: others for word, others in associated.items() if others}
    return translations, {word: min(SUREST, (hits[word] + 1) / (n_source[word] + 2)) for word in translations}
