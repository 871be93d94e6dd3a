"""HTML: the text between the tags, by paragraphs, headings, cells and the like."""

import re

from fairseq_lasformer.formats.block import PLACEHOLDER, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.html_tree import INLINE, READINGS, Tree
from fairseq_lasformer.formats.languages import Languages, language
from fairseq_lasformer.formats.markup import VOID, Piece, escape, html_pieces
from fairseq_lasformer.formats.templates import shows, splits

_IN_A_LINE = frozenset(re.findall(r"\w+", "audio canvas code iframe kbd math object samp svg var video"))
"""Elements within a sentence, too, whose content is not translated."""

_SAYS_LANGUAGE = re.compile(
    r"""(?:http-equiv|name|property)\s*=\s*["']?(?:content-language|language|og:locale)["'\s]""", re.I
)
_CONTENT = re.compile(r"""((?<=\s)content\s*=\s*["']?)([^\s"'>]+)""", re.I)
_LANGUAGE = re.compile(r"""((?<=\s)(?:xml:)?lang\s*=\s*["']?)([^\s"'>]+)""", re.I)


def read(text: str, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the blocks of an HTML file or fragment.

    Args:
        languages: elements that say they are in the source language say the target.
    """
    builder = BlockBuilder(escape)
    add(builder, text, languages)
    return builder.parsed()


def add(builder: BlockBuilder, text: str, languages: Languages = Languages()) -> None:  # noqa: B008
    """Add the blocks of an HTML file or fragment to others."""
    tree = Tree()
    for piece in html_pieces(text):
        if piece.kind == "text":
            if not tree.translated:
                builder.keep(piece.raw)
                continue
            builder.enter()
            builder.text(piece.text, tree.formatting, piece.raw)
        elif piece.kind == "broken":
            builder.leave()
            builder.misread(piece.raw, "tag")
        elif piece.kind == "code":
            shown = tree.translated and shows(piece.raw)
            if shown:
                builder.enter()
            elif tree.translated and splits(piece.raw):
                builder.leave()
            builder.keep(piece.raw, PLACEHOLDER if shown else "")
        elif piece.kind == "other":
            builder.keep(piece.raw)
        elif piece.kind == "start":
            _start(builder, tree, piece, languages)
        else:
            before = tree.translated
            if piece.name not in VOID:
                tree.end(piece.name)
            if (before or tree.translated) and piece.name not in INLINE and piece.name not in _IN_A_LINE:
                builder.leave()
                builder.at("")
            builder.keep(piece.raw)
    builder.leave()


def _start(builder: BlockBuilder, tree: Tree, piece: Piece, languages: Languages) -> None:
    """Add the start of an element."""
    name = piece.name
    translated, around = tree.start(piece)
    hidden, raw = not translated, piece.raw
    if hidden and not around:
        builder.keep(raw)
        return
    if name not in INLINE and not (hidden and name in _IN_A_LINE):
        builder.leave()
        builder.at(name, piece.attributes.get("id", ""))
    elif not hidden and name not in VOID:
        builder.enter()
        builder.name(piece.attributes.get("id") or piece.attributes.get("name", ""))
    if not hidden and ("lang" in piece.attributes or "xml:lang" in piece.attributes):
        raw = _LANGUAGE.sub(lambda m: m[1] + languages.instead(m[2]), raw)
    if name == "meta" and _SAYS_LANGUAGE.search(raw):
        raw = _CONTENT.sub(lambda m: m[1] + (_alike(m[2], languages) if languages.replaces(m[2]) else m[2]), raw)
    shown = hidden and builder.inside and name not in VOID and name not in READINGS
    builder.keep(raw, PLACEHOLDER if shown else "")


def _alike(code: str, languages: Languages) -> str:
    """Return the target's code in the form of another: ``de_DE`` for ``en_US``."""
    return f"{language(languages.target)}_{languages.region}" if "_" in code and languages.region else languages.code
