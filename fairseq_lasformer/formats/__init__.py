"""File formats: which there are, and reading and writing them as blocks of text.

Every format is read into :class:`Parsed` files. Those of text have one, archives several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats import html, markdown, office, plain, po, subtitles, xliff
from fairseq_lasformer.formats.block import Block, Finished, Parsed
from fairseq_lasformer.formats.encoding import decode
from fairseq_lasformer.formats.markup import encoding_named


class Finishing(NamedTuple):
    """How translated files are finished.

    Attributes:
        mark: mark translations for review, where the format can (``#, fuzzy``, ``state="needs-review-translation"``).
        width: characters of a line of subtitles, beyond which it is wrapped anew; 0 leaves lines as they come.
    """

    mark: bool = True
    width: int = 42


class TextFormat(NamedTuple):
    """A format of text.

    Attributes:
        suffixes: how the names of its files end.
        declared: finds the encoding that a file names.
        errors: what is done with characters that the encoding lacks; see :func:`codecs.register_error`.
        finish: what is done to a translated file, from the text before and after.
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
        write: the file with other text, given the segments of each block.
        note: what its user should know, such as a guessed encoding; mostly nothing.
        languages: codes of source and target language, where the file names them.
        finished: what is translated already, and may be read as context.
    """

    blocks: tuple[Block, ...]
    write: Callable[[Sequence[Sequence[str]]], bytes]
    note: str = ""
    languages: tuple[str | None, str | None] = (None, None)
    finished: tuple[Finished, ...] = ()


def format_of(name: str) -> str | None:
    """The format of a file by the end of its name; None if it is not known."""
    suffix = PurePath(name).suffix.lower()
    return next((key for key, value in FORMATS.items() if suffix in value.suffixes), None)


def read(data: bytes, form: str, encoding: str | None = None, finishing: Finishing = Finishing()) -> OpenFile:  # noqa: B008
    """Reads a file.

    Args:
        form: one of :data:`FORMATS`.
        encoding: encoding of a text file; default: see :func:`decode`.
        finishing: how the translated file is finished.

    Raises:
        InputError: the file is damaged or not of this format; so does writing it.
    """
    with _refusing(f"cannot be read as {form}"):
        opened = _read(data, form, encoding, finishing)

    def write(segments: Sequence[Sequence[str]]) -> bytes:
        with _refusing(f"cannot be written as {form}"):
            return opened.write(segments)

    return opened._replace(write=write)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Whatever a reader or writer stumbles over is the file's fault: one file must not end the work on others.

    Raises:
        InputError: something failed.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as e:
        raise InputError(f"{what}: it is too large") from e
    except Exception as e:
        raise InputError(f"{what} ({type(e).__name__}: {' '.join(str(e).split())[:100]})") from e


def language(code: str) -> str:
    """The language of a code, without region and script: ``de`` of ``de_AT``."""
    return re.split(r"[-_@]", code.strip())[0].lower()


def check_languages(file: OpenFile, source: str, target: str) -> None:
    """Rejects a file that says that it is in other languages than a model's.

    Args:
        source, target: the model's languages; of ``de_AT``, the language counts.

    Raises:
        InputError: names both.
    """
    for side, said, ours in zip(("from", "into"), file.languages, (source, target)):
        if said and language(said) != language(ours):
            raise InputError(
                f"is to be translated {side} {said}, but the model translates {side} {ours}; --any-language does so "
                "all the same"
            )


def _read(data: bytes, form: str, encoding: str | None, finishing: Finishing) -> OpenFile:
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

    def finished(segments: Sequence[Sequence[str]]) -> bytes:
        made = parsed.render(segments)
        if chosen.finish is not None:
            made = chosen.finish(decoded.text, made, finishing)
        return decoded.encode(made, chosen.errors)

    return OpenFile(parsed.blocks, finished, note, parsed.languages, parsed.finished)


INSTEAD = {
    ".doc": "save it as .docx",
    ".rtf": "save it as .docx",
    ".pdf": "PDF is not translated; export its text, or the file that it was made of",
    ".xlsx": "save its text as .txt",
    ".pptx": "save its text as .txt",
}
"""What to do with files of formats that people often have."""


def check_format(name: str, hint: str = "") -> str:
    """The format of a file by the end of its name.

    Args:
        hint: what else can be done.

    Raises:
        InputError: it is not known.
    """
    found = format_of(name)
    if found is None:
        known = ", ".join(suffix for value in FORMATS.values() for suffix in value.suffixes)
        instead = INSTEAD.get(PurePath(name).suffix.lower(), "")
        raise InputError(f"{name}: of unknown format; {instead + '; ' if instead else ''}known: {known}{hint}")
    return found
