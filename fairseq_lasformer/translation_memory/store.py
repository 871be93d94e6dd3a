"""A translation memory in a file: an SQLite database with a full-text index of its source sentences.

One process adds pairs while others read (write-ahead log). This module splits sentences into words itself: text without
spaces between words is also indexed, and the index contains the words as they are.
"""

import contextlib
import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.base.errors import InputError

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
_OF_INDEX = {  # the tables in which SQLite keeps the index
    "words_data": "CREATE TABLE 'words_data'(id INTEGER PRIMARY KEY, block BLOB)",
    "words_idx": "CREATE TABLE 'words_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID",
    "words_config": "CREATE TABLE 'words_config'(k PRIMARY KEY, v) WITHOUT ROWID",
}

_STEPS, _MOST_STEPS = 1_000_000, 500
"""Number of instructions of SQLite's machine after which a query is looked at, and how often it may be: seconds."""


class StoredPair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def words_of(text: str) -> list[str]:
    """Return the words of a sentence, in lower case; pairs of characters in scripts without spaces between words."""
    words: list[str] = []
    for run in _RUNS.findall(text.casefold()):
        if _FIRST.match(run):
            words += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
        else:
            words.append(run)
    return words


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
    """

    def __init__(self, path: str | Path, languages: tuple[str, str] | None = None, writable: bool = False) -> None:
        self.path = path
        new = str(path) == ":memory:" or not Path(path).exists()
        if new and not writable:
            raise InputError(f"{path}: no such memory; build one with lasformer memory build")
        with self._reported():
            if writable:
                self.database = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
            else:
                self.database = sqlite3.connect(
                    f"{Path(path).absolute().as_uri()}?mode=ro", timeout=60.0, uri=True, check_same_thread=False
                )
            self._looked = 0
            self.database.set_progress_handler(self._too_long, _STEPS)
            self._rows("PRAGMA trusted_schema = OFF")
            self._rows("PRAGMA cell_size_check = ON")
            if writable and self._is_empty():
                if languages is None:
                    raise InputError(f"{path}: name the languages of a new memory")
                self._create(languages)
            self._check()
            settings = dict(self._rows("SELECT name, value FROM settings"))
            if not {"source", "target"} <= settings.keys():
                raise InputError(f"{path}: damaged; it does not name its languages")
            self.languages = str(settings["source"]), str(settings["target"])
            if writable:
                self._rows("PRAGMA synchronous = NORMAL")
                self._rows("PRAGMA journal_mode = WAL")
        if languages is not None and self.languages != languages:
            raise InputError(
                f"{path}: is a memory for {self.languages[0]}-{self.languages[1]}, not {languages[0]}-{languages[1]}"
            )

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report in one line what SQLite refuses."""
        try:
            yield
        except sqlite3.OperationalError as e:
            raise InputError(f"{self.path}: cannot be read or written as a memory ({e})") from e
        except (sqlite3.Error, UnicodeError) as e:
            raise InputError(f"{self.path}: damaged, or not a memory ({e})") from e

    def _too_long(self) -> bool:
        self._looked += 1
        return self._looked > _MOST_STEPS

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        self._looked = 0
        with self._reported():
            return self.database.execute(query, values).fetchall()

    def _is_empty(self) -> bool:
        """Return whether there is nothing in the file: it is new, or its creation was killed."""
        return not self._rows("SELECT 1 FROM sqlite_master") and self._rows("PRAGMA application_id") == [(0,)]

    def _create(self, languages: tuple[str, str]) -> None:
        """Create the tables, all or none."""
        self._rows("PRAGMA page_size = 8192")
        with self._reported(), self.database:
            self._rows("BEGIN IMMEDIATE")
            for statement in _SCHEMA.values():
                self._rows(statement)
            self.database.executemany("INSERT INTO settings VALUES (?, ?)", zip(("source", "target"), languages))
            self._rows(f"PRAGMA application_id = {APPLICATION}")
            self._rows(f"PRAGMA user_version = {VERSION}")

    def _check(self) -> None:
        """Refuse anything but a memory: a schema is code, so it must be the one that this module writes."""
        ((application,),) = self._rows("PRAGMA application_id")
        ((version,),) = self._rows("PRAGMA user_version")
        if application != APPLICATION:
            raise InputError(f"{self.path}: not a translation memory")
        if version != VERSION:
            raise InputError(f"{self.path}: is a memory of version {version}; this program reads version {VERSION}")
        objects = [("index" if " INDEX " in sql else "table", name, sql) for name, sql in (_SCHEMA | _OF_INDEX).items()]
        if sorted(self._rows("SELECT type, name, coalesce(sql, '') FROM sqlite_master")) != sorted(objects):
            raise InputError(f"{self.path}: damaged, or not a translation memory; unexpected tables")

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def __len__(self) -> int:
        ((n,),) = self._rows("SELECT count(*) FROM pairs")
        return int(n)

    @property
    def state(self) -> tuple[int, int]:
        """Number of pairs, and hash of the last one."""
        rows = self._rows("SELECT id, both FROM pairs ORDER BY id DESC LIMIT 1")
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    def progress(self, name: str) -> tuple[int, bool]:
        """Return how many pairs of a file have been read, and whether these are all."""
        rows = self._rows("SELECT done, complete FROM files WHERE name = ?", name)
        return (int(rows[0][0]), bool(rows[0][1])) if rows else (0, False)

    def add(self, pairs: Sequence[StoredPair], name: str = "", done: int = 0, complete: bool = False) -> int:
        """Add pairs, all or none of them; a pair that is already in the memory is left out.

        Args:
            name: the file that they come from.
            done: number of its pairs that have been read with these.
            complete: whether these are all.

        Returns:
            number of new pairs.
        """
        with self._reported(), self.database:
            added = [pair for pair in pairs if self._insert(pair)]
            if name:
                self._rows("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", name, done, complete)
        return len(added)

    def _insert(self, pair: StoredPair) -> bool:
        row = (_hash(pair.source), _hash(pair.source, pair.target), 0, pair.source, pair.target)
        self._looked = 0
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
        with self._reported(), self.database:
            self._rows("DELETE FROM frequent")
            self._rows("INSERT INTO frequent SELECT term, doc FROM held WHERE doc >= ?", FREQUENT)
        with contextlib.suppress(sqlite3.OperationalError):  # somebody reads it; the log next to the file is as good
            self.database.execute("PRAGMA journal_mode = DELETE")

    def frequent(self) -> dict[str, int]:
        """Return the frequent words, and the number of sentences that contain each."""
        rows = self._rows("SELECT word, sentences FROM frequent")
        if not all(isinstance(n, int) for _, n in rows):
            raise InputError(f"{self.path}: damaged; its counts of words are not numbers")
        return {str(word): n for word, n in rows}

    def holding(self, words: Sequence[str], most: int = FREQUENT) -> list[int]:
        """Return the numbers of at most ``most`` sentences that contain all these words."""
        asked = " AND ".join(f'"{word}"' for word in words)
        rows = self._rows("SELECT rowid FROM words WHERE words MATCH ? LIMIT ?", asked, most)
        return [number for (number,) in rows]

    def pairs(self, numbers: Iterable[int]) -> dict[int, StoredPair]:
        """Return the pairs with these numbers."""
        asked = ",".join(str(int(number)) for number in numbers)
        rows = self._rows(f"SELECT id, source, target FROM pairs WHERE id IN ({asked})")
        return {number: StoredPair(str(source), str(target)) for number, source, target in rows}

    def everything(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of all pairs, in the order in which they were added."""
        yield from ((str(a), str(b)) for a, b in self._rows("SELECT source, target FROM pairs ORDER BY id"))

    def exact(self, source: str) -> str | None:
        """Return the translation of exactly this sentence, the one added last; None if there is none."""
        query = "SELECT target FROM pairs WHERE key = ? AND source = ? ORDER BY id DESC LIMIT 1"
        rows = self._rows(query, _hash(source), source)
        return str(rows[0][0]) if rows else None
