"""Training examples that begin with lines of other documents, as a translation with a memory does.

The lines are those that ``lasformer translate --memory`` would choose, with the other documents of the same file as the
memory. None has a source that is also a line of the example's own document.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from fairseq_lasformer.text.documents import Pair, Span
from fairseq_lasformer.translation_memory.choosing import chosen
from fairseq_lasformer.translation_memory.matching import Match, Matcher
from fairseq_lasformer.translation_memory.store import MemoryStore, StoredPair

AT_ONCE = 10000
"""Number of pairs that are added at a time."""

MATCHES = 3
"""Number of matches of each line to choose from."""


class MemoryExamples:
    """Chooser of lines from other documents for the examples of a file.

    Args:
        documents: the documents of the file.
        path: where the memory of the file is kept while examples are made.
        share: share of the examples that begin with such lines.
        most: maximum tokens of an example's lines; each example draws a number up to this.
    """

    def __init__(self, documents: Sequence[Pair], path: Path, share: float, most: int) -> None:
        self.share, self.most = share, most
        path.unlink(missing_ok=True)
        self.store = MemoryStore(path, ("source", "target"), writable=True)
        pairs: list[StoredPair] = []
        n = 0
        for document in documents:
            for source, target in zip(document.source, document.target):
                pairs.append(StoredPair(source, target, n))
                n += 1
                if len(pairs) == AT_ONCE:
                    self.store.add(pairs)
                    pairs = []
        self.store.add(pairs)
        self.store.finish()
        self.documents, self.matcher = documents, Matcher(self.store)
        self.known: tuple[int, dict[int, list[Match]]] = -1, {}

    def lines(self, document: int, span: Span, room: int, sizes: Sequence[int]) -> list[int]:
        """Choose the file's lines, by number, that an example begins with; none for most examples.

        Args:
            document: number of its document in the file.
            span: its lines.
            room: tokens that the example leaves free.
            sizes: tokens of each line of the file, the longer side.
        """
        rng = random.Random(f"{document} {span.start} {span.size}")
        if rng.random() >= self.share:
            return []
        budget = min(room, rng.randint(1, self.most))
        found = [self._matches(document, i) for i in range(span.start, span.start + span.size)]
        return [match.origin for match in chosen(found, lambda match: sizes[match.origin], budget)]

    def _matches(self, document: int, line: int) -> list[Match]:
        """Return the matches of a line."""
        if self.known[0] != document:
            self.known = document, {}
        if line not in self.known[1]:
            lines = self.documents[document].source
            own = set(lines)
            self.known[1][line] = self.matcher.find(lines[line], MATCHES, lambda other: other.source in own)
        return self.known[1][line]

    def close(self) -> None:
        """Remove the memory."""
        self.store.close()
        Path(self.store.path).unlink(missing_ok=True)
