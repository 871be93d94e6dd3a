"""A file as blocks of text, which are translated, and everything between them, which is not.

Every format is read into the same form and written back from it. Whatever is not text comes out unchanged.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fairseq_lasformer.formats.placeholders import ANYWHERE

BREAK = " "
"""Fill of markup that separates words, such as a line break."""

PLACEHOLDER = "X"
"""Fill of markup that takes the place of a word, such as code: in the text it is ``X1``, ``X2``, …"""

Markup = tuple["str | int", ...]
"""Markup inside a block: unchanged pieces of the file, and the numbers of blocks between them."""


class Place(NamedTuple):
    """Description of a block by its file, apart from its text.

    Attributes:
        kind: its element, such as ``h1`` or ``p``; empty if unknown.
        key: its name in the file: an ``id``, an anchor, the time of a cue; empty if it has none.
    """

    kind: str = ""
    key: str = ""


@dataclass(frozen=True)
class Block:
    """A run of text, such as a paragraph, with markup in it.

    Attributes:
        segments: the text before, between and after the markup; one more than ``markup``.
        markup: what is between the segments.
        states: formatting of each segment; segments of equal state look alike.
        fills: for each markup, its substitute in the text: nothing, :data:`BREAK` or :data:`PLACEHOLDER`.
        write: converts text to its form in the file, such as ``&amp;`` for ``&``.
        place: what the file says about it.
    """

    segments: tuple[str, ...]
    markup: tuple[Markup, ...] = ()
    states: tuple[Hashable, ...] = ()
    fills: tuple[str, ...] = ()
    write: Callable[[str], str] = field(default=str, compare=False)
    place: Place = field(default=Place(), compare=False)

    @property
    def text(self) -> str:
        """The text, with the fills of its markup."""
        pieces = [self.segments[0]]
        for i, segment in enumerate(self.segments[1:]):
            pieces += [self.fill(i), segment]
        return "".join(pieces)

    def fill(self, markup: int) -> str:
        """Return the fill of markup; empty within a word, which a placeholder would change."""
        fill = self.fills[markup]
        if fill != PLACEHOLDER:
            return fill
        if self.segments[markup][-1:].isalnum() or self.segments[markup + 1][:1].isalnum():
            return ""
        return f"{fill}{self._numbers[markup]}"

    @functools.cached_property
    def _numbers(self) -> list[int]:
        """Number of placeholders up to each markup."""
        return list(itertools.accumulate(int(fill == PLACEHOLDER) for fill in self.fills))


class Finished(NamedTuple):
    """A text with an existing translation, which stays as it is; the model may read it.

    Attributes:
        before: number of blocks before it.
        source, target: the text and its translation, with the fills of markup.
        reviewed: False if the file asks for a review.
    """

    before: int
    source: str
    target: str
    reviewed: bool = True


@dataclass(frozen=True)
class Parsed:
    """A file that has been read.

    Attributes:
        pieces: contents of the file, in order: text that stays, and numbers of blocks. Blocks that are not among
            them are in the markup of others.
        blocks: the blocks, in reading order.
        languages: codes of source and target language, if the file names them.
        finished: existing translations.
    """

    pieces: tuple[str | int, ...]
    blocks: tuple[Block, ...]
    languages: tuple[str | None, str | None] = (None, None)
    finished: tuple[Finished, ...] = ()

    def of_languages(self, languages: tuple[str | None, str | None]) -> Parsed:
        """Return a copy with the languages that the file names."""
        return replace(self, languages=languages)

    def render(self, segments: Sequence[Sequence[str]]) -> str:
        """Return the file with other text.

        Args:
            segments: for each block, one text per segment.
        """

        found: list[str] = []
        left = [iter(self.pieces)]  # blocks may be nested as deeply as their file's elements
        while left:
            piece = next(left[-1], None)
            if piece is None:
                left.pop()
            elif isinstance(piece, str):
                found.append(piece)
            else:
                block, texts = self.blocks[piece], segments[piece]
                if len(texts) != len(block.segments):
                    raise ValueError(f"block {piece}: {len(texts)} segments instead of {len(block.segments)}")
                inner: list[str | int] = [block.write(texts[0])]
                for markup, text in zip(block.markup, texts[1:]):
                    inner += [*markup, block.write(text)]
                left.append(iter(inner))
        return "".join(found)


class BlockBuilder:
    """A collector of a file's pieces, and of the blocks among them, in reading order.

    Blocks may be nested: a footnote within a paragraph is a block in the markup of another.
    """

    def __init__(self, write: Callable[[str], str] = str) -> None:
        self.write = write
        self.pieces: list[str | int] = []
        self.blocks: list[Block | None] = []
        self.found: list[Finished] = []
        self._open: list[_OpenBlock] = []
        self._place = Place()

    def at(self, kind: str, key: str = "") -> None:
        """Say where the next blocks are, until this is called again; only the first of them has the key."""
        self._place = Place(kind, key)

    def kind(self, kind: str) -> None:
        """Say of what kind the open block is."""
        block = self._open[-1]
        block.place = block.place._replace(kind=kind)

    def name(self, key: str) -> None:
        """Give a key to the open block, if it has none and no text yet."""
        block = self._open[-1]
        if not block.place.key and not block.open and not any(s.strip() for s in block.segments):
            block.place = block.place._replace(key=key)

    def begin(self) -> None:
        """Begin a block, within the open one if there is one."""
        self._open.append(_OpenBlock(len(self.blocks), self._place))
        self._place = self._place._replace(key="")
        self.blocks.append(None)

    def end(self) -> None:
        """End the innermost open block. A block without text becomes part of the unchanged pieces."""
        block = self._open.pop()
        block.close()
        if not any(segment.strip() for segment in block.segments):
            for i, segment in enumerate(block.segments):
                if segment:
                    self.keep(block.raw[i])
                for piece in block.markup[i] if i < len(block.markup) else ():
                    self._piece(piece)
            return
        self.blocks[block.number] = Block(
            tuple(block.segments),
            tuple(tuple(markup) for markup in block.markup),
            tuple(block.states),
            tuple(block.fills),
            self.write,
            block.place,
        )
        self._piece(block.number)

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

    def text(self, text: str, state: Hashable = None, raw: str | None = None, placeholders: bool = True) -> None:
        """Add text to the open block.

        Args:
            raw: its form in the file; default: as converted by ``write``.
            placeholders: whether a program's placeholders (``{{ name }}``, ``%s``) stay as they are.
        """
        if placeholders and (raw is None or raw == text):
            position = 0
            for found in ANYWHERE.finditer(text):
                self._add(text[position : found.start()], state, None)
                self.keep(found[0], PLACEHOLDER)
                position = found.end()
            text = text[position:]
            raw = None if position else raw
        self._add(text, state, raw)

    def _add(self, text: str, state: Hashable, raw: str | None) -> None:
        if not text:
            return
        block = self._open[-1]
        if not block.open and not block.segments[-1]:
            block.states[-1] = state
        block.open.append(text)
        block.open_raw.append(self.write(text) if raw is None else raw)

    def keep(self, raw: str, fill: str = "") -> None:
        """Add something that stays as it is: markup of the open block, or a piece between blocks.

        Args:
            fill: its substitute in the text of a block; see :class:`Block`.
        """
        if raw or fill:
            self._piece(raw, fill)

    def _piece(self, piece: str | int, fill: str = "") -> None:
        if not self._open:
            self.pieces.append(piece)
            return
        block = self._open[-1]
        block.close()
        if block.markup and not block.segments[-1] and not (fill and block.fills[-1] and fill != block.fills[-1]):
            block.markup[-1].append(piece)
            block.fills[-1] = block.fills[-1] or fill
        else:
            block.markup.append([piece])
            block.fills.append(fill)
            block.segments.append("")
            block.raw.append("")
            block.states.append(block.states[-1])

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
        )


class _OpenBlock:
    def __init__(self, number: int, place: Place) -> None:
        self.number, self.place = number, place
        self.segments, self.raw = [""], [""]
        self.states: list[Hashable] = [None]
        self.markup: list[list[str | int]] = []
        self.fills: list[str] = []
        self.open: list[str] = []  # pieces of the last segment, which are joined only once
        self.open_raw: list[str] = []

    def close(self) -> None:
        """Join the pieces added to the last segment."""
        if self.open:
            self.segments[-1] += "".join(self.open)
            self.raw[-1] += "".join(self.open_raw)
            self.open.clear()
            self.open_raw.clear()
