"""Alignment of two folders: pairs of files, of their units, and of the sentences in them.

Files that have been read are kept for a killed run.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.apps.pairing.evidence import Comparison, common_words, learned_words
from fairseq_lasformer.apps.pairing.matching import match, match_sentences
from fairseq_lasformer.apps.pairing.splitting import AlignedDocument, divide
from fairseq_lasformer.apps.pairing.units import Reading, Unit, read_units
from fairseq_lasformer.apps.pairing.writing import check_new, names_of, write
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import locked
from fairseq_lasformer.base.resume import Ledger
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.formats.sentences import splitter

LONG = 5
"""Number of words from which an equal text counts as untranslated; shorter ones may be names."""


class LeftOut(NamedTuple):
    """A text without a partner."""

    side: str  # the language
    what: str  # `block` or `sentence`
    why: str  # the reason
    text: str


class AlignedFile(NamedTuple):
    """A file and its translation."""

    document: AlignedDocument  # the lines that were paired
    blocks: tuple[int, int]  # number of blocks of both sides
    paired: int  # number of pairs of blocks
    equal: int  # of these, those with the same text on both sides
    left: list[LeftOut]  # what is in no pair


Renaming = tuple[str, str]


def align(
    folders: tuple[Path, Path],
    languages: tuple[str, str],
    out: Path,
    rename: Renaming = ("", ""),
    shares: tuple[float, float] = (0.02, 0.04),
    encoding: str | None = None,
) -> str:
    """Align the files of two folders, and write the documents of both languages.

    Args:
        folders: the files of both languages, in folders of any depth; files of the same relative name are partners.
        languages: codes of the languages, such as en.
        out: folder to write: ``{train,dev,test}.LANG`` in raw form, ``SPLIT.names`` with the name of each document,
            ``alignment.tsv`` with counts by file, ``left_out.tsv``, and ``alignment.html``, a page with ten documents.
        rename: text in the names of the source files, and its counterpart in those of the target files.
        shares: of the documents, for development and test.
        encoding: of text files; default: see :func:`formats.decode`.

    Returns:
        the counts, in words.
    """
    if any(not 0 <= share < 0.5 for share in shares):
        raise InputError("--split: shares of the documents for development and test, each below 0.5, such as 0.02,0.04")
    readings = Readings(out / ".readings.jsonl", f"{languages} {encoding}")
    check_new(out, languages, readings.written)
    names = _partners(folders, rename)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".alignment.lock", "an alignment"):
        sides, damaged = _read(names, languages, encoding, readings)
        aligned = list(_aligned(sides, languages))
        division = divide([file.document for file in aligned], shares)
        if not division.documents["train"]:
            raise InputError(f"{folders[0]}, {folders[1]}: no document for training has lines in both languages")
        readings.begin_writing(names_of(languages))
        summary = write(out, languages, aligned, division, damaged)
        readings.finish()
    return summary


def _partners(folders: tuple[Path, Path], rename: Renaming) -> dict[str, tuple[Path | None, Path | None]]:
    """Return the files of both sides by the name of the source file; None where a side has none."""
    sides: list[dict[str, Path]] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: is not a folder")
        files = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and formats.format_of(path.name) is not None
        }
        if not files:
            raise InputError(f"{folder}: contains no file in a known format")
        sides.append(files)
    renamed = {name.replace(*rename) if rename[0] else name: name for name in sides[0]}
    if len(renamed) != len(sides[0]):
        raise InputError(f"--rename {rename[0]}={rename[1]}: gives two files the same name")
    partners: dict[str, tuple[Path | None, Path | None]] = {name: (path, None) for name, path in sides[0].items()}
    for name, path in sides[1].items():
        known = renamed.get(name)
        if known is not None:
            partners[known] = sides[0][known], path
        else:  # a name of the source side may belong to another file there
            partners[name if name not in partners else f"{name} (target)"] = None, path
    if not any(a and b for a, b in partners.values()):
        raise InputError(
            f"{folders[0]}, {folders[1]}: have no file of the same name ({next(iter(sides[0]))}, "
            f"{next(iter(sides[1]))}); say how names differ with --rename, such as --rename .en.=.de."
        )
    return partners


Sides = dict[str, tuple[Reading, Reading]]


def _read(
    names: dict[str, tuple[Path | None, Path | None]],
    languages: tuple[str, str],
    encoding: str | None,
    readings: Readings,
) -> tuple[Sides, list[str]]:
    """Read all files; a damaged one has no units. Return them, and a line about each damaged file."""
    splits = tuple(splitter(language) for language in languages)
    sides_read: Sides = {}
    damaged = []
    for name, paths in progress_bar(sorted(names.items()), desc="reading", unit=" files"):
        sides = []
        for target, path in enumerate(paths):
            reading = Reading([])
            if path is not None:
                how = functools.partial(read_units, target=bool(target), split=splits[target], encoding=encoding)
                read = functools.partial(how, path, language=languages[target])
                try:
                    reading = readings.read(path, read)
                except InputError as e:
                    damaged.append(str(e))
            sides.append(reading)
        sides_read[name] = sides[0], sides[1]
    return sides_read, damaged


def _aligned(files: Sides, languages: tuple[str, str]) -> Iterator[AlignedFile]:
    """Align all files: once by names and numbers, then by the words that this teaches."""
    texts = [[unit.text for sides in files.values() for unit in sides[side].units] for side in (0, 1)]
    lengths = [sum(map(len, side)) for side in texts]
    compare = common_words(texts[0], texts[1], lengths[1] / max(1, lengths[0]))
    pairs: list[tuple[str, str]] = []
    for source, target in progress_bar(files.values(), desc="aligning", unit=" files"):
        pairs += [(source.units[i].text, target.units[j].text) for i, j in match(source, target, compare)]
    if pairs:
        compare = learned_words(pairs)
    for name, sides in progress_bar(files.items(), desc="aligning again", unit=" files"):
        yield _aligned_file(name, sides, match(sides[0], sides[1], compare), compare, languages)


def _aligned_file(
    name: str,
    sides: tuple[Reading, Reading],
    pairs: Sequence[tuple[int, int]],
    compare: Comparison,
    languages: tuple[str, str],
) -> AlignedFile:
    lines: list[tuple[str, str]] = []
    left: list[LeftOut] = []
    equal = 0
    for i, j in pairs:
        a, b = sides[0].units[i], sides[1].units[j]
        if a.text == b.text:
            equal += 1
            if len(a.text.split()) >= LONG:
                left.append(LeftOut(languages[0], "pair", "untranslated", a.text))
            else:
                lines.append((a.text, b.text))
            continue
        beads = match_sentences(a, b, compare)
        lines += beads.pairs
        for language, rest in zip(languages, beads.left):
            left += [LeftOut(language, "sentence", "no partner", text) for text in rest]
    for side, language in enumerate(languages):
        inside = {pair[side] for pair in pairs}
        why = "no partner" if sides[1 - side].units else "no file"
        units = enumerate(sides[side].units)
        left += [LeftOut(language, "block", why, unit.text) for i, unit in units if i not in inside]
    blocks = len(sides[0].units), len(sides[1].units)
    return AlignedFile(AlignedDocument(name, lines), blocks, len(pairs), equal, left)


_WRITTEN = "written"


class Readings:
    """Readings of files, in a file to which each is appended; what is damaged or cut short is read again.

    Args:
        path: the file; removed by :meth:`finish`.
        how: everything that a reading depends on besides the file's bytes.

    Attributes:
        written: names of the results that a killed run began to write.
    """

    def __init__(self, path: Path, how: str) -> None:
        self.how, self.ledger = how, Ledger(path)
        self._kept: dict[str, Reading] = {}
        self.written = {str(name) for name in self.ledger.values.get(_WRITTEN, ())}
        for key, values in self.ledger.entries:
            with suppress(ValueError, TypeError):
                only_keys, units = values
                self._kept[key] = Reading(
                    [Unit(str(a), tuple(map(str, b)), str(c), str(d)) for a, b, c, d in units], bool(only_keys)
                )

    def read(self, file: Path, read: Callable[[bytes], Reading]) -> Reading:
        """Return the reading of a file, which ``read`` makes if it is not kept."""
        try:
            data = file.read_bytes()
        except OSError as e:
            raise InputError(f"{file}: cannot be read ({e.strerror})") from e
        key = hashlib.sha256(f"{self.how} {file.suffix} ".encode() + data).hexdigest()
        if key not in self._kept:
            reading = read(data)
            self.ledger.add(key, reading.only_keys, reading.units)
            self._kept[key] = reading
        return self._kept[key]

    def begin_writing(self, names: Sequence[str]) -> None:
        """Record the names of files that are about to be written, none of which is there yet but by a killed run."""
        self.ledger.add(_WRITTEN, *names, lasting=True)

    def finish(self) -> None:
        """Remove the file."""
        self.ledger.path.unlink(missing_ok=True)
