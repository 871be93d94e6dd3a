"""Sentences of a block.

:mod:`sentencex` finds them: it needs no model and knows the abbreviations of many languages.
"""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from fairseq_lasformer.formats.block import PLACEHOLDER, Block
from fairseq_lasformer.text.lines import CONTROL, NOT_CHARACTERS, clean_line, visible
from fairseq_lasformer.text.spans import has_letter

Splitter = Callable[[str], list[tuple[int, int]]]
"""A function that returns the start and end of each sentence of a text without line breaks."""

_CONTROL = re.compile(f"[{CONTROL}{NOT_CHARACTERS}]")
_MARKER = re.compile(r"\s*(?:[-*+•‣–—]|\(?(?:\d{1,3}|[a-zA-Z])[.)])\s*")


def split_sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Find the start and end of each sentence, without the space around it.

    A mere list marker or number (``1.``) belongs to the sentence after it.

    Args:
        language: language code, such as ``en``.
    """
    import sentencex

    spans: list[tuple[int, int]] = []
    begin: int | None = None
    for boundary in sentencex.get_sentence_boundaries(language.partition("_")[0].partition("-")[0], text):
        start, end = boundary["start_index"], boundary["end_index"]
        start = start if begin is None else begin
        if _MARKER.fullmatch(text[start:end]) and text[end:].strip():
            begin = start
            continue
        begin = None
        spans += trimmed(text, start, end)
    return spans


def splitter(language: str) -> Splitter:
    """Return the sentence splitter of a language."""
    return functools.partial(split_sentences, language=language)


def whole(text: str) -> list[tuple[int, int]]:
    """Treat a whole line as one sentence; a :data:`Splitter`."""
    return trimmed(text, 0, len(text))


def trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Trim the space around a place in a text; return nothing if there is only space."""
    piece = text[start:end]
    if not piece.strip():
        return []
    return [(start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip()))]


class Sentence(NamedTuple):
    """A sentence of a block."""

    # start, end: its place in the block's text
    start: int
    end: int
    text: str  # its text in one line, with single spaces and without control characters
    segments: tuple[int, int]  # the first and the last segment that contain its text
    cleaned: bool  # whether it contained control characters


def sentences(block: Block, split: Splitter) -> list[Sentence]:
    """Return the sentences of a block, in order; those without a letter are none, and stay as they are."""
    text = block.text
    owner = owners(block) if block.markup else []
    shown = visible(text)  # soft hyphens and direction marks end no sentence
    read = text if shown is None else "".join([text[i] for i in shown])
    filled = PLACEHOLDER in block.fills
    cut = []
    for begin, stop in _by_separators(read, split):
        start, end = (begin, stop) if shown is None else (shown[begin], shown[stop - 1] + 1)
        raw = text[start:end]
        letters = any(i >= 0 and c.isalpha() for c, i in zip(raw, owner[start:end])) if filled else True
        if not letters or not has_letter(raw):
            continue
        clean = clean_line(raw)
        if clean:
            first, last = 0, 0
            if owner:
                a, b = owner[start], owner[end - 1]  # neither is a space
                first, last = a if a >= 0 else -a - 1, b if b >= 0 else -b
            cut.append(Sentence(start, end, clean, (first, last), bool(_CONTROL.search(raw))))
    return cut


def _by_separators(text: str, split: Splitter) -> list[tuple[int, int]]:
    """Find the sentences of a text; a line or paragraph separator (U+2028, U+2029) ends one."""
    spans, position = [], 0
    for piece in re.split("(?<=[\u2028\u2029])", text):
        shown = re.sub(r"[\r\n\t\v\f\x85\u2028\u2029]", " ", piece)
        spans += [(position + a, position + b) for a, b in split(shown)]
        position += len(piece)
    return spans


def owners(block: Block) -> list[int]:
    """Return the segment of each character of a block's text; -1 - i for the fill of markup i."""
    owner: list[int] = []
    for i, segment in enumerate(block.segments):
        owner += [-i] * len(block.fill(i - 1)) if i else []
        owner += [i] * len(segment)
    return owner
