"""Symbols that a model does not know, such as emoji and bars: it reads placeholders, and they return at their places.

A symbol is a character of Unicode's categories So, Sc, Sk and Sm, or of private use, with what modifies it: skin tones,
variation selectors, joiners, flags, keycaps (Unicode Technical Standard 51).
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
        found = [segments[0]]
        for symbols, segment in zip(self.symbols, segments[1:]):
            if symbols:
                found[-1] += symbols + segment
            else:
                found.append(segment)
        return found


def hidden(block: Block, unknown: Callable[[str], bool]) -> Hidden:
    """Return a block with a placeholder for each run of unknown symbols.

    Args:
        unknown: whether a model does not know some symbols.
    """
    segments: list[str] = []
    markup: list[Markup] = []
    states, fills, symbols = [], [], []
    for i, segment in enumerate(block.segments):
        if i:
            markup.append(block.markup[i - 1])
            fills.append(block.fills[i - 1])
            symbols.append("")
        position = 0
        for run in _RUN.finditer(segment):
            if unknown(run[0]):
                segments.append(segment[position : run.start()])
                states.append(block.states[i] if block.states else None)
                markup.append((run[0],))
                fills.append(PLACEHOLDER)
                symbols.append(run[0])
                position = run.end()
        segments.append(segment[position:])
        states.append(block.states[i] if block.states else None)
    if not any(symbols):
        return Hidden.nothing(block)
    made = Block(tuple(segments), tuple(markup), tuple(states), tuple(fills), block.write, block.place)
    return Hidden(made, tuple(symbols))
