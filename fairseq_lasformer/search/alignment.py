"""Sentence-aligned search: line i of a translation is the translation of line i of its source.

In data prepared with a separator between sentences, a translation has as many lines as its source if it has as many
separators. :class:`LineAlignment` restricts a search to such translations. It masks two columns of the scores, those of
the separator and of the end of sentence; where a sentence has reached its limit, all the others.

Shapes: N items (documents, or parts of one), B hypotheses per item, S sentences of the longest item, V words, P prefix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops import LineEnds, count_lines, restrict_lines
from fairseq_lasformer.search.processors import Candidates, Scores, StepProcessor


class SentenceLimits(NamedTuple):
    """Maximum length of each sentence of a batch."""

    sentences: Tensor  # int64 [N], sentences per item
    longest: Tensor  # int64 [N, S], maximum number of tokens of each sentence's translation; 0 after an item's last one

    @classmethod
    def of(cls, source: Tensor, separator: int, ignored: tuple[int, ...], a: float, b: float) -> SentenceLimits:
        """Return the limits for a batch of sources: ``a * n + b`` for a sentence of n tokens.

        Args:
            source: int64 [N, K].
            separator: index of the separator in the source dictionary.
            ignored: indices of tokens outside sentences: padding and end of sentence.
            a, b: see above.
        """
        ends = source == separator
        words = ~ends
        for index in ignored:
            words &= source != index
        lengths = words.new_zeros(source.size(0), source.size(1), dtype=torch.int64)
        lengths.scatter_add_(1, ends.cumsum(1), words.long())
        count = ends.sum(1) + 1
        longest = (a * lengths + b).floor().long().clamp_min(1)[:, : int(count.max())]
        return cls(count, longest.masked_fill(torch.arange(longest.size(1), device=count.device) >= count[:, None], 0))

    def total(self) -> int:
        """Count the tokens of the longest possible translation, without its end of sentence."""
        return int((self.longest.sum(1) + self.sentences - 1).max())

    def take(self, items: Tensor) -> SentenceLimits:
        """Return the limits of some of the items, or of each item several times."""
        return SentenceLimits(self.sentences[items], self.longest[items])


class LineAlignment(StepProcessor):
    """Restriction of a search to translations with as many sentences as their source.

    When a sentence may end, and when it must: see :func:`ops.restrict_lines`. A given beginning takes precedence.

    The counts are kept per hypothesis and reordered with the beam: a step costs the same at every length. On a GPU,
    nothing is read back. ``left`` [N, B] counts the sentences after the current one, ``length`` [N, B] its tokens.

    Args:
        limits: limits of the batch's sentences.
        separator, end, pad: their indices in the target dictionary.
        longest: step at which every hypothesis ends.
        prefix: int64 [N, P], padded: tokens that every translation begins with.
        tagged: whether the first token is a tag, which belongs to no line.
    """

    def __init__(
        self,
        limits: SentenceLimits,
        separator: int,
        end: int,
        pad: int,
        longest: int,
        prefix: Tensor | None = None,
        tagged: bool = False,
    ) -> None:
        self.limits, self.separator, self.end, self.pad = limits, separator, end, pad
        self.longest, self.prefix, self.tagged = longest, prefix, tagged

    def begin(self, n_items: int, beam: int, device: torch.device) -> None:
        self.left = (self.limits.sentences - 1)[:, None].expand(n_items, beam)
        self.length = torch.full((n_items, beam), -int(self.tagged), device=device)

    def step(self, scores: Scores) -> None:
        free = None
        if self.prefix is not None and scores.step < self.prefix.size(1):
            free = self.prefix[:, scores.step : scores.step + 1] == self.pad
        restrict_lines(scores.lprobs, self._ends(), self.longest - scores.step, free)

    def _ends(self) -> LineEnds:
        return LineEnds(self.left, self.length, *self.limits, self.separator, self.end)

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        self.left, self.length = count_lines(self._ends(), candidates.words, candidates.parents, chosen)

    def prune(self, items: Tensor) -> None:
        self.limits, self.left, self.length = self.limits.take(items), self.left[items], self.length[items]
        if self.prefix is not None:
            self.prefix = self.prefix[items]
