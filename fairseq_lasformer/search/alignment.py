"""Sentence-aligned search: line i of a translation is the translation of line i of its source.

In data prepared with a separator between sentences, a translation has as many lines as its source if it has as many
separators. :class:`AlignedSearch` restricts any of fairseq's search strategies to such translations. It masks two
columns of the scores, those of the separator and of the end of sentence; where a sentence has reached its limit, all
the others.

Shapes: N items (documents, or parts of one), B hypotheses per item, S sentences of the longest item, V words, P prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from fairseq import search
from torch import Tensor

# Score of what a constraint excludes, where nothing else is left. Much lower, and the sums of float32 would lose the
# scores of the other words.
_LAST_RESORT = -1e4

BLOCKED = 3
"""Number of tokens that no sentence may repeat when it is searched again."""


Observe = Callable[[Tensor, Tensor], None]


class SentenceLimits(NamedTuple):
    """How long each sentence of a batch may become.

    Attributes:
        sentences: int64 [N], sentences per item.
        longest: int64 [N, S], maximum number of tokens of each sentence's translation; 0 behind an item's last one.
    """

    sentences: Tensor
    longest: Tensor

    @classmethod
    def of(cls, source: Tensor, separator: int, ignored: tuple[int, ...], a: float, b: float) -> SentenceLimits:
        """The limits for a batch of sources: ``a * n + b`` for a sentence of n tokens.

        Args:
            source: int64 [N, K].
            separator: index of the separator in the source dictionary.
            ignored: indices that belong to no sentence, padding and end of sentence.
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
        """Tokens of the longest possible translation, without its end of sentence."""
        return int((self.longest.sum(1) + self.sentences - 1).max())

    def take(self, items: Tensor) -> SentenceLimits:
        """The limits of some of the items, or of each item several times."""
        return SentenceLimits(self.sentences[items], self.longest[items])


class _State(NamedTuple):
    """Where each hypothesis is.

    Attributes:
        left: int64 [N, B], sentences after the current one.
        length: int64 [N, B], tokens of the current one so far.
    """

    left: Tensor
    length: Tensor


class AlignedSearch(search.Search):
    """Restricts a search strategy to translations with as many sentences as their source.

    The end of sentence is impossible before the last sentence, the separator in it; a sentence has at least one word,
    and ends when it reaches its limit, or when the remaining steps are just enough for the remaining sentences. A
    prefix takes precedence over all of this.

    The counts are kept per hypothesis and reordered with the beam: a step costs the same at every length. On a GPU,
    nothing is read back.

    Args:
        dictionary: target dictionary.
        separator: index of the separator in it.
        inner: the search strategy.
    """

    def __init__(self, dictionary: Any, separator: int, inner: search.Search) -> None:
        super().__init__(dictionary)
        self.separator, self.inner = separator, inner
        self.supports_constraints = inner.supports_constraints
        self.stop_on_max_len = inner.stop_on_max_len

    def begin(
        self,
        limits: SentenceLimits,
        beam: int,
        max_len: int,
        prefix: Tensor | None = None,
        block: bool = False,
        observe: Mapping[int, Observe] | None = None,
    ) -> None:
        """Start a batch.

        Args:
            limits: limits of its sentences.
            beam: hypotheses per item (B).
            max_len: step at which fairseq's generator ends every hypothesis.
            prefix: int64 [N, P], padded: tokens that every translation begins with.
            block: allow no sentence the same :data:`BLOCKED` tokens in a row twice.
            observe: for some items of the batch, what is called before every step with the tokens of all its
                hypotheses, int64 [B, n], and their cumulative scores [B, n], until one of them has ended.
        """
        n, device = limits.sentences.size(0), limits.sentences.device
        self.limits, self.max_len, self.prefix, self.block = limits, max_len, prefix, block
        self.observe = dict(observe or {})
        # no sentence reaches further back
        self.reach = int(limits.longest.max()) + 1 if block else 0
        self.items = torch.arange(n, device=device)
        self.state = _State((limits.sentences - 1)[:, None].expand(n, beam), torch.zeros(n, beam, device=device).long())
        self.following = self.state
        self.exhausted = torch.zeros(n, dtype=torch.bool, device=device)

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See fairseq's ``Search.step``; ``original_batch_idxs`` is replaced by the items' numbers in the batch."""
        watched: list[tuple[int, int]] = []
        if self.observe and step and prev_output_tokens is not None and scores is not None:
            watched = [(row, item) for row, item in enumerate(self.items.tolist()) if item in self.observe]
            for row, item in watched:
                alive, beam = scores[row, :, -1] > -math.inf, scores.size(1)
                self.observe[item](prev_output_tokens[row * beam : (row + 1) * beam, 1:][alive], scores[row][alive])
        if self.block and prev_output_tokens is not None:
            self._block_repetitions(lprobs, prev_output_tokens)
        self._restrict(step, lprobs)
        if isinstance(self.inner, search.Sampling):  # draws from a distribution, here the one over what is allowed
            lprobs = lprobs.log_softmax(-1)
        found, tokens, beams = self.inner.step(step, lprobs, scores, prev_output_tokens, self.items)
        ended = tokens == self.separator
        left, length = self.state
        self.following = _State(
            left.gather(1, beams) - ended.long(), (length.gather(1, beams) + 1).masked_fill_(ended, 0)
        )
        for row, item in watched:
            if bool(((tokens[row] == self.eos) & (found[row] > -math.inf)).any()):
                del self.observe[item]  # what has ended may win over what the others agree on
        self.exhausted = ((found == -math.inf) | (tokens == self.eos)).all(1)
        return found, tokens, beams

    def _restrict(self, step: int, lprobs: Tensor) -> None:
        """Mask what alignment excludes, in place."""
        left, length = self.state
        last, begun = left <= 0, length > 0
        no_end, no_separator = ~(last & begun), last | ~begun
        current = (self.limits.sentences[:, None] - 1 - left).clamp(max=self.limits.longest.size(1) - 1)
        # each further sentence takes at least two steps, a word and its end
        must = (length >= self.limits.longest.gather(1, current)) | (left >= (self.max_len - step) / 2)
        must = must & begun
        if self.prefix is not None and step < self.prefix.size(1):
            free = self.prefix[:, step : step + 1] == self.pad
            no_end, no_separator, must = no_end & free, no_separator & free, must & free
        end, separator = lprobs[..., self.eos], lprobs[..., self.separator]
        if step < self.max_len:
            end.masked_fill_(no_end, -math.inf)
            separator.masked_fill_(no_separator, -math.inf)
        if lprobs.is_cuda or bool(must.any()):
            end_here, separator_here = must & last, must & ~last
            kept = end.clamp_min(_LAST_RESORT), separator.clamp_min(_LAST_RESORT)
            lprobs.masked_fill_(must[..., None], -math.inf)
            end.copy_(torch.where(end_here, kept[0], end))
            separator.copy_(torch.where(separator_here, kept[1], separator))

    def _block_repetitions(self, lprobs: Tensor, tokens: Tensor) -> None:
        """Exclude words that would complete :data:`BLOCKED` tokens for the second time in a sentence, in place.

        Args:
            lprobs: [N, B, V].
            tokens: int64 [N * B, steps so far + 1], beginning with the start symbol.
        """
        n = BLOCKED - 1
        recent = tokens[:, -self.reach :]
        if recent.size(1) <= n:
            return
        windows = recent.unfold(1, n, 1)[:, :-1]
        places = torch.arange(n, recent.size(1), device=tokens.device)
        same = (windows == recent[:, None, -n:]).all(-1)
        same &= recent.size(1) - places + n <= self.state.length.view(-1, 1)  # begins in the current sentence
        excluded = torch.zeros_like(lprobs.view(tokens.size(0), -1)).scatter_add_(1, recent[:, n:], _LAST_RESORT * same)
        lprobs += excluded.view_as(lprobs)

    def init_constraints(self, batch_constraints: Tensor | None, beam_size: int) -> None:
        self.inner.init_constraints(batch_constraints, beam_size)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.items, self.limits = self.items[batch_idxs], self.limits.take(batch_idxs)
        self.following = _State(self.following.left[batch_idxs], self.following.length[batch_idxs])
        if self.prefix is not None:
            self.prefix = self.prefix[batch_idxs]
        self.inner.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        left, length = self.following
        self.state = _State(left.gather(1, active_hypos), length.gather(1, active_hypos))
        self.inner.update_constraints(active_hypos)
