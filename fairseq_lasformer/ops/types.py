"""What the calls in :mod:`fairseq_lasformer.ops` take and return.

Shapes: B batch, Q queries, K keys; in decoding R rows (hypotheses) of N items (documents), C slots per item.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

KAPPA_ONE = 1_000_000
"""kappa = 1 in the integers kappa is kept in (millionths): exact on every device, untouched by half precision."""

MIN_KEYS = 10
"""No query keeps fewer keys than this, unless fewer are allowed (k_i in 3.2 of arXiv 2309.14174)."""


class AttentionMask(NamedTuple):
    """Which keys a query may see at all, before any selection.

    Attributes:
        key_padding: bool [B, K], True where the key is padding; None where nothing is.
        causal: query i sees keys 0..i + (K - Q), as in decoder self-attention.
    """

    key_padding: Tensor | None
    causal: bool

    def rows(self, start: int, stop: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Bool [B or 1, stop - start, n_keys], True where allowed; None where everything is."""
        mask = None
        if self.causal:
            last = torch.arange(start, stop, device=device) + (n_keys - n_queries)
            mask = (torch.arange(n_keys, device=device) <= last[:, None])[None]
        if self.key_padding is not None:
            keys = ~self.key_padding[:, None, :n_keys]
            mask = keys.expand(-1, stop - start, -1) if mask is None else mask & keys
        return mask

    def full(self, n_batch: int, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Bool [B, Q, K], True where allowed."""
        mask = self.rows(0, n_queries, n_queries, n_keys, device)
        if mask is None:
            mask = torch.ones(1, n_queries, n_keys, dtype=torch.bool, device=device)
        return mask.expand(n_batch, n_queries, n_keys)


class KeyIndex(NamedTuple):
    """Where the keys are that R decoding rows may attend to; R / N consecutive rows per item.

    Attributes:
        table: int32 [R, >= end], the slot of each position of a row; None where position j lies in slot j.
        start, n_keys: int64 [N], the allowed positions are start .. start + n_keys - 1.
        end: no position is beyond it; an int, known without asking the device.
    """

    table: Tensor | None
    start: Tensor
    n_keys: Tensor
    end: int

    @classmethod
    def over(cls, padding: Tensor) -> KeyIndex | None:
        """The index of a source of padding mask bool [N, K]; None where padding stands between keys."""
        paths = cls(None, (~padding).int().argmax(1), (~padding).sum(1), padding.size(1))
        return paths if torch.equal(paths.allowed(), ~padding) else None

    def allowed(self) -> Tensor:
        """Bool [N, end], the allowed positions of each item."""
        position = torch.arange(self.end, device=self.start.device)
        return (position >= self.start[:, None]) & (position < (self.start + self.n_keys)[:, None])

    def slots(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Slots int64 [R, end] of all positions, and which of them are allowed, bool [R, end]."""
        allowed = self.allowed().repeat_interleave(n_rows // self.start.numel(), 0)
        if self.table is not None:
            return self.table[:, : self.end].long(), allowed
        return torch.arange(self.end, device=self.start.device).expand(n_rows, -1), allowed


class KeptKeys(NamedTuple):
    """The kept keys of R rows: a top-k result whose k varies by row.

    Attributes:
        indices: int32 [R, k], slots in ascending order of position, -1 behind a row's last.
        counts: int32 [R], how many keys a row keeps.
    """

    indices: Tensor
    counts: Tensor


class Supervision(NamedTuple):
    """What the supervision of one selector gives, each a scalar sum over the valid queries.

    Attributes:
        kl: the loss (eq 4-6), float32, differentiable.
        mass: the selector's mass over the kept keys, Sum_{j kept} A_s.
        recall: the attention's own mass over the kept keys, Sum_{j kept} mean A_h (recall@k).
        queries: how many queries were summed over.
    """

    kl: Tensor
    mass: Tensor
    recall: Tensor
    queries: Tensor
