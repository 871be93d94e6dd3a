"""Finished translations: recording them, and putting them in place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, beside, check_writable, file_hash, first_wins, replacing
from fairseq_lasformer.base.resume import Ledger
from fairseq_lasformer.evaluation.doubts import Facts

FACTS = ".json"
"""Ending of the name of a file with a translation's counts, left for another process."""


class Made(NamedTuple):
    """A translated file, ready to be written."""

    text: bytes
    facts: Facts = Facts()  # counts of its lines

    def leave(self, path: Path, same: bool) -> None:
        """Leave it for another process, unless something was left there before.

        Args:
            same: whether that must be the same text.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(beside(path, FACTS), json.dumps(self.facts))
        with first_wins(path, same, binary=True) as file:
            file.write(self.text)

    @classmethod
    def left(cls, path: Path) -> Made:
        """Read what another process left."""
        return cls(path.read_bytes(), Facts(*json.loads(beside(path, FACTS).read_text(encoding="utf-8"))))

    @staticmethod
    def remove(path: Path) -> None:
        """Remove what another process left."""
        path.unlink(missing_ok=True)
        beside(path, FACTS).unlink(missing_ok=True)


_FROM = "from "  # before the place of the source, in a line of the ledger


class Done:
    """A ledger of translated files, by place: the settings' key, the text's SHA-256, the source, the counts of lines.

    A key that is empty says that a file is about to be written, over one with a SHA-256 that follows, if any.
    """

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.names = {*self.ledger.values}

    def _held(self, key: str, target: Path) -> list[Any] | None:
        entry = self.ledger.values.get(_name(target))
        return entry[1:] if entry and entry[0] == key else None

    def has(self, key: str, target: Path) -> bool:
        return target.is_file() and self._held(key, target) is not None

    def facts(self, key: str, target: Path) -> Facts:
        """Return the counts of a finished file's lines; zero if they were not kept."""
        counts = [count for count in self._held(key, target) or () if type(count) is not str]
        if len(counts) > len(Facts._fields) or not all(type(count) in (int, float) for count in counts):
            return Facts()
        return Facts(*counts)

    def check(self, source: Path, target: Path, overwrite: bool) -> None:
        """Refuse to write over anything but an earlier translation of this file.

        Args:
            overwrite: replace any other file.
        """
        if target.is_file() and not overwrite:
            if _name(target) not in self.names:
                raise InputError(f"{target}: exists already; --overwrite replaces it")
            if (before := self._source(target)) and before != _name(source):
                raise InputError(f"{target}: is the translation of another file, {before}; --overwrite replaces it")
            if (ours := self._texts(target)) and file_hash(target) not in ours:
                raise InputError(f"{target}: has been changed since it was translated; --overwrite replaces it")
        check_writable(target)

    def place(self, key: str, source: Path, target: Path, made: Made) -> None:
        """Write a translation, and record that it is done."""
        text, before = hashlib.sha256(made.text).hexdigest(), self._texts(target)
        if text not in before:  # a run killed after it has written the file must know it again
            self._add(target, "", text, *before, _FROM + _name(source))
        with replacing(target, "wb") as file:
            file.write(made.text)
        if self._held(key, target) is None:
            self._add(target, key, text, _FROM + _name(source), *made.facts)

    def _texts(self, target: Path) -> list[str]:
        """Return the SHA-256 of what was written there, the newest first; none from a ledger that lacks them."""
        return [text for text in self._words(target) if not text.startswith(_FROM)]

    def _source(self, target: Path) -> str:
        """Return the place of the file that was translated; empty from a ledger that lacks it."""
        return next((text.removeprefix(_FROM) for text in self._words(target) if text.startswith(_FROM)), "")

    def _words(self, target: Path) -> list[str]:
        return [text for text in self.ledger.values.get(_name(target), ())[1:] if type(text) is str]

    def _add(self, target: Path, key: str, text: str, *rest: str | float) -> None:
        self.ledger.add(_name(target), key, text, *rest)
        self.names.add(_name(target))


def _name(target: Path) -> str:
    return str(target.resolve())
