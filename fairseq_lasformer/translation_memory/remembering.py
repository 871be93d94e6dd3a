"""A memory for a translator: exact matches, terms, and the pairs that are like each sentence of a document."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_lasformer.evaluation.term_pairs import find
from fairseq_lasformer.text.documents import Pair
from fairseq_lasformer.text.lines import clean_line
from fairseq_lasformer.translation_memory.matching import Match, Matcher
from fairseq_lasformer.translation_memory.store import MemoryStore

MATCHES = 3
"""Number of matches of each sentence."""

MOST = 100_000
"""Maximum number of pairs of a memory whose terms are found when it is opened; in 12 seconds."""

SURE = 0.95
"""Minimum Dice coefficient of a term and its translation; see :mod:`term_pairs`."""


def terms_of(store: MemoryStore, least: int = 5) -> list[tuple[str, str]]:
    """Return the terms of a memory: names and nouns with capitals that it always translates by the same words.

    Args:
        least: minimum number of pairs with a term.
    """
    return find([Pair(*map(list, zip(*store.everything())))], least, sure=SURE) if len(store) else []


class Memory:
    """A translation memory that is read while documents are translated; threads may share it.

    Sentences found verbatim in it get their translation there, and its terms theirs.

    Args:
        path: a file that ``lasformer memory build`` wrote.
        languages: source and target language of the model.

    Raises:
        InputError: the file is not a memory, or is for other languages.
    """

    def __init__(self, path: str | Path, languages: tuple[str, str]) -> None:
        self.matcher = Matcher(MemoryStore(path, languages))
        self.lock = threading.Lock()

    @functools.cached_property
    def terms(self) -> list[tuple[str, str]]:
        """Its terms, see :func:`terms_of`; none of a memory with more than :data:`MOST` pairs, which is said."""
        store = self.matcher.store
        with self.lock:
            if len(store) <= MOST:
                return terms_of(store)
        print(
            f"note: {store.path}: more than {MOST:,} pairs, whose terms are not looked for each time; write them once: "
            f"lasformer memory terms {store.path} > terms.tsv, then add --glossary terms.tsv",
            file=sys.stderr,
        )
        return []

    def exact_lines(self, lines: Mapping[int, str]) -> dict[int, str]:
        """Return the translations of lines found verbatim in the memory.

        Args:
            lines: lines by their numbers.
        """
        with self.lock:
            exact = {number: self.matcher.exact(clean_line(text)) for number, text in lines.items()}
        return {number: text for number, text in exact.items() if text is not None and clean_line(text)}

    def matches(self, sentences: Sequence[str]) -> list[list[Match]]:
        """Return the pairs that are similar to each sentence, best first."""
        with self.lock:
            matches = [self.matcher.find(sentence, MATCHES) for sentence in sentences]
        return [[m for m in its if clean_line(m.source) and clean_line(m.target)] for its in matches]

    @property
    def state(self) -> tuple[object, ...]:
        """State that translations with this memory depend on."""
        return self.matcher.store.state
