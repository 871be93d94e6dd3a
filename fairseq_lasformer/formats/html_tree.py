"""The open elements of an HTML file, some of whose ends are omitted; and which of them are translated.

See the HTML standard, "Optional tags" and "Tree construction". An element is not translated within ``translate="no"``
and the class ``notranslate``, up to ``translate="yes"`` or the class ``translate`` within it; what programs read (code,
scripts, styles) is not translated unless it says so.
"""

import re
from typing import NamedTuple

from fairseq_lasformer.formats.languages import language
from fairseq_lasformer.formats.markup import VOID, Piece

INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark nobr q ruby rb rp rt s "
        "small span strike strong sub sup time tt u wbr",
    )
)
"""Elements within a sentence; at all others, a block ends."""

_CODE = frozenset(
    re.findall(
        r"\w+",
        "audio canvas code iframe kbd listing math noembed noframes plaintext pre samp script style svg textarea var "
        "video xmp",
    )
)
_PROGRAMS = frozenset(("script", "style", "iframe", "math", "svg"))
"""Code that is not translated whatever it says."""

READINGS = frozenset(("rt", "rp", "rtc"))
"""Readings above words (ruby): they are no words of the sentence."""

_P_ENDS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote center details dialog dir div dl dd dt fieldset figcaption figure footer "
        "form h1 h2 h3 h4 h5 h6 header hgroup hr li main menu nav ol p pre search section summary table ul "
        "listing plaintext",
    )
)
"""Elements whose start ends a paragraph."""

_CELLS = ("td", "th")
_ROWS = (*_CELLS, "tr")
_BEFORE_ROWS = ("caption", "colgroup")
_SCOPE = ("table", "td", "th", "caption", "template", "object", "html")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_ENDED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "li": (("li",), ("ul", "ol", "menu", "dir")),
    "dt": (("dt", "dd"), ("dl",)),
    "dd": (("dt", "dd"), ("dl",)),
    "option": (("option",), ("select", "datalist", "optgroup")),
    "optgroup": (("option", "optgroup"), ("select",)),
    "td": ((*_CELLS, *_BEFORE_ROWS), ("table", "tr")),
    "th": ((*_CELLS, *_BEFORE_ROWS), ("table", "tr")),
    "tr": ((*_ROWS, *_BEFORE_ROWS), ("table",)),
    "a": (("a",), _SCOPE),
    "button": (("button",), _SCOPE),
    **dict.fromkeys(_HEADINGS, (_HEADINGS, (*_SCOPE, "div", "section", "article", "header", "main", "li"))),
    **dict.fromkeys(
        ("thead", "tbody", "tfoot"), ((*_ROWS, "thead", "tbody", "tfoot", "caption", "colgroup"), ("table",))
    ),
    "rt": (("rt", "rp", "rb", "rtc"), ("ruby",)),
    "rp": (("rt", "rp", "rb", "rtc"), ("ruby",)),
    "rb": (("rt", "rp", "rb", "rtc"), ("ruby",)),
    "rtc": (("rt", "rp", "rb", "rtc"), ("ruby",)),
    "body": (("head",), ("html",)),
}
"""For each element, those that its start ends, and those around which it ends none."""

_BORDERS = frozenset(("table", "td", "th", "caption", "template", "object", "html", "button", "marquee", "svg", "math"))
"""Elements that the end of a paragraph, or of most elements within them, does not pass."""

_TABLE = frozenset(("table", "tbody", "thead", "tfoot", "tr", "td", "th", "caption", "html", "body"))

DEEPEST, MOST_FORMATTING = 256, 48
"""Number of levels of nested elements, and of inline elements among them, that are told apart."""


class Element(NamedTuple):
    """An open element."""

    name: str
    translated: bool  # whether text in it is translated
    formatting: tuple[str, ...]  # tags of the open inline elements, this one included


class Tree:
    """The open elements at a place in an HTML file."""

    def __init__(self, spoken: str = "") -> None:
        self.open: list[Element] = []
        self.spoken = spoken  # code of the language that is translated; empty for any
        self._paragraphs = 0

    @property
    def translated(self) -> bool:
        """Return whether text at this place is translated."""
        return not self.open or self.open[-1].translated

    @property
    def formatting(self) -> tuple[str, ...]:
        """The tags of the inline elements that are open at this place."""
        return self.open[-1].formatting if self.open else ()

    def start(self, piece: Piece) -> tuple[bool, bool]:
        """Begin an element, after ending those whose end tag was omitted.

        Returns:
            whether text in it is translated, and around it.
        """
        name = piece.name
        if name in _P_ENDS and self._paragraphs:
            self._end_last(("p",), _BORDERS)
        if name in _ENDED:
            self._end_last(*_ENDED[name])
        around = self.translated
        formatting = self.formatting
        if name in INLINE and len(formatting) < MOST_FORMATTING:
            formatting = (*formatting, piece.raw)
        element = Element(name, self._is_translated(piece), formatting)
        if name not in VOID and len(self.open) < DEEPEST:
            self.open.append(element)
            self._paragraphs += name == "p"
        return element.translated, around

    def end(self, name: str) -> None:
        """End an element, and those within it; nothing if it is not open."""
        for i in range(len(self.open) - 1, -1, -1):
            if self.open[i].name == name:
                self._cut(i)
                return
            if self.open[i].name in _BORDERS and name not in _TABLE and name not in _BORDERS:
                return

    def _end_last(self, names: tuple[str, ...], borders: tuple[str, ...] | frozenset[str]) -> None:
        """End the outermost of the innermost elements of some names that are not around a border."""
        last = None
        for i in range(len(self.open) - 1, -1, -1):
            if self.open[i].name in names:
                last = i
            elif self.open[i].name in borders:
                break
        if last is not None:
            self._cut(last)

    def _cut(self, start: int) -> None:
        self._paragraphs -= sum(element.name == "p" for element in self.open[start:])
        del self.open[start:]

    def _is_translated(self, piece: Piece) -> bool:
        if piece.name in _PROGRAMS or piece.name in READINGS:
            return False
        said = piece.attributes
        if said:
            classes = said.get("class", "").split()
            if said.get("translate", "").strip().lower() == "no" or "notranslate" in classes:
                return False
            if "translate" in classes or ("translate" in said and said["translate"].strip().lower() in ("", "yes")):
                return True
            other = language(said.get("lang") or said.get("xml:lang") or "")
            if self.spoken and len(other) == 2 and piece.name not in ("html", "body"):
                return other == language(self.spoken) and piece.name not in _CODE
        return self.translated and piece.name not in _CODE
