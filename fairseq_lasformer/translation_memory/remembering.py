"""What a translator is given of a memory: for each sentence of a document, the pairs that are like it, as tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.text.lines import clean_line
from fairseq_lasformer.translation_memory.choosing import chosen
from fairseq_lasformer.translation_memory.matching import Match, Matcher
from fairseq_lasformer.translation_memory.store import MemoryStore

MATCHES = 3
"""Matches of each sentence, among which those are chosen that stand before a text."""

TOKENS = 256
"""Default of ``--memory-tokens``."""


class Remembered(NamedTuple):
    """The matches of a document.

    Attributes:
        matches: of each sentence, the best first.
        tokens: of each match, by its number: those of its source and of its target, int64.
        budget: most tokens of all that stand before a part.
        room: most tokens of these and the part together.
    """

    matches: Sequence[Sequence[Match]]
    tokens: Mapping[int, tuple[Tensor, Tensor]]
    budget: int
    room: int

    @property
    def reserve(self) -> int:
        """Tokens that parts of the document leave free."""
        return min(self.budget, sum(map(self.size, self.each)))

    def size(self, match: Match) -> int:
        """Tokens of a match, the longer side, and a separator."""
        return max(map(len, self.tokens[match.number])) + 1

    def before(self, start: int, end: int, filled: int) -> list[tuple[Tensor, Tensor]]:
        """The tokens of the pairs that stand before the sentences from ``start`` to ``end``, in order.

        Args:
            filled: tokens of what they stand before.
        """
        found = chosen(self.matches[start:end], self.size, min(self.budget, self.room - filled))
        return [self.tokens[match.number] for match in found]

    @property
    def each(self) -> list[Match]:
        """The matches of all sentences, each once."""
        return list({match.number: match for its in self.matches for match in its}.values())


class Memory:
    """A translation memory that is read while documents are translated; threads may share it.

    Args:
        path: a file that ``lasformer memory build`` wrote.
        languages: of the model, source and target.
        tokens: most tokens of the pairs before a text.
        exact: whether sentences that the memory holds exactly are translated as they are there.

    Raises:
        InputError: the file is no memory, or one of other languages.
    """

    def __init__(self, path: str | Path, languages: tuple[str, str], tokens: int = TOKENS, exact: bool = False) -> None:
        if tokens < 0:
            raise InputError(f"--memory-tokens {tokens}: at least 0")
        self.matcher = Matcher(MemoryStore(path, languages))
        self.tokens, self.exact = tokens, exact
        self.lock = threading.Lock()

    def exact_lines(self, lines: Mapping[int, str]) -> dict[int, str]:
        """The translations of lines that the memory holds exactly; none if they are not asked for.

        Args:
            lines: by their numbers.
        """
        if not self.exact:
            return {}
        with self.lock:
            found = {number: self.matcher.exact(clean_line(text)) for number, text in lines.items()}
        return {number: text for number, text in found.items() if text is not None and clean_line(text)}

    def remembered(
        self,
        sentences: Sequence[str],
        source: Callable[[str], Tensor],
        target: Callable[[str], Tensor],
        room: int,
    ) -> Remembered:
        """The matches of a document.

        Args:
            source, target: encode a sentence of either language.
            room: most tokens of an example.
        """
        with self.lock:
            found = [self.matcher.find(sentence, MATCHES) for sentence in sentences]
        matches = {match.number: match for its in found for match in its}
        tokens = {
            n: (source(clean_line(match.source)), target(clean_line(match.target))) for n, match in matches.items()
        }
        usable = {n for n, sides in tokens.items() if all(map(len, sides))}
        return Remembered([[m for m in its if m.number in usable] for its in found], tokens, self.tokens, room)

    @property
    def state(self) -> tuple[object, ...]:
        """What translations with this memory depend on."""
        return (*self.matcher.store.state, self.tokens, self.exact)
