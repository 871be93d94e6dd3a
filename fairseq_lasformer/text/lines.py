r"""Lines, spaces and invisible characters: the same for all input, when data is prepared and when text is translated.

A line is the text between two ``\n``; ``\r`` before ``\n`` is dropped. Everything else that Python's ``str.splitlines``
breaks at (a lone carriage return, form feeds, U+2028, …) is text, and becomes a space: pdftotext and word processors
put such characters into ordinary lines.
"""

import re
import unicodedata
from collections.abc import Callable

BREAKS = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that some programs treat as line breaks; here they are spaces."""

CONTROL = r"\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"
"""Control characters that not all programs treat as white space, as ranges of a regular expression."""

NOT_CHARACTERS = "\ufffe\uffff"
"""Code points that are not characters."""

INVISIBLE = "\u00ad\u034f\u061c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
"""Characters within words that are not seen: soft hyphens, word joiners, direction marks, byte order marks.

Those that change the letters around them (U+200C, U+200D, variation selectors) are not among them, nor is U+200B, which
separates words."""

_HIDDEN = re.compile(f"[{INVISIBLE}]+")
_NOT_TEXT = re.compile(f"[{CONTROL}{NOT_CHARACTERS}\u200b\t{BREAKS}]")
_MARKS = re.compile("[\u0300-\u036f]")  # of Latin, Greek and Cyrillic letters
_LETTERS = re.compile("[\u2010\u2011\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a]")


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines, without line breaks; a ``\n`` at its end ends the last line and starts no other."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def lines_with_ends(text: str) -> list[str]:
    r"""Split a file into lines with their line endings; only ``\n``, ``\r\n`` and ``\r`` end a line."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)


def visible(text: str) -> list[int] | None:
    """Return the places of all characters but :data:`INVISIBLE` ones; None if a text has none of these."""
    if text.isascii() or not _HIDDEN.search(text):
        return None
    hidden = {i for match in _HIDDEN.finditer(text) for i in range(*match.span())}
    return [i for i in range(len(text)) if i not in hidden]


def clean_line(line: str) -> str:
    """Return a line as models read and learn it.

    It has no control and no invisible characters, letters with their accents (NFC), any spaces of Unicode as single
    spaces, and none around it.
    """
    if not line.isascii():
        line = _HIDDEN.sub("", line)
        if _MARKS.search(line):
            line = unicodedata.normalize("NFC", line)
    return " ".join(_NOT_TEXT.sub(" ", line).split())


def with_plain_letters(line: str, unknown: Callable[[str], bool]) -> str:
    """Return a line with usual letters and hyphens for forms of them that a model does not know.

    These are ligatures (U+FB01), letters as wide as Chinese ones, and hyphens at which no line breaks.
    """
    if line.isascii() or not _LETTERS.search(line):
        return line

    def plain(match: re.Match[str]) -> str:
        if not unknown(match[0]):
            return match[0]
        return "-" if match[0] in "\u2010\u2011" else unicodedata.normalize("NFKC", match[0])

    return _LETTERS.sub(plain, line)
