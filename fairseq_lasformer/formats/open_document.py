"""OpenDocument's .odt: paragraphs ``text:p`` and headings ``text:h``, whose spans and links are formatted.

See OpenDocument 1.3, part 3. Text in other elements of a paragraph (fields, the names in annotations) is not
translated; the model reads fields as placeholders. Paragraphs within a paragraph, such as footnotes, are blocks. What
was deleted while changes were tracked is not read.
"""

import re
import zipfile

from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.languages import Languages, language
from fairseq_lasformer.formats.markup import Piece, escape, xml_pieces
from fairseq_lasformer.formats.office import Archive, Parts, labels_with_words, one_prefix, prefix_of, read_archive

TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"

_AROUND = {"table-cell": "td", "list-item": "li"}
"""Elements around paragraphs, and the kind of these; styles have other names in every language."""

_OF_THE_AUTHOR = ("placeholder", "conditional-text", "hidden-text", "text-input", "drop-down")
"""Fields whose text is the author's, and not read."""

_NO_FIELDS = ("note", "ruby-text", "annotation", "soft-page-break")


def read_odt(data: bytes, languages: Languages = Languages()) -> Archive:  # noqa: B008
    """Read the paragraphs of an OpenDocument text, headers and footers included.

    Args:
        languages: styles that say they are in the source language say the target.
    """
    archive = read_archive(data, _parts, _parsed, "an .odt file")
    return archive._replace(finish=lambda text: _in_language(text, languages))


def _parts(archive: zipfile.ZipFile) -> Parts:
    return Parts(
        "content.xml",
        lambda name: name in ("content.xml", "styles.xml"),
        lambda name: name == "meta.xml",
        lambda name: "chart" if re.fullmatch(r"[^/]+/content\.xml", name) else "",
        _labels,
    )


def _labels(archive: zipfile.ZipFile) -> list[tuple[str, str]]:
    """Return words in the labels of lists."""
    places = []
    for name in {"content.xml", "styles.xml"} & set(archive.namelist()):
        labels = re.findall(r'\bstyle:num-(?:prefix|suffix)="([^"]*)"', archive.read(name).decode("utf-8", "replace"))
        places += labels_with_words(labels, name)
    return places


def _in_language(text: str, languages: Languages) -> str:
    """Return a file in which what is marked as the source language is marked as the target."""

    def marked(match: re.Match[str]) -> str:
        if not languages.replaces(match[2]):
            return match[0]
        country = f'fo:country="{languages.region or "none"}"'
        tag = match[1] + language(languages.target) + match[3]
        return re.sub(r'\bfo:country="[^"]*"', country, tag)

    text = re.sub(
        r'(\bstyle:rfc-language-tag=")([^"]*)',
        lambda m: m[1] + languages.instead(m[2]),
        text,
    )
    text = re.sub(r'(<[^<>]*?\bfo:language=")([^"<>]*)("[^<>]*>)', marked, text)
    code = lambda m: m[1] + languages.instead(m[2])  # noqa: E731
    return re.sub(r"(<dc:language>)([^<>]*)", code, text)


def _parsed(text: str) -> Parsed:
    builder = BlockBuilder(escape)
    text = one_prefix(text, TEXT)
    prefix = prefix_of(text, TEXT, "text")
    blocks = (prefix + "p", prefix + "h")
    deleted = prefix + "tracked-changes"
    known = (*(prefix + name for name in ("span", "a", "meta", "ruby", "ruby-base")), "loext:content-control")
    breaks = tuple(prefix + name for name in ("s", "tab", "line-break"))
    paragraphs: list[list[Piece]] = []  # for each open paragraph, the open elements in it
    outside: list[str] = []  # the open cells and items around them
    unseen = 0
    shown: Piece | None = None  # the field whose text has been replaced by a placeholder
    for piece in xml_pieces(text):
        opened = piece.kind == "start"
        if piece.name == deleted:
            unseen += 1 if opened else -1
        if unseen:
            builder.keep(piece.raw)
            continue
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
        field = None
        if inside and piece.kind == "text" and piece.text.strip():
            field = next((p for p in inside if p.name not in known), None)
        if field is not None and field is not shown:
            shown = field
            if field.local in _OF_THE_AUTHOR:
                builder.misread(piece.raw, "field", written=False)
            if field.name.startswith(prefix) and field.local not in _NO_FIELDS:
                builder.keep("", PLACEHOLDER)
        if paragraphs and opened:
            inside.append(piece)
        elif paragraphs and piece.kind == "end":
            inside.pop()
        if opened and paragraphs and piece.name == prefix + "tab" and len(inside) == 1:
            builder.part(piece.raw)
        else:
            builder.keep(piece.raw, BREAK if opened and piece.name in breaks else "")
    return builder.parsed()
