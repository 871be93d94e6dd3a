"""A file as blocks of text, which are translated, and everything between them, which is not.

Every format is read into the same form and written back from it. Whatever is not text comes out unchanged.
"""

from __future__ import annotations

import functools
import html
import itertools
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

BREAK = " "
"""Fill of markup that separates words, such as a line break."""

PLACEHOLDER = "X"
"""Fill of markup that takes the place of a word, such as code: in the text it is ``X1``, ``X2``, …"""

Markup = tuple["str | int", ...]
"""Markup inside a block: unchanged pieces of the file, and the numbers of blocks between them."""


@dataclass(frozen=True)
class Written:
    """The forms of a text in a file, which may differ at the start of a line and in a link."""

    within: Callable[[str], str]
    start: Callable[[str], str]
    linked: Callable[[str], str]

    def __call__(self, text: str) -> str:
        return self.within(text)


class Place(NamedTuple):
    """Description of a block by its file, apart from its text."""

    kind: str = ""  # its element, such as `h1` or `p`; empty if unknown
    key: str = ""  # its name in the file: an `id`, an anchor, the time of a cue; empty if it has none
    most: int = 0  # characters for which there is room; 0 for any number


@dataclass(frozen=True)
class Block:
    """A run of text, such as a paragraph, with markup in it."""

    segments: tuple[str, ...]  # the text before, between and after the markup; one more than `markup`
    markup: tuple[Markup, ...] = ()  # what is between the segments
    states: tuple[Hashable, ...] = ()  # formatting of each segment; segments of equal state look alike
    fills: tuple[str, ...] = ()  # for each markup, its substitute in the text: nothing, `BREAK` or `PLACEHOLDER`
    # converts text to its form in the file, such as `&amp;` for `&`
    write: Callable[[str], str] = field(default=str, compare=False)
    place: Place = field(default=Place(), compare=False)  # what the file says about it
    # each segment as it is in the file, for segments that do not change; empty if `write` says it
    raws: tuple[str, ...] = field(default=(), compare=False)

    def written(self, number: int, text: str) -> str:
        """Return a segment's form in the file with other text, or with its own."""
        if self.raws and text == self.segments[number]:
            return self.raws[number]
        if not isinstance(self.write, Written):
            return self.write(text)
        if self.states and isinstance(state := self.states[number], tuple) and "[" in state:
            return self.write.linked(text)
        return self.write.start(text) if self._starts_line(number) else self.write(text)

    def _starts_line(self, number: int) -> bool:
        last = self.markup[number - 1][-1] if number else "\n"
        return isinstance(last, str) and re.search(r"\n[ \t>]*\Z", last) is not None

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
        before, after = self.segments[markup][-1:], self.segments[markup + 1][:1]
        if before.isalnum() or after.isalnum() or "_" in (before, after):
            return ""
        return f"{fill}{self._numbers[markup]}"

    def shown(self, markup: int) -> str:
        """Return what a reader sees of markup, in one line: its text without tags, in formats that have tags."""
        raw = "".join([piece for piece in self.markup[markup] if isinstance(piece, str)])
        if self.write("<") != "<":
            raw = html.unescape(re.sub("<[^<>]*>", "", raw))
        return " ".join(raw.split())

    @functools.cached_property
    def _numbers(self) -> list[int]:
        """Number of placeholders up to each markup."""
        return list(itertools.accumulate(int(fill == PLACEHOLDER) for fill in self.fills))


class Finished(NamedTuple):
    """A text with an existing translation, which stays as it is; the model may read it."""

    before: int  # number of blocks before it
    # source, target: the text and its translation, with the fills of markup
    source: str
    target: str
    reviewed: bool = True  # False if the file asks for a review


class Unread(NamedTuple):
    """Text that a reader does not understand: it stays as it is, and is reported."""

    line: int  # its line in the file, from 1; 0 if the file has no lines
    what: str  # what it is, in the singular, such as `cue`
    place: str = ""  # name of the file within an archive; empty for others


@dataclass(frozen=True)
class Parsed:
    """A file that has been read."""

    # contents of the file, in order: text that stays, and numbers of blocks. Blocks that are not among them are in the
    # markup of others.
    pieces: tuple[str | int, ...]
    blocks: tuple[Block, ...]  # the blocks, in reading order
    # codes of source and target language, if the file names them
    languages: tuple[str | None, str | None] = (None, None)
    finished: tuple[Finished, ...] = ()  # existing translations
    unread: tuple[Unread, ...] = ()  # text that was not understood
    units: int = 0  # number of cues that were understood; 0 for formats without cues

    def of_languages(self, languages: tuple[str | None, str | None]) -> Parsed:
        """Return a copy with the languages that the file names."""
        return replace(self, languages=languages)

    def render(self, segments: Sequence[Sequence[str]]) -> str:
        """Return the file with other text.

        Args:
            segments: for each block, one text per segment.
        """

        pieces: list[str] = []
        left = [iter(self.pieces)]  # blocks may be nested as deeply as their file's elements
        while left:
            piece = next(left[-1], None)
            if piece is None:
                left.pop()
            elif isinstance(piece, str):
                pieces.append(piece)
            else:
                block, texts = self.blocks[piece], segments[piece]
                if len(texts) != len(block.segments):
                    raise ValueError(f"block {piece}: {len(texts)} segments instead of {len(block.segments)}")
                inner: list[str | int] = [block.written(0, texts[0])]
                for number, (markup, text) in enumerate(zip(block.markup, texts[1:]), 1):
                    inner += [*markup, block.written(number, text)]
                left.append(iter(inner))
        return "".join(pieces)
