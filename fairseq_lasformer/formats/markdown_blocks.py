"""Blocks of Markdown and its dialects: what markdown-it-py and its plugins find, and the lines that are no text.

CommonMark with tables, and besides: formulas (``$$``, ``\\begin{…}``), definition lists, containers (``:::``),
admonitions and tabs (``!!!``, ``???``, ``===``), whose titles are text; alerts (``> [!NOTE]``), task lists, elements
whose content is Markdown, attribute lists (``{: .lead }``), tables of contents and includes.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock

logging.getLogger("markdown_it").setLevel(logging.WARNING)  # it logs every line

_STRUCTURE = re.compile(
    r"\{[ \t]*(?:[#.:][\w-]?|[\w-]{1,40}=)[^{}]{0,400}\}|\[\[?_?toc_?\]\]?|!\[\[[^\[\]]{1,400}\]\]|:{3,}|/{3,}"
    r"|-{1,8}8<-{1,8}.{0,400}|\([\w:.-]{1,80}\)=|\\(?!begin|end)[a-zA-Z]{3,40}(?:\[[^\[\]]{0,200}\])?(?:\{[^{}]{0,400}\}){0,4}"
    r"|\{%-?(?:(?!%\}).){1,400}%\}|\[[^\[\]]{1,200}\]:[ \t]{0,8}\S{0,400}(?:\{\{|\{%).{0,400}"
    r"|import\s.{1,400}?\sfrom\s{1,8}(?:\"[^\"]*\"|'[^']*');?|import\s{1,8}(?:\"[^\"]*\"|'[^']*');?"
    r"|export\s{1,8}(?:default|const|let|var|function)\b.{0,2000}",
    re.I,
)
_OPTION = re.compile(r":[\w-]{1,40}:(?:[ \t].{0,400})?")
"""A line of options at the start of a directive of MyST."""

_REGION = re.compile(
    r"\[(?P<short>prism|(?:source)?code)(?:[ \t][^\]\n]*)?\](?![\[(:])"
    r"|\{(?P<mark>%-?|\{[<%])[ \t]*(?P<name>highlight|comment|mermaid|math|katex|chart|plantuml|code[\w-]{0,40})"
    r"(?![\w-])[^{}\n]*\}"
)
_OPENED = re.compile(
    r"<([a-z][a-z0-9]{0,20})(?=[ \t])[^<>]{0,400}[ \t]markdown[ \t]*=[ \t]*[\"']?(?:1|block|true)\b[^<>]{0,400}>[ \t]*",
    re.I,
)
"""An element whose content is Markdown."""

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-z][a-z0-9]{0,20})\b", re.I)

_GRID = re.compile(r"\+(?:[-=:]{2,400}\+){1,80}\s*")
_DASHES = re.compile(r"[-]{2,400}(?:[ \t]{1,80}-{2,400}){1,80}\s*")
ALERT = re.compile(r"(\[![\w|-]{1,40}\][+-]?)(?=\s|\Z)")
TASK = re.compile(r"\[[ xX/<>!?*-]\][ \t]+(?=\S)")
_ENVIRONMENT = re.compile(r"\\begin\{([\w*]{1,40})\}.*\\end\{\1\}", re.S)

DIRECTIVE = re.compile(
    r"\{(?:admonition|attention|card|caution|danger|details|dropdown|error|hint|important|note|seealso|tab-item|tip|warning"
    r"|epigraph|margin|sidebar|topic)\}"
)
"""Fences of MyST whose content is text, which is not read."""

_INDENTED = re.compile(r"(?:!!!|\?\?\?\+?)[ \t]{0,8}[\w-]|===[!+]?[ \t]{1,8}[\"']")
_QUOTED = re.compile(r"\"(?P<title>[^\"]{1,1000})\"|'(?P<other>[^']{1,1000})'")
_CONTAINER = re.compile(
    r":{3,}[ \t]*(?P<name>\{[\w:-]{1,40}\}|[\w:-]{1,40})?"
    r"(?:\[(?P<title>[^\[\]]{1,1000})\]|[ \t]+(?P<other>[^\s{][^{}]{0,1000}?))?"
    r"[ \t]*(?:\{[^{}]{0,400}\}[ \t]*)?\Z"
)
_TITLED = re.compile(
    r"\{?(?:admonition|attention|card|caution|danger|details|dropdown|error|hint|important|info|note|question|seealso|"
    r"success|tab-item|tip|todo|warning|abstract|bug|example|quote|failure|table|figure|list-table)\}?",
    re.I,
)


@functools.cache
def parser() -> MarkdownIt:
    """Return the parser, which finds only blocks."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.amsmath import amsmath_plugin
    from mdit_py_plugins.container import container_plugin
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    dollarmath_plugin(markdown)
    amsmath_plugin(markdown)
    deflist_plugin(markdown)
    container_plugin(markdown, "any", validate=lambda *_: True)
    alternatives = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    markdown.block.ruler.before("fence", "indented", _indented, alternatives)  # type: ignore[arg-type]
    markdown.block.ruler.before("fence", "region", _region, alternatives)  # type: ignore[arg-type]
    markdown.block.ruler.before("fence", "columns", _columns)  # type: ignore[arg-type]
    markdown.block.ruler.before("html_block", "element", _element, alternatives)  # type: ignore[arg-type]
    markdown.core.ruler.disable(["inline"])
    return markdown


def _indented(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Parse an admonition or a tab: a line with a marker, and the lines after it that are indented by four."""
    if state.is_code_block(begin):
        return False
    start = state.bMarks[begin] + state.tShift[begin]
    if state.src[start : start + 3] not in ("!!!", "???", "===") or not _INDENTED.match(state.src, start):
        return False
    if silent:
        return True
    indent, following = state.sCount[begin] + 4, begin + 1
    while following < end and (state.isEmpty(following) or state.sCount[following] >= indent):
        following += 1
    token = state.push("indented_open", "div", 1)
    token.map = [begin, following]
    before = state.parentType, state.lineMax, state.blkIndent
    state.lineMax, state.blkIndent = following, indent
    state.md.block.tokenize(state, begin + 1, following)
    state.parentType, state.lineMax, state.blkIndent = before
    state.push("indented_close", "div", -1)
    state.line = following
    return True


def _region(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Parse what is shown as it is: from ``{% highlight %}``, ``{{< highlight >}}`` or ``[code]`` to its end."""
    start = state.bMarks[begin] + state.tShift[begin]
    if state.src[start : start + 1] not in ("{", "[") or not (opened := _REGION.match(state.src, start)):
        return False
    name = opened["name"] or opened["short"]
    closing = re.compile(rf"\[/{name}\]|\{{(?:%-?[ \t]*end|\{{[<%][ \t]*/[ \t]*){name}\b")
    for line in range(begin, end):
        if closing.search(state.src, opened.end() if line == begin else state.bMarks[line], state.eMarks[line]):
            if not silent:
                state.push("region", "", 0).map = [begin, line + 1]
                state.line = line + 1
            return True
    return False


def _element(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Parse an element whose content is Markdown (``markdown="1"``), from the line of its tag to that of its end."""
    start = state.bMarks[begin] + state.tShift[begin]
    if state.is_code_block(begin) or not _OPENED.fullmatch(state.src, start, state.eMarks[begin]):
        return False
    if "closing" not in state.env:
        state.env["closing"] = _closing_lines(state.src)
    closing = state.env["closing"].get(begin, end)
    if closing >= end:
        return False
    if silent:
        return True
    before = state.parentType, state.lineMax, state.blkIndent
    state.push("html_block", "", 0).map = [begin, begin + 1]
    state.lineMax = closing
    state.blkIndent = min((state.sCount[i] for i in range(begin + 1, closing) if not state.isEmpty(i)), default=0)
    state.level += 1  # the parser limits it
    state.md.block.tokenize(state, begin + 1, closing)
    state.level -= 1
    state.parentType, state.lineMax, state.blkIndent = before
    state.push("html_block", "", 0).map = [closing, closing + 1]
    state.line = closing + 1
    return True


def _closing_lines(text: str) -> dict[int, int]:
    """Return the line at whose start an element ends, by the line that it begins in."""
    closing: dict[int, int] = {}
    begun: dict[str, list[int]] = {}
    for number, line in enumerate(text.split("\n")):
        for tag in _TAG.finditer(line):
            name = tag["name"].lower()
            if not tag["end"]:
                begun.setdefault(name, []).append(number)
            elif begun.get(name):
                first = begun[name].pop()
                if not line[: tag.start()].strip() and first < number:
                    closing[first] = number
    return closing


def _columns(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    """Parse a table of pandoc whose columns are drawn: a grid, or columns below a line of dashes for each."""
    lines = [state.src[state.bMarks[i] + state.tShift[i] : state.eMarks[i]] for i in range(begin, min(begin + 2, end))]
    if state.is_code_block(begin) or not lines:
        return False
    grid, following = _GRID.fullmatch(lines[0]) is not None, begin + 1
    if grid:
        while following < end and state.src.startswith(("+", "|"), state.bMarks[following] + state.tShift[following]):
            following += 1
    elif _DASHES.fullmatch(lines[0]) or (len(lines) > 1 and _DASHES.fullmatch(lines[1])):
        while following < end and (following < begin + 2 or not state.isEmpty(following)):
            following += 1
    if following < begin + 3:
        return False
    if not silent:
        state.push("columns", "", 0).map = [begin, following]
        state.line = following
    return True


def title_of(kind: str, line: str) -> tuple[int, int] | None:
    """Return the place of a container's or an admonition's title in its first line; None if it has none."""
    start = len(line) - len(line.lstrip(" \t>*+-0123456789.)"))
    if kind == "indented_open":
        match = _QUOTED.search(line)
    elif said := re.search(r"""\btitle=["']([^"']{1,1000})["']""", line):
        return said.span(1)
    else:
        match = _CONTAINER.match(line.rstrip(), line.find(":::") if ":::" in line else start)
        if match and match["other"] and not _TITLED.fullmatch(match["name"] or ""):
            return None
    group = next((name for name in ("title", "other") if match and match[name]), None)
    return None if match is None or group is None else match.span(group)


def is_formula(content: str) -> bool:
    """Return whether a paragraph is an environment of LaTeX that the parser's plugin does not know."""
    return content.startswith("\\begin{") and _ENVIRONMENT.fullmatch(content) is not None


class Lines(NamedTuple):
    """Successive lines of a paragraph that are all text, or none."""

    places: list[tuple[int, int]]
    text: bool


def runs(body: str, places: list[tuple[int, int]], options: bool = False) -> list[Lines]:
    """Divide the lines of a paragraph into those that are text and those that only say something to a program.

    Args:
        options: whether it may begin with options of a directive.
    """
    runs_of: list[Lines] = []
    for place in places:
        options = options and _OPTION.fullmatch(body, *place) is not None
        text = not options and _STRUCTURE.fullmatch(body, *place) is None
        if runs_of and runs_of[-1].text == text:
            runs_of[-1].places.append(place)
        else:
            runs_of.append(Lines([place], text))
    return runs_of
