"""Messages of ICU (``{n, plural, one {# file} other {# files}}``): what is text in them, and what a program reads.

See ICU's documentation of ``MessageFormat``: arguments in braces, which nest; an apostrophe before a brace quotes, and
two are one.
"""

import re
from typing import NamedTuple

_S = r"[\s\ufffc]*"  # white space, or markup (spans.MARKUP) such as a line break
_BEGIN = re.compile(
    rf"\{{{_S}[\w.$-]{{1,80}}{_S},{_S}(?:(?P<choice>plural|select|selectordinal){_S},"
    rf"|(?:number|date|time|spellout|ordinal|duration|list|choice){_S}(?=[,}}]))"
)
_SELECTOR = re.compile(rf"{_S}(?:offset{_S}:{_S}\d+{_S})?(?:=\d+|[\w-]{{1,80}}){_S}\{{")
_QUOTED = re.compile(r"'(?:[{}#|](?:[^']|''){0,2000}(?:'|\Z))|''")

_BRACES = re.compile(rf"[{{}}]|{_QUOTED.pattern}")

DEEPEST, LONGEST = 8, 100_000
"""Number of levels of nested messages that are read, and number of characters of one."""


class Message(NamedTuple):
    """A message's place in a text, and its parts."""

    start: int
    end: int
    # places of the texts in it that are translated, each with whether `#` stands for a number there; the other
    # characters are kept. Messages within these texts are found by `messages` again.
    texts: tuple[tuple[int, int, bool], ...]


def messages(text: str) -> list[Message]:
    """Find the messages of a text with a keyword, such as ``plural``; those that are not complete are none."""
    messages_of: list[Message] = []
    position = 0
    left = LONGEST
    while left > 0 and (begin := _BEGIN.search(text, position)):
        end = _closing(text, begin.start() + 1)
        left -= (end or len(text)) - begin.start()
        message = None if end is None else _message(text, begin, end)
        if message is not None:
            messages_of.append(message)
        position = begin.end() if message is None else message.end
    return messages_of


def _message(text: str, begin: re.Match[str], end: int) -> Message | None:
    if begin["choice"] is None:
        return Message(begin.start(), end, ())
    texts = []
    position = begin.end()
    while selector := _SELECTOR.match(text, position, end):
        close = _closing(text, selector.end())
        if close is None or close > end:
            return None
        texts.append((selector.end(), close - 1, begin["choice"] != "select"))
        position = close
    if not texts or text[position : end - 1].strip(" \t\r\n\ufffc"):
        return None
    return Message(begin.start(), end, tuple(texts))


def _closing(text: str, start: int) -> int | None:
    """Return the end of what a brace before ``start`` opens, its closing brace included; None if nothing does."""
    depth = 1
    for brace in _BRACES.finditer(text, start, min(len(text), start + LONGEST)):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return brace.end()
        if depth > 2 * DEEPEST:  # a message in a text of another is two braces deeper
            return None
    return None


def quoted(text: str) -> list[tuple[int, int]]:
    """Return the places of quotations (``'{literal}'``) and of double apostrophes in the text of a message."""
    return [match.span() for match in _QUOTED.finditer(text)]
