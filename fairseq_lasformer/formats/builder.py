"""Building of blocks: readers add text and markup, and what is not language becomes markup here, in every format.

Also here: a block without a letter outside of markup is no block; the texts in a message of ICU are blocks of their
own.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fairseq_lasformer.formats.block import PLACEHOLDER, Block, Finished, Markup, Parsed, Place, Unread
from fairseq_lasformer.formats.templates import alternative
from fairseq_lasformer.text.icu import quoted
from fairseq_lasformer.text.spans import MARKUP, Span, has_letter, spans


class _Text(NamedTuple):
    """Text of an open block, its form in the file and its formatting."""

    text: str
    raw: str
    state: Hashable


class _Kept(NamedTuple):
    """Markup of an open block: a piece of the file, or the number of a block, and its fill."""

    piece: str | int
    fill: str


_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,1000}>")

_IDENTIFIER = re.compile(
    r"\s*[A-Za-z]\w{1,60}(?:\.\w{2,60}){2,9}\s*|\s*[A-Za-z][A-Za-z0-9]{0,60}(?:_[A-Za-z0-9]{1,60}){1,9}\s*"
)
_MARKER = re.compile(r"\s*(?:\((?:[a-zA-Z]|\d{1,3}|[ivx]{1,5})\)|[a-z]\)|§{1,2}\s?\d{1,4}[a-z]?\.?)\s+(?=\S)")
"""Letters and numbers of lists at the start of a text, which are no words of it."""

_Items = list["_Text | _Kept"]


class _OpenBlock:
    def __init__(self, number: int, place: Place) -> None:
        self.number, self.place = number, place
        self.items: _Items = []
        self.has_text = False


class BlockBuilder:
    """A collector of a file's pieces, and of the blocks among them, in reading order.

    Blocks may be nested: a footnote within a paragraph is a block in the markup of another.
    """

    def __init__(self, write: Callable[[str], str] = str) -> None:
        self.write = write
        self.pieces: list[str | int] = []
        self.blocks: list[Block | None] = []
        self.found: list[Finished] = []
        self.unread: list[Unread] = []
        self.units = 0
        self._open: list[_OpenBlock] = []
        self._place = Place()
        self._line = 1

    def at(self, kind: str, key: str = "", most: int = 0) -> None:
        """Say where the next blocks are, until this is called again; only the first of them has the key."""
        self._place = Place(kind, key, most)

    def kind(self, kind: str) -> None:
        """Say of what kind the open block is."""
        block = self._open[-1]
        block.place = block.place._replace(kind=kind)

    def name(self, key: str) -> None:
        """Give a key to the open block, if it has none and no text yet."""
        block = self._open[-1]
        if not block.place.key and not block.has_text:
            block.place = block.place._replace(key=key)

    def begin(self) -> None:
        """Begin a block, within the open one if there is one."""
        self._open.append(_OpenBlock(len(self.blocks), self._place))
        self._place = self._place._replace(key="")
        self.blocks.append(None)

    def end(self) -> None:
        """End the innermost open block. A block without language becomes part of the unchanged pieces."""
        block = self._open.pop()
        self._close(block.number, block.items, block.place, self.write)

    def part(self, raw: str) -> None:
        """End the innermost open block before something that separates texts, and begin the next one after it."""
        place = self._open[-1].place._replace(key="")
        self.end()
        self.keep(raw)
        self.begin()
        self._open[-1].place = place

    def _close(self, number: int, items: _Items, place: Place, write: Callable[[str], str]) -> None:
        """Make a block of its items, and add it to what is open."""
        for holder in self._closed(number, items, place, write):
            self._piece(holder.piece, holder.fill)

    def _closed(self, number: int, items: _Items, place: Place, write: Callable[[str], str]) -> list[_Kept]:
        """Make a block of its items; return what stands for them around it: its number, or the items themselves."""
        text = "".join([item.text if isinstance(item, _Text) else MARKUP for item in items])
        if (marker := _MARKER.match(text)) and isinstance(items[0], _Text) and not _MARKER.match(text, marker.end()):
            parts = _Cutter(items, write)
            holder = _kept(parts.cut(0, marker.end()), "")
            return [*holder, *self._closed(number, parts.cut(marker.end(), parts.length), place, write)]
        closed = spans(text)
        if cuts := [s for s in closed if s.kind == "placeholder" and alternative(text[s.start : s.end])]:
            return self._alternatives(number, items, cuts, place, write)
        if closed:
            items = self._protected(items, closed, place, write)
            if any(span.message is not None for span in closed):
                inner, write = write, lambda text: inner(_unquoted(text))
        if _IDENTIFIER.fullmatch(text) or not any(isinstance(item, _Text) and has_letter(item.text) for item in items):
            return [_Kept(item.raw, "") if isinstance(item, _Text) else item._replace(fill="") for item in items]
        self.blocks[number] = _made(items, place, write)
        return [_Kept(number, "")]

    def _alternatives(
        self, number: int, items: _Items, cuts: Sequence[Span], place: Place, write: Callable[[str], str]
    ) -> list[_Kept]:
        """Make a block of each text between codes after which another text takes the place of the one before."""
        parts = _Cutter(items, write)
        holders: list[_Kept] = []
        position = 0
        for cut in (*cuts, Span(parts.length, parts.length, "")):
            holders += self._closed(number, parts.cut(position, cut.start), place, write)
            holders += _kept(parts.cut(cut.start, cut.end), "")
            position, number = cut.end, len(self.blocks)
            self.blocks.append(None)
        return holders

    def _protected(self, items: _Items, spans_of: Sequence[Span], place: Place, write: Callable[[str], str]) -> _Items:
        """Replace what is not language in the items of a block by markup."""
        only, plain = items[0], all(span.message is None for span in spans_of)
        if plain and len(items) == 1 and isinstance(only, _Text) and only.raw == only.text:
            return _sliced(only, spans_of)
        protected: _Items = []
        parts = _Cutter(items, write)
        position = 0
        for span in spans_of:
            protected += parts.cut(position, span.start)
            position = span.end
            if span.message is None:
                protected += _kept(parts.cut(span.start, span.end), PLACEHOLDER)
                continue
            start, fill = span.start, PLACEHOLDER
            for a, b, counted in span.message.texts:
                protected += _kept(parts.cut(start, a), fill)
                inner, start, fill = _of_message(parts.cut(a, b), counted, write), b, ""
                number = len(self.blocks)
                self.blocks.append(None)
                protected += self._closed(number, inner, place._replace(key=""), lambda text: write(_unquoted(text)))
            protected += _kept(parts.cut(start, span.end), fill)
        protected += parts.cut(position, parts.length)
        if any(span.message is not None for span in spans_of):  # what is around a message belongs to a message, too
            protected = _of_message(protected, False, write)
        return protected

    def finished(self, source: str, target: str, reviewed: bool) -> None:
        """Add an existing translation; its pieces must also be added, by :meth:`keep`."""
        if source.strip() and target.strip():
            self.found.append(Finished(len(self.blocks), source, target, reviewed))

    def enter(self) -> None:
        """Begin a block, unless one is open."""
        if not self._open:
            self.begin()

    def leave(self) -> None:
        """End the innermost open block, if one is open."""
        if self._open:
            self.end()

    @property
    def inside(self) -> bool:
        """Return whether a block is open."""
        return bool(self._open)

    def text(self, text: str, state: Hashable = None, raw: str | None = None) -> None:
        """Add text to the open block.

        Args:
            raw: its form in the file; default: as converted by ``write``.
        """
        if not text:
            return
        block = self._open[-1]
        if raw is None:
            raw = self.write(text)
        block.items.append(_Text(text, raw, state))
        if not block.has_text:
            block.has_text = not text.isspace()
        if "\n" in raw:
            self._line += raw.count("\n")

    def keep(self, raw: str, fill: str = "") -> None:
        """Add something that stays as it is: markup of the open block, or a piece between blocks.

        Args:
            fill: its substitute in the text of a block; see :class:`Block`.
        """
        if raw or fill:
            self._piece(raw, fill)
            if "\n" in raw:
                self._line += raw.count("\n")

    def misread(self, raw: str, what: str, written: bool = True) -> None:
        """Keep something that may be text, but is not understood; see :class:`Unread`.

        Args:
            written: False if its pieces are added by :meth:`keep`.
        """
        if has_letter(raw):
            lead = raw[: len(raw) - len(raw.lstrip())]
            self.unread.append(Unread(self._line + lead.count("\n"), what))
        if written:
            self.keep(raw)

    def _piece(self, piece: str | int, fill: str = "") -> None:
        if self._open:
            self._open[-1].items.append(_Kept(piece, fill))
        else:
            self.pieces.append(piece)

    def parsed(self) -> Parsed:
        """Return the collected file; blocks without text have no number."""
        numbers: dict[int, int] = {}
        blocks: list[Block] = []
        for old, block in enumerate(self.blocks):
            if block is not None:
                numbers[old] = len(blocks)
                blocks.append(block)

        def renumber(pieces: Sequence[str | int]) -> Markup:
            return tuple(piece if isinstance(piece, str) else numbers[piece] for piece in pieces)

        return Parsed(
            renumber(self.pieces),
            tuple(replace(b, markup=tuple(renumber(m) for m in b.markup)) for b in blocks),
            finished=tuple(f._replace(before=sum(old < f.before for old in numbers)) for f in self.found),
            unread=tuple(self.unread),
            units=self.units,
        )


def _made(items: Iterable[_Text | _Kept], place: Place, write: Callable[[str], str]) -> Block:
    """Return the block of some items: texts without markup between them are one segment."""
    segments: list[list[str]] = [[]]
    raws: list[list[str]] = [[]]
    states: list[Hashable] = [None]
    markup: list[list[str | int]] = []
    fills: list[str] = []
    for item in items:
        if isinstance(item, _Text):
            if not segments[-1]:
                states[-1] = item.state
            segments[-1].append(item.text)
            raws[-1].append(item.raw)
        elif markup and not segments[-1] and not (item.fill and fills[-1] and item.fill != fills[-1]):
            markup[-1].append(item.piece)
            fills[-1] = fills[-1] or item.fill
        else:
            markup.append([item.piece])
            fills.append(item.fill)
            segments.append([])
            raws.append([])
            states.append(states[-1])
    texts, same = tuple(map("".join, segments)), tuple(map("".join, raws))
    return Block(texts, tuple(map(tuple, markup)), tuple(states), tuple(fills), write, place, same)


def _sliced(item: _Text, spans: Sequence[Span]) -> _Items:
    """Return text that is written as it is with markup in it; the usual case."""
    text, state = item.text, item.state
    sliced: _Items = []
    position = 0
    for start, end, _, _ in spans:
        if start > position:
            piece = text[position:start]
            sliced.append(_Text(piece, piece, state))
        sliced.append(_Kept(text[start:end], PLACEHOLDER))
        position = end
    if position < len(text):
        sliced.append(_Text(text[position:], text[position:], state))
    return sliced


class _Cutter:
    """A cutter of the items of a block, from left to right; markup is one character long."""

    def __init__(self, items: _Items, write: Callable[[str], str]) -> None:
        self.items, self.write = items, write
        self.sizes = [len(item.text) if isinstance(item, _Text) else 1 for item in items]
        self.length = sum(self.sizes)
        self.at, self.start = 0, 0  # the item that is next, and its place

    def cut(self, begin: int, end: int) -> _Items:
        """Return the items between two places, of which none is before the last one asked for."""
        cut_items: _Items = []
        while self.at < len(self.items) and self.start < end:
            item, size = self.items[self.at], self.sizes[self.at]
            a, b = max(begin - self.start, 0), min(end - self.start, size)
            if b > a:
                cut_items.append(
                    item if not isinstance(item, _Text) or b - a == size else _part(item, a, b, self.write)
                )
            if self.start + size > end:
                break
            self.start += size
            self.at += 1
        return cut_items


def _part(item: _Text, start: int, end: int, write: Callable[[str], str]) -> _Text:
    text = item.text[start:end]
    return item._replace(text=text, raw=text if item.raw == item.text else write(text))


def _kept(items: _Items, fill: str) -> list[_Kept]:
    """Return text and markup as markup, which is filled once."""
    pieces = [item.raw if isinstance(item, _Text) else item.piece for item in items]
    return [_Kept(piece, fill if not i else "") for i, piece in enumerate(pieces)]


def _of_message(items: _Items, counted: bool, write: Callable[[str], str]) -> _Items:
    """Return the items of a text in a message of ICU: ``#`` is a number, and what is quoted stays."""
    parts: _Items = []
    for item in items:
        if not isinstance(item, _Text):
            parts.append(item)
            continue
        plain = item.raw == item.text
        position = 0
        hashes = [(i, i + 1) for i, c in enumerate(item.text) if c == "#"] if counted else []
        tags = [tag.span() for tag in _TAG.finditer(item.text)]
        for start, end in sorted([*quoted(item.text), *hashes, *tags]):
            if start < position:
                continue
            if start > position:
                text = item.text[position:start]
                parts.append(_Text(text, text if plain else write(text), item.state))
            literal = item.text[start:end]
            if literal == "''":
                parts.append(_Text("'", "''", item.state))
            else:
                parts.append(_Kept(literal if plain else write(literal), "" if literal[0] == "<" else PLACEHOLDER))
            position = end
        if position:
            text = item.text[position:]
            parts += [_Text(text, text if plain else write(text), item.state)] if text else []
        else:
            parts.append(item)
    return parts


def _unquoted(text: str) -> str:
    """Return the text of a message such that no apostrophe in it quotes what follows."""
    return "".join(f"{c}{c}" if c == "'" and text[i + 1 : i + 2] in ("", *"{}#|'") else c for i, c in enumerate(text))
