"""Placeholders of gettext's messages: an entry's flags (``c-format``) determine its directives.

See gettext's manual, "Preparing Strings" and "C Format Strings"; for any text, :mod:`text.spans`.
"""

import re

from fairseq_lasformer.text.spans import CONVERSION, PLACEHOLDERS, WIDTH, N

_C = rf"%(?:{N}\$)?[-+ #0'I]{{0,6}}{WIDTH}{CONVERSION}|%%"
_PYTHON = rf"%(?:\([^()\s]{{0,80}}\))?[-+ #0]{{0,6}}(?:\*|{N})?(?:\.(?:\*|{N})?)?[hlL]?[diouxXeEfFgGcrsa]|%%"

BY_FLAG = {
    "c-format": re.compile(_C),
    "objc-format": re.compile(rf"{_C}|%(?:{N}\$)?@"),
    "php-format": re.compile(r"%(?:\d+\$)?[-+ 0]*(?:'.)?\d*(?:\.\d+)?[bcdeEfFgGosuxX]|%%"),
    "python-format": re.compile(_PYTHON),
    "python-brace-format": re.compile(r"\{\{|\}\}|\{[^{}]*\}"),
    "perl-format": re.compile(_C),
    "perl-brace-format": re.compile(r"\{\w+\}"),
    "java-format": re.compile(r"\{\d+[^{}]*\}"),
    "java-printf-format": re.compile(r"%(?:\d+\$|<)?[-+ #0,(]*\d*(?:\.\d+)?[a-zA-Z]|%[%n]"),
    "csharp-format": re.compile(r"\{\d+[^{}]*\}"),
    "javascript-format": re.compile(_C),
    "qt-format": re.compile(r"%L?\d{1,2}"),
    "qt-plural-format": re.compile(r"%L?\d{1,2}|%L?n"),
    "kde-format": re.compile(r"%\d+"),
    "boost-format": re.compile(rf"%\|[^|]*\||%\d+%|{_C}"),
    "lua-format": re.compile(_C),
    "ruby-format": re.compile(rf"%<\w+>[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]|%\{{\w+\}}|{_C}"),
    "sh-format": re.compile(r"\$\{\w+\}|\$\w+"),
    "awk-format": re.compile(_C),
}
"""Directives by an entry's flag."""

ANYWHERE = re.compile(PLACEHOLDERS)
"""Placeholders of entries without such a flag."""

TEX = r"\\\\[a-zA-Z]{2,20}(?:\{[^{}]{0,80}\})+"
"""A command of TeX in a message, in which a backslash is written twice."""

CODE = r"(?<![\w`])(?:``[^`]{1,400}``|`[^`'<>]{1,400}`)(?![\w`])(?!_)|:[a-z][\w:+-]{0,40}:`[^`<>]{1,400}`"
"""Code between backticks, and roles of reStructuredText: ``:class:`File```."""

ROLES = (
    r"(?::[a-z][\w:+-]{0,40}:)?`(?=[^`<>]{1,400}<[^`<>]{1,400}>`)|\s?<[^`<>]{1,400}>`_{0,2}"
    r"|(?<!\w)`(?=[^`<>]{1,400}`_)|`_{1,2}(?!\w)"
)
"""What is around the text of roles and links of reStructuredText: ``:ref:`text <target>```, ```text <address>`_``."""

_METAVARIABLE = re.compile(r"<([a-z][\w-]{0,40})(?:[ |][\w-]{1,40}){0,4}>")
_ELEMENTS = frozenset(
    re.findall(
        r"\w+",
        "a abbr b bdo big blockquote body br button center cite code col dd del dfn div dl dt em font form h1 h2 h3 h4 "
        "h5 h6 hr html i img input ins kbd label li mark nobr ol option p pre q s samp select small span strike strong "
        "sub sup table tbody td th thead tr tt u ul var wbr",
    )
)


def is_metavariable(tag: str, message: str) -> bool:
    """Return whether a tag is the name of an argument, ``<path>``, rather than an element, which may have an end."""
    match = _METAVARIABLE.fullmatch(tag)
    return match is not None and match[1] not in _ELEMENTS and f"</{match[1]}" not in message


TAGS = r"<[^<>]{1,2000}>|&#?\w{1,40};"


def directives(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the directives of a text, in order."""
    return [match[0] for match in pattern.finditer(text)]
