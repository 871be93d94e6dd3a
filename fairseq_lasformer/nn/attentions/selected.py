"""Multi-head attention over the keys selected by a pattern."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.attentions.base import AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.projected import ProjectedAttention
from fairseq_lasformer.nn.cache import DecodingCache
from fairseq_lasformer.nn.forms import selected
from fairseq_lasformer.nn.layer_cache import LayerCache
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import AttentionMask, KeptKeys, PassShape


class SelectedAttention(ProjectedAttention):
    """Multi-head attention that reads only the keys kept by its group's pattern (eq 3 of arXiv 2309.14174).

    With ``--own-lines``, the result is that of attention to the query's own line plus g times that of the selection,
    with a number g per head that begins at 0: a model that starts from one of single sentences is that model, until it
    learns to look elsewhere (group and combined attention, arXiv 2105.14761).

    Args:
        options: widths, heads and dropout.
        pattern: the group's pattern in the lowest layer of the group; None in the layers above.
    """

    packable = True
    narrow_results = ("q_proj", "k_proj", "v_proj")

    def __init__(self, options: AttentionOptions, pattern: Pattern | None = None) -> None:
        super().__init__(options)
        self.selector = pattern  # checkpoints store the selector's weights under this name
        self.own_lines = options.own_lines
        self.line_gate = nn.Parameter(torch.zeros(self.num_heads)) if self.own_lines else None

    def forward(self, full: Pass, selection: Selection | None = None) -> AttentionOutput:
        x, mask, dropout_p = full.query, full.mask, self.dropout_module.active_p
        if self.selector is not None:
            selection = self.selector(full._replace(as_mask=dropout_p > 0))
        if selection is None:
            raise ValueError("an attention without a pattern needs its group's selection")
        q, k, v = (self._as(x, heads, selection.contiguous) for heads in self.projected(x, full.memory))
        if self.length:
            q = self.sharpened(q, mask.counts(q.size(2), k.size(2), q.device)[:, None, :, None])
        heads = selection.attend(q, k, v, dropout_p, self.backend)
        if self.line_gate is not None:
            heads = self.line_gate[:, None, None].to(heads) * heads + self._own_line(q, k, v, mask, dropout_p)
        out = self.joined(heads)
        return AttentionOutput(out, selection, q, k) if selection.explicit else AttentionOutput(out, selection)

    @staticmethod
    def _as(x: Tensor, heads: Tensor, contiguous: bool) -> Tensor:
        """Return heads [B, H, N, D] in the type of x; with each head contiguous, if requested."""
        if not contiguous:
            return heads.to(x.dtype)
        return heads.to(x.dtype, memory_format=torch.contiguous_format).contiguous()

    def step(self, x: Tensor, keys: LayerCache, kept: KeptKeys | None = None) -> AttentionOutput:
        q = keys.newest_of("query", self.q_proj)
        if self.length:
            n_keys = keys.key_index.n_keys
            q = self.sharpened(q, n_keys.repeat_interleave(q.size(0) // n_keys.numel())[:, None])
        k, v = keys.project("key", self.k_proj), keys.project("value", self.v_proj)
        if self.selector is not None:
            kept = self.selector.step(x, keys)
        dropout_p = self.dropout_module.active_p
        out = ops.attend_kept(q, k, v, keys.key_index, kept, self.num_heads, self.backend, dropout_p)
        if self.line_gate is not None:
            own = ops.attend_kept(q, k, v, keys.key_index, keys.own, self.num_heads, self.backend, dropout_p)
            out = self.line_gate.repeat_interleave(self.head_dim).to(out) * out + own
        return AttentionOutput(self.out_proj(out), kept)

    def _own_line(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float) -> Tensor:
        """Attend to the keys of each query's own line: heads [B, H, Q, D]."""
        assert mask.own is not None
        n_batch, n_queries, n_keys = q.size(0), q.size(2), k.size(2)
        full = PassShape(q, n_queries, n_keys, mask.own.indices.size(1) / n_keys, mask, self.backend)
        if not torch.is_grad_enabled() and not dropout_p:
            full = full._replace(teaches=False, dropout=False, reproducible=True)
        own = selected(ops.choose(full, ranges=False), mask.own, n_batch, n_keys, mask)
        q, k, v = (self._as(q, heads, own.contiguous) for heads in (q, k, v))
        return own.attend(q, k, v, dropout_p, self.backend)

    def step_layers(self, of_itself: bool) -> dict[str, nn.Module]:
        scorers = self.selector.scorers() if self.selector is not None and self.selector.packable else ()
        names = ("query", "key", "value") if of_itself else ("query",)
        found: dict[str, nn.Module] = dict(zip(names, (self.q_proj, self.k_proj, self.v_proj)))
        return found | dict(zip((f"selector_{name}" for name in names), scorers))

    @property
    def remembers(self) -> bool:
        return self.selector is None or self.selector.packable

    def remember(self, x: Tensor, cache: DecodingCache, name: str) -> None:
        for what, projection in (("key", self.k_proj), ("value", self.v_proj)):
            cache.fill(f"{name}.{what}", projection(x))
        if self.selector is not None and self.selector.scorers():
            cache.fill(f"{name}.selector_key", self.selector.scorers()[1](x))

    def sharpened(self, q: Tensor, n_keys: Tensor) -> Tensor:
        """Scale queries by log n / log ``length`` where they see n > ``length`` keys.

        Softmax spreads over more keys in a longer text; this keeps its entropy near that of the training length
        (Chiang and Cholak, arXiv 2202.12172).

        Args:
            n_keys: int64, broadcastable to ``q``: the number of keys that each query may attend to.
        """
        return q * (n_keys.clamp_min(self.length).double().log() / math.log(self.length)).to(q.dtype)
