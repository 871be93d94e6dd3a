"""Two nested attentions through a few rows (Ma et al. 2021, arXiv 2106.01540): linear in the length.

Keys are packed into rows, and queries read the rows. The paper passes the packed rows to the next layer; here the rows
are parameters of each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer.nn.attentions.base import AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.projected import ProjectedAttention
from fairseq_lasformer.nn.decoding.layer_cache import LayerCache
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.others.prefix_sums import prefix_products
from fairseq_lasformer.nn.patterns import PatternCost
from fairseq_lasformer.nn.patterns.base import numbers
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys


@dataclass(frozen=True)
class Rows:
    """Parameters of ``luna``."""

    rows: int  # rows that the keys are packed into (l of the paper)


class Luna(ProjectedAttention):
    """Pack: softmax(P K^T) V for the trained rows P; unpack: softmax(Q P'^T) P' for the packed rows P' (eq 6, 7).

    In the decoder's self-attention, the packed rows would show a query later keys. There, as in section 3.3 of the
    paper, each key has its own weights a = softplus(P k), and query t reads (1/t) sum_j<=t k_j a_j and
    (1/t) sum_j<=t a_j v_j, the state of a decoding step. ``--select-pattern luna:rows=32``
    """

    name = "luna"
    usage = "luna:rows=N"

    def __init__(self, options: AttentionOptions, rows: int) -> None:
        super().__init__(options)
        self.n_rows = rows
        self.rows = nn.Parameter(torch.randn(1, self.num_heads, rows, self.head_dim))

    @classmethod
    def build(cls, argument: str, options: AttentionOptions) -> Luna:
        return cls(options, numbers(Rows, argument, "luna:rows=32").rows)

    def forward(self, full: Pass, selection: Selection | None = None) -> AttentionOutput:
        mask = full.mask
        q, k, v = self.projected(full.query, full.memory)
        if not mask.causal:
            allowed = None if mask.key_padding is None else ~mask.key_padding
            return AttentionOutput(self.joined(self._unpacked(q, self._packed(k, v, allowed))))
        weights = self._weights(k)
        if mask.key_padding is not None:
            weights = weights.masked_fill(mask.key_padding[:, None, :, None], 0.0)
        n = mask.counts(q.size(2), k.size(2), q.device).clamp_min(1)[:, None, :, None]
        scores = prefix_products(q, k, weights) / (n * self.head_dim**0.5)
        mixed = prefix_products(scores.softmax(-1), weights, v) / n
        return AttentionOutput(self.joined(mixed))

    def step(self, x: Tensor, keys: LayerCache, kept: KeptKeys | None = None) -> AttentionOutput:
        heads, width = self.num_heads, self.head_dim
        if keys.memory is not None:
            packed = keys.project("rows", lambda memory: self._of_source(memory, keys.key_index.allowed()))
            packed = packed.view(packed.size(0), heads, self.n_rows, width)
            q = self.heads(self.q_proj(x).view(packed.size(0), -1, self.embed_dim))
            return AttentionOutput(self.joined(self._unpacked(q, packed)).flatten(0, 1))
        q, k, v = self.projected(x[:, None], None)
        weights = self._weights(k)  # [R, H, 1, rows]
        read = keys.state("read", heads, width, self.n_rows)
        mixed = keys.state("mixed", heads, self.n_rows, width)
        read += k.transpose(2, 3) * weights
        mixed += weights.transpose(2, 3) * v
        n = (keys.row_position + 1)[:, None, None, None]
        scores = q @ read / (n * width**0.5)
        return AttentionOutput(self.joined(scores.softmax(-1) @ mixed / n).flatten(0, 1))

    def _weights(self, k: Tensor) -> Tensor:
        """Return the weights of keys [B, H, K, D] for the rows in a causal pass, [B, H, K, rows]."""
        return F.softplus(k @ self.rows.transpose(2, 3) * self.head_dim**-0.5)

    def _packed(self, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        """Pack keys and values [B, H, K, D] into rows [B, H, rows, D]; ``allowed``: bool [B, K]."""
        mask = None if allowed is None else allowed[:, None, None]
        rows = self.rows.expand(k.size(0), -1, -1, -1).to(k.dtype)
        return F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, dropout_p=self.dropout_module.active_p)

    def _unpacked(self, q: Tensor, packed: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, packed, packed, dropout_p=self.dropout_module.active_p)

    def _of_source(self, memory: Tensor, allowed: Tensor) -> Tensor:
        """Return the packed rows of a source [N, K, d] in the form of keys, [N, H * rows, D]."""
        k, v = (self.heads(p(memory)) for p in (self.k_proj, self.v_proj))
        return self._packed(k, v, allowed[:, : memory.size(1)]).flatten(1, 2)

    def cost(self, length: int) -> PatternCost:
        return PatternCost(min(1.0, 2 * self.n_rows / length))
