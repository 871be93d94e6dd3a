"""Building of translation memories from files: TMX, tables, aligned text, ``.po`` and XLIFF."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.apps.memory import tmx
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_writable, locked
from fairseq_lasformer.text.documents import read_corpus
from fairseq_lasformer.text.lines import clean_line
from fairseq_lasformer.translation_memory.store import MemoryStore, StoredPair

AT_ONCE = 5000
"""Number of pairs that are added at a time; a killed run resumes after the last ones."""

LONGEST = 5000
"""Characters of the longest sentence that is kept; anything longer is not a sentence."""

TABLES = (".tsv", ".txt", ".tab")


class Built(NamedTuple):
    """Counts of the pairs in the files, and in the memory."""

    read: int  # pairs in the files, without those that an earlier run read
    added: int  # of these, new ones
    known: int  # of these, those that were already in the memory
    left_out: int  # of these, those with an empty or overlong side
    before: int  # pairs that an earlier run had read
    held: int  # pairs in the memory now

    def summary(self) -> str:
        """Format the counts in words."""
        words = [f"{self.read} pairs read, {self.added} added"]
        words += [f"{self.known} already known"] if self.known else []
        words += [f"{self.left_out} with an empty or overlong side left out"] if self.left_out else []
        words += [f"{self.before} read by an earlier run"] if self.before else []
        return ", ".join([*words, f"{self.held} in the memory now"])


def build(
    path: Path,
    files: Sequence[Path],
    languages: tuple[str, str] | None = None,
    unreviewed: bool = False,
    tick: Callable[[int], object] = lambda n: None,
) -> Built:
    """Add the pairs of files to a memory, which is created if it does not exist. A killed run resumes.

    Args:
        files: ``.tmx``; tables of source, tab, target (``.tsv``, ``.txt``); ``.po`` and ``.xlf``, whose finished units
            are read; or prefixes of aligned text, ``PREFIX.SOURCE`` and ``PREFIX.TARGET``.
        languages: source and target; may be left out if the memory exists.
        unreviewed: whether fuzzy and unreviewed units of ``.po`` and XLIFF are also read.
        tick: called with a number of pairs that have been read.
    """
    check_writable(path)
    with locked(path.with_name(f".{path.name}.lock"), "the building of a memory"):
        if languages is None and not path.exists():
            raise InputError(f"{path}: does not exist; name the languages of a new memory, with -s and -t")
        if languages is not None:
            for file in files:
                _paths(file, languages)  # a missing file is reported before anything is written
        store = MemoryStore(path, languages, writable=True)
        try:
            counts = [0, 0, 0, 0]
            for file in files:
                try:
                    counted = _add(store, file, unreviewed, tick)
                except InputError as e:
                    raise InputError(str(e) if str(e).startswith((str(file), str(path))) else f"{file}: {e}") from e
                counts = [a + b for a, b in zip(counts, counted)]
            store.finish()
            read, added, left_out, before = counts
            return Built(read, added, read - added - left_out, left_out, before, len(store))
        finally:
            store.close()


def _add(store: MemoryStore, file: Path, unreviewed: bool, tick: Callable[[int], object]) -> tuple[int, int, int, int]:
    """Add the pairs of a file; return how many were read, added, left out, and already read before."""
    digest = hashlib.sha256(b"unreviewed" if unreviewed else b"")
    for path in _paths(file, store.languages):
        with open(path, "rb") as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    name = digest.hexdigest()
    before, complete = store.progress(name)
    if complete:
        tick(before)
        return 0, 0, 0, before
    pairs = _pairs(file, store.languages, unreviewed)
    tick(sum(1 for _ in islice(pairs, before)))
    n, added, left_out = before, 0, 0
    while batch := list(islice(pairs, AT_ONCE)):
        n += len(batch)
        cleaned = [(clean_line(source), clean_line(target)) for source, target in batch]
        usable = [StoredPair(a, b) for a, b in cleaned if a and b and max(len(a), len(b)) <= LONGEST]
        left_out += len(batch) - len(usable)
        added += store.add(usable, name, n)
        tick(len(batch))
    store.add([], name, n, complete=True)
    return n - before, added, left_out, before


def _paths(file: Path, languages: tuple[str, str]) -> list[Path]:
    """Return the files that one argument names: itself, or both sides of aligned text."""
    if file.is_file():
        suffix = file.suffix.lower()
        if suffix in (".tmx", *TABLES) or formats.format_of(file.name) in ("po", "xliff"):
            return [file]
        raise InputError(
            f"{file}: expected .tmx, a table of source, tab, target ({', '.join(TABLES)}), .po, .xlf, or the prefix of "
            f"two files, PREFIX.{languages[0]} and PREFIX.{languages[1]}"
        )
    sides = [Path(f"{file}.{language}") for language in languages]
    if missing := [side for side in sides if not side.is_file()]:
        both = f"neither {file} nor {sides[0]} exists" if len(missing) == 2 else f"{missing[0]}: does not exist"
        raise InputError(both)
    return sides


def _pairs(file: Path, languages: tuple[str, str], unreviewed: bool) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a file, in order."""
    paths = _paths(file, languages)
    if len(paths) == 2:
        corpus = read_corpus(paths[0], paths[1], clean=True)
        return (pair for d in corpus.documents for pair in zip(d.source, d.target))
    if file.suffix.lower() == ".tmx":
        return tmx.pairs(file, *languages)
    if file.suffix.lower() in TABLES:
        return _table(file)
    form = formats.format_of(file.name) or ""
    opened = formats.read(file.read_bytes(), form, language=languages[0])
    for said, ours in zip(opened.languages, languages):
        if said and formats.language(said) != formats.language(ours):
            raise InputError(f"names the language {said}, but the memory is for {'-'.join(languages)}")
    return ((one.source, one.target) for one in opened.finished if one.reviewed or unreviewed)


def _table(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table; further columns are not part of a pair."""
    with open(file, encoding="utf-8-sig", newline="\n") as rows:
        try:
            for number, row in enumerate(rows, 1):
                if not row.strip():
                    continue
                source, tab, rest = row.rstrip("\r\n").partition("\t")
                if not tab:
                    raise InputError(f"line {number}: expected source, tab, target")
                yield source, rest.partition("\t")[0]
        except UnicodeDecodeError as e:
            raise InputError(f"not UTF-8 ({e.reason})") from e
