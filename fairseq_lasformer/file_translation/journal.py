"""Journals: the lines of a file translated so far, kept on disk until it is done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.documents.source import Line
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import replacing


class Journal:
    """The lines of a document translated so far, in a file.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def lines(self, most: int, n_words: int) -> list[Line]:
        """Read the kept lines, except one cut short by a kill. A journal that does not parse or fit is discarded.

        Args:
            most: number of the document's lines.
            n_words: size of the target dictionary.
        """
        if self.path is None or not self.path.exists():
            return []
        try:
            kept = self.path.read_bytes().decode("utf-8").split("\n")[:-1]
            found = [_kept_line(entry, n_words) for text in kept for entry in json.loads(text)]
            if len(found) > most:
                raise ValueError
            whole = "".join(line + "\n" for line in kept)
            if self.path.stat().st_size != len(whole.encode()):
                with replacing(self.path) as file:
                    file.write(whole)
        except (ValueError, TypeError, OverflowError, RecursionError, OSError):
            print(f"note: {self.path}: damaged, so this file is translated from the start", file=sys.stderr)
            self.path.unlink(missing_ok=True)
            return []
        return found

    def add(self, lines: list[Line]) -> None:
        """Keep the lines of a part.

        Raises:
            InputError: they cannot be written.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps([[line.tokens.tolist(), *line[1:]] for line in lines]) + "\n")
        except OSError as e:
            raise InputError(f"{self.path}: cannot be written ({e.strerror})") from e


def _kept_line(entry: Any, n_words: int) -> Line:
    """Parse a line of a journal.

    Raises:
        ValueError: it is not a line.
    """
    tokens, score, repaired, flawed = entry
    words = isinstance(tokens, list) and all(type(t) is int and 0 <= t < n_words for t in tokens)
    if not words or not isinstance(score, float) or not isinstance(repaired, bool) or not isinstance(flawed, bool):
        raise ValueError("not a line")
    return Line(torch.tensor(tokens, dtype=torch.int64), score, repaired, flawed)
