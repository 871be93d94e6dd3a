"""A translation memory in a file: an SQLite database with a full-text index of its source sentences.

One process adds pairs while others read (write-ahead log). This module splits sentences into words itself: text without
spaces between words is also indexed, and the index contains the words as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.errors import InputError

APPLICATION = 0x4C41534D
"""SQLite's ``application_id`` of these files."""

VERSION = 1
FREQUENT = 300
"""Minimum number of sentences with a frequent word; this number is stored, and the word's list is cut."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_FIRST = re.compile(rf"[{_UNSPACED}]")

_SCHEMA = {
    "settings": "CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "pairs": "CREATE TABLE pairs(id INTEGER PRIMARY KEY, key INTEGER NOT NULL, both INTEGER NOT NULL, "
    "origin INTEGER NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL)",
    "pairs_key": "CREATE INDEX pairs_key ON pairs(key)",
    "pairs_both": "CREATE UNIQUE INDEX pairs_both ON pairs(both)",
    "frequent": "CREATE TABLE frequent(word TEXT PRIMARY KEY, sentences INTEGER NOT NULL) WITHOUT ROWID",
    "files": "CREATE TABLE files(name TEXT PRIMARY KEY, done INTEGER NOT NULL, complete INTEGER NOT NULL) "
    "WITHOUT ROWID",
    "words": "CREATE VIRTUAL TABLE words USING fts5(source, content='', detail=none, columnsize=0, tokenize=ascii)",
    "held": "CREATE VIRTUAL TABLE held USING fts5vocab(words, row)",
}


class StoredPair(NamedTuple):
    """A sentence and its translation.

    Attributes:
        origin: number for where the pair comes from, chosen by the caller that adds it.
    """

    source: str
    target: str
    origin: int = 0


def words_of(text: str) -> list[str]:
    """Return the words of a sentence, in lower case; pairs of characters in scripts without spaces between words."""
    found: list[str] = []
    for run in _RUNS.findall(text.casefold()):
        if _FIRST.match(run):
            found += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
        else:
            found.append(run)
    return found


def _hash(*texts: str) -> int:
    """Return 64 bits of a hash, signed like SQLite's integers."""
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class MemoryStore:
    """An open translation memory.

    Args:
        path: the file; ``:memory:`` for a new one that is kept in memory.
        languages: languages of a new memory, or those expected of an existing one. None: whatever it has.
        writable: whether pairs are added; a file that does not exist is created.

    Raises:
        InputError: the file is not a memory, is damaged, or is for other languages.
    """

    def __init__(self, path: str | Path, languages: tuple[str, str] | None = None, writable: bool = False) -> None:
        self.path = path
        new = str(path) == ":memory:" or not Path(path).exists()
        if new and not writable:
            raise InputError(f"{path}: no such memory; build one with lasformer memory build")
        try:
            if writable:
                self.database = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
            else:
                self.database = sqlite3.connect(
                    f"{Path(path).absolute().as_uri()}?mode=ro", timeout=60.0, uri=True, check_same_thread=False
                )
            self.database.execute("PRAGMA trusted_schema = OFF")
            self.database.execute("PRAGMA cell_size_check = ON")
            if new:
                if languages is None:
                    raise InputError(f"{path}: name the languages of a new memory")
                self._create(languages)
            self._check()
            held = dict(self.database.execute("SELECT name, value FROM settings"))
            self.languages = held["source"], held["target"]
            if writable:
                self.database.execute("PRAGMA synchronous = NORMAL")
                self.database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as e:
            raise InputError(f"{path}: cannot be read as a memory ({e})") from e
        if languages is not None and self.languages != languages:
            raise InputError(
                f"{path}: is a memory for {self.languages[0]}-{self.languages[1]}, not {languages[0]}-{languages[1]}"
            )

    def _create(self, languages: tuple[str, str]) -> None:
        with self.database:
            self.database.execute("PRAGMA page_size = 8192")
            for statement in _SCHEMA.values():
                self.database.execute(statement)
            values = zip(("source", "target"), languages)
            self.database.executemany("INSERT INTO settings VALUES (?, ?)", values)
            self.database.execute(f"PRAGMA application_id = {APPLICATION}")
            self.database.execute(f"PRAGMA user_version = {VERSION}")

    def _check(self) -> None:
        """Refuse anything but a memory: a schema is code, so it must be the one that this module writes.

        Raises:
            InputError: the file is not a memory, or has a different version.
        """
        (application,) = self.database.execute("PRAGMA application_id").fetchone()
        (version,) = self.database.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise InputError(f"{self.path}: not a translation memory")
        if version != VERSION:
            raise InputError(f"{self.path}: is a memory of version {version}; this program reads version {VERSION}")
        found = dict(self.database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        own = {name: sql for name, sql in found.items() if not name.startswith("words_")}
        if own != _SCHEMA:
            raise InputError(f"{self.path}: damaged, or not a translation memory; unexpected tables")

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def __len__(self) -> int:
        (n,) = self.database.execute("SELECT count(*) FROM pairs").fetchone()
        return int(n)

    @property
    def state(self) -> tuple[int, int]:
        """Number of pairs, and hash of the last one."""
        found = self.database.execute("SELECT id, both FROM pairs ORDER BY id DESC LIMIT 1").fetchone()
        return (0, 0) if found is None else (int(found[0]), int(found[1]))

    def progress(self, name: str) -> tuple[int, bool]:
        """Return how many pairs of a file have been read, and whether these are all."""
        found = self.database.execute("SELECT done, complete FROM files WHERE name = ?", (name,)).fetchone()
        return (0, False) if found is None else (int(found[0]), bool(found[1]))

    def add(self, pairs: Sequence[StoredPair], name: str = "", done: int = 0, complete: bool = False) -> int:
        """Add pairs, all or none of them; a pair that is already in the memory is left out.

        Args:
            name: the file that they come from.
            done: number of its pairs that have been read with these.
            complete: whether these are all.

        Returns:
            number of new pairs.
        """
        with self.database:
            added = [pair for pair in pairs if self._insert(pair)]
            if name:
                row = (name, done, complete)
                self.database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", row)
        return len(added)

    def _insert(self, pair: StoredPair) -> bool:
        row = (_hash(pair.source), _hash(pair.source, pair.target), pair.origin, pair.source, pair.target)
        cursor = self.database.execute(
            "INSERT OR IGNORE INTO pairs(key, both, origin, source, target) VALUES (?, ?, ?, ?, ?)", row
        )
        if not cursor.rowcount:
            return False
        text = " ".join(words_of(pair.source))
        self.database.execute("INSERT INTO words(rowid, source) VALUES (?, ?)", (cursor.lastrowid, text))
        return True

    def finish(self) -> None:
        """Store which words are frequent, and make the memory a single file again, unless somebody reads it."""
        with self.database:
            self.database.execute("DELETE FROM frequent")
            self.database.execute("INSERT INTO frequent SELECT term, doc FROM held WHERE doc >= ?", (FREQUENT,))
        with contextlib.suppress(sqlite3.OperationalError):  # somebody reads it; the log next to the file is as good
            self.database.execute("PRAGMA journal_mode = DELETE")

    def frequent(self) -> dict[str, int]:
        """Return the frequent words, and the number of sentences that contain each."""
        return {str(word): int(n) for word, n in self.database.execute("SELECT word, sentences FROM frequent")}

    def holding(self, words: Sequence[str], most: int = FREQUENT) -> list[int]:
        """Return the numbers of at most ``most`` sentences that contain all these words."""
        asked = " AND ".join(f'"{word}"' for word in words)
        rows = self.database.execute("SELECT rowid FROM words WHERE words MATCH ? LIMIT ?", (asked, most))
        return [number for (number,) in rows]

    def pairs(self, numbers: Iterable[int]) -> dict[int, StoredPair]:
        """Return the pairs with these numbers."""
        asked = ",".join(str(int(number)) for number in numbers)
        rows = self.database.execute(f"SELECT id, source, target, origin FROM pairs WHERE id IN ({asked})")
        return {number: StoredPair(str(source), str(target), origin) for number, source, target, origin in rows}

    def exact(self, source: str) -> str | None:
        """Return the translation of exactly this sentence, the one added last; None if there is none."""
        query = "SELECT target FROM pairs WHERE key = ? AND source = ? ORDER BY id DESC LIMIT 1"
        found = self.database.execute(query, (_hash(source), source)).fetchone()
        return None if found is None else str(found[0])
