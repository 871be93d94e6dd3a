"""Units of a file: the blocks that a translation would have, as the readers of ``lasformer translate`` find them."""

from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import Block, Place
from fairseq_lasformer.formats.sentences import Splitter, sentences
from fairseq_lasformer.text.lines import clean_line

BILINGUAL = ("po", "xliff")
"""Formats whose files hold a text together with its translation."""


class Unit(NamedTuple):
    """A block of a file."""

    text: str  # its text in one line
    sentences: tuple[str, ...]  # its sentences, in order, each in one line
    # kind, key: see `Place`; in bilingual files, the key is the text in the source language
    kind: str = ""
    key: str = ""


class Reading(NamedTuple):
    """A file as units."""

    units: list[Unit]  # in reading order
    only_keys: bool = False  # whether units belong together by their keys alone


def read_units(
    path: Path, data: bytes, target: bool, split: Splitter, encoding: str | None = None, language: str = ""
) -> Reading:
    """Read a file of the source or target side.

    Args:
        path: its place, which says its format.
        data: its content.
        target: whether it is the target side. Units of bilingual files that are not translated have no key there.
        split: finds the sentences of a block.
        encoding, language: see :func:`formats.read`.
    """
    form = formats.check_format(path.name)
    try:
        opened = formats.read(data, form, encoding, language=language)
    except InputError as e:
        raise InputError(f"{path}: {e}") from e
    if form not in BILINGUAL:
        return Reading([unit for block in opened.blocks if (unit := _unit(block, split)) is not None])
    blocks = [(block, "" if target else clean_line(block.text)) for block in opened.blocks]
    for one in opened.finished:
        # a .po file of the source language may give its texts as translations of names
        text = one.target if target or form == "po" else one.source
        blocks.append((Block((text,)), clean_line(one.source)))
    units = (_unit(block, split, key) for block, key in blocks)
    return Reading([unit for unit in units if unit is not None], only_keys=True)


def _unit(block: Block, split: Splitter, key: str | None = None) -> Unit | None:
    """Return a block as a unit; None if it has no text."""
    lines = tuple(sentence.text for sentence in sentences(block, split))
    place = block.place if key is None else Place("", key)
    return Unit(clean_line(block.text), lines, place.kind, place.key) if lines else None
