"""Memory pairs for a translator: those that are like each sentence of a document, as tokens."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fairseq_lasformer.evaluation.term_pairs import find
from fairseq_lasformer.text.documents import Pair
from fairseq_lasformer.text.lines import clean_line
from fairseq_lasformer.translation_memory.choosing import chosen
from fairseq_lasformer.translation_memory.matching import Match, Matcher
from fairseq_lasformer.translation_memory.store import MemoryStore

MATCHES = 3
"""Number of matches of each sentence; from them, the pairs before a text are chosen."""

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


class Remembered(NamedTuple):
    """The matches of a document."""

    matches: Sequence[Sequence[Match]]  # matches of each sentence, best first
    # tokens of each match, by its number: those of its source and of its target, int64
    tokens: Mapping[int, tuple[Tensor, Tensor]]
    budget: int  # maximum number of tokens of all pairs before a part; 0 for models that were not trained to read them
    room: int  # maximum number of tokens of these pairs and the part together

    @property
    def reserve(self) -> int:
        """Number of tokens that parts of the document leave free."""
        return min(self.budget, sum(map(self.size, self.each)))

    def size(self, match: Match) -> int:
        """Count the tokens of a match, on the longer side, and a separator."""
        return max(map(len, self.tokens[match.number])) + 1

    def before(self, start: int, end: int, filled: int) -> list[tuple[Tensor, Tensor]]:
        """Return the tokens of the pairs before the sentences from ``start`` to ``end``, in order.

        Args:
            filled: number of tokens of the text that they precede.
        """
        found = chosen(self.matches[start:end], self.size, min(self.budget, self.room - filled))
        return [self.tokens[match.number] for match in found]

    @property
    def each(self) -> list[Match]:
        """The matches of all sentences, each once."""
        return list({match.number: match for its in self.matches for match in its}.values())


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
            found = {number: self.matcher.exact(clean_line(text)) for number, text in lines.items()}
        return {number: text for number, text in found.items() if text is not None and clean_line(text)}

    def remembered(
        self,
        sentences: Sequence[str],
        source: Callable[[str], Tensor],
        target: Callable[[str], Tensor],
        room: int,
        budget: int,
    ) -> Remembered:
        """Return the matches of a document.

        Args:
            source, target: encode a sentence of either language.
            room: maximum number of tokens of an example.
            budget: see :class:`Remembered`.
        """
        with self.lock:
            found = [self.matcher.find(sentence, MATCHES) for sentence in sentences]
        matches = {match.number: match for its in found for match in its}
        tokens = {
            n: (source(clean_line(match.source)), target(clean_line(match.target))) for n, match in matches.items()
        }
        usable = {n for n, sides in tokens.items() if all(map(len, sides))}
        return Remembered([[m for m in its if m.number in usable] for its in found], tokens, budget, room)

    @property
    def state(self) -> tuple[object, ...]:
        """State that translations with this memory depend on."""
        return self.matcher.store.state
