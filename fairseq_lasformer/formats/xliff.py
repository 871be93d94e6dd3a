"""XLIFF 1.2 and 2: units without a translation get one, in ``<target>``."""

import re
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markup import Piece, escape, xml_pieces
from fairseq_lasformer.formats.xliff_content import add_content, is_segment, plain

_UNITS = ("trans-unit", "segment")
_AROUND = ("xliff", "file", "header", "body", "group", "unit", "ignorable", *_UNITS)
"""Elements that contain no text of their own."""

_LANGUAGES = (("source-language", "srcLang"), ("target-language", "trgLang"))


def read(text: str, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the sources of all translatable units whose target is missing or empty.

    Args:
        languages: a file that does not name its target language names it afterwards.
    """
    pieces = xml_pieces(text)
    if next((p.local for p in pieces if p.kind == "start"), "") != "xliff":
        raise InputError("not an XLIFF file")
    builder = BlockBuilder(escape)
    refused: list[bool] = []  # for each open element, whether translate="no" applies in it
    names: list[str] = [""]  # the open elements
    unit: list[Piece] | None = None
    for piece in pieces:
        if piece.kind == "start":
            said = piece.attributes.get("translate")
            refused.append(said == "no" if said else bool(refused and refused[-1]))
            names.append(piece.local)
            if piece.local in _UNITS:
                if unit is not None:
                    raise InputError(f"a {piece.local} within another unit; XLIFF does not allow that")
                unit = []
        if unit is None and piece.text.strip() and names[-1] in _AROUND:
            builder.misread(piece.raw, "text")
        elif unit is None:
            builder.keep(_with_target(piece, languages))
        else:
            unit.append(piece)
        if piece.kind == "end":
            skip = refused.pop()
            names.pop()
            if piece.local in _UNITS and unit is not None:
                _unit(builder, unit, skip)
                unit = None
    return builder.parsed().of_languages(_languages(pieces))


def _with_target(piece: Piece, languages: Languages) -> str:
    """Return a piece of the file, which names the target language where it names the source."""
    said = piece.attributes if piece.kind == "start" else {}
    for source, target in zip(*_LANGUAGES):
        if source in said and not said.get(target) and languages.target:
            raw = re.sub(rf"""\s{target}\s*=\s*(?:""|'')""", "", piece.raw)
            end = len(raw) - 1 - raw.endswith("/>")
            return f'{raw[:end].rstrip()} {target}="{languages.code}"{raw[end:]}'
    return piece.raw


def _languages(pieces: list[Piece]) -> tuple[str | None, str | None]:
    """Return the languages of the first file that names any (``source-language`` in 1.2, ``srcLang`` in 2)."""
    for piece in pieces:
        said = piece.attributes if piece.kind == "start" else {}
        source, target = (said.get(a) or said.get(b) for a, b in _LANGUAGES)
        if source or target:
            return source, target
    return None, None


def finish(original: str, target_text: str, mark: bool) -> str:
    """Mark the filled units of a translated file for review, if ``mark``: by a state, in 1.2 and in 2."""
    if not mark:
        return target_text
    translated = xml_pieces(target_text)
    old, new = _targets(xml_pieces(original)), _targets(translated)
    if len(old) != len(new):
        return target_text
    pieces = [piece.raw for piece in translated]
    for before, after in zip(old, new):
        if after.text != before.text:
            tag = pieces[after.tag]
            stateless = re.sub(r"""\sstate\s*=\s*("[^"]*"|'[^']*')""", "", tag)
            pieces[after.tag] = re.sub(r"(?=/?>$)", f' state="{after.state}"', stateless, count=1)
    return "".join(pieces)


class _Target(NamedTuple):
    """The state of a unit: the number of its tag's piece, the state to write there, and the text of its target."""

    tag: int
    state: str
    text: str


def _targets(pieces: list[Piece]) -> list[_Target]:
    """Return the targets of all units that have a source: in 1.2 the state is the target's, in 2 the segment's."""
    targets = []
    begin = 0
    for i, piece in enumerate(pieces):
        if piece.local not in _UNITS:
            continue
        if piece.kind == "start":
            begin = i
        elif piece.kind == "end":
            unit = pieces[begin : i + 1]
            target = _element(unit, "target")
            text = "".join(p.text for p in unit[slice(*target)]) if target else ""
            if piece.local == "segment":
                targets.append(_Target(begin, "translated", text))
            else:
                targets.append(_Target(begin + (target[0] if target else 0), "needs-review-translation", text))
    return targets


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
    return place is not None and any(p.text.strip() for p in pieces[slice(*place)])  # in CDATA as well


def _unit(builder: BlockBuilder, pieces: list[Piece], skip: bool) -> None:
    """Add a unit: all of it, with the translation of its source in its target, which follows source and segments."""
    source, target = _element(pieces, "source"), _element(pieces, "target")
    segmented = _element(pieces, "seg-source")
    if source is not None and target is not None and not skip and _has_text(pieces, target):
        said = pieces[0].attributes.get("state") or pieces[target[0]].attributes.get("state") or ""
        texts = [plain(pieces[place[0] + 1 : place[1]]) for place in (source, target)]
        if not _is_copy(pieces, source, target):
            builder.finished(texts[0], texts[1], not said.startswith(("needs-", "new", "initial")))
    if source is None or skip:
        for piece in pieces:
            builder.keep(piece.raw)
        return
    builder.at("", "", _room(pieces[0]))
    first, last = segmented or source
    content = pieces[first + 1 : last]
    segments = _segments(content)
    full = _has_text(pieces, target) and not _is_copy(pieces, source, target)
    prefix = pieces[source[0]].name.removesuffix("source")
    open_empty = ""  # the segment whose empty translation is being filled
    for i, piece in enumerate(pieces):
        if target is not None and i == target[1] and full:
            _missing(builder, pieces[target[0] : target[1]], segments)
            builder.keep(piece.raw)
        elif target is not None and i == target[0] and not full:
            builder.keep(piece.raw[:-2] + ">" if piece.raw.endswith("/>") else piece.raw)
            add_content(builder, content)
            builder.keep(f"</{piece.name}>" if piece.raw.endswith("/>") else "")
        elif target is not None and target[0] < i < target[1]:
            if not full:
                continue
            is_tag = piece.kind == "start" and is_segment(piece)
            if is_tag and piece.attributes.get("mid", "") in segments and _is_empty(pieces, i):
                open_empty = f"</{piece.name}>" if piece.raw.endswith("/>") else ""
                builder.keep(piece.raw[:-2] + ">" if open_empty else piece.raw)
                add_content(builder, segments[piece.attributes["mid"]])
                builder.keep(open_empty)
            else:
                builder.keep(piece.raw)
        else:
            builder.keep(piece.raw)
        if target is None and content and i == last:  # an empty source needs none
            builder.keep(f"<{prefix}target>")
            add_content(builder, content)
            builder.keep(f"</{prefix}target>")


def _room(unit: Piece) -> int:
    """Return the number of characters for which a unit says that there is room; 0 for any."""
    said = unit.attributes
    most = said.get("maxwidth", "") if said.get("size-unit", "pixel") == "char" else ""
    restricted = next((value for name, value in said.items() if name.rpartition(":")[2] == "storageRestriction"), "")
    most = most or restricted.rpartition(",")[2].strip()
    return int(most) if most.isdecimal() and len(most) < 7 else 0


def _is_copy(pieces: list[Piece], source: tuple[int, int], target: tuple[int, int] | None) -> bool:
    """Return whether a target is no translation yet: its state says so, and it has the source's text."""
    if target is None:
        return False
    state = pieces[0].attributes.get("state") or pieces[target[0]].attributes.get("state") or ""
    texts = ["".join(p.text for p in pieces[slice(*place)]).split() for place in (source, target)]
    return state in ("new", "needs-translation", "initial") and texts[0] == texts[1]


def _missing(builder: BlockBuilder, target: list[Piece], segments: dict[str, list[Piece]]) -> None:
    """Add the segments that a translation in segments lacks."""
    there = {piece.attributes.get("mid") for piece in target if piece.kind == "start" and is_segment(piece)}
    first = next((piece for piece in target if piece.kind == "start" and is_segment(piece)), None)
    for mid, content in segments.items() if first is not None else ():
        if mid not in there:
            builder.keep(f'<{first.name} mtype="seg" mid={quoteattr(mid)}>')  # type: ignore[union-attr]
            add_content(builder, content)
            builder.keep(f"</{first.name}>")  # type: ignore[union-attr]


def _is_empty(pieces: list[Piece], start: int) -> bool:
    """Return whether an element, by the number of its start, contains neither text nor elements."""
    following = next((p for p in pieces[start + 1 :] if p.kind != "text" or p.text.strip()), None)
    return following is not None and following.kind == "end"


def _segments(pieces: list[Piece]) -> dict[str, list[Piece]]:
    """Return the contents of the segments in a seg-source, by their ``mid``."""
    segments: dict[str, list[Piece]] = {}
    inside: list[Piece] | None = None
    depth = 0
    for piece in pieces:
        depth -= inside is not None and piece.kind == "end"
        if inside is not None and depth < 0:
            inside, depth = None, 0
        elif inside is not None:
            inside.append(piece)
            depth += piece.kind == "start"
        elif piece.kind == "start" and is_segment(piece) and "mid" in piece.attributes:
            inside = segments.setdefault(piece.attributes["mid"], [])
    return segments
