"""Plain text: every line is a block; blank lines, indents and list markers stay."""

import re
from collections.abc import Sequence

from fairseq_lasformer.formats.block import BREAK, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.text import icu

_BREAKS = re.compile(r"((?:\r?\n)+)")  # see text/lines.py
_MARKER = re.compile(r"\s*(?:(?:[-*+•‣–—>]|\(?\d{1,3}[.)])[ \t]+)*")


_WIDE = r"(?<=\S) {3,200}(?=\S)|(?<=\S)[ ]{0,80}\t[ \t]{0,80}(?=\S)"
_COLUMNS = re.compile(rf"({_WIDE})")
"""What separates cells in a line: three spaces or more, or a tab."""

_NARROW = re.compile(rf"({_WIDE}|(?<=[^\s.!?:;,\"'”’»)\]]) {{2}}(?=\S))")
"""What separates them in lines beside others with columns: two spaces, too, but not after a sentence."""

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
    lines = _joined(_BREAKS.split(text))
    for number, line in enumerate(lines):
        if not line.strip():
            builder.keep(line)
            continue
        marker = _MARKER.match(line)
        start = marker.end() if marker and line[marker.end() :].strip() else 0
        builder.keep(line[:start])
        columns = _columns(line, [other for other in lines[max(0, number - 2) : number + 3] if other is not line])
        for cell_number, cell in enumerate(columns.split(line[start:])):
            if cell_number % 2:
                builder.keep(cell)
                continue
            builder.begin()
            _text(builder, cell)
            builder.end()
    return builder.parsed()


def _columns(line: str, around: Sequence[str]) -> re.Pattern[str]:
    """Return what separates the cells of a line, which depends on the lines around it."""
    return _NARROW if any(_NARROW.search(other.strip()) for other in around) else _COLUMNS


def finish(original: str, translated: str) -> str:
    """Return a translated text in which columns of spaces begin where they do in the original, if there is room."""
    old, new = original.split("\n"), translated.split("\n")
    if len(old) != len(new) or "   " not in original:
        return translated
    return "\n".join(_aligned(a, b) if _COLUMNS.search(a.strip()) else b for a, b in zip(old, new))


def _aligned(old: str, new: str) -> str:
    """Return a line with as many columns as its original, each beginning at the same place if there is room."""
    edges = [space.span() for space in _COLUMNS.finditer(old)]
    pieces = _COLUMNS.split(new)
    if len(edges) != len(pieces) // 2:
        return new
    line = pieces[0]
    for (_, end), gap, cell in zip(edges, pieces[1::2], pieces[2::2]):
        line += (gap if "\t" in gap else " " * max(3, end - len(line))) + cell
    return line


def _joined(lines: list[str]) -> list[str]:
    """Return lines, of which those that a message of ICU covers are one."""
    if not any("{" in line for line in lines):
        return lines
    text = "".join(lines)
    crossing = [(m.start, m.end) for m in icu.messages(text) if "\n" in text[m.start : m.end]]
    joined: list[str] = []
    position = 0
    waiting = iter([*crossing, (len(text) + 1, 0)])
    start, end = next(waiting)
    whole = False
    for line in lines:
        joined[-1:] = [joined[-1] + line] if whole else [*joined[-1:], line]
        position += len(line)
        while end and end <= position:
            start, end = next(waiting)
        whole = start < position
    return joined


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
