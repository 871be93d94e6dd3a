"""The lines of a text as ranges of its tokens, for positions and attention that start again with each line."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops import OwnLines


class SourceLines(NamedTuple):
    """The lines of a batch of sources; a separator is the last token of its line."""

    line: Tensor  # int64 [B, K], the line of each token
    first: Tensor  # int64 [B, L], the first token of each line
    n_tokens: Tensor  # int64 [B, L], the number of its tokens; 0 for a line that an item does not have

    @classmethod
    def of(cls, ends: Tensor, padding: Tensor | None) -> SourceLines:
        """Return the lines of sources.

        Args:
            ends: bool [B, K], which tokens end a line.
            padding: bool [B, K]; None if there is none.
        """
        index = torch.arange(ends.size(1), device=ends.device).expand_as(ends)
        line = ends.long().cumsum(1) - ends.long()
        shape = ends.size(0), int(line.max()) + 1
        valid = torch.ones_like(line) if padding is None else (~padding).long()
        n_tokens = line.new_zeros(shape).scatter_add_(1, line, valid)
        index = index if padding is None else index.masked_fill(padding, ends.size(1))
        first = line.new_full(shape, ends.size(1)).scatter_reduce_(1, line, index, "amin")
        return cls(line, first, n_tokens)

    def places(self) -> Tensor:
        """Return the place of each token in its line, int64 [B, K], from 0."""
        index = torch.arange(self.line.size(1), device=self.line.device)
        return (index - self.first.gather(1, self.line)).clamp_min(0)

    def own(self, line: Tensor) -> OwnLines:
        """Return the tokens of lines, int64 [B, Q]; none of a line that a source does not have."""
        return tokens_of_lines(self.first, self.n_tokens, line)


class LineRanges(NamedTuple):
    """Lines that are searched side by side, as ranges of tokens of all their documents, one after another."""

    # start, n_tokens: int64 [N], the first token of the source that a line reads, and the number of them
    start: Tensor
    n_tokens: Tensor
    # own_start, own_tokens: int64 [N], those of the line itself
    own_start: Tensor
    own_tokens: Tensor
    line: Tensor  # int64 [N], its number among all lines

    def take(self, lines: Tensor) -> LineRanges:
        """Return those of some lines."""
        return LineRanges(*(t.index_select(0, lines) for t in self))


class TargetLines(NamedTuple):
    """The lines of a batch of decoder inputs; a separator, like the start symbol, is the first token of its line."""

    line: Tensor  # int64 [B, Q], the line of each token
    place: Tensor  # int64 [B, Q], its place in the line, from 0

    @classmethod
    def of(cls, starts: Tensor) -> TargetLines:
        """Return the lines of inputs; ``starts``: bool [B, Q], which of them start a line."""
        index = torch.arange(starts.size(1), device=starts.device).expand_as(starts)
        first = index.masked_fill(~starts, 0).cummax(1).values
        return cls((starts.long().cumsum(1) - 1).clamp_min(0), index - first)

    def own(self, padding: Tensor | None) -> OwnLines:
        """Return the tokens of each token's line up to itself; none for padding, bool [B, Q]."""
        index = torch.arange(self.place.size(1), device=self.place.device)
        count = self.place + 1
        return OwnLines(index - self.place, count if padding is None else count.masked_fill(padding, 0))


def numbered(line: Tensor, numbers: Tensor | None) -> Tensor:
    """Return the numbers of tokens' lines in their document, int64 [B, N].

    Args:
        line: int64 [B, N], those in the text that is left of it.
        numbers: int64 [B, L], of its lines; None for the same.
    """
    return line if numbers is None else numbers.gather(1, line.clamp_max(numbers.size(1) - 1))


def tokens_of_lines(first: Tensor, n_tokens: Tensor, line: Tensor) -> OwnLines:
    """Return the tokens of lines; none of a line that a source does not have.

    Args:
        first, n_tokens: see :class:`SourceLines`.
        line: int64 [B, Q].
    """
    known = line.clamp_max(first.size(1) - 1)
    return OwnLines(first.gather(1, known), n_tokens.gather(1, known).masked_fill(line > known, 0))
