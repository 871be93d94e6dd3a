"""Finished translations: recording them, and putting them in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.doubts import Facts
from fairseq_lasformer.file_translation.receipt import ENDING
from fairseq_lasformer.files import atomic_write, beside, check_writable, first_wins, replacing
from fairseq_lasformer.resume import AppendedLines

FACTS = ".json"
"""Ending of the name of a file with a translation's receipt and counts, left for another process."""


class Made(NamedTuple):
    """A translated file, ready to be written.

    Attributes:
        receipt: see :mod:`file_translation.receipt`; empty for none.
        facts: counts of its lines.
    """

    text: bytes
    receipt: str = ""
    facts: Facts = Facts()

    def leave(self, path: Path, same: bool) -> None:
        """Leave it for another process, unless something was left there before.

        Args:
            same: whether that must be the same text.

        Raises:
            InputError: it is not the same, or cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(beside(path, FACTS), json.dumps([self.receipt, *self.facts]))
        with first_wins(path, same, binary=True) as file:
            file.write(self.text)

    @classmethod
    def left(cls, path: Path) -> Made:
        """Read what another process left."""
        receipt, *counts = json.loads(beside(path, FACTS).read_text(encoding="utf-8"))
        return cls(path.read_bytes(), receipt, Facts(*counts))

    @staticmethod
    def remove(path: Path) -> None:
        """Remove what another process left."""
        path.unlink(missing_ok=True)
        beside(path, FACTS).unlink(missing_ok=True)


class Done:
    """A record of files translated with certain settings: a line of key, name and counts each."""

    def __init__(self, path: Path) -> None:
        self.record = AppendedLines(path)
        rows = [(*line.split("\t"), "")[:3] for line in self.record.lines if "\t" in line]
        self.found = {(key, name): counts for key, name, counts in rows}
        self.names = {name for _, name in self.found}

    def _name(self, target: Path) -> str:
        return json.dumps(str(target.resolve()))

    def has(self, key: str, target: Path) -> bool:
        return target.is_file() and (key, self._name(target)) in self.found

    def facts(self, key: str, target: Path) -> Facts:
        """Return the counts of a finished file's lines; zero if they were not kept."""
        try:
            counts = json.loads(self.found[key, self._name(target)])
            if not all(type(count) in (int, float) for count in counts):
                raise ValueError
            return Facts(*counts)
        except (ValueError, TypeError, RecursionError):
            return Facts()

    def check(self, target: Path, inputs: set[Path], overwrite: bool, receipt: bool = False) -> None:
        """Refuse to write over something else.

        Args:
            inputs: the files that are read, resolved.
            overwrite: replace any other file.
            receipt: whether a receipt is written next to it.

        Raises:
            InputError: the target is, or links to, a file that is read; or it exists, and neither this run nor one
                that it resumes wrote it.
        """
        for path in [target, beside(target, ENDING)] if receipt else [target]:
            if path.resolve() in inputs:
                raise InputError(f"{path}: links to a file that is read; remove the link, or choose a different folder")
            if path.is_file() and not overwrite and self._name(target) not in self.names:
                raise InputError(f"{path}: exists already; --overwrite replaces it")
            check_writable(path)

    def place(self, key: str, target: Path, made: Made) -> None:
        """Write a translation and its receipt, and record that it is done.

        Raises:
            InputError: it or the record cannot be written.
        """
        self._add("", target)  # a run killed after the next line has written the file nevertheless
        with replacing(target, "wb") as file:
            file.write(made.text)
        if made.receipt:
            atomic_write(beside(target, ENDING), made.receipt)
        self._add(key, target, json.dumps(made.facts))

    def _add(self, key: str, target: Path, counts: str = "") -> None:
        name = self._name(target)
        if (key, name) in self.found:
            return
        self.record.add(f"{key}\t{name}" + (f"\t{counts}" if counts else ""))
        self.found[key, name] = counts
        self.names.add(name)
