"""Sentence-aligned search: line i of a translation is the translation of line i of its source.

In data prepared with a separator between sentences, a translation has as many lines as its source if it has as many
separators. :class:`LineAlignment` restricts a search to such translations. It masks two columns of the scores, those of
the separator and of the end of sentence; where a sentence has reached its limit, all the others.

Shapes: N items (documents, or parts of one), B hypotheses per item, S sentences of the longest item, V words, P prefix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.search.processors import Candidates, Scores, StepProcessor

# Score of candidates that a constraint excludes, where nothing else is left. A much lower one would swamp the scores of
# the other words in sums of float32.
LAST_RESORT = -1e4


class SentenceLimits(NamedTuple):
    """Maximum length of each sentence of a batch.

    Attributes:
        sentences: int64 [N], sentences per item.
        longest: int64 [N, S], maximum number of tokens of each sentence's translation; 0 after an item's last one.
    """

    sentences: Tensor
    longest: Tensor

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

    def with_given(self, lengths: Tensor) -> SentenceLimits:
        """Return the limits with room for given lines.

        Args:
            lengths: int64 [N, S], tokens of each given line; 0 for lines that are to be translated.
        """
        return self._replace(longest=torch.where(lengths > 0, lengths + 1, self.longest))

    def take(self, items: Tensor) -> SentenceLimits:
        """Return the limits of some of the items, or of each item several times."""
        return SentenceLimits(self.sentences[items], self.longest[items])


class LineAlignment(StepProcessor):
    """Restriction of a search to translations with as many sentences as their source.

    The end of sentence is impossible before the last sentence, the separator in it. A sentence has at least one word.
    It ends when it reaches its limit, or when the remaining steps are just enough for the remaining sentences. A given
    beginning takes precedence over all of this.

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
        step, lprobs = scores.step, scores.lprobs
        left, length = self.left, self.length
        last, begun = left <= 0, length > 0
        no_end, no_separator = ~(last & begun), last | ~begun
        current = (self.limits.sentences[:, None] - 1 - left).clamp(max=self.limits.longest.size(1) - 1)
        # each further sentence takes at least two steps, a word and its end
        must = (length >= self.limits.longest.gather(1, current)) | (left >= (self.longest - step) / 2)
        must = must & begun
        if self.prefix is not None and step < self.prefix.size(1):
            free = self.prefix[:, step : step + 1] == self.pad
            no_end, no_separator, must = no_end & free, no_separator & free, must & free
        end, separator = lprobs[..., self.end], lprobs[..., self.separator]
        if step < self.longest:
            end.masked_fill_(no_end, -math.inf)
            separator.masked_fill_(no_separator, -math.inf)
        if lprobs.is_cuda or bool(must.any()):
            end_here, separator_here = must & last, must & ~last
            kept = end.clamp_min(LAST_RESORT), separator.clamp_min(LAST_RESORT)
            lprobs.masked_fill_(must[..., None], -math.inf)
            end.copy_(torch.where(end_here, kept[0], end))
            separator.copy_(torch.where(separator_here, kept[1], separator))

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        parents, ended = candidates.parents.gather(1, chosen), candidates.words.gather(1, chosen) == self.separator
        self.left = self.left.gather(1, parents) - ended.long()
        self.length = (self.length.gather(1, parents) + 1).masked_fill_(ended, 0)

    def prune(self, items: Tensor) -> None:
        self.limits, self.left, self.length = self.limits.take(items), self.left[items], self.length[items]
        if self.prefix is not None:
            self.prefix = self.prefix[items]
