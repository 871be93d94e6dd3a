"""Journals: the lines of a file translated so far, kept on disk until it is done."""

import sys
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.base.resume import Ledger
from fairseq_lasformer.documents.source import Line


class Journal:
    """The lines of a document translated so far, in a ledger with an entry per part, by its number.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.ledger = None if path is None else Ledger(path)

    def lines(self, most: int, n_words: int) -> list[Line]:
        """Read the kept lines. A journal that does not fit, or lacks a part, is discarded.

        Args:
            most: number of the document's lines.
            n_words: size of the target dictionary.
        """
        if self.ledger is None:
            return []
        entries, path = self.ledger.entries, self.ledger.path
        try:
            if (self.ledger.others and not entries) or [name for name, _ in entries] != [
                str(i) for i in range(len(entries))
            ]:
                raise ValueError
            read = [_kept_line(entry, n_words) for _, (lines,) in entries for entry in lines]
            if len(read) > most:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            print(f"note: {path}: damaged, so this file is translated from the start", file=sys.stderr)
            path.unlink(missing_ok=True)
            self.ledger = Ledger(path)
            return []
        return read

    def add(self, lines: list[Line]) -> None:
        """Keep the lines of a part."""
        if self.ledger is not None:
            number = str(len(self.ledger.entries))
            self.ledger.add(number, [[line.tokens.tolist(), *line[1:]] for line in lines])


def _kept_line(entry: Any, n_words: int) -> Line:
    """Parse a line of a journal."""
    tokens, score, repaired, flawed = entry
    words = isinstance(tokens, list) and all(type(t) is int and 0 <= t < n_words for t in tokens)
    if not words or not isinstance(score, float) or not isinstance(repaired, bool) or not isinstance(flawed, bool):
        raise ValueError("not a line")
    return Line(torch.tensor(tokens, dtype=torch.int64), score, repaired, flawed)
