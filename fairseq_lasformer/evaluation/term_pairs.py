"""Term pairs of a parallel text, names or randomly drawn words with their translations, for terminology scores.

As in WMT25's terminology task, translations are compared without terms, with the right ones (names) and with random
ones. A target term is paired with the source n-gram that has the highest Dice coefficient with it over lines.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fairseq_lasformer.text.documents import Pair

SURE = 0.8
"""Minimum Dice coefficient of a term and its translation."""

_UNSPACED = re.compile("[\u3400-\u9fff\u3040-\u30ff]")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+(?: [A-Z][a-z]+)?\b")
_WORDS = re.compile(r"\w+")
_WORD = re.compile(r"\b[a-z]{4,}\b")


def _ngrams(line: str) -> set[str]:
    """Return the possible terms of a line: 2 to 8 letters of a script without spaces, 1 to 3 words of any other."""
    ngrams = set()
    if _UNSPACED.search(line):
        for part in re.findall(r"[\w·]+", line):
            ngrams |= {part[i : i + n] for n in range(2, 9) for i in range(len(part) - n + 1)}
        return ngrams
    words = re.findall(r"\w+", line)
    return {" ".join(words[i : i + n]) for n in range(1, 4) for i in range(len(words) - n + 1)}


def _pairs(
    lines: Sequence[tuple[set[str], str]],
    places: Mapping[str, set[int]],
    totals: Counter[str],
    targets: Iterable[str],
    sure: float,
) -> dict[str, tuple[float, str]]:
    """Return target terms that have a reliable source n-gram: by n-gram, the surest one, after how sure it is.

    Args:
        lines: n-grams of the source, and the target line.
        places: numbers of the lines whose target has a word.
        totals: number of lines with each n-gram.
        sure: minimum Dice coefficient.
    """
    pairs: dict[str, tuple[float, str]] = {}
    for target in targets:
        pattern, n_words = re.compile(rf"\b{re.escape(target)}\b"), len(target.split())
        near = set.intersection(*(places.get(word, set()) for word in _WORDS.findall(target)))
        translations = [lines[i][0] for i in near if pattern.search(lines[i][1])]
        together = Counter(ngram for ngrams in translations for ngram in ngrams)
        dice = {n: 2 * count / (totals[n] + len(translations)) for n, count in together.items()}
        # of those that are as sure, one of as many words: in a small text, "our customer" is as sure as "customer"
        best = max(dice, key=lambda n: (dice[n], -abs(len(n.split()) - n_words), len(n), n), default="")
        if best and dice[best] >= sure and dice[best] > pairs.get(best, (0.0, ""))[0]:
            pairs[best] = dice[best], target
    return pairs


def find(
    documents: Sequence[Pair], minimum: int = 5, seed: int | None = None, sure: float = SURE
) -> list[tuple[str, str]]:
    """Return the terms of documents and their translations; a term has one, as a glossary requires.

    Args:
        documents: source, and target in a language that writes names with capital letters.
        minimum: number of lines in which a term occurs.
        sure: minimum Dice coefficient of a term and its translation.
        seed: None for names; otherwise, as many other words are drawn at random with this seed.
    """
    lines = [(_ngrams(source), target) for pair in documents for source, target in zip(pair.source, pair.target)]
    totals = Counter(ngram for ngrams, _ in lines for ngram in ngrams)
    places: dict[str, set[int]] = {}
    for i, (_, line) in enumerate(lines):
        for word in _WORDS.findall(line):
            places.setdefault(word, set()).add(i)
    names = Counter(name for _, line in lines for name in set(_NAME.findall(line)))
    pairs = _pairs(lines, places, totals, sorted(name for name, n in names.items() if n >= minimum), sure)
    if seed is None:
        return [(source, target) for source, (_, target) in pairs.items()]
    words = Counter(word for _, line in lines for word in set(_WORD.findall(line)))
    other = [word for word, n in sorted(words.items()) if minimum <= n <= 50]
    random.Random(seed).shuffle(other)
    drawn: dict[str, tuple[float, str]] = {}
    for start in range(0, len(other), 100):
        if len(drawn) >= len(pairs):
            break
        drawn = _pairs(lines, places, totals, other[start : start + 100], sure) | drawn
    return sorted((source, target) for source, (_, target) in [*drawn.items()][: len(pairs)])
