"""Streaming of translated lines as soon as they are settled, while the search goes on."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.search.repair import gone_wrong
from fairseq_lasformer.text.documents import Span

TOGETHER = 16
"""Lines that are searched side by side and then passed on, where lines are searched so."""


class Stopped(Exception):
    """Signal that nobody reads the lines any more."""


class LineWatch:
    """Observer that finds the lines that all hypotheses of a search agree on.

    Successors of hypotheses that agree on a line agree on it as well, so every token is checked once. Nothing is passed
    on after a flawed line, which may be translated again.

    Args:
        separator: token that ends a line.
        wrong: whether a line (its index, its tokens) has gone wrong.
        emit: called with each line, in order.
    """

    def __init__(
        self, separator: int, wrong: Callable[[int, list[int]], bool], emit: Callable[[int, Line], None]
    ) -> None:
        self.separator, self.wrong, self.emit = separator, wrong, emit
        self.agreed = self.start = self.number = 0
        self.held = False

    def __call__(self, tokens: Tensor, scores: Tensor) -> None:
        """Look at the tokens of all hypotheses, int64 [B, n], and their cumulative scores [B, n]."""
        if self.held or not len(tokens):
            return
        differ = (tokens[:, self.agreed :] != tokens[:1, self.agreed :]).any(0).nonzero()[:, 0]
        end = self.agreed + int(differ[0]) if len(differ) else tokens.size(1)
        for i in range(self.agreed, end):
            if int(tokens[0, i]) != self.separator:
                continue
            line = tokens[0, self.start : i]
            if self.wrong(self.number, line.tolist()):
                self.held = True
                return
            before = float(scores[0, self.start - 1]) if self.start else 0.0
            score = (float(scores[0, i]) - before) / (i + 1 - self.start)
            self.emit(self.number, Line(line.cpu().clone(), score, False, False))
            self.number, self.start = self.number + 1, i + 1
        self.agreed = end


def stream(translator: Translator, document: Source, device: torch.device | str) -> Iterator[Line]:
    """Translate a document with aligned lines and yield each line as soon as it is settled.

    The search runs in a separate thread; it stops when the generator is closed.

    Args:
        translator: translator whose generator aligns lines.
    """
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise Stopped

    def work() -> None:
        try:
            lines: list[Line] = []
            for part in document.parts:
                check()
                lines += _part(translator, document, part, lines, device, events.put, check)
            events.put(None)
        except Stopped:
            pass
        except BaseException as e:  # raised again by the reader
            events.put(e)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (line := events.get()) is not None:
            if isinstance(line, BaseException):
                raise line
            yield line
    finally:
        stop.set()
        thread.join()


def _part(
    translator: Translator,
    document: Source,
    part: Span,
    before: list[Line],
    device: torch.device | str,
    put: Callable[[Line], None],
    check: Callable[[], None],
) -> list[Line]:
    """Translate a part, passing on its lines; return them."""
    if translator.by_lines:
        search, lines = SideBySide(translator, [(document, part)], device, check), list[Line]()
        for first in range(0, part.size, TOGETHER):
            lines += search.lines(range(first, min(first + TOGETHER, part.size)))
            for line in lines[first:]:
                put(line)
        return lines
    passed = 0

    def emit(_: int, line: Line) -> None:
        nonlocal passed
        put(line)
        passed += 1

    watch = line_watch(translator, document, part, emit)

    def observe(tokens: Tensor, scores: Tensor) -> None:
        check()
        watch(tokens, scores)

    (lines,) = translator.translate_parts([(document, part, before)], device, [observe])
    for line in lines[passed:]:
        put(line)
    return lines


def line_watch(translator: Translator, document: Source, part: Span, emit: Callable[[int, Line], None]) -> LineWatch:
    """Observe the search for a part of a document.

    Args:
        translator: translator whose generator aligns lines.
        emit: called with each settled line and its number in the document, except for lines of the part's context.
    """
    limits = translator.generator.limits(translator.example(document, part)[None]).longest[0].tolist()
    before = part.context
    sources = [s.tolist() for s in document.sentences[part.start : part.start + part.size]]

    def wrong(number: int, tokens: list[int]) -> bool:
        return number >= before and gone_wrong(sources[number - before], tokens, limits[number])

    def own(number: int, line: Line) -> None:
        if number >= before:
            emit(part.start + number - before, line)

    return LineWatch(translator.generator.alignment.separators[1], wrong, own)
