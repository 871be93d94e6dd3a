"""Markdown (CommonMark with tables and strikethrough): markdown-it-py finds the blocks, which are preserved."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import NamedTuple

from fairseq_lasformer.formats import html
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, BlockBuilder, Parsed

logging.getLogger("markdown_it").setLevel(logging.WARNING)  # it logs every line

_FRONT = re.compile(r"\A(---\r?\n.*?\r?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z))", re.S)

# parts of a line that are not text: code, images, the ends of links, addresses, footnotes, tags, formulas
_OPAQUE = re.compile(
    r"(?P<code>(?<!`)(`{1,40})(?!`).{0,4000}?(?<!`)\2(?!`))"
    r"|(?P<image>!\[[^\]]{0,2000}\](?:\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)|\[[^\]]*\])?)"
    r"|(?P<auto><[a-zA-Z][a-zA-Z0-9+.-]{0,32}:[^\s<>]{0,4000}>|<[^\s<>@]{1,200}@[^\s<>]{1,200}>|https?://[^\s<>()]{1,4000}[^\s<>().,;:!?\"'])"
    r"|(?P<note>\[\^[^\]]{1,200}\]:?)"
    r"|(?P<tag></?[a-zA-Z][^<>]{0,4000}>|<!--.{0,4000}?-->)"
    r"|(?P<math>\\\(.{0,2000}?\\\)|\\\[.{0,2000}?\\\]|\$[^$\s](?:[^$]{0,2000}[^$\s])?\$(?!\d))"
    r"|(?P<close>\](?:\((?:[^()\s]*(?:\([^()]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\)|\[[^\]]*\]))"
    r"|(?P<open>\[)"
    r"|(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<stars>\*+|_+|~~)",
    re.S,
)
_SPECIAL = re.compile(r"`|<(?=[a-zA-Z/!])|\](?=[(\[])|\\(?=[!-/:-@\[-`{-~])")


DEEPEST = 48
"""Number of levels of nested formatting that are distinguished."""


def escape_within(text: str) -> str:
    """Escape whatever Markdown would take for markup within a line, such as a table cell."""
    places = {m.start() for m in _SPECIAL.finditer(text)} | set(_emphasis(text))
    if places:
        text = "".join(f"\\{c}" if i in places else c for i, c in enumerate(text))
    return text


def escape(text: str) -> str:
    """Escape the text of a block likewise; it must not begin a list, a quotation or a heading either."""
    return re.sub(r"^(?=[-+*>#]+\s)|(?<=^\d)(?=[.)]\s)", r"\\", escape_within(text))


def read(text: str) -> Parsed:
    """Read the paragraphs, headings, list items and table cells; code and front matter stay."""
    from markdown_it import MarkdownIt

    builder = BlockBuilder(escape)
    front = _FRONT.match(text)
    start = front.end() if front else 0
    builder.keep(text[:start])
    body = text[start:]
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", body)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    position, sought = 0, 0  # how far the file has been written, and searched
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.disable(["inline"])  # only blocks are needed
    tokens = parser.parse(body)
    for before, token in zip([None, *tokens], tokens):
        if token.map is None:
            continue
        first, last = token.map
        if token.type == "html_block":
            builder.keep(body[position : starts[first]])
            builder.write = html.escape
            html.add(builder, body[starts[first] : starts[last]])
            position = sought = starts[last]
        elif token.type == "inline" and token.content.strip():
            places = _find(body, token.content, max(sought, starts[first]), starts[last])
            if places is None:
                continue
            builder.keep(body[position : places[0][0]])
            builder.at("" if before is None else f"{before.tag}{before.level}")
            in_cell = before is not None and before.type in ("th_open", "td_open")
            builder.write = escape_within if in_cell else escape
            _inline(builder, body, places)
            position = sought = places[-1][1]
    builder.keep(body[position:])
    return builder.parsed()


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


def _inline(builder: BlockBuilder, body: str, places: list[tuple[int, int]]) -> None:
    """Add a block: its lines, with whatever is between them as breaks."""
    builder.begin()
    joined = "\n".join(body[a:b] for a, b in places)
    emphasis, brackets = _emphasis(joined), _Brackets.of(joined)
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
        if kind in ("open", "close") and not brackets.is_link(joined, found):
            continue
        add(joined[offset : found.start()])
        offset = found.end()
        if kind == "escape":
            builder.text(raw[1], tuple(states), raw)
            continue
        if kind == "stars" and emphasis[found.start()] is False and raw in states:
            states.remove(raw)
        elif kind == "close" and "[" in states:
            states.remove("[")
        elif kind in ("stars", "open") and len(states) < DEEPEST:
            states.append(raw)
        for number, piece in enumerate(raw.split("\n")):
            if number:
                builder.keep(body[places[line][1] : places[line + 1][0]])
                line += 1
            builder.keep(piece, PLACEHOLDER if kind in ("code", "auto", "math") and not number else "")
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
        return close is not None and text[close + 1 : close + 2] in ("(", "[") and bool(_OPAQUE.match(text, close))


def _emphasis(text: str) -> dict[int, bool]:
    """Find the runs of ``*``, ``_`` and ``~~`` that are markup, by place: True if a run opens, False if it closes."""
    opaque = [m.span() for m in _OPAQUE.finditer(text) if m.lastgroup not in ("stars", "open", "close")]
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
