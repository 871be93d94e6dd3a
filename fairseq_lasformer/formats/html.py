"""HTML: the text between the tags, by paragraphs, headings, cells and the like."""

from __future__ import annotations

import re

from fairseq_lasformer.formats.block import PLACEHOLDER, BlockBuilder, Parsed
from fairseq_lasformer.formats.markup import VOID, Piece, escape, html_pieces

INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark nobr q ruby rb rp rt s "
        "small span strike strong sub sup time tt u wbr",
    )
)
"""Elements within a sentence; at all others, a block ends."""

OPAQUE = frozenset(
    re.findall(
        r"\w+",
        "audio canvas code iframe kbd math noscript object pre samp script style svg template textarea var video",
    )
)
"""Elements whose content is not translated."""


DEEPEST = 48
"""Number of levels of nested inline elements that are distinguished."""


def read(text: str) -> Parsed:
    """Read the blocks of an HTML file or fragment."""
    builder = BlockBuilder(escape)
    add(builder, text)
    return builder.parsed()


def add(builder: BlockBuilder, text: str) -> None:
    """Add the blocks of an HTML file or fragment to others."""
    state: list[tuple[str, str]] = []  # the open inline elements: name and tag
    opaque: list[str] = []  # the open elements, from the untranslated one on

    for piece in html_pieces(text):
        if opaque:
            builder.keep(piece.raw)
            if piece.kind == "start" and piece.name not in VOID and len(opaque) < DEEPEST:
                opaque.append(piece.name)
            elif piece.kind == "end" and piece.name in opaque:
                del opaque[len(opaque) - 1 - opaque[::-1].index(piece.name) :]
            continue
        if piece.kind == "text":
            builder.enter()
            builder.text(piece.text, tuple(raw for _, raw in state), piece.raw)
            continue
        if piece.kind == "other":
            builder.keep(piece.raw)
            continue
        hidden = piece.kind == "start" and _untranslated(piece)
        if piece.name not in INLINE and not (hidden and piece.name in OPAQUE and _inside_a_line(piece.name)):
            builder.leave()
            builder.at(piece.name if piece.kind == "start" else "", piece.attributes.get("id", ""))
        if hidden:
            if piece.name not in VOID:
                opaque = [piece.name]
        elif piece.kind == "start" and piece.name in INLINE - VOID:
            builder.enter()
            builder.name(piece.attributes.get("id") or piece.attributes.get("name", ""))
            if len(state) < DEEPEST:
                state.append((piece.name, piece.raw))
        elif piece.kind == "end" and piece.name in (names := [name for name, _ in state]):
            del state[len(names) - 1 - names[::-1].index(piece.name) :]
        builder.keep(piece.raw, PLACEHOLDER if hidden and builder.inside and piece.name not in VOID else "")
    builder.leave()


def _untranslated(piece: Piece) -> bool:
    classes = piece.attributes.get("class", "").split()
    return piece.name in OPAQUE or piece.attributes.get("translate") == "no" or "notranslate" in classes


def _inside_a_line(name: str) -> bool:
    """Return whether an untranslated element belongs within a sentence."""
    return name not in ("pre", "script", "style", "template", "noscript", "textarea")
