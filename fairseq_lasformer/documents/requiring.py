"""Required terms: lines that lack one are translated again."""

from collections.abc import Sequence

import torch

from fairseq_lasformer.documents.part_search import PartSearch
from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.search.glossary import met


def require_terms(
    search: PartSearch, documents: Sequence[Source], drafts: list[list[Line]], device: torch.device | str
) -> None:
    """Replace the lines that lack a term: search only them again.

    A search that forces a term is worse at all else. So at first, only the terms that a line lacks are required; then,
    where it lost others by that, all of its terms.
    """
    for only_missing in (True, False):
        lacking = [_missing(document, lines) for document, lines in zip(documents, drafts)]
        required = lacking if only_missing else documents
        for i, part in ((i, part) for i, document in enumerate(documents) for part in document.parts):
            terms = (lacking[i].terms or ())[part.start : part.start + part.size]
            if chosen := [n for n, its in enumerate(terms) if its]:
                searched = SideBySide(search, [(required[i], part)], device)
                for n, line in zip(chosen, searched.lines(chosen)):
                    _replace(documents[i].terms or [], drafts[i], part.start + n, line)


def _replace(terms: Sequence[Sequence[Sequence[int]]], draft: list[Line], j: int, line: Line) -> None:
    """Replace line j of a draft if it lacks a term."""
    if not met(draft[j].tokens.tolist(), terms[j]):
        draft[j] = line._replace(flawed=line.flawed or not met(line.tokens.tolist(), terms[j]))


def _missing(document: Source, lines: Sequence[Line]) -> Source:
    """Return a document that requires only the terms that its lines lack."""
    pairs = zip(document.terms or (), lines)
    lacking = [[term for term in terms if not met(line.tokens.tolist(), [term])] for terms, line in pairs]
    return document._replace(terms=lacking if document.terms else None)
