"""Plain text: every line is a block; blank lines, indents and list markers stay."""

import re

from fairseq_lasformer.formats.block import BREAK, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.text import icu

_BREAKS = re.compile(r"((?:\r?\n)+)")  # see text/lines.py
_MARKER = re.compile(r"\s*(?:(?:[-*+•‣–—>]|\(?\d{1,3}[.)])[ \t]+)*")


_COLUMNS = re.compile(r"((?<=[^\s.!?:;]) {2,200}(?=\S)|(?<=\S) {3,200}(?=\S)|(?<=\S)[ ]{0,80}\t[ \t]{0,80}(?=\S))")
"""What separates cells in a line: two spaces or more, but not two after a sentence; tabs."""

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
        for cell in _COLUMNS.split(line[start:]):
            if _COLUMNS.fullmatch(cell):
                builder.keep(cell)
                continue
            builder.begin()
            _text(builder, cell)
            builder.end()
    return builder.parsed()


def finish(original: str, made: str) -> str:
    """Return a translated text in which columns of spaces begin where they do in the original, if there is room."""
    old, new = original.split("\n"), made.split("\n")
    if len(old) != len(new):
        return made
    return "\n".join(_aligned(a, b) if _COLUMNS.search(a.strip()) else b for a, b in zip(old, new))


def _aligned(old: str, new: str) -> str:
    cells = _COLUMNS.split(new)
    edges = [found.end() for found in _COLUMNS.finditer(old)]
    if len(edges) != len(cells) // 2:
        return new
    line = ""
    for number, cell in enumerate(cells):
        if number % 2 == 0 or "\t" in cell:
            line += cell
        else:
            line += " " * max(2, edges[number // 2] - len(line))
    return line


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
