"""Code of servers and templates in HTML: PHP, ERB, Jinja, Twig, Liquid, Handlebars, Vue, Blade, Smarty, FreeMarker.

Its places are found before tags are: it may contain quotation marks, brackets and tags, within attributes as well.
"""

import re
from typing import NamedTuple

from fairseq_lasformer.text import icu

_CLOSED = {
    "<?": "?>",
    "<%": "%>",
    "{{--": "--}}",
    "{{!--": "--}}",
    "{{{": "}}}",
    "{{": "}}",
    "{%": "%}",
    "{#": "#}",
    "{!!": "!!}",
    "[%": "%]",
    "<#--": "-->",
    "<#": ">",
    "</#": ">",
    "@php": "@endphp",
}
"""What begins code, and what ends it; longer beginnings come first."""

_BEGIN = re.compile(
    r"\{\{-?\s?/\*|<\?(?=php\b|=|\s)|<%|\{\{--|\{\{!--|\{\{\{|\{\{|\{%|\{#|\{!!|\[%(?=[-\s])|<#--|</?#(?=[a-z])|@php\b(?!\s*\()"
    r"|(?<![\w@.])@(?:else|endif|endforeach|endfor|endforelse|endisset|endunless|endsection|endphp|endwhile|endauth|"
    r"endguest|csrf|stop|show|break|continue|default|endswitch)\b(?![.\w-])"
    r"|(?<![\w@.])@(?:if|elseif|foreach|for|forelse|isset|unless|while|section|yield|extends|include|lang|class|case|"
    r"switch|auth|can)[ \t]?(?=\()"
    r"|\{/?(?:if|else|elseif|foreach|foreachelse|for|include|section|assign|literal|while|block|extends|capture|strip)"
    r"(?:\s[^{}\n]{0,400})?\}"
)
_REGION = re.compile(r"\{%-?\s*(comment|schema|javascript|stylesheet|style|highlight|liquid)\b")
_COMMENT_END = re.compile(r"\*/\s?-?\}\}")
_ARGUMENTS = re.compile(r"\((?:[^()]|\((?:[^()]|\([^()]{0,400}\)){0,400}\)){0,800}\)")
_SHOWS = re.compile(r"<%[-=]|<\?=|<\?php\s+(?:echo|print)\b|\{\{(?![!#/^>-])|\{!!|@(?:lang|yield)\b")
_SPLITS = re.compile(
    r"(?:<%|\{%|<\?(?:php)?|\[%|<#|\{\{#?|@|\{)[-~]?\s*[}]?\s*"
    r"(?:else|elsif|elseif|elif|when|case|empty|plural|default)\b",
    re.I,
)


_ALTERNATIVE = re.compile(
    r"\{%[-+~]?\s*(?:else|elsif|elseif|elif|when|case|empty|plural)\b|\{\{[-~#^]?\s*else\b|<%[-\s}]*(?:else|elsif|when)\b"
    r"|<#else|@else"
)
_SHORT = ("{{", "{{{", "{%", "{#", "[%", "<#", "</#")
LONGEST = 5000
"""Number of characters of the longest code in braces: what is longer may only look like code."""


class Code(NamedTuple):
    """A place of code in a text."""

    # start, end: its place
    start: int
    end: int


def codes(text: str) -> list[Code]:
    """Find the code in an HTML file, in order; what nothing ends is none, except PHP, which the file's end may end."""
    codes_of: list[Code] = []
    position = 0
    known: dict[str, int] = {}  # for each end, where it comes next
    messages = icu.messages(text) if "{#" in text else []  # {# files} is no comment there
    while begin := _BEGIN.search(text, position):
        start = begin.start()
        while messages and messages[0].end <= start:
            messages.pop(0)
        numbered = begin[0] == "{#" and messages and messages[0].start < start
        end = None if numbered else _end(text, begin, known)
        if end is None:
            position = begin.end()
            continue
        codes_of.append(Code(start, end))
        position = end
    return codes_of


def _end(text: str, begin: re.Match[str], known: dict[str, int]) -> int | None:
    """Return the end of code; None if nothing ends it."""
    start, opened = begin.start(), begin[0]
    if opened.endswith("/*"):
        if known.get("/*", 0) < begin.end():
            over = _COMMENT_END.search(text, begin.end())
            known["/*"] = over.end() if over else len(text) + 1
        return known["/*"] if known["/*"] <= len(text) else None
    closing = next((end for key, end in _CLOSED.items() if opened == key), None)
    if closing is None:
        if opened.endswith("}"):
            return begin.end()
        arguments = _ARGUMENTS.match(text, begin.end())
        return arguments.end() if arguments else begin.end()
    if region := _REGION.match(text, start) if opened == "{%" else None:
        if known.get(region[1], 0) < region.end():
            over = re.compile(rf"\{{%-?\s*end{region[1]}\s*-?%\}}").search(text, region.end())
            known[region[1]] = over.end() if over else len(text) + 1
        if known[region[1]] <= len(text):
            return known[region[1]]
    if known.get(closing, 0) < begin.end():
        end = text.find(closing, begin.end())
        known[closing] = len(text) + 1 if end < 0 else end
    end = known[closing]
    if end > len(text):
        return len(text) if opened == "<?" else None
    long = opened in _SHORT and (end - start > LONGEST or "</script" in text[start:end])
    return None if long else end + len(closing)


def alternative(code: str) -> bool:
    """Return whether code in any text says that another text takes the place of the one before it."""
    return _ALTERNATIVE.match(code) is not None


def shows(code: str) -> bool:
    """Return whether code puts a text in its place, of which a sentence speaks."""
    return _SHOWS.match(code) is not None


def splits(code: str) -> bool:
    """Return whether the text after code takes the place of the text before it: ``else`` and the like."""
    return _SPLITS.match(code) is not None
