"""XLIFF 1.2 and 2: units without a translation get one, in ``<target>``."""

from __future__ import annotations

import re
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats.block import PLACEHOLDER, BlockBuilder, Parsed
from fairseq_lasformer.formats.markup import Piece, escape, xml_pieces

_CODES = ("ph", "bpt", "ept", "it", "x", "bx", "ex", "sc", "ec", "cp", "sm", "em")
"""Inline elements whose content is code, not text."""

_UNITS = ("trans-unit", "segment")
_LANGUAGES = (("source-language", "srcLang"), ("target-language", "trgLang"))


def read(text: str) -> Parsed:
    """Read the sources of all translatable units whose target is missing or empty.

    Raises:
        InputError: the file is not XLIFF.
    """
    pieces = xml_pieces(text)
    if next((p.local for p in pieces if p.kind == "start"), "") != "xliff":
        raise InputError("not an XLIFF file")
    builder = BlockBuilder(escape)
    refused: list[bool] = []  # for each open element, whether translate="no" applies in it
    unit: list[Piece] | None = None
    for piece in pieces:
        if piece.kind == "start":
            said = piece.attributes.get("translate")
            refused.append(said == "no" if said else bool(refused and refused[-1]))
            if piece.local in _UNITS:
                if unit is not None:
                    raise InputError(f"a {piece.local} within another unit; XLIFF does not allow that")
                unit = []
        if unit is None:
            builder.keep(piece.raw)
        else:
            unit.append(piece)
        if piece.kind == "end":
            skip = refused.pop()
            if piece.local in _UNITS and unit is not None:
                _unit(builder, unit, skip)
                unit = None
    return builder.parsed().of_languages(_languages(pieces))


def _languages(pieces: list[Piece]) -> tuple[str | None, str | None]:
    """Return the languages of the first file that names any (``source-language`` in 1.2, ``srcLang`` in 2)."""
    for piece in pieces:
        said = piece.attributes if piece.kind == "start" else {}
        source, target = (said.get(a) or said.get(b) for a, b in _LANGUAGES)
        if source or target:
            return source, target
    return None, None


def finish(original: str, made: str, mark: bool) -> str:
    """Mark the filled units of a translated file for review, if ``mark``: by a state, in 1.2 and in 2."""
    if not mark:
        return made
    translated = xml_pieces(made)
    old, new = _targets(xml_pieces(original)), _targets(translated)
    if len(old) != len(new):
        return made
    pieces = [piece.raw for piece in translated]
    for before, after in zip(old, new):
        if not before.full and after.full:
            tag = pieces[after.tag]
            kept = re.sub(r"""\sstate\s*=\s*("[^"]*"|'[^']*')""", "", tag)
            pieces[after.tag] = re.sub(r"(?=/?>$)", f' state="{after.state}"', kept, count=1)
    return "".join(pieces)


class _Target(NamedTuple):
    """The state of a unit: the number of its tag's piece, the state to write there, and whether the target has text."""

    tag: int
    state: str
    full: bool


def _targets(pieces: list[Piece]) -> list[_Target]:
    """Return the targets of all units that have a source: in 1.2 the state is the target's, in 2 the segment's."""
    found = []
    begin = 0
    for i, piece in enumerate(pieces):
        if piece.local not in _UNITS:
            continue
        if piece.kind == "start":
            begin = i
        elif piece.kind == "end":
            unit = pieces[begin : i + 1]
            target = _element(unit, "target")
            full = _has_text(unit, target)
            if piece.local == "segment":
                found.append(_Target(begin, "translated", full))
            else:
                found.append(_Target(begin + (target[0] if target else 0), "needs-review-translation", full))
    return found


def _element(pieces: list[Piece], name: str) -> tuple[int, int] | None:
    """Return the first and the last piece of the unit's first child element of a name."""
    depth = 0
    start: int | None = None
    for i, piece in enumerate(pieces):
        if piece.kind == "start":
            if depth == 1 and piece.local == name and start is None:
                start = i
            depth += 1
        elif piece.kind == "end":
            depth -= 1
            if depth == 1 and piece.local == name and start is not None:
                return start, i
    return None


def _has_text(pieces: list[Piece], place: tuple[int, int] | None) -> bool:
    """Return whether an element exists and contains text."""
    return place is not None and any(p.kind == "text" and p.text.strip() for p in pieces[slice(*place)])


def _unit(builder: BlockBuilder, pieces: list[Piece], skip: bool) -> None:
    """Add a unit: all of it, with the translation of its source in its target."""
    source, target = _element(pieces, "source"), _element(pieces, "target")
    if source is not None and target is not None and not skip and _has_text(pieces, target):
        said = pieces[0].attributes.get("state") or pieces[target[0]].attributes.get("state") or ""
        texts = [_plain(pieces[place[0] + 1 : place[1]]) for place in (source, target)]
        builder.finished(texts[0], texts[1], not said.startswith(("needs-", "new", "initial")))
    if source is None or skip or _has_text(pieces, target):
        for piece in pieces:
            builder.keep(piece.raw)
        return
    prefix = pieces[source[0]].name.removesuffix("source")
    for i, piece in enumerate(pieces):
        if target is not None and i == target[0]:
            builder.keep(piece.raw[:-2] + ">" if piece.raw.endswith("/>") else piece.raw)
            _content(builder, pieces[source[0] + 1 : source[1]])
            builder.keep(f"</{piece.name}>" if piece.raw.endswith("/>") else "")
        elif target is not None and target[0] < i < target[1]:
            continue
        else:
            builder.keep(piece.raw)
        if target is None and i == source[1]:
            builder.keep(f"<{prefix}target>")
            _content(builder, pieces[source[0] + 1 : source[1]])
            builder.keep(f"</{prefix}target>")


def _plain(pieces: list[Piece]) -> str:
    """Return the content of a source or target as one line of text."""
    builder = BlockBuilder()
    _content(builder, pieces)
    return " ".join(block.text for block in builder.parsed().blocks)


def _content(builder: BlockBuilder, pieces: list[Piece]) -> None:
    """Add the content of a source as a block."""
    builder.begin()
    states: list[str] = []
    code = 0  # number of open code elements
    for piece in pieces:
        if piece.kind == "start":
            states.append(piece.raw)
            code += piece.local in _CODES
        elif piece.kind == "end":
            states.pop()
            code -= piece.local in _CODES
        if piece.kind == "text" and not code:
            builder.text(piece.text, tuple(states), piece.raw)
        else:
            builder.keep(piece.raw, PLACEHOLDER if piece.kind == "start" and piece.local in ("ph", "x") else "")
    builder.end()
