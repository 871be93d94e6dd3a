"""Projections shared by attentions with heads: to queries, keys and values, and from the heads."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fairseq_lasformer.nn.attentions.base import Attention, AttentionOptions
from fairseq_lasformer.nn.bfloat16 import products
from fairseq_lasformer.nn.dropout import Dropout


class ProjectedAttention(Attention):
    """Base of attentions with the projections of fairseq's multi-head attention, initialised in the same way.

    Args:
        options: widths, heads and dropout.

    Raises:
        ValueError: ``embed_dim`` is not divisible by ``num_heads``.
    """

    def __init__(self, options: AttentionOptions) -> None:
        super().__init__()
        embed_dim, num_heads, query_dim, key_dim, out_dim, dropout, self.backend, _ = options
        if embed_dim % num_heads:
            raise ValueError(f"{embed_dim} does not divide into {num_heads} heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout_module = Dropout(dropout, type(self).__name__)
        self.k_proj = nn.Linear(key_dim, embed_dim)
        self.v_proj = nn.Linear(key_dim, embed_dim)
        self.q_proj = nn.Linear(query_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, out_dim)
        # as in fairseq: Q, K, V of equal width are initialised like a single fused matrix
        gain = 1 / math.sqrt(2) if key_dim == embed_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        if query_dim != embed_dim:
            nn.init.zeros_(self.q_proj.bias)

    def projected(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B, Q, d] to queries [B, H, Q, D], and ``memory``, or x itself, to keys and values [B, H, K, D]."""
        if memory is None:
            q, k, v = products(x, self.q_proj, self.k_proj, self.v_proj)
        else:
            (q,), (k, v) = products(x, self.q_proj), products(memory, self.k_proj, self.v_proj)
        return self.heads(q), self.heads(k), self.heads(v)

    def heads(self, x: Tensor) -> Tensor:
        """Split into heads, [B, N, H * D] -> [B, H, N, D]."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def joined(self, out: Tensor) -> Tensor:
        """Project heads [B, H, N, D] to the output of the attention, [B, N, d]."""
        return self.out_proj(out.transpose(1, 2).reshape(out.size(0), out.size(2), self.embed_dim))
