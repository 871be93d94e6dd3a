"""XML and HTML as a stream of pieces whose raw text adds up to the file, byte for byte."""

from __future__ import annotations

import html
import html.parser
import re
from typing import NamedTuple
from xml.parsers import expat

from fairseq_lasformer.errors import InputError


class Piece(NamedTuple):
    """A piece of a marked-up file.

    Attributes:
        kind: ``start``, ``end``, ``text``, or ``other`` (comments, declarations).
        name: name of the element; in XML, with its prefix (``w:p``).
        raw: as it stands in the file; empty for the end of an element without content (``<br/>``).
        text: the text that it stands for.
        attributes: of a start.
    """

    kind: str
    name: str
    raw: str
    text: str = ""
    attributes: dict[str, str] = {}

    @property
    def local(self) -> str:
        """The name without a prefix."""
        return self.name.rpartition(":")[2]


def escape(text: str) -> str:
    """Text in the form it has between tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def xml_pieces(text: str) -> list[Piece]:
    """The pieces of an XML file.

    Raises:
        InputError: it is not well-formed, or declares entities, by which small files can grow without limit.
    """
    data = text.encode("utf-8")
    found: list[tuple[int, str, str, str, dict[str, str]]] = []
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = False
    cdata = False

    def add(kind: str, name: str = "", text: str = "", attributes: dict[str, str] | None = None) -> None:
        found.append((parser.CurrentByteIndex, kind, name, text, attributes or {}))

    def entity(name: str, *_: object) -> None:
        raise InputError(f"it declares an entity ({name}); files that do are not read")

    def mark(inside: bool) -> None:
        nonlocal cdata
        cdata = inside
        add("other")

    def characters(text: str) -> None:
        add("other" if cdata else "text", "", text)

    parser.StartElementHandler = lambda name, attributes: add("start", name, "", attributes)
    parser.EndElementHandler = lambda name: add("end", name)
    parser.CharacterDataHandler = characters
    parser.CommentHandler = lambda _: add("other")
    parser.ProcessingInstructionHandler = lambda *_: add("other")
    parser.XmlDeclHandler = lambda *_: add("other")
    parser.StartDoctypeDeclHandler = lambda *_: add("other")
    parser.EndDoctypeDeclHandler = lambda: add("other")
    parser.StartCdataSectionHandler = lambda: mark(True)
    parser.EndCdataSectionHandler = lambda: mark(False)
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(data, True)
    except expat.ExpatError as e:
        raise InputError(f"not well-formed XML (line {e.lineno}, column {e.offset + 1}): {e}") from e
    if not found:
        raise InputError("not an XML file")
    starts = [place for place, *_ in found] + [len(data)]
    pieces = [Piece("other", "", data[: starts[0]].decode())] if starts[0] else []
    for (place, kind, name, content, attributes), following in zip(found, starts[1:]):
        pieces.append(Piece(kind, name, data[place:following].decode("utf-8"), content, attributes))
    return pieces


class _HtmlScanner(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.lines = [0]
        for line in text.splitlines(keepends=True) if "\n" not in text else text.split("\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        self.found: list[tuple[int, str, str, str, dict[str, str]]] = []
        self.feed(text)
        self.close()

    def add(self, kind: str, name: str = "", text: str = "", attributes: dict[str, str] | None = None) -> None:
        line, column = self.getpos()
        self.found.append((self.lines[line - 1] + column, kind, name, text, attributes or {}))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.add("start", tag, "", {name: value or "" for name, value in attrs})

    def handle_endtag(self, tag: str) -> None:
        self.add("end", tag)

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self.add("text", "", data)

    def handle_entityref(self, name: str) -> None:
        self.add("text", "", html.unescape(f"&{name};"))

    def handle_charref(self, name: str) -> None:
        self.add("text", "", html.unescape(f"&#{name};"))

    def handle_comment(self, data: str) -> None:
        self.add("other")

    def handle_decl(self, decl: str) -> None:
        self.add("other")

    def handle_pi(self, data: str) -> None:
        self.add("other")

    def unknown_decl(self, data: str) -> None:
        self.add("other")


VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
"""Elements of HTML that have no content and no end."""


def html_pieces(text: str) -> list[Piece]:
    """The pieces of an HTML file; any text is one."""
    found = _HtmlScanner(text).found
    starts = [place for place, *_ in found] + [len(text)]
    pieces = [Piece("other", "", text[: starts[0]])] if starts[0] else []
    for (place, kind, name, content, attributes), following in zip(found, starts[1:]):
        raw = text[place:following]
        if kind == "text" and content.startswith("&") and not raw.endswith(";"):
            content = html.unescape(raw)
        pieces.append(Piece(kind, name, raw, content, attributes))
        if kind == "start" and (name in VOID or raw.endswith("/>")):
            pieces.append(Piece("end", name, ""))
    return pieces


def encoding_named(data: bytes) -> str | None:
    """The encoding that an XML declaration or a meta element names, if one does."""
    found = re.search(rb"""(?:<\?xml[^>]*?encoding|<meta[^>]*?charset)\s*=\s*["']?([A-Za-z0-9_.:-]+)""", data[:2048])
    return found[1].decode("ascii") if found else None
