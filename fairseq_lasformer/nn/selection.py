"""Keys that a pattern selected for a full pass, in the form that can be attended to fastest.

A selection is made by the lowest layer of a group and used by all its layers (eq 8 of arXiv 2309.14174). All forms have
the same method, ``attend(q, k, v, dropout_p, backend)``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.ops import EVERY_ROW, AttentionMask, KeptKeys, RowSample


class Selection(Protocol):
    """Selected keys of a full pass."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        """Compute attention over the kept keys.

        Args:
            q, k, v: [B, H, Q or K, D].
            dropout_p: dropout probability of the attention weights.
            backend: one of :data:`ops.BACKENDS`.

        Returns:
            [B, H, Q, D]; 0 for rows without keys.
        """
        ...


class FullSelection(NamedTuple):
    """Every key that the mask allows: dense attention with PyTorch's fused kernel.

    Attributes:
        mask: attention mask.
    """

    mask: AttentionMask

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        if self.mask.causal and self.mask.key_padding is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
        allowed = self.mask.rows(0, q.size(2), q.size(2), k.size(2), q.device)
        if allowed is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None], dropout_p=dropout_p)
        return out.masked_fill(~allowed.any(-1)[:, None, :, None], 0.0)


class MaskSelection(NamedTuple):
    """Kept keys as a mask, used in training, with attention dropout, and for short or dense passes.

    Attributes:
        keep_mask: bool [B, Q, K], a subset of what ``mask`` allows.
        mask: attention mask.
        query, key: the selector's projections [B, Q or K, S], through which the supervision and the straight-through
            gradient reach it; None for patterns that are not learned.
        gradient: how the translation loss reaches the selector (``--select-gradient``): ``bounded``,
            ``straight-through`` or ``none``.
        sample: the queries that the selector learns from.
    """

    keep_mask: Tensor
    mask: AttentionMask
    query: Tensor | None = None
    key: Tensor | None = None
    gradient: str = "none"
    sample: RowSample = EVERY_ROW

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        through = (None, None) if self.gradient == "none" else (self.query, self.key)
        bounded = self.gradient != "straight-through"
        return ops.selected_attention(q, k, v, self.keep_mask, self.mask, *through, dropout_p, bounded, self.sample)

    def kept(self) -> Tensor:
        """Return the kept keys of the sampled queries, bool [B, R, K]."""
        return self.sample.of(self.keep_mask, 1)


class SlotSelection(NamedTuple):
    """A few kept keys as indices, used in training (CPU).

    Attributes:
        slots: the kept keys of B * Q rows.
        mask, query, key, gradient, sample: see :class:`MaskSelection`.
    """

    slots: KeptKeys
    mask: AttentionMask
    query: Tensor
    key: Tensor
    gradient: str
    sample: RowSample

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        sel_q, sel_k = (None, None) if self.gradient == "none" else (self.query, self.key)
        bounded = self.gradient != "straight-through"
        return ops.gathered_attention(q, k, v, self.slots, self.mask, sel_q, sel_k, dropout_p, bounded, self.sample)

    def kept(self) -> Tensor:
        """Return the kept keys of the sampled queries, bool [B, R, K]."""
        return ops.kept_mask(self.slots, self.key.size(0), self.key.size(1), self.sample)


class GatheredSelection(NamedTuple):
    """Kept keys as indices, for kernels that read only these keys (CPU inference).

    Attributes:
        kept: the kept keys of B * Q rows.
    """

    kept: KeptKeys

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        n_heads, head_dim = q.size(1), q.size(3)
        queries, keys, values = (t.transpose(1, 2).reshape(t.size(0), t.size(2), -1) for t in (q, k, v))
        rows = queries.view(-1, n_heads * head_dim)
        out = ops.attend_kept(rows, keys, values, None, self.kept, n_heads, backend)
        return out.view(q.size(0), q.size(2), n_heads, head_dim).transpose(1, 2)


class BitmaskSelection(NamedTuple):
    """Kept keys as a bitmask, for Triton's tiled kernels (GPU, training and inference).

    Attributes:
        bits: int32 [B, Q, ceil(K / 32)].
        mask, query, key, gradient, sample: see :class:`MaskSelection`.
    """

    bits: Tensor
    mask: AttentionMask
    query: Tensor
    key: Tensor
    gradient: str
    sample: RowSample

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        sel_q, sel_k = (None, None) if self.gradient == "none" else (self.query, self.key)
        bounded = self.gradient != "straight-through"
        return ops.tiled_attention(q, k, v, self.bits, self.mask, sel_q, sel_k, dropout_p, bounded, self.sample)

    def kept(self) -> Tensor:
        """Return the kept keys of the sampled queries, bool [B, R, K]."""
        return ops.mask_of(self.sample.of(self.bits, 1), self.key.size(1))


SelectedInTraining = MaskSelection | SlotSelection | BitmaskSelection
"""The forms with the selector's projections, which it is supervised by."""
