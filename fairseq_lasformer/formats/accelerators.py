"""Accelerators of menus in .po files: ``_Open`` of GTK, ``&Open`` of Qt. The model reads neither mark.

A translation has one as well, before the same letter if it has that one; in scripts without it, as is usual, ``(_O)``
follows. ``msgfmt --check-accelerators`` checks that there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fairseq_lasformer.formats.placeholders import ANYWHERE, TAGS
from fairseq_lasformer.text.spans import spans

_AT_START = {mark: re.compile(rf"(?<![\w&_]){mark}(?=[^\W_])") for mark in "_&"}
_INSIDE = {
    "_": re.compile(r"(?<=[^\W\d_])_(?=[a-z])"),
    "&": re.compile(r"(?<=[^\W\d_])&(?=[a-z])|(?<=[a-z])&(?=[^\W\d_])"),
}
_OPAQUE = re.compile(rf"{ANYWHERE.pattern}|{TAGS}|\\.")
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

FEW = 3
"""Number of words of the longest message with a mark within a word."""

LONGEST = 80
"""Number of characters of the longest message in which a mark is expected."""


class Accelerators(NamedTuple):
    """The marks of a file's accelerators: those that begin a word in a message."""

    marks: str

    @classmethod
    def of(cls, messages: Iterable[str]) -> Accelerators:
        accelerator = ""
        for message in messages:
            for mark in "_&":
                if mark not in accelerator and mark in message and _place(message, mark, False) is not None:
                    accelerator += mark
        return cls(accelerator)

    def find(self, message: str) -> int | None:
        """Return the place of a message's mark; None if it has none."""
        places = (_place(message, mark, True) for mark in self.marks if mark in message)
        return next((place for place in places if place is not None), None)

    def without(self, message: str) -> str:
        """Return a message without its mark."""
        place = self.find(message) if self.marks else None
        return message if place is None else message[:place] + message[place + 1 :]

    def marked(self, source: str, translation: str) -> str:
        """Return a translation, as escaped in the file, with the mark that its source has."""
        place = self.find(source) if self.marks else None
        if place is None:
            return translation
        mark, letter = source[place], source[place + 1]
        translation = re.sub(rf"{mark}(?=\w)(?!\w{{1,40}};)", "", translation)
        hidden = [m.span() for m in _OPAQUE.finditer(translation)]
        free = [i for i, c in enumerate(translation) if c.isalnum() and not any(a <= i < b for a, b in hidden)]
        first = [i for i in free if not i or not translation[i - 1].isalnum()]
        same = [i for i in (*first, *free) if translation[i].casefold() == letter.casefold()]
        if not same and (not first or _SPACELESS.match(translation, first[0])):
            stop = re.search(r"(?:[.…:：]|\\n|\s)*\Z", translation)
            end = stop.start() if stop else len(translation)
            return f"{translation[:end]}({mark}{letter.upper()}){translation[end:]}"
        at = (same or first)[0]
        return translation[:at] + mark + translation[at:]


def _place(message: str, mark: str, inside: bool) -> int | None:
    """Return the place of the only mark of a message.

    Args:
        inside: whether it may also be within a word.
    """
    if len(message) > LONGEST:
        return None
    hidden = [m.span() for m in re.finditer(f"{TAGS}|&&|\\b[a-z]+_|[A-Z]_[A-Z]", message)] + [
        (s.start, s.end) for s in spans(message)
    ]
    free = [i for i, c in enumerate(message) if c == mark and not any(a <= i < b for a, b in hidden)]
    if len(free) != 1:
        return None
    few = len(message.split()) <= FEW  # of a menu, rather than with an identifier
    patterns = (_AT_START[mark], *([_INSIDE[mark]] if inside and few else []))
    return free[0] if any(pattern.match(message, free[0]) for pattern in patterns) else None
