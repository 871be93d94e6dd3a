"""Placeholders in a text, which a program fills in later: they are kept as they are, in every format.

``{{ name }}``, ``${name}``, ``{0}``, ``%s``, ``%(name)s``, ``%1$s``, ``%name%``, ``<0/>``. In .po files, an entry's
flags (``c-format``) determine its directives: see gettext's manual, "Preparing Strings" and "C Format Strings".
"""

from __future__ import annotations

import re

_LENGTH = r"(?:hh|h|ll|l|j|z|t|L|q|w\d+|wf\d+)?"
_CONVERSION = r"(?:[diouxXeEfFgGaAcCsSpnmbB]|<PRI[a-zA-Z]+\d*>)"
_N = r"\d{1,4}"  # every repetition is bounded: texts are untrusted
_WIDTH = rf"(?:\*(?:{_N}\$)?|{_N})?(?:\.(?:\*(?:{_N}\$)?|{_N})?)?"
_C = rf"%(?:{_N}\$)?[-+ #0'I]{{0,6}}{_WIDTH}{_LENGTH}{_CONVERSION}|%%"
_PYTHON = rf"%(?:\([^()\s]{{0,80}}\))?[-+ #0]{{0,6}}(?:\*|{_N})?(?:\.(?:\*|{_N})?)?[hlL]?[diouxXeEfFgGcrsa]|%%"
_BRACES = r"\{[^{}\s]{0,80}\}"

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

# In any text: no space as a flag ("100% of"), and nothing that continues as a word ("50%off").
ANYWHERE = re.compile(
    r"\{\{[^{}\n]{0,200}\}\}|\{%[^{}\n]{0,200}%\}|\$\{[^{}\n]{0,200}\}|#\{[^{}\n]{0,200}\}"
    rf"|{_BRACES}"
    r"|(?<![\w%])%\([\w.-]{1,80}\)[-+#0]{0,6}\d{0,4}(?:\.\d{1,4})?[a-zA-Z]"
    rf"|(?<![\w%])%(?:{_N}\$)?[-+#0']{{0,6}}{_WIDTH}{_LENGTH}{_CONVERSION}(?!\w)"
    r"|(?<![\w%])%@(?!\w)|(?<![\w%])%%(?!\w)"
    r"|(?<![\w%])%[A-Za-z_][\w.-]{0,80}%(?!\w)|(?<![\w%])%\d{1,2}(?!\w)"
    r"|</?\d{1,4}/?>"
)

TAGS = r"<[^<>]{1,2000}>|&\w{1,40};"


def directives(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the directives of a text, in order."""
    return [found[0] for found in pattern.finditer(text)]
