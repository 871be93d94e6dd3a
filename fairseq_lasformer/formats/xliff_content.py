"""The content of XLIFF's sources and targets: text, inline elements, segments, CDATA sections, and HTML in them."""

import html as html_text
import re
from collections.abc import Hashable

from fairseq_lasformer.formats import html
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.markup import Piece, escape, html_pieces

_CODES = ("ph", "bpt", "ept", "it", "x", "bx", "ex", "sc", "ec", "cp", "sm", "em")
"""Inline elements whose content is code, not text."""

_NUMBERS = (
    r"(?:\{-?\d{1,9}(?:,-?\d{1,9}){0,9}\}|[\[\]][-+]?(?:\d{1,9}|Inf),[ ]?[-+]?(?:\d{1,9}|\*|Inf)[\[\]]"
    r"|(?:zero|none|one|two|few|many|some|more|other):)"
)
_CHOSEN = re.compile(rf"\s*{_NUMBERS}\s*")
_CHOICES = re.compile(
    rf"\s*{_NUMBERS}[^|]{{1,2000}}(?:\|[^|]{{1,2000}}){{1,9}}"
    r"|[^|]{1,2000}\|(?=[^|]{0,2000}(?:%\w{1,40}%|:count\b|\{\{?\s?\w{1,40}\s?\}\}?))[^|]{1,2000}(?:\|[^|]{1,2000}){0,8}"
)
"""Choices by number: some that name theirs, or a plural with the number in it after the singular."""

_HTML = re.compile(
    r"</(?:p|b|i|a|em|strong|span|div|li|ul|ol|h[1-6]|td|tr|table|u|font|code|label)>"
    r"|<(?:br|img|hr|wbr|input)\b[^<>]{0,1000}>"
)


def is_segment(piece: Piece) -> bool:
    """Return whether an inline element is a segment."""
    return piece.local == "mrk" and piece.attributes.get("mtype") == "seg"


def plain(pieces: list[Piece]) -> str:
    """Return the content of a source or target as one line of text."""
    builder = BlockBuilder()
    add_content(builder, pieces)
    return " ".join(block.text for block in builder.parsed().blocks)


def _protected(piece: Piece) -> bool:
    """Return whether the content of an inline element is not translated, by XLIFF or by ITS."""
    said = piece.attributes
    return said.get("mtype") in ("protected", "x-its-translate-no") or any(
        name.rpartition(":")[2] == "translate" and value == "no" for name, value in said.items()
    )


def add_content(builder: BlockBuilder, pieces: list[Piece]) -> None:
    """Add the content of a source: a block, or one for each of its segments, or those of HTML that is escaped in it."""
    if all(piece.kind == "text" for piece in pieces) and _HTML.search(text := "".join(p.text for p in pieces)):
        html.add(_Escaped(builder), text)
        return
    raw = "".join(p.raw for p in pieces)
    if "|" in raw and all(piece.kind == "text" for piece in pieces) and _CHOICES.fullmatch(raw):
        _add_choices(builder, raw)
        return
    builder.begin()
    states: list[Piece] = []
    code = 0  # number of open elements whose content stays
    marked: list[str] = []  # ids of the open markers (sm, em) of what stays
    data: list[Piece] | None = None  # the open CDATA section
    for piece in pieces:
        starts, ends = piece.kind == "start", piece.kind == "end"
        hides = piece.local in _CODES or (starts and _protected(piece))
        if starts:
            if is_segment(piece):
                builder.end()
                builder.keep(piece.raw)
                builder.begin()
            states.append(piece)
            code += hides
        elif ends:
            opened = states.pop()
            code -= opened.local in _CODES or _protected(opened)
            if is_segment(opened):
                builder.end()
                builder.keep(piece.raw)
                builder.begin()
                continue
        if starts and is_segment(piece):
            continue
        if starts and piece.local == "sm" and hides and _protected(piece):
            marked.append(piece.attributes.get("id", ""))
        elif starts and piece.local == "em" and piece.attributes.get("startRef") in marked:
            marked.remove(piece.attributes["startRef"])
        state = tuple(opened.raw for opened in states)
        if piece.kind == "other" and piece.raw.startswith("<![CDATA["):
            data = []
        if data is not None:
            data.append(piece)
            if piece.raw.startswith("]]>"):
                _cdata(builder, data, state, bool(code or marked))
                data = None
        elif piece.kind == "text" and piece.raw.startswith("&#") and piece.text.isspace() and not code and not marked:
            builder.keep(piece.raw, BREAK)  # somebody has written it on purpose
        elif piece.kind == "text" and not code and not marked:
            builder.text(piece.text, state, piece.raw)
        else:
            shown = starts and (
                piece.local in ("ph", "x") or (hides and piece.local not in _CODES) or _protected(piece)
            )
            builder.keep(piece.raw, PLACEHOLDER if shown else "")
    builder.end()


def _add_choices(builder: BlockBuilder, raw: str) -> None:
    """Add the choices of a message, as in Symfony and Laravel: a block each; bars, numbers and intervals stay."""
    for number, choice in enumerate(raw.split("|")):
        said = _CHOSEN.match(choice)
        start = said.end() if said else 0
        builder.keep("|" * bool(number) + choice[:start])
        builder.begin()
        builder.text(html_text.unescape(choice[start:]), None, choice[start:])
        builder.end()


def _cdata(builder: BlockBuilder, data: list[Piece], state: tuple[str, ...], in_place: bool) -> None:
    """Add a CDATA section: HTML in it by its own rules, in a section; plain text needs none."""
    text = "".join(piece.text for piece in data)
    inner = html_pieces(text)
    marked_up = any(piece.kind != "text" or piece.raw != piece.text for piece in inner)
    if in_place:
        builder.keep("".join(piece.raw for piece in data))
    elif marked_up:
        builder.end()
        builder.keep("<![CDATA[")
        html.add(builder, text)
        builder.keep("]]>")
        builder.begin()
    else:
        builder.text(text, state, escape(text))


class _Escaped(BlockBuilder):
    """A builder of HTML that is escaped in an XML file.

    Args:
        builder: the file's.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self.outer = builder
        super().__init__()

    def begin(self) -> None:
        before, self.outer.write = self.outer.write, lambda text: escape(escape(text))
        self.outer.begin()
        self.outer.write = before

    def end(self) -> None:
        before, self.outer.write = self.outer.write, lambda text: escape(escape(text))
        self.outer.end()
        self.outer.write = before

    def enter(self) -> None:
        if not self.outer.inside:
            self.begin()

    def leave(self) -> None:
        if self.outer.inside:
            self.end()

    @property
    def inside(self) -> bool:
        return self.outer.inside

    def at(self, kind: str, key: str = "", most: int = 0) -> None:
        self.outer.at(kind, key, most)

    def name(self, key: str) -> None:
        self.outer.name(key)

    def text(self, text: str, state: Hashable = None, raw: str | None = None) -> None:
        self.outer.text(text, state, escape(raw if raw is not None else escape(text)))

    def keep(self, raw: str, fill: str = "") -> None:
        self.outer.keep(escape(raw), fill)

    def misread(self, raw: str, what: str, written: bool = True) -> None:
        self.outer.misread(escape(raw), what, written)
