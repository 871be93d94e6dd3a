"""Sample translations for the report: the lines of a few documents next to each run's translation."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.because import explain
from fairseq_lasformer.text.documents import read_documents
from fairseq_lasformer.text.units import units

if TYPE_CHECKING:
    from fairseq_lasformer.documents.hub import DocumentHubInterface

LINES = 40
"""Maximum number of lines shown of a document."""


class Sample(NamedTuple):
    """A document."""

    number: int  # its number in the file, from 1
    source: list[str]
    reference: list[str]  # reference translations of its lines; empty if there are none
    omitted: int  # number of further lines


def read_samples(document: Path, reference: Path | None, show: int) -> list[Sample]:
    """Return the first documents of a file.

    Args:
        document: source text, raw form.
        reference: its translation, raw form; None for none.
        show: number of documents.
    """
    sources = read_documents(document)
    references = read_documents(reference) if reference else [[] for _ in sources]
    if len(sources) != len(references):
        raise InputError(f"{reference}: {len(references)} documents; {document} has {len(sources)}")
    samples = []
    for number, (lines, translated) in enumerate(zip(sources[:show], references), 1):
        if reference and len(lines) != len(translated):
            raise InputError(f"{reference}: document {number} has {len(translated)} lines, {len(lines)} in {document}")
        samples.append(Sample(number, lines[:LINES], translated[:LINES], max(0, len(lines) - LINES)))
    return samples


def differences(text: str, other: str) -> list[list[Any]]:
    """Split a text into pieces, each with whether a shortest edit to another text would replace its words."""
    before, after = ([side[a:b] for a, b in units(side)] for side in (other, text))
    spans, pieces = units(text), []
    for kind, _, _, start, end in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        if end > start:
            pieces.append([kind != "equal", spans[start][0], spans[end - 1][1]])
    parts: list[list[Any]] = []
    position = 0
    for differs, start, end in [*pieces, [False, len(text), len(text)]]:
        for piece, marked in ((text[position:start], False), (text[start:end], differs)):
            if piece and parts and parts[-1][1] == marked:
                parts[-1][0] += piece
            elif piece:
                parts.append([piece, marked])
        position = end
    return parts


def reasons_of(hub: DocumentHubInterface, source: Sequence[str], target: Sequence[str]) -> list[list[str]]:
    """Return, for each line, which earlier lines decided its words, in sentences; nothing if that cannot be said."""
    try:
        words = explain(hub, [(i, *pair) for i, pair in enumerate(zip(source, target, strict=True), 1)])
    except (InputError, ValueError):  # a model of single sentences, or other lines
        return []
    return [[words.sentence(word) for word in words.words if word.line == i] for i, _ in enumerate(source, 1)]


def page_samples(
    samples: Sequence[Sample],
    translations: dict[str, list[list[str]]],
    reasons: Mapping[str, Sequence[Sequence[Sequence[str]]]] = MappingProxyType({}),
) -> list[Json]:
    """Return the samples as the page shows them.

    Args:
        translations: by run, the lines of each document.
        reasons: by run, for each line of each document, what is said about its words, see :func:`reasons_of`.

    Returns:
        for each document, ``number``, ``source``, ``reference``, ``omitted`` and ``runs``: name and ``lines`` in pieces
        (see :func:`differences`), compared with the reference, or with the first run if there is none, and ``because``,
        the reasons of each line, or none. A run whose lines do not match those of the source has a single one.
    """
    shown = []
    for i, sample in enumerate(samples):
        base = sample.reference or next(iter(translations.values()))[i]
        runs = []
        for number, (name, documents) in enumerate(translations.items()):
            lines, others = documents[i], base
            if len(lines) != len(sample.source):
                lines = [" ".join(lines)]
            if len(lines) != len(others):
                others = [" ".join(others)]
            compared = bool(sample.reference) or number > 0
            pieces = [differences(line, other) if compared else [[line, False]] for line, other in zip(lines, others)]
            its = reasons[name][i] if name in reasons else []
            runs.append({"name": name, "lines": pieces, "because": its})
        shown.append({**sample._asdict(), "runs": runs})
    return shown
