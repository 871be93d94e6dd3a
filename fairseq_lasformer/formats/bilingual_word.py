"""Word in both languages: each paragraph with the runs of its translation in a line of its own."""

import re
from collections.abc import Iterator

STYLE = "Translation"
"""Style of translations."""

_PARAGRAPH = re.compile(r"(<w:p(?:\s[^<>]*)?(?<!/)>|</w:p>)")
_RUN = re.compile(r"<w:r(?:\s[^<>]*)?(?<!/)>(.*?)</w:r>", re.S)
_SHOWN = re.compile(r"<w:t(?:\s[^<>]*)?>[^<]*</w:t>|<w:(?:tab|noBreakHyphen|br(?![^<>]*w:type))(?:\s[^<>]*)?/>")
_CHANGE = re.compile(r"<w:rPrChange\b.*?</w:rPrChange>|<w:rStyle\b[^<>]*/>", re.S)
_LOOK = re.compile(r"<w:rPr(?:\s[^<>]*)?>(.*?)</w:rPr>", re.S)
_PAGE = re.compile(
    r'<w:r(?:\s[^<>]*)?>(?:<w:rPr>(?:(?!</w:rPr>).)*</w:rPr>)?<w:br\s+w:type="(?:page|column)"/></w:r>\s*\Z'
)


def word(old: str, new: str) -> str:
    """Return a file of Word with the text of the original and of its translation.

    Args:
        old, new: the XML of both, with the same paragraphs.
    """
    pieces: list[str] = []
    paragraphs: list[tuple[list[str], list[str]]] = []  # the text of both, without paragraphs inside
    for a, b in zip(_PARAGRAPH.split(old), _PARAGRAPH.split(new), strict=True):
        if a.startswith("<w:p") and _PARAGRAPH.fullmatch(a):
            paragraphs.append(([], []))
        elif a == "</w:p>" and paragraphs:
            original, said = map("".join, paragraphs.pop())
            if original != said:
                page = _PAGE.search(pieces[-1])  # the next page begins behind both
                rest = page[0] if page else ""
                pieces[-1] = pieces[-1].removesuffix(rest)
                pieces += ["<w:r><w:br/></w:r>", *_runs(said), rest]
        elif paragraphs:
            paragraphs[-1][0].append(a)
            paragraphs[-1][1].append(b)
        pieces.append(a)
    return "".join(pieces)


def _runs(paragraph: str) -> Iterator[str]:
    """Yield the runs of a paragraph that show text, without what must be in a file once."""
    for run in _RUN.findall(paragraph):
        run = _CHANGE.sub("", run)
        if shown := _SHOWN.findall(run):
            look = _LOOK.search(run)
            style = f'<w:rStyle w:val="{STYLE}"/>{look[1] if look else ""}'
            yield f"<w:r><w:rPr>{style}</w:rPr>{''.join(shown)}</w:r>"


def with_style(text: str) -> str:
    """Return a file of Word with the style of translations, if it is the one with styles."""
    style = f'<w:style w:type="character" w:customStyle="1" w:styleId="{STYLE}"><w:name w:val="{STYLE}"/></w:style>'
    return text if f'w:styleId="{STYLE}"' in text else text.replace("</w:styles>", f"{style}</w:styles>")
