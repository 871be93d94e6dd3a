"""Markdown: markdown-it-py finds the blocks, which are preserved; see :mod:`formats.markdown_blocks` for dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from types import MappingProxyType
from typing import Any, NamedTuple

from fairseq_lasformer.formats import html
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markdown_blocks import (
    ALERT,
    DIRECTIVE,
    TASK,
    front_matter,
    is_formula,
    parser,
    runs,
    title_of,
)
from fairseq_lasformer.text.spans import has_letter

# parts of a line that are not text: code, images, the ends of links, addresses, footnotes, tags, formulas
_TARGET = (
    r"(?:<[^<>\n]{0,2000}>|\{\{.{0,400}?\}\}|\{%.{0,400}?%\}"
    r"|[^()\s<](?:[^()\s]|\((?:[^()\s]|\([^()\s]{0,400}\)){0,400}\)){0,2000})?"
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
    r"|\{/\*.{0,2000}?\*/\}|(?<![\w\\:])\\[a-zA-Z]{2,40}(?:\{[^{}\n]{0,400}\}){1,4})"
    r"|(?P<mark>(?:(?<=\s)|\A)\^[A-Za-z0-9-]{1,80}(?=\Z|\n)|(?:(?<=\n)|\A)\*\[[^\[\]\n]{1,200}\]:)"
    r"|(?P<wiki>\[\[[^\[\]|\n]{1,400}\|(?=[^\[\]\n]{1,400}\]\]))|(?P<wikiend>\]\])"
    r"|(?P<note>\[\^[^\]]{1,200}\]:?)"
    r"|(?P<break><br[ \t]*/?>)|(?P<tag></?[a-zA-Z][^<>]{0,4000}>|<!--.{0,4000}?-->)"
    r"|(?P<math>\$\$[^$]{1,2000}\$\$|\\{1,2}\(.{0,2000}?\\{1,2}\)|\\{1,2}\[.{0,2000}?\\{1,2}\]"
    r"|(?<![\w\\$])\$(?![\s\d])(?![^$]{0,2000}(?:[A-Za-z]{2,}[ \t]+[A-Za-z]{2,}|[.!?]\s))[^$]{0,2000}(?<!\s)\$(?![\w$])"
    r"|(?<![\w\\$])\$\d(?![^$]{0,2000}(?:[A-Za-z]{2}|[.!?]\s))[^$]{0,2000}[^$\s]\$(?![\w$]))"
    rf"|(?P<list>{_ATTRIBUTES})"
    rf"|(?P<close>\](?:\(\s*{_TARGET}{_TITLE}\s*\)|\[[^\]]*\]|{_ATTRIBUTES}))"
    r"|(?P<open>\[)|(?P<shut>\])"
    r"|(?P<escape>\\[!-/:-@\[-`{-~])|(?P<hard>\\(?=\n))"
    r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)"
    r"|(?P<stars>\*+|_+|~~)",
    re.S,
)
_SPECIAL = re.compile(r"`|<(?=[a-zA-Z/!])|\](?=[(\[])|\\(?=[!-/:-@\[-`{-~])|&(?=#?\w{1,31};)")


_NAMED = {"<": "&lt;", "&": "&amp;"}

DEEPEST = 48
"""Number of levels of nested formatting that are distinguished."""


def escape_within(text: str) -> str:
    """Escape whatever Markdown would take for markup within a line."""
    places = {m.start() for m in _SPECIAL.finditer(text)} | set(_emphasis(text))
    if places:
        text = "".join((_NAMED.get(c) or f"\\{c}") if i in places else c for i, c in enumerate(text))
    return text.replace("\xa0", "&nbsp;")


def escape_cell(text: str) -> str:
    """Escape the text of a table cell: bars as well."""
    return escape_within(text).replace("|", "\\|")


def escape(text: str) -> str:
    """Escape the text of a block likewise; it must not begin a list, a quotation or a heading either."""
    return re.sub(r"^(?=[-+*>#]+\s)|(?<=^\d)(?=[.)]\s)", r"\\", escape_within(text))


def read(text: str, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the paragraphs, headings, list items and table cells; code and front matter stay.

    Args:
        languages: see :func:`html.read`.
    """
    builder = BlockBuilder(escape)
    start = front_matter(text)
    builder.keep(text[:start])
    body = text[start:]
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", body)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    position, sought = 0, 0  # how far the file has been written, and searched
    before: list[Any] = [None, None, None]  # the tokens before, and this one
    environment: dict[str, Any] = {}
    row = 0  # the end of the table's row
    for token in parser().parse(body, environment):
        before = [*before[1:], token]
        if token.type == "tr_close" and row > position and has_letter(body[position:row]):
            builder.misread(body[position:row], "cell", written=False)  # the row has more cells than the table
        if token.map is None:
            continue
        first, last = token.map[0], max(token.map[1], token.map[0] + 1)  # of terms of definitions, both are the same
        if token.type == "tr_open":
            row = starts[last]
        if token.type == "fence" and DIRECTIVE.match(token.info.strip()) and has_letter(token.content):
            builder.keep(body[position : starts[first]])
            builder.misread(body[starts[first] : starts[last]], "directive")
            position = sought = starts[last]
        elif token.type == "html_block":
            builder.keep(body[position : starts[first]])
            builder.write = html.escape
            html.add(builder, body[starts[first] : starts[last]], languages)
            position = sought = starts[last]
        elif token.type in ("container_any_open", "indented_open"):
            if place := title_of(token.type, body[starts[first] : starts[first + 1]]):
                a, b = (starts[first] + i for i in place)
                position = _text(builder, body, position, [(a, b)], "title", escape_within)
            sought = max(sought, starts[first + 1])
        elif token.type == "inline" and token.content.strip() and not is_formula(token.content):
            around, parent = before[:2]
            in_cell = parent is not None and parent.type in ("th_open", "td_open")
            content = token.content.replace("|", "\\|") if in_cell else token.content
            places = _find(body, content, max(sought, starts[first]), starts[last])
            if places is None:
                builder.keep(body[position : max(position, sought, starts[first])])
                position = max(position, sought, starts[first])
                builder.misread(token.content, "cell" if in_cell else "paragraph", written=False)
                continue
            kind = "" if parent is None else f"{parent.tag}{parent.level}"
            places, position = _lead(builder, body, places, position)
            first_in = around is not None and around.type == "container_any_open" and "{" in around.info
            for run in runs(body, places, first_in):
                if run.text:
                    write = escape_cell if in_cell else escape
                    references = environment.get("references", {})
                    position = _text(builder, body, position, run.places, kind, write, references)
            sought = max([position, *(b for _, b in places)])
    builder.keep(body[position:])
    return builder.parsed()


def _text(
    builder: BlockBuilder,
    body: str,
    position: int,
    places: list[tuple[int, int]],
    kind: str,
    write: Callable[[str], str],
    references: Mapping[str, object] = MappingProxyType({}),
) -> int:
    """Add what is before a block, and the block; return its end."""
    builder.keep(body[position : places[0][0]])
    builder.at(kind)
    builder.write = write
    _inline(builder, body, places, references)
    return places[-1][1]


def _lead(
    builder: BlockBuilder, body: str, places: list[tuple[int, int]], position: int
) -> tuple[list[tuple[int, int]], int]:
    """Keep the box of a task, or the marker of an alert, whose title is a block of its own."""
    a, b = places[0]
    if task := TASK.match(body, a, b):
        return [(task.end(), b), *places[1:]], position
    if (alert := ALERT.match(body, a, b)) is None:
        return places, position
    title = alert.end() + len(body[alert.end() : b]) - len(body[alert.end() : b].lstrip())
    if title < b:
        position = _text(builder, body, position, [(title, b)], "title", escape_within)
    return places[1:], position


def _find(body: str, content: str, start: int, end: int) -> list[tuple[int, int]] | None:
    """Locate each line of a block's content; return None if one cannot be found."""
    places = []
    for line in content.split("\n"):
        line = line.strip()
        at = body.find(line, start, end)
        if at < 0:
            return None
        places.append((at, at + len(line)))
        start = at + len(line)
    return [place for place in places if place[0] < place[1]] or None


def _inline(builder: BlockBuilder, body: str, places: list[tuple[int, int]], references: Mapping[str, object]) -> None:
    """Add a block: its lines, with whatever is between them as breaks.

    Args:
        references: the file's link definitions, by label; a link that is its own label gets one when its text changes.
    """
    builder.begin()
    joined = "\n".join(body[a:b] for a, b in places)
    emphasis, brackets = _emphasis(joined), _Brackets.of(joined)
    labels = brackets.labels(joined, references)
    states: list[str] = []
    offset, line = 0, 0

    def add(text: str) -> None:
        nonlocal line
        for number, piece in enumerate(text.split("\n")):
            if number:
                builder.keep(body[places[line][1] : places[line + 1][0]], BREAK)
                line += 1
            if piece:
                builder.text(piece, tuple(states), piece)

    for found in _OPAQUE.finditer(joined):
        if found.start() < offset:
            continue
        kind, raw = found.lastgroup or "", found[0]
        if kind == "stars" and found.start() not in emphasis:
            continue
        label = labels.get(found.start())
        if label is None and (kind == "shut" or kind in ("open", "close") and not brackets.is_link(joined, found)):
            continue
        if label is not None and kind in ("shut", "close"):
            kind, raw = "close", f"][{label}]"
        if kind == "wikiend" and "[[" not in states:
            continue
        character = unescape(raw) if kind == "entity" else ""
        if kind == "entity" and character == raw:
            continue
        add(joined[offset : found.start()])
        offset = found.end()
        if label is not None and kind == "close":
            states.remove("[") if "[" in states else None
            builder.keep(raw)
            continue
        if kind == "escape":
            builder.text(raw[1], tuple(states), raw)
            continue
        if kind == "entity":
            builder.text(character, tuple(states), raw)
            continue
        if kind == "stars" and emphasis[found.start()] is False and raw in states:
            states.remove(raw)
        elif kind == "close" and "[" in states:
            states.remove("[")
        elif kind == "wikiend":
            states.remove("[[")
        elif kind in ("stars", "open", "wiki") and len(states) < DEEPEST:
            states.append("[[" if kind == "wiki" else raw)
        for number, piece in enumerate(raw.split("\n")):
            if number:
                builder.keep(body[places[line][1] : places[line + 1][0]])
                line += 1
            fill = BREAK if kind == "break" else PLACEHOLDER if kind in ("code", "auto", "math", "page") else ""
            builder.keep(piece, fill if not number else "")
    add(joined[offset:])
    builder.end()


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

    def is_link(self, text: str, found: re.Match[str]) -> bool:
        """Return whether a bracket opens or closes a link, rather than being text."""
        if found.lastgroup == "close":
            return found.start() > self.first
        close = self.closes.get(found.start())
        if close is None or text[close + 1 : close + 2] not in ("(", "[", "{"):
            return False
        ending = _OPAQUE.match(text, close)
        return ending is not None and ending.lastgroup == "close"

    def labels(self, text: str, references: Mapping[str, object]) -> dict[int, str]:
        """Return the labels of links that have no target, by the places of both brackets."""
        if not references:
            return {}
        from markdown_it.common.utils import normalizeReference

        found = {}
        for start, close in self.closes.items():
            label, following = text[start + 1 : close], text[close + 1 : close + 3]
            alone = following == "[]" or following[:1] not in ("(", "[", ":", "{")
            if alone and label.strip() and normalizeReference(label) in references:
                found[start] = found[close] = label
        return found


def _emphasis(text: str) -> dict[int, bool]:
    """Find the runs of ``*``, ``_`` and ``~~`` that are markup, by place: True if a run opens, False if it closes."""
    opaque = [m.span() for m in _OPAQUE.finditer(text) if m.lastgroup not in ("stars", "open", "close", "shut")]
    found: dict[int, bool] = {}
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
            found[waiting[match][1]], found[place] = True, False
            for other, _ in waiting[match:]:
                last[other].pop()
            del waiting[match:]
        elif left:
            last.setdefault(run, []).append(len(waiting))
            waiting.append((run, place))
    return found


def _runs(text: str, opaque: list[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Yield the runs of stars and the like outside the opaque places, which are in order."""
    following = iter([*opaque, (len(text), len(text))])
    begin, end = next(following)
    for m in re.finditer(r"\*+|_+|~~", text):
        while end <= m.start():
            begin, end = next(following, (len(text), len(text) + 1))
        if m.start() < begin:
            yield m.start(), m[0]
