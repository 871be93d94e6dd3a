"""Translation of documents whose lines are searched side by side: repair of single lines, and their alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Hypothesis
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.documents.scoring import mean
from fairseq_lasformer.documents.source import Line, Source, others
from fairseq_lasformer.search.line_search import LineOf, LineSearch
from fairseq_lasformer.search.repair import gone_wrong
from fairseq_lasformer.text.documents import Span

if TYPE_CHECKING:
    from fairseq_lasformer.documents.part_search import PartSearch


class _Place(NamedTuple):
    """A line to search; ``tokens``: of its source."""

    line: LineOf
    tokens: list[int]


class SideBySide:
    """The lines of some parts of documents, whose sources are encoded once.

    Args:
        search: of a model whose lines can be searched side by side.
        tasks: documents and their parts.
        check: called before every step; an exception ends the search.
    """

    def __init__(
        self,
        search: PartSearch,
        tasks: Sequence[tuple[Source, Span]],
        device: torch.device | str,
        check: Callable[[], object] | None = None,
    ) -> None:
        generator: Any = search.generator
        self.alignment = generator.alignment
        separators = self.alignment.separators
        sources = [search.example(document, part).to(device) for document, part in tasks]
        self.search = LineSearch(generator, separators[1], sources, check)
        self.places: list[_Place] = []
        for number, ((document, part), source) in enumerate(zip(tasks, sources)):
            tokens, before = source.tolist(), part.context
            spans = line_spans(tokens[:-1], separators[0])
            for i, (first, end) in enumerate(spans[before : before + part.size], before):
                at = part.start + i - before
                given = None if document.given is None else document.given[at]
                longest = max(1, int(self.alignment.a * (end - first) + self.alignment.b))
                line = LineOf(number, first, end + 1 - first, longest, i == 0, i == len(spans) - 1)
                if given is not None:
                    line = line._replace(given=given.tolist())
                elif document.terms:
                    line = line._replace(terms=document.terms[at])
                self.places.append(_Place(line, tokens[first:end]))

    def lines(self, chosen: Iterable[int] | None = None) -> list[Line]:
        """Return the best translations of lines, all or those with some numbers; lines that went wrong are repaired."""
        places = self.places if chosen is None else [self.places[i] for i in chosen]
        best = dict(self._best(places))
        lines_of = {i: self._line(h) for i, h in best.items()}
        wrong = [i for i, line in lines_of.items() if places[i].line.given is None and self._wrong(places[i], line)]
        for i in wrong:
            lines_of[i] = lines_of[i]._replace(flawed=True)
        if wrong and self.alignment.repairs:
            for n, hypothesis in self._best([places[i] for i in wrong], block=True):
                line = self._line(hypothesis)
                if not self._wrong(places[wrong[n]], line):
                    lines_of[wrong[n]] = line._replace(repaired=True)
        return [lines_of[i] for i in range(len(places))]

    def alternatives(self, lines: Sequence[Line], most: int) -> list[list[Line]]:
        """Return other translations of each line than those given, at most ``most``, best first."""
        ranked: list[list[Line]] = [[] for _ in lines]
        for i, hypotheses in self.search.search([place.line._replace(given=None) for place in self.places]):
            ranked[i] = others(lines[i], map(self._line, hypotheses), most)
        return ranked

    def _best(self, places: Sequence[_Place], block: bool = False) -> Iterable[tuple[int, Hypothesis]]:
        for i, hypotheses in self.search.search([place.line for place in places], block):
            if not hypotheses:
                raise InputError(
                    f"the search found no translation of a line of {len(places[i].tokens)} tokens: are the model's "
                    "weights finite?"
                )
            yield i, hypotheses[0]

    def _wrong(self, place: _Place, line: Line) -> bool:
        return gone_wrong(place.tokens, line.tokens.tolist(), place.line.longest)

    def _line(self, hypothesis: Hypothesis) -> Line:
        tokens, scores = hypothesis["tokens"].cpu(), hypothesis["positional_scores"].float().cpu()
        return Line(tokens[:-1], mean(scores), False, False)
