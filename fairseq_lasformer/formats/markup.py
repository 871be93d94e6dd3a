"""XML and HTML as a stream of pieces whose raw text adds up to the file, byte for byte."""

import html
import re
from typing import Any, NamedTuple
from xml.parsers import expat

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.encoding import web_encoding
from fairseq_lasformer.formats.templates import Code, codes

DEEPEST = 256
"""Maximum depth of nested XML elements."""


class Piece(NamedTuple):
    """A piece of a marked-up file."""

    # `start`, `end`, `text`, `other` (comments, declarations, CDATA), `code` (what a server runs, in HTML), or `broken`
    # (a tag that nothing ends)
    kind: str
    name: str  # name of the element; in XML, with its prefix (`w:p`)
    raw: str  # its text in the file; empty for the end of an element without content (`<br/>`)
    text: str = ""  # the text that it represents
    attributes: dict[str, str] = {}

    @property
    def local(self) -> str:
        """The name without a prefix."""
        return self.name.rpartition(":")[2]


def escape(text: str) -> str:
    """Escape text for use between tags; readers of XML and HTML take a raw carriage return for a line feed."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def refuse_entities(parser: Any) -> None:
    """Make one of expat's parsers raise :class:`InputError` for entities.

    With those that a file declares, small files can grow without limit; the text of others is unknown.
    """

    def declared(name: str, *_: object) -> None:
        raise InputError(f"it declares an entity ({name}); such files are not read")

    def unknown(name: str, *_: object) -> None:
        raise InputError(f"line {parser.CurrentLineNumber}: the entity &{name}; is not declared")

    parser.EntityDeclHandler, parser.SkippedEntityHandler = declared, unknown


def xml_pieces(text: str) -> list[Piece]:
    """Split an XML file into pieces."""
    data = text.encode("utf-8")
    tags: list[tuple[int, str, str, str, dict[str, str]]] = []
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = False
    cdata, depth = False, 0

    def add(kind: str, name: str = "", text: str = "", attributes: dict[str, str] | None = None) -> None:
        tags.append((parser.CurrentByteIndex, kind, name, text, attributes or {}))

    def mark(inside: bool) -> None:
        nonlocal cdata
        cdata = inside
        add("other")

    def characters(text: str) -> None:
        add("other" if cdata else "text", "", text)

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise InputError(f"its elements are nested more than {DEEPEST} deep")
        add("start", name, "", attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        add("end", name)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.CommentHandler = lambda _: add("other")
    parser.ProcessingInstructionHandler = lambda *_: add("other")
    parser.XmlDeclHandler = lambda *_: add("other")
    parser.StartDoctypeDeclHandler = lambda *_: add("other")
    parser.EndDoctypeDeclHandler = lambda: add("other")
    parser.StartCdataSectionHandler = lambda: mark(True)
    parser.EndCdataSectionHandler = lambda: mark(False)
    refuse_entities(parser)
    try:
        parser.Parse(data, True)
    except expat.ExpatError as e:
        raise InputError(f"not well-formed XML (line {e.lineno}, column {e.offset + 1}): {e}") from e
    if not tags:
        raise InputError("not an XML file")
    starts = [place for place, *_ in tags] + [len(data)]
    pieces = [Piece("other", "", data[: starts[0]].decode())] if starts[0] else []
    for (place, kind, name, content, attributes), following in zip(tags, starts[1:]):
        pieces.append(Piece(kind, name, data[place:following].decode("utf-8"), content, attributes))
    return pieces


VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
"""HTML elements without content and end tag."""


_TAG = re.compile(r"""<([a-zA-Z][^\t\n\f\r />]*+)((?:=[\t\n\f\r ]*+(?:"[^"]*+"|'[^']*+')|[^>])*+)>""")
_CODE_SIGN = re.compile(r"<[?%#/]|[{\[][{%#!/a-z]|@[a-z]")
_UNQUOTED_END = re.compile(r"""=[^\s"'>]+/>\Z""")
_ATTRIBUTE = re.compile(r"""([^\s=/>"']++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s>]*+))?+""")
_ENTITY = re.compile(r"&(?:#[0-9]{1,9}|#[xX][0-9a-fA-F]{1,8}|[a-zA-Z][a-zA-Z0-9]{0,40});?")
REFERENCE = r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
"""Pattern of a complete character reference, such as ``&amp;``; browsers also read those without a semicolon."""

_RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
"""Elements whose content has no tags."""

_WITH_ENTITIES = ("textarea", "title")
"""Those whose content has entities."""


_MASK = "\ue000"
"""Stand-in for a character of code, in the text whose tags are found."""


def html_pieces(text: str) -> list[Piece]:
    """Split an HTML file, which may be any text, into pieces; each character is read a few times at most."""
    pieces: list[Piece] = []
    places = codes(text) if _CODE_SIGN.search(text) else []
    seen = _masked(text, places)
    waiting = iter([*places, Code(len(text) + 1, 0)])
    code = next(waiting)
    xml = text.lstrip()[:5] == "<?xml" or "http://www.w3.org/1999/xhtml" in text[:2000]
    position, last = 0, seen.rfind(">")
    while position < len(text):
        begin = seen.find("<", position)
        begin = len(text) if begin < 0 else begin
        while code.start < position:
            code = next(waiting)
        if code.start <= begin and code.start < len(text):
            pieces += _characters(text[position : code.start])
            pieces.append(Piece("code", "", text[code.start : code.end]))
            position = code.end
            continue
        pieces += _characters(text[position:begin])
        if begin == len(text):
            break
        following = seen[begin + 1 : begin + 2]
        is_tag = following.isascii() and following.isalpha()
        if following not in ("!", "?", "/") and not is_tag:
            pieces += _characters("<")
            position = begin + 1
            continue
        if begin > last:  # no tag ends after this
            pieces.append(Piece("broken", "", text[begin:]))
            break
        if text.startswith("<!--", begin):
            end = text.find("-->", begin + 4)
            position = len(text) if end < 0 else end + 3
            pieces.append(Piece("other", "", text[begin:position]))
            continue
        match = _TAG.match(seen, begin) if is_tag else None
        # with an unclosed quotation mark, a tag ends at the first bracket
        position = match.end() if match else seen.index(">", begin) + 1
        raw = text[begin:position]
        name = re.match(r"</?([a-zA-Z][^\t\n\f\r />]*)?", raw)
        if name is None or name[1] is None:
            pieces.append(Piece("other", "", raw))
        elif following == "/":
            pieces.append(Piece("end", name[1].lower(), raw))
        else:
            position = _started(pieces, text, raw, name[1].lower(), position, xml)
    return pieces


def _masked(text: str, places: list[Code]) -> str:
    """Return a text of the same length without the characters of code."""
    if not places:
        return text
    pieces, position = [], 0
    for place in places:
        pieces += [text[position : place.start], _MASK * (place.end - place.start)]
        position = place.end
    return "".join([*pieces, text[position:]])


def _started(pieces: list[Piece], text: str, raw: str, name: str, position: int, xml: bool) -> int:
    """Add the start of an element, and the content of one without tags; return where to go on."""
    attributes = {}
    for key, value in _ATTRIBUTE.findall(raw[len(name) + 1 : -1]):
        quoted = value[:1] in ("'", '"')
        attributes[key.lower()] = html.unescape(value[1:-1] if quoted else value)
    pieces.append(Piece("start", name, raw, "", attributes))
    closes = raw.endswith("/>") and not _UNQUOTED_END.search(raw) and (xml or name not in _RAW)
    if name in VOID or closes:
        pieces.append(Piece("end", name, ""))
    elif name in _RAW:
        end = re.compile(rf"</{name}(?=[\s/>])", re.I).search(text, position)
        stop = end.start() if end else len(text)
        if stop > position and name in _WITH_ENTITIES:
            pieces += _characters(text[position:stop])
        elif stop > position:
            pieces.append(Piece("text", "", text[position:stop], text[position:stop]))
        return stop
    return position


def _characters(text: str) -> list[Piece]:
    """Split text between tags into pieces, with its entities separate."""
    characters, position = [], 0
    for entity in _ENTITY.finditer(text):
        if entity.start() > position:
            characters.append(Piece("text", "", text[position : entity.start()], text[position : entity.start()]))
        characters.append(Piece("text", "", entity[0], html.unescape(entity[0])))
        position = entity.end()
    if position < len(text):
        characters.append(Piece("text", "", text[position:], text[position:]))
    return characters


def encoding_named(data: bytes) -> str | None:
    """Return the encoding that an XML declaration or a meta element names, if any."""
    head = re.sub(rb"(?s)<!--.*?-->", b"", data[:4096])
    match = re.search(rb"""(?i)(?:<\?xml[^>]*?encoding|<meta[^>]*?charset)\s*=\s*["']?([A-Za-z0-9_.:-]+)""", head)
    return match[1].decode("ascii") if match else None


def encoding_of_page(data: bytes) -> str | None:
    """Return the encoding that a web page names, as browsers understand its name: see :data:`encoding.WEB`."""
    name = encoding_named(data)
    if name is None:
        return None
    try:
        data.decode(web_encoding(name))
    except (UnicodeError, LookupError):
        return name
    return web_encoding(name)
