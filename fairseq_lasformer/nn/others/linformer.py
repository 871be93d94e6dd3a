"""Keys and values projected to fewer rows along the text (Wang et al. 2020, arXiv 2006.04768, eq 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.attentions.base import AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.projected import ProjectedAttention
from fairseq_lasformer.nn.decoding.layer_cache import LayerCache
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import PatternCost
from fairseq_lasformer.nn.patterns.base import numbers
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys


@dataclass(frozen=True)
class Rows:
    """Parameters of ``linformer``."""

    rows: int  # rows that keys and values are projected to (k of the paper)
    length: int = 1024  # the longest text, in tokens (n)


class Linformer(ProjectedAttention):
    """softmax(Q (E K)^T / sqrt(D)) F V, with E and F [rows, length], which all heads share.

    ``--select-pattern linformer:rows=64,length=2048``. Every row sees the whole text, so it can be used in the
    encoder and in the cross-attention, but not where a query must not see later keys. A text of n tokens without
    padding is projected by the first n columns.
    """

    name = "linformer"
    usage = "linformer:rows=N[,length=N]"
    causal = False

    def __init__(self, options: AttentionOptions, its_numbers: Rows) -> None:
        super().__init__(options)
        self.rows, self.length_limit = its_numbers.rows, its_numbers.length
        self.key_rows, self.value_rows = (
            nn.Parameter(torch.randn(self.rows, self.length_limit) * self.rows**-0.5) for _ in range(2)
        )

    @classmethod
    def build(cls, argument: str, options: AttentionOptions) -> Linformer:
        return cls(options, numbers(Rows, argument, "linformer:rows=64,length=1024"))

    def forward(self, full: Pass, selection: Selection | None = None) -> AttentionOutput:
        x, source, padding = full.query, full.key, full.mask.key_padding
        allowed = torch.ones_like(source[..., 0], dtype=torch.bool) if padding is None else ~padding
        k, v = self._projected(source, allowed).chunk(2, -1)
        out = F.scaled_dot_product_attention(
            self.heads(self.q_proj(x)), self.heads(k), self.heads(v), dropout_p=self.dropout_module.active_p
        )
        return AttentionOutput(self.joined(out))

    def step(self, x: Tensor, keys: LayerCache, kept: KeptKeys | None = None) -> AttentionOutput:
        k, v = keys.project("rows", lambda memory: self._of_source(memory, keys)).chunk(2, -1)
        n, beam = k.size(0), x.size(0) // k.size(0)
        q = self.heads(self.q_proj(x).view(n, beam, -1))
        return AttentionOutput(
            self.joined(F.scaled_dot_product_attention(q, self.heads(k), self.heads(v))).flatten(0, 1)
        )

    def _of_source(self, memory: Tensor, keys: LayerCache) -> Tensor:
        return self._projected(memory, keys.key_index.allowed()[:, : memory.size(1)])

    def _projected(self, source: Tensor, allowed: Tensor) -> Tensor:
        """Return keys and values of a source [B, K, d], concatenated: [B, rows, 2 H D]."""
        columns = (allowed.cumsum(1) - 1).clamp_min(0)
        if source.size(1) > self.length_limit and int(columns.max()) >= self.length_limit:
            raise InputError(
                f"--select-pattern linformer: the text has {int(columns.max()) + 1} tokens; this model reads up to "
                f"{self.length_limit} (length={self.length_limit})"
            )
        sides = []
        for projection, rows in ((self.k_proj, self.key_rows), (self.v_proj, self.value_rows)):
            weights = (rows.T[columns] * allowed[..., None]).transpose(1, 2)  # [B, rows, K]
            sides.append(weights.to(source.dtype) @ projection(source))
        return torch.cat(sides, -1)

    def cost(self, length: int) -> PatternCost:
        return PatternCost(min(1.0, self.rows / length), 2.0 * length * self.rows * self.embed_dim, each_layer=True)
