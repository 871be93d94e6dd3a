"""Word's .docx and OpenDocument's .odt: the paragraphs of the XML files in a zip archive."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats.block import BREAK, BlockBuilder, Parsed
from fairseq_lasformer.formats.markup import Piece, escape, xml_pieces

MOST, MOST_MEMBERS = 512 << 20, 10_000
"""Maximum size of an unpacked archive, in bytes, and maximum number of files in it."""

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

_WORD = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_OPEN = re.compile(r"(?:content|styles)\.xml")
_AROUND = {"table-cell": "td", "list-item": "li"}
"""OpenDocument's elements around paragraphs, and the kind of these; styles have other names in every language."""


class Archive(NamedTuple):
    """A zip archive whose XML files have been read.

    Attributes:
        files: the names of its XML files with text.
        parsed: those files, in the same order.
        finish: finishes each translated file.
    """

    data: bytes
    files: tuple[str, ...]
    parsed: tuple[Parsed, ...]
    finish: Callable[[str], str] = str

    def write(self, texts: tuple[str, ...]) -> bytes:
        """Return the archive with other XML files; everything else in it is copied."""
        changed = dict(zip(self.files, texts))
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.data)) as old, zipfile.ZipFile(made, "w") as new:
            new.comment = old.comment
            for info in old.infolist():
                text = changed.get(info.filename)
                if text is not None:
                    new.writestr(info, self.finish(text).encode("utf-8"), info.compress_type)
                    continue
                copy = copied(info)
                with old.open(info) as source, new.open(copy, "w", force_zip64=info.file_size > 1 << 31) as target:
                    shutil.copyfileobj(source, target, 1 << 20)  # a piece at a time
        return made.getvalue()


def copied(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return the description of a file in an archive, for a copy of it."""
    made = zipfile.ZipInfo(info.filename, info.date_time)
    made.compress_type, made.external_attr, made.create_system = (
        info.compress_type,
        info.external_attr,
        info.create_system,
    )
    made.comment, made.extra = info.comment, info.extra
    return made


def read_docx(data: bytes) -> Archive:
    """Read the paragraphs of a Word document: body, headers, footers, notes and comments.

    Raises:
        InputError: the file is damaged, encrypted or not a Word document.
    """
    return _read(data, _WORD, "word/document.xml", _word, "a .docx file")._replace(finish=_keeping_space)


def read_odt(data: bytes) -> Archive:
    """Read the paragraphs of an OpenDocument text, headers and footers included.

    Raises:
        InputError: the file is damaged, encrypted or not an OpenDocument text.
    """
    return _read(data, _OPEN, "content.xml", _open_document, "an .odt file")


def _read(data: bytes, names: re.Pattern[str], main: str, parse: Callable[[str], Parsed], what: str) -> Archive:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [info for info in archive.infolist() if names.fullmatch(info.filename)]
            if main not in (info.filename for info in infos):
                raise InputError(f"not {what}: {main} is missing")
            if sum(info.file_size for info in archive.infolist()) > MOST:
                raise InputError(f"unpacked, it takes up more than {MOST >> 20} MiB")
            names_of_all = [info.filename for info in archive.infolist()]
            if len(names_of_all) > MOST_MEMBERS or len(set(names_of_all)) < len(names_of_all):
                raise InputError(f"not {what}: it contains the same name twice, or more than {MOST_MEMBERS:,} files")
            if broken := archive.testzip():  # including files that are only copied
                raise InputError(f"not {what}, damaged or encrypted (checksum of {broken})")
            infos.sort(key=lambda info: info.filename != main)
            texts = [archive.read(info).decode("utf-8-sig") for info in infos]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, EOFError, OSError) as e:
        raise InputError(f"not {what}, damaged or encrypted ({e})") from e
    except (ValueError, zlib.error) as e:
        raise InputError(f"damaged ({e})") from e
    return Archive(data, tuple(info.filename for info in infos), tuple(map(parse, texts)))


def _word(text: str) -> Parsed:
    """Parse paragraphs ``w:p``, whose text is in ``w:t`` and formatted by the ``w:rPr`` of its run ``w:r``."""
    builder = BlockBuilder(escape)
    prefix = _prefix(text, WORD, "w")
    paragraph, run, content, properties, link = (prefix + n for n in ("p", "r", "t", "rPr", "hyperlink"))
    cells = 0  # open cells of tables
    states: list[list[str]] = []  # properties of the open runs
    links: list[str] = []
    kept: list[str] | None = None  # the properties being read
    inside = False
    for piece in xml_pieces(text):
        if piece.kind == "start":
            if piece.name == paragraph:
                builder.keep(piece.raw)
                builder.at("td" if cells else "p")
                builder.begin()
                continue
            if builder.inside and piece.local == "numPr":
                builder.kind("li")
            elif builder.inside and piece.local == "bookmarkStart":
                name = piece.attributes.get(prefix + "name", "")
                builder.name("" if name.startswith("_") else name)  # _GoBack and the like are Word's own
            cells += piece.local == "tc"
            if piece.name == run:
                states.append([])
            elif piece.name == properties and states:
                kept = states[-1]
            elif piece.name == link:
                links.append(piece.raw)
        if piece.kind == "end" and piece.name == paragraph:
            builder.end()
        cells -= piece.kind == "end" and piece.local == "tc"
        if kept is not None:
            # Word's notes about spelling and languages are invisible
            kept += [piece.raw] if piece.local not in ("lang", "noProof") else []
        if piece.kind == "end":
            if piece.name == run and states:
                states.pop()
            elif piece.name == properties:
                kept = None
            elif piece.name == link and links:
                links.pop()
        if piece.name == content:
            inside = piece.kind == "start" and not piece.raw.endswith("/>")
        if piece.kind == "text" and inside and builder.inside:
            builder.text(piece.text, (tuple(links), tuple(states[-1]) if states else ()), piece.raw)
        else:
            builder.keep(piece.raw, BREAK if piece.local in ("br", "tab", "cr") else "")
    return builder.parsed()


def _keeping_space(text: str) -> str:
    """Keep the space around text, which Word ignores unless told not to: words have moved."""
    prefix = _prefix(text, WORD, "w")
    return re.sub(rf"<{prefix}t>(?=\s|[^<]*\s</)", f'<{prefix}t xml:space="preserve">', text)


def _open_document(text: str) -> Parsed:
    """Parse paragraphs ``text:p`` and headings ``text:h``, whose spans and links are formatted.

    Text in other elements of a paragraph (fields, the names in annotations) is not translated; paragraphs within a
    paragraph, such as footnotes, are.
    """
    builder = BlockBuilder(escape)
    prefix = _prefix(text, "urn:oasis:names:tc:opendocument:xmlns:text:1.0", "text")
    blocks = (prefix + "p", prefix + "h")
    known = tuple(prefix + name for name in ("span", "a", "meta", "ruby", "ruby-base"))
    breaks = tuple(prefix + name for name in ("s", "tab", "line-break"))
    paragraphs: list[list[Piece]] = []  # for each open paragraph, the open elements in it
    outside: list[str] = []  # the open cells and items around them
    for piece in xml_pieces(text):
        opened = piece.kind == "start"
        if kind := _AROUND.get(piece.local):
            if opened:
                outside.append(kind)
            else:
                outside.pop()
        if piece.name in blocks:
            if opened:
                builder.keep(piece.raw)
                heading = "h" + piece.attributes.get(prefix + "outline-level", "")
                builder.at(heading if piece.local == "h" else (outside or ["p"])[-1])
                builder.begin()
                paragraphs.append([])
            else:
                builder.end()
                builder.keep(piece.raw)
                paragraphs.pop()
            continue
        if paragraphs and opened and piece.local in ("bookmark", "bookmark-start"):
            builder.name(piece.attributes.get(prefix + "name", ""))
        inside = paragraphs[-1] if paragraphs else []
        if piece.kind == "text" and paragraphs and all(p.name in known for p in inside):
            builder.text(piece.text, tuple(p.raw for p in inside), piece.raw)
            continue
        if paragraphs and opened:
            inside.append(piece)
        elif paragraphs and piece.kind == "end":
            inside.pop()
        builder.keep(piece.raw, BREAK if opened and piece.name in breaks else "")
    return builder.parsed()


def _prefix(text: str, namespace: str, usual: str) -> str:
    """Return the prefix of a namespace in a file, with its colon."""
    found = re.search(rf'xmlns(?::([\w.-]+))?\s*=\s*["\']{re.escape(namespace)}["\']', text)
    if found is None:
        return f"{usual}:"
    return f"{found[1]}:" if found[1] else ""
