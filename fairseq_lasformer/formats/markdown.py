"""Markdown: markdown-it-py finds the blocks, which are preserved; see :mod:`formats.markdown_blocks` for dialects."""

from collections.abc import Callable
from typing import Any

from fairseq_lasformer.formats import html
from fairseq_lasformer.formats.block import Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.front_matter import add_front_matter, front_matter
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markdown_blocks import (
    ALERT,
    DIRECTIVE,
    TASK,
    is_formula,
    parser,
    runs,
    title_of,
)
from fairseq_lasformer.formats.markdown_inline import CELL, HEADING, PARAGRAPH, add_inline, escape_within
from fairseq_lasformer.text.lines import lines_with_ends
from fairseq_lasformer.text.spans import has_letter

Places = list[tuple[int, int]]
"""Places of a block's lines in a file."""


def read(text: str, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the paragraphs, headings, list items, table cells and the page's title; code and other front matter stay.

    Args:
        languages: see :func:`html.read`.
    """
    start = front_matter(text)
    return _Reader(text[:start], text[start:], languages).read()


class _Reader:
    """The state of a file that is being read.

    Args:
        front: its front matter.
        body: what follows.
    """

    def __init__(self, front: str, body: str, languages: Languages) -> None:
        self.builder, self.body, self.languages = BlockBuilder(escape_within), body, languages
        add_front_matter(self.builder, front)
        self.starts = [0]  # of its lines, and its end
        for line in lines_with_ends(body):
            self.starts.append(self.starts[-1] + len(line))
        self.position, self.sought = 0, 0  # how far the file has been written, and searched
        self.references: dict[str, object] = {}
        self.row = 0  # the end of the table's row

    def read(self) -> Parsed:
        environment: dict[str, Any] = {}
        around, parent = None, None  # the last two tokens
        tokens = parser().parse(self.body, environment)
        self.references = environment.get("references", {})
        for token in tokens:
            self._add(token, around, parent)
            around, parent = parent, token
        self.builder.keep(self.body[self.position :])
        return self.builder.parsed()

    def _add(self, token: Any, around: Any, parent: Any) -> None:
        starts, body = self.starts, self.body
        if token.type == "tr_close" and self.row > self.position and has_letter(body[self.position : self.row]):
            self._keep(self.position)
            self.builder.misread(body[self.position : self.row], "cell", written=False)  # more cells than the table has
        if token.map is None or len(starts) < 2:
            return
        first = min(token.map[0], len(starts) - 2)
        last = min(max(token.map[1], first + 1), len(starts) - 1)  # of terms of definitions, both are the same
        if token.type == "tr_open":
            self.row = starts[last]
        elif (directive := token.type == "fence" and DIRECTIVE.match(token.info.strip())) or token.type == "columns":
            self._keep(starts[first])
            said = body[starts[first] : starts[last]]
            if has_letter(token.content if directive else said):
                self.builder.misread(said, "directive" if directive else "table")
            else:
                self.builder.keep(said)
            self.position = self.sought = starts[last]
        elif token.type == "html_block":
            self._keep(starts[first])
            self.builder.write = html.escape
            html.add(self.builder, body[starts[first] : starts[last]], self.languages)
            self.position = self.sought = starts[last]
        elif token.type in ("container_any_open", "indented_open"):
            if place := title_of(token.type, body[starts[first] : starts[first + 1]]):
                self._block([(starts[first] + place[0], starts[first] + place[1])], "title", escape_within)
            self.sought = max(self.sought, starts[first + 1])
        elif token.type == "inline" and token.content.strip() and not is_formula(token.content):
            options = around is not None and around.type == "container_any_open" and "{" in around.info
            self._paragraph(token.content, parent, starts[first], starts[last], options)

    def _paragraph(self, content: str, parent: Any, first: int, last: int, options: bool) -> None:
        """Add a paragraph, heading or cell.

        Args:
            parent: the token that it is in.
            first, last: where to look for it.
            options: whether it may begin with options of a directive.
        """
        in_cell = parent is not None and parent.type in ("th_open", "td_open")
        begin = max(self.sought, first)
        places = _find(self.body, content.replace("|", "\\|") if in_cell else content, begin, last)
        if places is None:
            self._keep(max(self.position, begin))
            self.builder.misread(content, "cell" if in_cell else "paragraph", written=False)
            return
        places = self._lead(places)
        for run in runs(self.body, places, options):
            if run.text:
                kind = "" if parent is None else f"{parent.tag}{parent.level}"
                self._block(run.places, kind, CELL if in_cell else HEADING if kind[:1] == "h" else PARAGRAPH)
        self.sought = max([self.position, *(b for _, b in places)])

    def _lead(self, places: Places) -> Places:
        """Keep the box of a task, or the marker of an alert, whose title is a block of its own."""
        a, b = places[0]
        if task := TASK.match(self.body, a, b):
            return [(task.end(), b), *places[1:]]
        if (alert := ALERT.match(self.body, a, b)) is None:
            return places
        title = b - len(self.body[alert.end() : b].lstrip())
        if title < b:
            self._block([(title, b)], "title", escape_within)
        return places[1:]

    def _block(self, places: Places, kind: str, write: Callable[[str], str]) -> None:
        """Add what is before a block, and the block."""
        self._keep(places[0][0])
        self.builder.at(kind)
        self.builder.write = write
        add_inline(self.builder, self.body, places, self.references)
        self.position = places[-1][1]

    def _keep(self, end: int) -> None:
        self.builder.keep(self.body[self.position : end])
        self.position = end


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
