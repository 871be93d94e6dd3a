"""The lines of a text as ranges of its tokens, for positions and attention that start again with each line."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops import KeptKeys


class SourceLines(NamedTuple):
    """The lines of a batch of sources; a separator is the last token of its line.

    Attributes:
        line: int64 [B, K], the line of each token.
        first: int64 [B, L], the first token of each line.
        n_tokens: int64 [B, L], the number of its tokens; 0 for a line that an item does not have.
    """

    line: Tensor
    first: Tensor
    n_tokens: Tensor

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

    def own(self, line: Tensor) -> KeptKeys:
        """Return the tokens of lines; see :func:`tokens_of_lines`."""
        return tokens_of_lines(self.first, self.n_tokens, line)


class TargetLines(NamedTuple):
    """The lines of a batch of decoder inputs; a separator, like the start symbol, is the first token of its line.

    Attributes:
        line: int64 [B, Q], the line of each token.
        place: int64 [B, Q], its place in the line, from 0.
    """

    line: Tensor
    place: Tensor

    @classmethod
    def of(cls, starts: Tensor) -> TargetLines:
        """Return the lines of inputs; ``starts``: bool [B, Q], which of them start a line."""
        index = torch.arange(starts.size(1), device=starts.device).expand_as(starts)
        first = index.masked_fill(~starts, 0).cummax(1).values
        return cls((starts.long().cumsum(1) - 1).clamp_min(0), index - first)

    def own(self) -> KeptKeys:
        """Return the tokens of each token's line up to itself, as kept keys of B * Q rows."""
        index = torch.arange(self.place.size(1), device=self.place.device)
        return ranges(index - self.place, self.place + 1, int(self.place.max()) + 1)


def tokens_of_lines(first: Tensor, n_tokens: Tensor, line: Tensor) -> KeptKeys:
    """Return the tokens of lines, as kept keys of B * Q rows; none for a line that a source does not have.

    Args:
        first, n_tokens: see :class:`SourceLines`.
        line: int64 [B, Q].
    """
    known = line.clamp_max(first.size(1) - 1)
    return ranges(first.gather(1, known), n_tokens.gather(1, known).masked_fill(line > known, 0), int(n_tokens.max()))


def ranges(first: Tensor, n_keys: Tensor, longest: int) -> KeptKeys:
    """Return keys that follow one another, as kept keys of B * Q rows.

    Args:
        first, n_keys: int64 [B, Q], the first key and the number of keys.
        longest: maximum of ``n_keys``.
    """
    offset = torch.arange(longest, device=first.device)
    slots = (first[..., None] + offset).masked_fill(offset >= n_keys[..., None], -1)
    return KeptKeys(slots.flatten(0, 1).int(), n_keys.flatten().int())
