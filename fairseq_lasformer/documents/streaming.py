"""Streaming of translated lines as soon as they are settled, while the search goes on."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.text.documents import Span

TOGETHER = 16
"""Lines that are searched side by side and then passed on, where lines are searched so."""


class Stopped(Exception):
    """Signal that nobody reads the lines any more."""


def stream(translator: Translator, document: Source, device: torch.device | str) -> Iterator[Line]:
    """Translate a document with aligned lines and yield each line as soon as it is settled.

    Where lines are not searched side by side, those of a part are settled together.

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
    (lines,) = translator.translate_parts([(document, part, before)], device, check)
    for line in lines:
        put(line)
    return lines
