"""Doubtful translated lines, as far as they can be recognised without a reference, and their counts.

The signs are those used to clean parallel corpora: lines that repeat themselves, lengths that are far from the usual
ratio, empty lines, and the same translation of different lines.
"""

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.formats.block import Unread
from fairseq_lasformer.search.repair import loops

SHORT = 20
"""Length in characters of the shortest source and translation whose ratio is meaningful."""

FEW = 10
"""Number of lines of such lengths below which there is no usual ratio."""

LONG, LITTLE = 100, 0.1
"""Length in characters from which a source is doubtful that has less than this share of it as translation, in any file:
no language is written that much more briefly."""

FAR = 3.0
"""Factor by which a translation must be longer or shorter than usual to count as far from it."""


class Pair(NamedTuple):
    """A line and its translation."""

    source: str
    translation: str
    repaired: bool = False  # whether it went wrong at first and was translated again
    flawed: bool = False  # whether it is still wrong; see `documents.source.Line`


class Facts(NamedTuple):
    """Counts of some lines; those of several units add up."""

    lines: int = 0  # number of lines
    # repaired, flawed: see `Pair`
    repaired: int = 0
    flawed: int = 0
    loops: int = 0  # translations that repeat words where their source does not
    empty: int = 0  # translations without text of lines with text
    far: int = 0  # translations whose length is far from the usual ratio, or from any; see `FAR` and `LONG`
    doubtful: int = 0  # lines of any kind above except `repaired`
    duplicates: int = 0  # lines that share their translation with another line, although its source differs
    # source_characters, characters: of all lines
    source_characters: int = 0
    characters: int = 0
    seconds: float = 0.0  # time taken
    # lines with a number that their translation lacks; see `lost_numbers`. They are not doubtful: a number may be
    # written as a word, or in other units.
    numbers: int = 0
    unread: int = 0  # parts of the file that were not understood; see `formats.block.Unread`


def lost_numbers(pair: Pair) -> list[str]:
    """Return the numbers of two digits or more in a source that its translation lacks, compared by their digits.

    ``1,234.5`` and ``1.234,5`` are the same number.
    """
    missing = Counter(_digits(pair.source)) - Counter(_digits(pair.translation))
    return list(missing.elements())


def _digits(text: str) -> list[str]:
    digits = (re.sub(r"\D", "", number) for number in re.findall(r"\d(?:[\d.,'’\u00a0\u202f]*\d)?", text))
    return [number for number in digits if len(number) > 1]


def doubts(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return why each line of a unit is doubtful: names of fields of :class:`Facts`; empty if it is not."""
    ratios = [
        len(pair.translation) / len(pair.source)
        for pair in pairs
        if len(pair.source) >= SHORT and len(pair.translation) >= SHORT
    ]
    usual = statistics.median(ratios) if len(ratios) >= FEW else None
    return [tuple(_reasons(pair, usual)) for pair in pairs]


def _reasons(pair: Pair, usual: float | None) -> Iterable[str]:
    if pair.flawed:
        yield "flawed"
    if _loops(pair.translation) and not _loops(pair.source):
        yield "loops"
    if not pair.translation.strip() and pair.source.strip():
        yield "empty"
    elif len(pair.source) >= LONG and len(pair.translation) < LITTLE * len(pair.source):
        yield "far"
    elif usual is not None and max(len(pair.source), len(pair.translation)) >= SHORT * FAR:
        ratio = len(pair.translation) / max(1, len(pair.source)) / usual
        if not 1 / FAR <= ratio <= FAR:
            yield "far"


def _loops(text: str) -> bool:
    numbers: dict[str, int] = {}
    return loops([numbers.setdefault(word, len(numbers)) for word in text.split()])


def facts(pairs: Sequence[Pair], reasons: Sequence[tuple[str, ...]], seconds: float = 0.0) -> Facts:
    """Count the lines of a unit.

    Args:
        reasons: their :func:`doubts`.
    """
    sources: dict[str, set[str]] = {}
    for pair in pairs:
        sources.setdefault(pair.translation, set()).add(pair.source)
    kinds = [kind for kinds_of in reasons for kind in kinds_of]
    return Facts(
        lines=len(pairs),
        repaired=sum(pair.repaired for pair in pairs),
        flawed=kinds.count("flawed"),
        loops=kinds.count("loops"),
        empty=kinds.count("empty"),
        far=kinds.count("far"),
        doubtful=sum(bool(kinds_of) for kinds_of in reasons),
        duplicates=sum(len(sources[pair.translation]) > 1 for pair in pairs if pair.translation),
        source_characters=sum(len(pair.source) for pair in pairs),
        characters=sum(len(pair.translation) for pair in pairs),
        seconds=seconds,
        numbers=sum(bool(lost_numbers(pair)) for pair in pairs),
    )


HEADER = "\t".join(["unit", *Facts._fields, "length_ratio"]) + "\n"
"""First line of a table of counts."""


def report(path: Path, units: Sequence[tuple[str, Facts]], unread: Mapping[str, Sequence[Unread]]) -> str:
    """Format the content of a report: a table, or JSON if its name ends in ``.json``.

    Args:
        units: files or shards, and their counts.
        unread: what was not understood in each, where that is known.
    """
    if path.suffix.lower() != ".json":
        return table(units)
    rows = [
        {"unit": name, **its._asdict(), "not_understood": [one._asdict() for one in unread.get(name, ())]}
        for name, its in units
    ]
    return json.dumps({"units": rows, "all": total(units)._asdict()}, indent=1, ensure_ascii=False) + "\n"


def total(units: Iterable[tuple[str, Facts]]) -> Facts:
    """Return the counts of all units together."""
    rows = [its for _, its in units]
    return Facts(*(sum(values) for values in zip(*rows))) if rows else Facts()


def table(units: Iterable[tuple[str, Facts]]) -> str:
    """Format a tab-separated table with a row per unit, and one for all."""
    rows = list(units)
    shown = [_row(name, its) for name, its in [*rows, ("all", total(rows))]]
    return HEADER + "".join("\t".join(cells) + "\n" for cells in shown)


def _row(name: str, its: Facts) -> list[str]:
    ratio = its.characters / its.source_characters if its.source_characters else 0.0
    shown = [f"{value:.1f}" if field == "seconds" else str(value) for field, value in its._asdict().items()]
    return [name.replace("\t", " "), *shown, f"{ratio:.3f}"]
