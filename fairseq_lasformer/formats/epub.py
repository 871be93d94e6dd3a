"""EPUB: the pages of a book, its table of contents and its title; links between notes and pages stay.

See EPUB 3.3 and, for ``toc.ncx``, EPUB 2. Pages are XHTML (:mod:`formats.html`); the package file has title,
description and language of the book.
"""

import re
import zipfile
from functools import partial

from fairseq_lasformer.formats import html
from fairseq_lasformer.formats.block import Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markup import escape, xml_pieces
from fairseq_lasformer.formats.office import Archive, Parts, read_archive
from fairseq_lasformer.formats.xliff_content import add_content

_PAGES, _OTHERS = (".xhtml", ".html", ".htm"), (".ncx", ".opf")
_TEXTS = ("text", "title", "description", "subject")
"""Elements of tables of contents and package files whose text is shown."""


def read_epub(data: bytes, languages: Languages = Languages()) -> Archive:  # noqa: B008
    """Read the pages of a book.

    Args:
        languages: pages that say they are in the source language say the target.
    """
    return read_archive(data, _parts, partial(_parsed, languages=languages), "an EPUB")


def _parts(archive: zipfile.ZipFile) -> Parts:
    def is_page(name: str) -> bool:
        if name.lower().endswith((*_PAGES, *_OTHERS)):
            return True
        return name.endswith(".xml") and b"http://www.w3.org/1999/xhtml" in archive.open(name).read(2000)

    return Parts(
        "META-INF/container.xml",
        is_page,
        lambda name: False,
        lambda name: "drawing" if name.lower().endswith(".svg") else "",
    )


def _parsed(text: str, languages: Languages) -> Parsed:
    if not re.search(r"<(?:\w+:)?(?:ncx|package)\b", text[:5000]):
        return html.read(text, languages)
    builder = BlockBuilder(escape)
    names: list[str] = []  # the open elements
    for piece in xml_pieces(text):
        if piece.kind == "start":
            names.append(piece.local)
        if piece.kind == "text" and names and names[-1] in _TEXTS:
            if "<" in piece.text:  # a description may be HTML
                add_content(builder, [piece])
            else:
                builder.enter()
                builder.text(piece.text, None, piece.raw)
            continue
        builder.leave()
        if piece.kind == "text" and names and names[-1] == "language":
            builder.keep(languages.instead(piece.raw))
        else:
            builder.keep(piece.raw)
        if piece.kind == "end":
            names.pop()
    builder.leave()
    return builder.parsed()
