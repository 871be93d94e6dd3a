"""Placeholders of gettext's messages: an entry's flags (``c-format``) determine its directives.

See gettext's manual, "Preparing Strings" and "C Format Strings"; for any text, :mod:`text.spans`.
"""

import re

from fairseq_lasformer.text.spans import CONVERSION, PLACEHOLDERS, WIDTH, N

_C = rf"%(?:{N}\$)?[-+ #0'I]{{0,6}}{WIDTH}{CONVERSION}|%%"
_PYTHON = rf"%(?:\([^()\s]{{0,80}}\))?[-+ #0]{{0,6}}(?:\*|{N})?(?:\.(?:\*|{N})?)?[hlL]?[diouxXeEfFgGcrsa]|%%"

BY_FLAG = {
    "c-format": re.compile(_C),
    "objc-format": re.compile(f"{_C}|%@"),
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

TAGS = r"<[^<>]{1,2000}>|&#?\w{1,40};"


def directives(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the directives of a text, in order."""
    return [found[0] for found in pattern.finditer(text)]
