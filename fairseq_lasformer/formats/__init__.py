"""File formats, and reading and writing them as blocks of text.

Every format is read into :class:`Parsed` files: text formats into one, archives into several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import NamedTuple

from fairseq_lasformer.errors import InputError, in_one_line
from fairseq_lasformer.formats import html, markdown, office, plain, po, subtitles, xliff
from fairseq_lasformer.formats.block import Block, Finished, Parsed
from fairseq_lasformer.formats.encoding import decode, same_encoding
from fairseq_lasformer.formats.markup import encoding_named


class Finishing(NamedTuple):
    """Finishing steps of translated files.

    Attributes:
        mark: mark translations for review if the format can (``#, fuzzy``, ``state="needs-review-translation"``).
        width: characters beyond which a subtitle line is rewrapped; 0 leaves lines as they come.
        encoding: encoding of the text file that is written; None for that of the file that was read.
    """

    mark: bool = True
    width: int = 42
    encoding: str | None = None


class TextFormat(NamedTuple):
    """A text format.

    Attributes:
        suffixes: endings of its files' names.
        declared: finds the encoding that a file declares.
        errors: handling of characters that the encoding lacks; see :func:`codecs.register_error`.
        finish: finishes a translated file, given the text before and after.
    """

    suffixes: tuple[str, ...]
    read: Callable[[str], Parsed]
    declared: Callable[[bytes], str | None] | None = None
    errors: str = "strict"
    finish: Callable[[str, str, Finishing], str] | None = None


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
    "subtitles": TextFormat(
        (".srt", ".vtt"), subtitles.read, finish=lambda old, new, how: subtitles.finish(old, new, how.width)
    ),
    "cues": TextFormat((), subtitles.read_cues, finish=lambda old, new, how: subtitles.finish(old, new, how.width)),
    "po": TextFormat((".po", ".pot"), po.read, finish=lambda old, new, how: po.finish(old, new, how.mark)),
    "xliff": TextFormat(
        (".xlf", ".xliff"),
        xliff.read,
        encoding_named,
        "xmlcharrefreplace",
        lambda old, new, how: xliff.finish(old, new, how.mark),
    ),
}


class OpenFile(NamedTuple):
    """A file that has been read.

    Attributes:
        blocks: its blocks, in reading order.
        write: returns the file with other text, given the segments of each block.
        note: a note for the user, such as a guessed encoding; usually empty.
        languages: codes of source and target language, if the file names them.
        finished: existing translations, which may be read as context.
    """

    blocks: tuple[Block, ...]
    write: Callable[[Sequence[Sequence[str]]], bytes]
    note: str = ""
    languages: tuple[str | None, str | None] = (None, None)
    finished: tuple[Finished, ...] = ()


def format_of(name: str) -> str | None:
    """Return the format of a file by the ending of its name; None if it is unknown."""
    suffix = PurePath(name).suffix.lower()
    return next((key for key, value in FORMATS.items() if suffix in value.suffixes), None)


def read(
    data: bytes,
    form: str,
    encoding: str | None = None,
    finishing: Finishing = Finishing(),  # noqa: B008
    language: str = "",
) -> OpenFile:
    """Read a file.

    Args:
        form: one of :data:`FORMATS`.
        encoding: encoding of a text file; default: see :func:`decode`.
        finishing: finishing steps of the translated file.
        language: code of the text's language, which decides between encodings.

    Raises:
        InputError: the file is damaged or not of this format; writing it may raise this as well.
    """
    with _refusing(f"cannot be read as {form}"):
        opened = _read(data, form, encoding, finishing, language)

    def write(segments: Sequence[Sequence[str]]) -> bytes:
        with _refusing(f"cannot be written as {form}"):
            return opened.write(segments)

    return opened._replace(write=write)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Blame any failure of a reader or writer on the file: one file must not end the work on others.

    Raises:
        InputError: the reader or writer failed.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as e:
        raise InputError(f"{what}: it is too large") from e
    except Exception as e:
        raise InputError(f"{what} ({in_one_line(e, 100)})") from e


def language(code: str) -> str:
    """Return the language of a code, without region and script: ``de`` of ``de_AT``."""
    return re.split(r"[-_@]", code.strip())[0].lower()


def check_languages(file: OpenFile, source: str, target: str) -> None:
    """Refuse a file whose stated languages differ from a model's.

    Args:
        source, target: the model's languages; of ``de_AT``, only ``de`` counts.

    Raises:
        InputError: names both.
    """
    for side, said, ours in zip(("from", "into"), file.languages, (source, target)):
        if said and language(said) != language(ours):
            raise InputError(
                f"states that it is translated {side} {said}, but the model translates {side} {ours}; --any-language "
                "translates it anyway"
            )


def _read(data: bytes, form: str, encoding: str | None, finishing: Finishing, spoken: str) -> OpenFile:
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
    decoded = decode(data, encoding, chosen.declared, language(spoken))
    parsed = chosen.read(decoded.text)
    note = f"read as {decoded.encoding}; name a different one with --encoding" if decoded.guessed else ""

    written = decoded
    if finishing.encoding is not None:
        said = chosen.declared(data) if chosen.declared else None
        if said and not same_encoding(said, finishing.encoding):
            raise InputError(f"states that its encoding is {said}, so it cannot be written in {finishing.encoding}")
        written = decoded._replace(encoding=finishing.encoding, mark=b"")

    def finished(segments: Sequence[Sequence[str]]) -> bytes:
        made = parsed.render(segments)
        if chosen.finish is not None:
            made = chosen.finish(decoded.text, made, finishing)
        return written.encode(made, chosen.errors)

    return OpenFile(parsed.blocks, finished, note, parsed.languages, parsed.finished)


INSTEAD = {
    ".doc": "save it as .docx",
    ".rtf": "save it as .docx",
    ".pdf": "PDF is not supported; export its text, or use the file that it was made from",
    ".xlsx": "save its text as .txt",
    ".pptx": "save its text as .txt",
}
"""Advice for common formats that are not supported."""


def check_format(name: str, hint: str = "") -> str:
    """Return the format of a file by the ending of its name.

    Args:
        hint: further advice for the error message.

    Raises:
        InputError: it is unknown.
    """
    found = format_of(name)
    if found is None:
        known = ", ".join(suffix for value in FORMATS.values() for suffix in value.suffixes)
        instead = INSTEAD.get(PurePath(name).suffix.lower(), "")
        raise InputError(f"{name}: unknown format; {instead + '; ' if instead else ''}known: {known}{hint}")
    return found
