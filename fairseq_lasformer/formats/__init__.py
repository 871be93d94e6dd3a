"""File formats: which there are, and reading and writing them as blocks of text.

Every format is read into :class:`Parsed` files. Those of text have one, archives several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats import html, markdown, office, plain, po, subtitles, xliff
from fairseq_lasformer.formats.block import Block, Parsed
from fairseq_lasformer.formats.encoding import decode
from fairseq_lasformer.formats.markup import encoding_named


class TextFormat(NamedTuple):
    """A format of text.

    Attributes:
        suffixes: how the names of its files end.
        read: the reader.
        declared: finds the encoding that a file names.
        errors: what is done with characters that the encoding lacks; see :func:`codecs.register_error`.
    """

    suffixes: tuple[str, ...]
    read: Callable[[str], Parsed]
    declared: Callable[[bytes], str | None] | None = None
    errors: str = "strict"


class ArchiveFormat(NamedTuple):
    """A format that is a zip archive; see :class:`TextFormat`."""

    suffixes: tuple[str, ...]
    read: Callable[[bytes], office.Archive]


FORMATS: dict[str, TextFormat | ArchiveFormat] = {
    "text": TextFormat((".txt", ".text"), plain.read),
    "wrapped": TextFormat((), plain.read_wrapped),
    "markdown": TextFormat((".md", ".markdown"), markdown.read),
    "html": TextFormat((".html", ".htm", ".xhtml"), html.read, encoding_named, "xmlcharrefreplace"),
    "docx": ArchiveFormat((".docx",), office.read_docx),
    "odt": ArchiveFormat((".odt",), office.read_odt),
    "subtitles": TextFormat((".srt", ".vtt"), subtitles.read),
    "po": TextFormat((".po", ".pot"), po.read),
    "xliff": TextFormat((".xlf", ".xliff"), xliff.read, encoding_named, "xmlcharrefreplace"),
}


class OpenFile(NamedTuple):
    """A file that has been read.

    Attributes:
        blocks: its blocks, in reading order.
        write: the file with other text, given the segments of each block.
        note: what its user should know, such as a guessed encoding; mostly nothing.
    """

    blocks: tuple[Block, ...]
    write: Callable[[Sequence[Sequence[str]]], bytes]
    note: str = ""


def format_of(name: str) -> str | None:
    """The format of a file by the end of its name; None if it is not known."""
    suffix = PurePath(name).suffix.lower()
    return next((key for key, value in FORMATS.items() if suffix in value.suffixes), None)


def read(data: bytes, form: str, encoding: str | None = None) -> OpenFile:
    """Reads a file.

    Args:
        data: the file.
        form: one of :data:`FORMATS`.
        encoding: encoding of a text file; default: see :func:`decode`.

    Raises:
        InputError: the file is damaged or not of this format.
    """
    chosen = FORMATS[form]
    if isinstance(chosen, ArchiveFormat):
        archive = chosen.read(data)
        counts = [len(parsed.blocks) for parsed in archive.parsed]

        def write(segments: Sequence[Sequence[str]]) -> bytes:
            texts, start = [], 0
            for parsed, count in zip(archive.parsed, counts):
                texts.append(parsed.render(segments[start : start + count]))
                start += count
            return archive.write(tuple(texts))

        return OpenFile(tuple(block for parsed in archive.parsed for block in parsed.blocks), write)
    decoded = decode(data, encoding, chosen.declared)
    parsed = chosen.read(decoded.text)
    note = f"read as {decoded.encoding}; name another encoding with --encoding" if decoded.guessed else ""
    return OpenFile(parsed.blocks, lambda segments: decoded.encode(parsed.render(segments), chosen.errors), note)


def check_format(name: str) -> str:
    """The format of a file by the end of its name.

    Raises:
        InputError: it is not known.
    """
    found = format_of(name)
    if found is None:
        known = ", ".join(suffix for value in FORMATS.values() for suffix in value.suffixes)
        raise InputError(f"{name}: of unknown format; known: {known}; or choose one with --from")
    return found
