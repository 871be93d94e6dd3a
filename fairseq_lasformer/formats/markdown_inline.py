"""Markdown within a paragraph: text, and code, links, images, formulas, emphasis and the like between it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import NamedTuple

from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Written
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.markup import REFERENCE

_TARGET = (
    r"(?:<[^<>\n]{0,2000}>|(?!<)(?:\{\{[^\n]{0,400}?\}\}|\{%[^\n]{0,400}?%\}|(?!\{\{[^\n]{0,400}?\}\}|\{%[^\n]{0,400}?%\})[^()\s]"
    r"|\((?:[^()\s]|\([^()\s]{0,400}\)){0,400}\)){1,2000})?"
)
_TITLE = r"(?:\s+(?:\"(?:\\.|[^\"\\]){0,2000}\"|'(?:\\.|[^'\\]){0,2000}'|\((?:\\.|[^()\\]){0,2000}\)))?"
_ATTRIBUTES = r"\{[ \t]*(?:[#.:][\w-]|[\w-]{1,40}=)[^{}\n]{0,400}\}"

# parts of a line that are not text: code, images, the ends of links, addresses, footnotes, tags, formulas
_OPAQUE = re.compile(
    r"(?P<code>(?<!`)(`{1,40})(?!`).{0,4000}?(?<!`)\2(?!`))"
    r"|(?P<embed>!\[\[[^\[\]\n]{1,400}\]\])"
    rf"|(?P<image>!\[[^\]]{{0,2000}}\](?:\(\s*{_TARGET}{_TITLE}\s*\)|\[[^\]]*\])?)"
    r"|(?P<auto><[a-zA-Z][a-zA-Z0-9+.-]{0,32}:[^\s<>]{0,4000}>|<[^\s<>@]{1,200}@[^\s<>]{1,200}>"
    r"|https?://[^\s<>()\[\]]{1,4000}[^\s<>().,;:!?\"'*_\[\]])"
    r"|(?P<page>\[\[[^\[\]|\n]{1,400}\]\]|(?<![\w:]):[a-z0-9_+-]{2,40}:(?![\w:])|%%[^%\n]{1,2000}%%|\+\+[\w+-]{1,80}\+\+"
    r"|\{%(?=[^%\n]{0,400}\n).{0,800}?%\}|\{\{(?=[^{}\n]{0,400}\n)[^{}]{0,800}?\}\}|\{/\*.{0,2000}?\*/\}|(?<![\w\\:])\\[a-zA-Z]{2,40}(?:\{[^{}\n]{0,400}\}){1,4})"
    r"|(?P<mark>(?:(?<=\s)|\A)\^[A-Za-z0-9-]{1,80}(?=\Z|\n)|(?:(?<=\n)|\A)\*\[[^\[\]\n]{1,200}\]:)"
    r"|(?P<wiki>\[\[[^\[\]|\n]{1,400}\|(?=[^\[\]\n]{1,400}\]\]))|(?P<wikiend>\]\])"
    r"|(?P<note>\[\^[^\]]{1,200}\]:?)"
    r"|(?P<break><br[ \t]*/?>)|(?P<tag></?[a-zA-Z][^<>]{0,4000}>|</?>|<!--.{0,4000}?-->)"
    r"|(?P<math>\$\$[^$]{1,2000}\$\$|\\{1,2}\(.{0,2000}?\\{1,2}\)|\\{1,2}\[.{0,2000}?\\{1,2}\]"
    r"|(?<![\w\\$])\$(?![\s\d])(?![^$]{0,2000}(?:[A-Za-z]{2,}[ \t]+[A-Za-z]{2,}|[.!?]\s))[^$]{0,2000}(?<!\s)\$(?![\w$])"
    r"|(?<![\w\\$])\$\d(?![^$]{0,2000}(?:[A-Za-z]{2}|[.!?]\s))[^$]{0,2000}[^$\s]\$(?![\w$]))"
    rf"|(?P<list>{_ATTRIBUTES})"
    r"|(?P<expression>\{(?![{%#/<])(?:[^{}\n]|\{[^{}\n]{0,400}\}){1,400}\}(?!\}))"
    rf"|(?P<close>\](?:\(\s*{_TARGET}{_TITLE}\s*\)|\[[^\]]*\]|{_ATTRIBUTES}))"
    r"|(?P<open>\[)|(?P<shut>\])"
    r"|(?P<escape>\\[!-/:-@\[-`{-~])|(?P<hard>\\(?=\n))"
    rf"|(?P<entity>{REFERENCE})"
    r"|(?P<stars>\*+|_+|~~)",
    re.S,
)
_EXPRESSION = re.compile(
    r"\w\.[a-z_]\w+|\w\(|=>|[\w)\]]\s*(?:[+*/%]|===?|!==?|&&|\|\|)\s+[\w(\[\"']|\w-\w+\(|\?[^:\n]{1,200}:|`"
)
_PROSE = re.compile(r"(?:[A-Za-z]{2,} ){2}[A-Za-z]{2,}")
"""What an expression of JavaScript between braces has (MDX), and text there has not."""

_SPECIAL = re.compile(r"`|<(?=[a-zA-Z/!]|\Z)|\](?=[(\[])|\\(?=[!-/:-@\[-`{-~])|&(?=#?\w{1,31};)")


_NAMED = {"<": "&lt;", "&": "&amp;"}

DEEPEST = 48
"""Number of levels of nested formatting that are distinguished."""


def escape_within(text: str) -> str:
    """Escape whatever Markdown would take for markup within a line."""
    places = {m.start() for m in _SPECIAL.finditer(text)}
    for start in _emphasis(text):
        end = start
        while text[end : end + 1] == text[start]:
            places.add(end)
            end += 1
    if places:
        text = "".join((_NAMED.get(c) or f"\\{c}") if i in places else c for i, c in enumerate(text))
    return text.replace("\xa0", "&nbsp;")


def _escape_linked(text: str) -> str:
    """Escape the text of a link: brackets without a partner as well, which would end it."""
    text = escape_within(text)
    closes = _Brackets.of(text).closes
    paired = {*closes, *closes.values()}
    lone = {i for i, c in enumerate(text) if c in "[]" and i not in paired and text[i - 1 : i] != "\\"}
    return "".join(f"\\{c}" if i in lone else c for i, c in enumerate(text))


def _escape_cell(text: str) -> str:
    return escape_within(text).replace("|", "\\|")


def _escape_start(text: str) -> str:
    """Escape the start of a line likewise; it must not begin a list, a quotation or a heading either."""
    return re.sub(r"^(?=[-+*>#]+\s)|(?<=^\d)(?=[.)]\s)", r"\\", escape_within(text))


PARAGRAPH = Written(escape_within, _escape_start, _escape_linked)
HEADING = Written(escape_within, escape_within, _escape_linked)
CELL = Written(_escape_cell, _escape_cell, lambda text: _escape_linked(text).replace("|", "\\|"))
"""How the text of a paragraph, of a heading and of a table cell is escaped."""


def add_inline(
    builder: BlockBuilder, body: str, places: list[tuple[int, int]], references: Mapping[str, object]
) -> None:
    """Add a block: its lines, with whatever is between them as breaks.

    Args:
        references: the file's link definitions, by label; a link that is its own label gets one when its text changes.
    """
    builder.begin()
    _Inline(builder, body, places, references).add()
    builder.end()


class _Inline:
    """The parts of a block's lines, which are added from left to right."""

    def __init__(
        self, builder: BlockBuilder, body: str, places: list[tuple[int, int]], references: Mapping[str, object]
    ) -> None:
        self.builder, self.body, self.places = builder, body, places
        self.joined = "\n".join(body[a:b] for a, b in places)
        self.emphasis, self.brackets = _emphasis(self.joined), _Brackets.of(self.joined)
        self.labels = self.brackets.labels(self.joined, references)
        self.states: list[str] = []  # the open formatting
        self.line = 0

    def add(self) -> None:
        offset = 0
        for span in _OPAQUE.finditer(self.joined):
            if span.start() < offset or not self._is_markup(span):
                continue
            self._text(self.joined[offset : span.start()])
            offset = span.end()
            kind, raw = span.lastgroup or "", span[0]
            label = self.labels.get(span.start())
            if label is not None and kind in ("shut", "close"):
                kind, raw = "close", f"][{label}]"
            if kind in ("escape", "entity"):
                self.builder.text(unescape(raw) if kind == "entity" else raw[1], tuple(self.states), raw)
                continue
            self._format(kind, raw, span.start())
            inline = kind in ("code", "auto", "math", "page", "expression")
            fill = BREAK if kind == "break" or self._parts_elements(span) else PLACEHOLDER if inline else ""
            for number, piece in enumerate(raw.split("\n")):
                if number:
                    self._next_line("")
                self.builder.keep(piece, fill if not number else "")
        self._text(self.joined[offset:])

    def _parts_elements(self, match: re.Match[str]) -> bool:
        """Return whether a tag ends an element at the end of a word, and another begins at once."""
        before, after = self.joined[match.start() - 1 : match.start()], self.joined[match.end() : match.end() + 2]
        return (
            match[0][:2] == "</"
            and (before.isalnum() or before in (")", "]"))
            and after[:1] == "<"
            and after[1:].isalpha()
        )

    def _is_markup(self, match: re.Match[str]) -> bool:
        """Return whether something is markup, rather than text."""
        kind = match.lastgroup
        if kind == "stars":
            return match.start() in self.emphasis
        if kind in ("open", "close", "shut") and match.start() not in self.labels:
            return kind != "shut" and self.brackets.is_link(self.joined, match)
        if kind == "wikiend":
            return "[[" in self.states
        if kind == "expression":
            return _EXPRESSION.search(match[0]) is not None and not _PROSE.search(match[0])
        return kind != "entity" or unescape(match[0]) != match[0]

    def _text(self, text: str) -> None:
        for number, piece in enumerate(text.split("\n")):
            if number:
                self._next_line(BREAK)
            if piece:
                self.builder.text(piece, tuple(self.states), piece)

    def _next_line(self, fill: str) -> None:
        self.builder.keep(self.body[self.places[self.line][1] : self.places[self.line + 1][0]], fill)
        self.line += 1

    def _format(self, kind: str, raw: str, start: int) -> None:
        """Begin or end formatting."""
        states = self.states
        if kind == "stars" and self.emphasis[start] is False and raw in states:
            states.remove(raw)
        elif kind == "close" and "[" in states:
            states.remove("[")
        elif kind == "wikiend":
            states.remove("[[")
        elif kind in ("stars", "open", "wiki") and len(states) < DEEPEST:
            states.append("[[" if kind == "wiki" else raw)


class _Brackets(NamedTuple):
    """The brackets of a block: the place of the first opening one, and the closing place of each."""

    first: int
    closes: dict[int, int]

    @classmethod
    def of(cls, text: str) -> _Brackets:
        first, closes = len(text), {}
        opened: list[int] = []
        for m in re.finditer(r"\\.|\[|\]", text, re.S):
            if m[0] == "[":
                opened.append(m.start())
                first = min(first, m.start())
            elif m[0] == "]" and opened:
                closes[opened.pop()] = m.start()
        return cls(first, closes)

    def is_link(self, text: str, match: re.Match[str]) -> bool:
        """Return whether a bracket opens or closes a link, rather than being text."""
        if match.lastgroup == "close":
            return match.start() > self.first
        close = self.closes.get(match.start())
        if close is None or text[close + 1 : close + 2] not in ("(", "[", "{"):
            return False
        ending = _OPAQUE.match(text, close)
        return ending is not None and ending.lastgroup == "close"

    def labels(self, text: str, references: Mapping[str, object]) -> dict[int, str]:
        """Return the labels of links that have no target, by the places of both brackets."""
        if not references:
            return {}
        from markdown_it.common.utils import normalizeReference

        labels = {}
        for start, close in self.closes.items():
            label, following = text[start + 1 : close], text[close + 1 : close + 3]
            alone = following == "[]" or following[:1] not in ("(", "[", ":", "{")
            if alone and label.strip() and normalizeReference(label) in references:
                labels[start] = labels[close] = " ".join(label.split())
        return labels


def _emphasis(text: str) -> dict[int, bool]:
    """Find the runs of ``*``, ``_`` and ``~~`` that are markup, by place: True if a run opens, False if it closes."""
    opaque = [m.span() for m in _OPAQUE.finditer(text) if m.lastgroup not in ("stars", "open", "close", "shut")]
    opens: dict[int, bool] = {}
    waiting: list[tuple[str, int]] = []
    last: dict[str, list[int]] = {}  # for each kind of run, its places in ``waiting``
    for place, run in _runs(text, opaque):
        before, after = text[max(0, place - 1) : place] or " ", text[place + len(run) : place + len(run) + 1] or " "
        left = not after.isspace() and (after.isalnum() or before.isspace() or not before.isalnum())
        right = not before.isspace() and (before.isalnum() or after.isspace() or not after.isalnum())
        if run[0] == "_":
            left, right = left and not before.isalnum(), right and not after.isalnum()
        match = last[run][-1] if last.get(run) else None
        if right and match is not None:
            opens[waiting[match][1]], opens[place] = True, False
            for other, _ in waiting[match:]:
                last[other].pop()
            del waiting[match:]
        elif left:
            last.setdefault(run, []).append(len(waiting))
            waiting.append((run, place))
    return opens


def _runs(text: str, opaque: list[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Yield the runs of stars and the like outside the opaque places, which are in order."""
    following = iter([*opaque, (len(text), len(text))])
    begin, end = next(following)
    for m in re.finditer(r"\*+|_+|~~", text):
        while end <= m.start():
            begin, end = next(following, (len(text), len(text) + 1))
        if m.start() < begin:
            yield m.start(), m[0]
