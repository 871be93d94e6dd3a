"""File formats, and reading and writing them as blocks of text.

Every format is read into :class:`Parsed` files: text formats into one, archives into several.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError, in_one_line
from fairseq_lasformer.formats import (
    ass,
    bilingual,
    bilingual_word,
    epub,
    html,
    markdown,
    markdown_links,
    open_document,
    plain,
    po,
    subtitles,
    word,
    xliff,
)
from fairseq_lasformer.formats.block import Block, Finished, Parsed, Unread
from fairseq_lasformer.formats.encoding import decode, same_encoding, web_encoding
from fairseq_lasformer.formats.languages import Languages, language
from fairseq_lasformer.formats.markup import encoding_named, encoding_of_page
from fairseq_lasformer.formats.office import Archive, unpacked


class Finishing(NamedTuple):
    """Finishing steps of translated files."""

    mark: bool = True  # mark translations for review if the format can (`#, fuzzy`, `state="needs-review-translation"`)
    width: int = 42  # characters beyond which a subtitle line is rewrapped; 0 leaves lines as they come
    encoding: str | None = None  # encoding of the text file that is written; None for that of the file that was read
    bilingual: bool = False  # the original stays, each text with its translation below it


class TextFormat(NamedTuple):
    """A text format."""

    suffixes: tuple[str, ...]  # endings of its files' names
    read: Callable[[str, Languages], Parsed]
    declared: Callable[[bytes], str | None] | None = None  # finds the encoding that a file declares
    errors: str = "strict"  # handling of characters that the encoding lacks; see `codecs.register_error`
    # finishes a translated file, given the text before and after
    finish: Callable[[str, str, Finishing, Languages], str] | None = None
    # returns a text that declares an encoding, by its name, if it declares any. A file of this format may change its
    # encoding, to UTF-8 if the declared one lacks characters of the translation.
    redeclare: Callable[[str, str], str] | None = None
    # returns the number of texts that are left without a translation because the format's programs would refuse it
    left_out: Callable[[str, str], int] | None = None
    # finds the encoding that programs of the format use for that; default: the same
    spoken: Callable[[bytes], str | None] | None = None


class ArchiveFormat(NamedTuple):
    """A format that is a zip archive; see :class:`TextFormat`."""

    suffixes: tuple[str, ...]
    read: Callable[[bytes, Languages], Archive]


def _finish_cues(old: str, new: str, how: Finishing, languages: Languages) -> str:
    return subtitles.finish(old, new, how.width)


FORMATS: dict[str, TextFormat | ArchiveFormat] = {
    "text": TextFormat((".txt", ".text"), lambda text, _: plain.read(text), finish=lambda a, b, *_: plain.finish(a, b)),
    "wrapped": TextFormat((), lambda text, _: plain.read_wrapped(text)),
    "markdown": TextFormat((".md", ".markdown"), markdown.read, finish=lambda a, b, *_: markdown_links.finish(a, b)),
    "html": TextFormat(
        (".html", ".htm", ".xhtml"),
        html.read,
        encoding_named,
        "xmlcharrefreplace",
        lambda a, b, *_: html.finish(a, b),
        spoken=encoding_of_page,
    ),
    "docx": ArchiveFormat((".docx",), word.read_docx),
    "odt": ArchiveFormat((".odt",), open_document.read_odt),
    "epub": ArchiveFormat((".epub",), epub.read_epub),
    "subtitles": TextFormat(
        (".srt", ".vtt"), lambda text, languages: subtitles.read(text, True, languages), finish=_finish_cues
    ),
    "cues": TextFormat((), subtitles.read_cues, finish=_finish_cues),
    "ass": TextFormat((".ass", ".ssa"), lambda text, _: ass.read(text)),
    "po": TextFormat(
        (".po", ".pot"),
        lambda text, _: po.read(text),
        po.charset,
        finish=lambda old, new, how, languages: po.finish(old, new, how.mark, languages),
        redeclare=po.with_charset,
        left_out=po.left_out,
    ),
    "xliff": TextFormat(
        (".xlf", ".xliff"),
        xliff.read,
        encoding_named,
        "xmlcharrefreplace",
        lambda old, new, how, _: xliff.finish(old, new, how.mark),
    ),
}


class OpenFile(NamedTuple):
    """A file that has been read."""

    blocks: tuple[Block, ...]  # its blocks, in reading order
    # returns the file with other text, given the segments of each block
    write: Callable[[Sequence[Sequence[str]]], bytes]
    note: str = ""  # a note for the user, such as a guessed encoding; usually empty
    # codes of source and target language, if the file names them
    languages: tuple[str | None, str | None] = (None, None)
    finished: tuple[Finished, ...] = ()  # existing translations, which may be read as context
    unread: tuple[Unread, ...] = ()  # text that its reader does not understand, which stays
    units: int = 0  # number of cues that were understood; 0 for formats without cues
    # returns the number of texts that a translated file leaves without translation
    left_out: Callable[[bytes], int] = lambda made: 0


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
    target: str = "",
) -> OpenFile:
    """Read a file.

    Args:
        form: one of :data:`FORMATS`.
        encoding: encoding of a text file; default: see :func:`decode`.
        finishing: finishing steps of the translated file.
        language: code of the text's language, which decides between encodings.
        target: code of the language that it is translated into: what the file says of its language is changed.
    """
    with _refusing(f"cannot be read as {form}"):
        opened = _read(data, form, encoding, finishing, Languages(language, target))

    def write(segments: Sequence[Sequence[str]]) -> bytes:
        with _refusing(f"cannot be written as {form}"):
            return opened.write(segments)

    return opened._replace(write=write)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Blame any failure of a reader or writer on the file: one file must not end the work on others."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as e:
        raise InputError(f"{what}: it is too large") from e
    except Exception as e:
        raise InputError(f"{what} ({in_one_line(e, 100)})") from e


def is_archive(form: str) -> bool:
    """Return whether files of a format are archives, which may hold far more than their size."""
    return isinstance(FORMATS[form], ArchiveFormat)


def size(data: bytes, form: str) -> int:
    """Return the bytes of a file: of an archive, unpacked, as it says itself; that takes a while."""
    return max(len(data), unpacked(data)) if is_archive(form) else len(data)


def check_languages(file: OpenFile, source: str, target: str) -> None:
    """Refuse a file whose stated languages differ from a model's.

    Args:
        source, target: the model's languages; of ``de_AT``, only ``de`` counts.
    """
    for side, said, ours in zip(("from", "into"), file.languages, (source, target)):
        if said and language(said) != language(ours):
            raise InputError(
                f"states that it is translated {side} {said}, but the model translates {side} {ours}; --any-language "
                "translates it anyway"
            )


def _read(data: bytes, form: str, encoding: str | None, finishing: Finishing, languages: Languages) -> OpenFile:
    chosen, target = FORMATS[form], languages
    if finishing.bilingual:
        bilingual.check(form)
        languages = languages._replace(target="")  # what the file says of its language stays true
    if isinstance(chosen, ArchiveFormat):
        return _of_archive(data, chosen.read(data, languages), form, target if finishing.bilingual else None)
    decoded = decode(data, encoding, chosen.spoken or chosen.declared, language(languages.source))
    parsed = chosen.read(decoded.text, languages)
    notes = [f"read as {decoded.encoding}; name a different one with --encoding"] if decoded.guessed else []
    if form == "text" and plain.looks_wrapped(decoded.text):
        notes.append("its lines look wrapped; --from wrapped joins them")

    written, wanted = decoded, finishing.encoding
    said = chosen.declared(data) if chosen.declared else None
    if wanted is not None:
        same = said is None or any(
            same_encoding(a, b) for a in (said, web_encoding(said)) for b in (wanted, web_encoding(wanted))
        )
        if not same and chosen.redeclare is None:
            raise InputError(f"states that its encoding is {said}, so it cannot be written in {wanted}")
        written = decoded._replace(encoding=wanted, mark=b"")

    def finished(segments: Sequence[Sequence[str]]) -> bytes:
        if not parsed.blocks and wanted is None:
            return data
        finish = chosen.finish or (lambda old, new, *_: new)
        if finishing.bilingual:
            text = bilingual.both(form, parsed, segments, target, lambda a, b: finish(a, b, finishing, languages))
        else:
            text = finish(decoded.text, parsed.render(segments), finishing, languages)
        now = written
        if chosen.redeclare is not None:
            if wanted is None and not now.can_encode(text):
                now = now._replace(encoding="utf-8", mark=b"")
            if said is None or not same_encoding(said, now.encoding):
                text = chosen.redeclare(text, now.encoding.upper().replace("_", "-"))
        return now.encode(text, chosen.errors)

    def left_out(translated: bytes) -> int:
        return chosen.left_out(decoded.text, decode(translated).text) if chosen.left_out and parsed.blocks else 0

    seen = parsed.finished, parsed.unread, parsed.units
    return OpenFile(parsed.blocks, finished, "; ".join(notes), parsed.languages, *seen, left_out)


def _of_archive(data: bytes, archive: Archive, form: str, beside: Languages | None) -> OpenFile:
    """Return the file of an archive, whose blocks are those of all files in it.

    Args:
        beside: the languages of a file in both; None for a translation alone.
    """
    if beside and form == "docx":
        finish, marked = archive.finish, (*archive.marked, "word/styles.xml")
        archive = archive._replace(finish=lambda text: bilingual_word.with_style(finish(text)), marked=marked)
    counts = [len(parsed.blocks) for parsed in archive.parsed]

    def write(segments: Sequence[Sequence[str]]) -> bytes:
        if not sum(counts):
            return data
        texts, start = [], 0
        for parsed, count in zip(archive.parsed, counts):
            of_part = segments[start : start + count]
            texts.append(bilingual.both(form, parsed, of_part, beside) if beside else parsed.render(of_part))
            start += count
        return archive.write(tuple(texts))

    unread = [
        one._replace(line=0, place=name) for name, parsed in zip(archive.files, archive.parsed) for one in parsed.unread
    ]
    blocks = tuple(block for parsed in archive.parsed for block in parsed.blocks)
    return OpenFile(blocks, write, unread=(*unread, *archive.unread))


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
    """
    kind = format_of(name)
    if kind is None:
        known = ", ".join(suffix for value in FORMATS.values() for suffix in value.suffixes)
        instead = INSTEAD.get(PurePath(name).suffix.lower(), "")
        raise InputError(f"{name}: unknown format; {instead + '; ' if instead else ''}known: {known}{hint}")
    return kind
