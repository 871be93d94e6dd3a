"""Retranslation of documents from where the model lost its place; see :mod:`misplaced_lines`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_lasformer.documents.misplaced_lines import MARGIN, first_misplaced
from fairseq_lasformer.documents.part_search import CONTEXTS, SCORED_TOKENS, PartSearch
from fairseq_lasformer.documents.scoring import log_probabilities, mean
from fairseq_lasformer.documents.source import Line, Source, rest_of

ROUNDS = 9
"""Maximum number of times that a document is checked for lines out of place."""

COMPARED = 4
"""Number of lines by which an old and a new translation are compared."""


def place_lines(
    search: PartSearch, documents: Sequence[Source], found: list[list[Line]], device: torch.device | str
) -> None:
    """Translate documents again from where the model lost its place, with less and less context.

    With all of the context it would lose its place again. The new translation is used if its first lines, by
    themselves, are more likely translations of their sources.
    """

    def score(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
        examples = [(search.closed(source, 0), search.closed(target, 1)) for source, target in pairs]
        found = log_probabilities(search.models[0], search.task.target_dictionary, examples, SCORED_TOKENS, device)
        return [mean(tokens) for tokens in found]

    starts, failures = [0] * len(documents), [0] * len(documents)
    here = [i for i in range(len(documents)) if len(found[i]) == len(documents[i].sentences) > 1]
    for _ in range(ROUNDS):
        places = first_misplaced(
            [documents[i].sentences for i in here],
            [[line.tokens for line in found[i]] for i in here],
            [[line.score for line in found[i]] for i in here],
            [starts[i] for i in here],
            score,
        )
        lost = {i: place for i, place in zip(here, places) if place is not None}
        if not lost:
            return
        parts = [rest_of(documents[i].parts, place, CONTEXTS[failures[i]]) for i, place in lost.items()]
        new = [found[i][:place] for i, place in lost.items()]
        search.translate_in_order([documents[i] for i in lost], parts, new, device)
        for (i, place), lines in zip(lost.items(), new):
            window = range(place, min(place + COMPARED, len(lines)))
            pairs = [(documents[i].sentences[j], side[j].tokens) for side in (found[i], lines) for j in window]
            scores = score(pairs)
            if sum(scores[len(window) :]) > sum(scores[: len(window)]) + MARGIN:
                changed = [not torch.equal(a.tokens, b.tokens) for a, b in zip(lines, found[i])]
                found[i] = [b._replace(repaired=b.repaired or c) for b, c in zip(lines, changed)]
                starts[i], failures[i] = place, 0
            else:
                failures[i] += 1
                if failures[i] == len(CONTEXTS):  # the model may find its place again in later lines
                    found[i][place] = found[i][place]._replace(flawed=True)
                    starts[i], failures[i] = place + 1, 0
        here = list(lost)
