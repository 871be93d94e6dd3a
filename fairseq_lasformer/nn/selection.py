"""What a pattern chose for one full pass, in the form that attends fastest.

A selection is made by the lowest layer of a group and used by all of its layers (eq 8 of arXiv 2309.14174). All of
them have the same call, ``attend(q, k, v, dropout_p, backend)``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, KeptKeys


class Selection(Protocol):
    """The keys of a full pass."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        """Attention over the kept keys: q, k, v [B, H, Q or K, D] -> [B, H, Q, D]; a row without keys is 0.

        Args:
            dropout_p: dropout on the attention weights.
            backend: one of :data:`ops.BACKENDS`.
        """
        ...


class FullSelection(NamedTuple):
    """Every key that the mask allows: plain attention, by PyTorch's fused kernel."""

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
    """Kept keys as a mask: the form of training, of attention dropout, and of short or dense passes.

    Attributes:
        keep_mask: bool [B, Q, K], a subset of what ``mask`` allows.
        query, key: the selector's projections [B, Q or K, S], through which the supervision and the straight-through
            gradient reach it; None where nothing is learned.
        gradient: how the translation loss reaches the selector (``--select-gradient``): ``bounded``,
            ``straight-through`` or ``none``.
    """

    keep_mask: Tensor
    mask: AttentionMask
    query: Tensor | None = None
    key: Tensor | None = None
    gradient: str = "none"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        through = (None, None) if self.gradient == "none" else (self.query, self.key)
        bounded = self.gradient != "straight-through"
        return ops.selected_attention(q, k, v, self.keep_mask, self.mask, *through, dropout_p, bounded)


class GatheredSelection(NamedTuple):
    """Kept keys by index, for passes that read nothing else (CPU inference)."""

    kept: KeptKeys

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        n_heads, head_dim = q.size(1), q.size(3)
        queries, keys, values = (t.transpose(1, 2).reshape(t.size(0), t.size(2), -1) for t in (q, k, v))
        rows = queries.view(-1, n_heads * head_dim)
        out = ops.attend_kept(rows, keys, values, None, self.kept, n_heads, backend)
        return out.view(q.size(0), q.size(2), n_heads, head_dim).transpose(1, 2)


class BitmaskSelection(NamedTuple):
    """Kept keys as bits, for Triton's tiles (GPU inference).

    Attributes:
        bits: int32 [B, Q, ceil(K / 32)].
    """

    bits: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str) -> Tensor:
        return ops.attend_tiles(q, k, v, self.bits)
