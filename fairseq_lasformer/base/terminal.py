"""Terminal output: messages without control characters of strangers, and progress as bars or as a few lines."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from tqdm import tqdm

MINUTE = 60.0

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class _Shown:
    """A stream for a person: control characters, and bytes of names that are no text, are shown as ``?``.

    Bars begin, or are cleared, with a carriage return; anywhere else, it hides what stands before it.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        inner = text.strip("\r")
        if _CONTROL.search(inner):
            text = text.replace(inner, _CONTROL.sub("?", inner))
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def clean() -> Iterator[None]:
    """Let nothing that is printed, here or by a library, control the terminal: names of files, weights, languages."""
    with redirect_stdout(_Shown(sys.stdout)), redirect_stderr(_Shown(sys.stderr)):  # type: ignore[type-var]
        yield


class _Lines:
    """A stream that takes a bar as lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.replace("\r", "").strip():
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        self._stream.flush()


def progress_bar(iterable: Iterable[Any] | None = None, **options: Any) -> tqdm:
    """Return a progress bar; where nobody looks at a terminal, a line at the beginning, each minute and at the end.

    Args:
        options: see :class:`tqdm.tqdm`.
    """
    if not (options.get("disable") or sys.stderr.isatty()):
        options |= {"file": _Lines(sys.stderr), "mininterval": MINUTE, "maxinterval": MINUTE}
    return tqdm(iterable, **options)
