"""Placeholders for what a model could not copy, which returns at its place: symbols, and some names and numbers.

A symbol is a character of Unicode's categories So, Sc, Sk and Sm, or of private use, with what modifies it: skin tones,
variation selectors, joiners, flags, keycaps (Unicode Technical Standard 51). Names are words with capitals or digits
within them (OCR, q8_0) that the model's subwords spell out. Numbers are hidden in texts of a few words, such as cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import regex

from fairseq_lasformer.formats.block import PLACEHOLDER, Block, Markup

_ONE = r"[\p{So}\p{Sc}\p{Sk}\p{Sm}\p{Co}\u2020-\u2022\u203b\u203c\u2049\u3030\u303d]"
_MODIFIED = (
    rf"(?:{_ONE}|[0-9#*](?=\ufe0f?\u20e3))[\ufe0e\ufe0f\u20d0-\u20ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
)
_RUN = regex.compile(rf"(?:{_MODIFIED}(?:\u200d(?:{_MODIFIED})?)*)+")


_CHANGED = regex.compile(
    r"(?<!\w)\p{Latin}{0,3}\p{No}+(?!\p{L})|(?<!\d)\d{0,20}+\p{No}+|[\u2116\u2120\u2122\u2103\u2109\u33a0-\u33ff]"
)
"""Numbers and signs that the normalisation of subword models changes: ½, m², №, ™."""

_NAME = regex.compile(
    r"(?<![\w'’.&-])(?=[\w.+-]{0,40}(?:\p{Lu}{2}|\d[A-Za-z]|[A-Za-z]\d|\p{Ll}\p{Lu}|[^\W_]_[^\W_]))"
    r"[^\W\d_][\w+-]{0,40}(?:\.[\w+-]{1,40}){0,3}(?<![-+.])(?![\w'’])"
)
_NUMBER = regex.compile(r"(?<![\w.,])\d[\d.,:]{0,30}\d(?!\w)")
FEW = 4
"""Number of words of the longest text in which numbers are hidden."""


class Hidden(NamedTuple):
    """A block as a model reads it."""

    block: Block  # the block, with placeholders for symbols
    symbols: tuple[str, ...]  # for each markup of it, the symbols that it stands for; empty for the markup of the file

    @classmethod
    def nothing(cls, block: Block) -> Hidden:
        """Return a block as it is."""
        return cls(block, ("",) * len(block.markup))

    def names(self, segments: tuple[int, int]) -> dict[str, str]:
        """Return the placeholders between the first and the last segment of a sentence, and what they stand for."""
        named = [i for i in range(*segments) if self.block.fill(i).startswith(PLACEHOLDER)]
        return {self.block.fill(i): self.block.shown(i) for i in named}

    def segments(self, segments: Sequence[str]) -> list[str]:
        """Return the segments of the block of the file, from those of this one."""
        joined = [segments[0]]
        for symbols, segment in zip(self.symbols, segments[1:]):
            if symbols:
                joined[-1] += symbols + segment
            else:
                joined.append(segment)
        return joined


def hidden(block: Block, unknown: Callable[[str], bool], spelled: Callable[[str], bool] | None = None) -> Hidden:
    """Return a block with a placeholder for each run of unknown symbols, and for what a model could not copy.

    Args:
        unknown: whether a model does not know some symbols.
        spelled: whether it would have to spell a name; None to hide no names and no numbers.
    """
    short = spelled is not None and len(block.text.split()) <= FEW

    def places(segment: str) -> list[tuple[int, int]]:
        unknowns = [run.span() for run in _RUN.finditer(segment) if unknown(run[0])]
        unknowns += [run.span() for run in _CHANGED.finditer(segment)]
        unknowns += [name.span() for name in _NAME.finditer(segment) if spelled and spelled(name[0])]
        unknowns += [number.span() for number in _NUMBER.finditer(segment)] if short else []
        apart: list[tuple[int, int]] = []
        for start, end in sorted(unknowns):
            if not apart or start >= apart[-1][1]:
                apart.append((start, end))
        return apart

    segments: list[str] = []
    markup: list[Markup] = []
    states, fills, symbols = [], [], []
    for i, segment in enumerate(block.segments):
        if i:
            markup.append(block.markup[i - 1])
            fills.append(block.fills[i - 1])
            symbols.append("")
        position = 0
        for start, end in places(segment):
            segments.append(segment[position:start])
            states.append(block.states[i] if block.states else None)
            markup.append((segment[start:end],))
            fills.append(PLACEHOLDER)
            symbols.append(segment[start:end])
            position = end
        segments.append(segment[position:])
        states.append(block.states[i] if block.states else None)
    if not any(symbols):
        return Hidden.nothing(block)
    shown = Block(tuple(segments), tuple(markup), tuple(states), tuple(fills), block.write, block.place)
    return Hidden(shown, tuple(symbols))
