"""Plain text: every line is a block; blank lines, indents and list markers stay."""

import re

from fairseq_lasformer.formats.block import BREAK, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.text import icu

_BREAKS = re.compile(r"((?:\r?\n)+)")  # see text/lines.py
_MARKER = re.compile(r"\s*(?:(?:[-*+•‣–—>]|\(?\d{1,3}[.)])[ \t]+)*")


_ENDS = tuple(".!?:;…。！？\"'”’»)]")

FEW, SHARE = 2, 0.5
"""Number and share of lines that go on in the next one, from which a text's lines look wrapped."""


BEGINNING = 20_000
"""Number of characters of a text that are looked at for that."""


def looks_wrapped(text: str) -> bool:
    """Return whether sentences of a text go on in its next lines."""
    lines = [line.strip() for line in text[:BEGINNING].split("\n")]
    pairs = [(a, b) for a, b in zip(lines, lines[1:]) if a and b]
    on = [a for a, b in pairs if len(a) > 30 and not a.endswith(_ENDS) and b[0].islower()]
    return len(on) >= FEW and len(on) >= SHARE * len(pairs)


def read(text: str) -> Parsed:
    """Read the lines of a text, each of which may contain one sentence or a whole paragraph."""
    builder = BlockBuilder()
    for line in _joined(_BREAKS.split(text)):
        if not line.strip():
            builder.keep(line)
            continue
        marker = _MARKER.match(line)
        start = marker.end() if marker and line[marker.end() :].strip() else 0
        builder.keep(line[:start])
        builder.begin()
        _text(builder, line[start:])
        builder.end()
    return builder.parsed()


def _joined(lines: list[str]) -> list[str]:
    """Return lines, of which those that a message of ICU covers are one."""
    if not any("{" in line for line in lines):
        return lines
    text = "".join(lines)
    crossing = [(m.start, m.end) for m in icu.messages(text) if "\n" in text[m.start : m.end]]
    found: list[str] = []
    position = 0
    waiting = iter([*crossing, (len(text) + 1, 0)])
    start, end = next(waiting)
    whole = False
    for line in lines:
        found[-1:] = [found[-1] + line] if whole else [*found[-1:], line]
        position += len(line)
        while end and end <= position:
            start, end = next(waiting)
        whole = start < position
    return found


def _text(builder: BlockBuilder, text: str) -> None:
    """Add text to the open block, with its line breaks as markup."""
    for piece in re.split(r"(\r?\n)", text):
        if piece in ("\n", "\r\n"):
            builder.keep(piece, BREAK)
        else:
            builder.text(piece)


def read_wrapped(text: str) -> Parsed:
    """Read the paragraphs of a text with wrapped lines; blank and more deeply indented lines separate them."""
    builder = BlockBuilder()
    for paragraph in re.split(r"((?:\r?\n[ \t]*)(?:\r?\n[ \t]*)+|\r?\n(?=[ \t]))", text):
        if not paragraph.strip():
            builder.keep(paragraph)
            continue
        builder.begin()
        _text(builder, paragraph)
        builder.end()
    return builder.parsed()
