"""Retranslation of lines from where the model lost its place; see :mod:`misplaced_lines`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_lasformer.documents.misplaced_lines import MARGIN, Checked, all_misplaced, first_misplaced
from fairseq_lasformer.documents.part_search import GROUPS, SCORED_TOKENS, PartSearch
from fairseq_lasformer.documents.scoring import log_probabilities, mean
from fairseq_lasformer.documents.source import Line, Source, rest_of
from fairseq_lasformer.search.batching import batches
from fairseq_lasformer.text.documents import Span

ROUNDS = 9
"""Maximum number of times that a document is checked for lines out of place."""

REACH = 10
"""Number of lines that are translated again together; those after them only if they do not fit."""

CONTEXT = 3
"""Number of lines of context that they are translated with: with many, a model loses its place again."""

COMPARED = 4
"""Number of lines by which an old and a new translation are compared."""


class Placing:
    """Lines out of place in translated documents, and their retranslation.

    From where the model lost its place, some lines are translated again with less context. They are used if the first
    of them, by themselves, are more likely translations of their sources. Otherwise, every line of the document that is
    out of place is translated alone. Given lines stay, and stay in the context of all lines after them.

    Args:
        lines: the lines of each document, which are replaced.
    """

    def __init__(
        self, search: PartSearch, documents: Sequence[Source], lines: list[list[Line]], device: torch.device | str
    ) -> None:
        self.search, self.documents, self.lines, self.device = search, documents, lines, device
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def score(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
        """Return the mean log probability per token of translations of single lines; each pair is scored once."""
        search = self.search
        keys = [(tuple(source.tolist()), tuple(target.tolist())) for source, target in pairs]
        new = {key: pair for key, pair in zip(keys, pairs) if key not in self._scores}
        examples = [(search.closed(source, 0), search.closed(target, 1)) for source, target in new.values()]
        scores = log_probabilities(
            search.models[0], search.task.target_dictionary, examples, SCORED_TOKENS, self.device
        )
        self._scores |= zip(new, map(mean, scores))
        return [self._scores[key] for key in keys]

    def run(self) -> None:
        """Check all documents, and translate lines again until none is found out of place."""
        n = len(self.documents)
        here = [i for i in range(n) if len(self.lines[i]) == len(self.documents[i].sentences) > 1]
        starts, edges = [0] * n, [0] * n
        for _ in range(ROUNDS):
            places = first_misplaced(
                self._checked(here), [starts[i] for i in here], self.score, [edges[i] for i in here]
            )
            lost = {i: place for i, place in zip(here, places) if place is not None}
            if not lost:
                return
            again = self._again(lost)
            self._alone({i: place for i, place in lost.items() if i not in again})
            for i, (start, edge) in again.items():
                starts[i], edges[i] = start, edge
            here = list(again)
        self._alone({i: starts[i] for i in here})

    def _checked(self, here: Sequence[int]) -> list[Checked]:
        return [
            Checked(
                self.documents[i].sentences,
                [line.tokens for line in self.lines[i]],
                [line.score for line in self.lines[i]],
                self._given(i),
            )
            for i in here
        ]

    def _given(self, i: int) -> set[int]:
        """Return the numbers of the given lines of a document."""
        return {j for j, line in enumerate(self.documents[i].given or ()) if line is not None}

    def _again(self, lost: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Translate lines again after some lines of context; return where those begin and end that were accepted."""
        spans = [self._window(i, place, CONTEXT, REACH) for i, place in lost.items()]
        new = [self.lines[i][:place] for i, place in lost.items()]
        documents = [self.documents[i] for i in lost]
        self.search.translate_in_order(documents, [[span] for span in spans], new, self.device)
        accepted = {}
        for (i, place), lines in zip(lost.items(), new):
            window = range(place, min(place + COMPARED, len(lines)))
            pairs = [
                (self.documents[i].sentences[j], side[j].tokens) for side in (self.lines[i], lines) for j in window
            ]
            scores = self.score(pairs)
            if sum(scores[len(window) :]) > sum(scores[: len(window)]) + MARGIN:
                for j in range(place, len(lines)):
                    self._replace(i, j, lines[j])
                accepted[i] = place, len(lines)
        return accepted

    def _window(self, i: int, place: int, context: int, reach: int) -> Span:
        """Return lines from a place on, with lines of context: at least some, and the given ones."""
        context = max([context, *(place - j for j in self._given(i) if j < place)])
        rest = rest_of(self.documents[i].parts, place, context)[0]
        return rest._replace(size=min(rest.size, reach))

    def _read(self, i: int, span: Span) -> Sequence[Tensor]:
        """Return the source lines that are read for a span, with its context."""
        return self.documents[i].sentences[span.start - span.context : span.start + span.size]

    def _alone(self, starts: dict[int, int]) -> None:
        """Translate each line that is out of place alone; one that is no better then stays, and is reported."""
        here = list(starts)
        misplaced = all_misplaced(self._checked(here), [starts[i] for i in here], self.score)
        before = {(here[k], j): score for (k, j), score in misplaced.items()}
        tasks = [((i, j), self._window(i, j, 0, 1)) for i, j in before]
        lengths = [sum(map(len, self._read(i, span))) for (i, _), span in tasks]
        order = sorted(range(len(tasks)), key=lambda k: lengths[k])
        for batch in batches(lengths, order, SCORED_TOKENS, GROUPS):
            chosen = [tasks[k][0] for k in batch]
            spans = [(self.documents[i], tasks[k][1], self.lines[i][:j]) for k, (i, j) in zip(batch, chosen)]
            lines = [its[0] for its in self.search.translate_parts(spans, self.device)]
            scores = self.score([(self.documents[i].sentences[j], new.tokens) for (i, j), new in zip(chosen, lines)])
            for (i, j), line, after in zip(chosen, lines, scores):
                if after > before[i, j] + MARGIN:
                    self._replace(i, j, line)
                else:
                    self.lines[i][j] = self.lines[i][j]._replace(flawed=True)

    def _replace(self, i: int, j: int, line: Line) -> None:
        old = self.lines[i][j]
        changed = not torch.equal(line.tokens, old.tokens)
        self.lines[i][j] = line._replace(repaired=line.repaired or old.repaired or changed)
