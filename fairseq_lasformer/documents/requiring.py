"""Required terms: lines that lack one are translated again."""

from collections.abc import Sequence

import torch

from fairseq_lasformer.documents.part_search import GROUPS, TOGETHER, PartSearch
from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.documents.source import Line, Source, runs
from fairseq_lasformer.search.excerpts import CONTEXT
from fairseq_lasformer.search.glossary import met
from fairseq_lasformer.text.documents import Span


def require_terms(
    search: PartSearch, documents: Sequence[Source], drafts: list[list[Line]], device: torch.device | str
) -> None:
    """Replace the lines that lack a term: translate only them again, after a few lines of context.

    A search that forces a term is worse at all else. So at first, only the terms that a line lacks are required; then,
    where it lost others by that, all of its terms.
    """
    for only_missing in (True, False):
        lacking = [_missing(document, lines) for document, lines in zip(documents, drafts)]
        required = lacking if only_missing else documents
        if search.by_lines:
            for i, part in ((i, part) for i, document in enumerate(documents) for part in document.parts):
                terms = (lacking[i].terms or ())[part.start : part.start + part.size]
                if chosen := [n for n, its in enumerate(terms) if its]:
                    searched = SideBySide(search, [(required[i], part)], device)
                    for n, line in zip(chosen, searched.lines(chosen)):
                        _replace(documents, drafts, i, part.start + n, line)
            continue
        tasks: list[tuple[int, Span]] = []
        for i, document in enumerate(documents):
            missing = [j for j, terms in enumerate(lacking[i].terms or ()) if terms]
            for part in document.parts:
                here = [j for j in missing if part.start <= j < part.start + part.size]
                first = part.start - part.context
                tasks += [(i, Span(i, a, b - a + 1, min(CONTEXT, a - first))) for a, b in runs(here, TOGETHER)]
        tasks.sort(key=lambda task: task[1].context + task[1].size)
        for start in range(0, len(tasks), GROUPS):
            batch = tasks[start : start + GROUPS]
            again = search.translate_parts([(required[i], part, drafts[i][: part.start]) for i, part in batch], device)
            for (i, part), lines in zip(batch, again):
                for j, line in enumerate(lines, part.start):
                    _replace(documents, drafts, i, j, line)


def _replace(documents: Sequence[Source], drafts: list[list[Line]], i: int, j: int, line: Line) -> None:
    """Replace line j of document i if it lacks a term."""
    terms = (documents[i].terms or [])[j]
    if not met(drafts[i][j].tokens.tolist(), terms):
        drafts[i][j] = line._replace(flawed=line.flawed or not met(line.tokens.tolist(), terms))


def _missing(document: Source, lines: Sequence[Line]) -> Source:
    """Return a document that requires only the terms that its lines lack."""
    pairs = zip(document.terms or (), lines)
    lacking = [[term for term in terms if not met(line.tokens.tolist(), [term])] for terms, line in pairs]
    return document._replace(terms=lacking if document.terms else None)
