r"""Line splitting, the same for all input: a line is the text between two ``\n``; ``\r`` before ``\n`` is dropped.

Everything else that Python's ``str.splitlines`` breaks at (a lone carriage return, form feeds, U+2028, …) is text, and
becomes a space: pdftotext and word processors put such characters into ordinary lines.
"""

from __future__ import annotations

import re

BREAKS = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that some programs treat as line breaks; here they are spaces."""

CONTROL = r"\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
"""Control characters that not all programs treat as white space, as ranges of a regular expression."""

INVISIBLE = "\u200b\ufeff\ufffe\uffff"
"""Characters without a width, and code points that are not characters."""

_NOT_TEXT = re.compile(f"[{CONTROL}{INVISIBLE}\t{BREAKS}]")


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines, without line breaks; a ``\n`` at its end ends the last line and starts no other."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def clean_line(line: str) -> str:
    """Return a line without control characters, with single spaces, and without space around it."""
    return " ".join(_NOT_TEXT.sub(" ", line).split())
