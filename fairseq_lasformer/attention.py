"""Multi-head attention over a selection: projections, cache, one call into ops."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.ops import Allowed
from fairseq_lasformer.selection import Selection, Selector

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


class Attended(NamedTuple):
    """What an attention layer returns: ``out`` [B, Q, d], the selection for the layers above in its group, and the
    heads' projections [B, H, Q or K, D] for the supervision (None in decoding steps)."""

    out: Tensor
    selection: Selection | None = None
    query: Tensor | None = None
    key: Tensor | None = None


class SelectedAttention(MultiheadAttention):
    """fairseq's attention (its parameters, its cache reordering), attending to the kept keys only.

    Args:
        selector: the group's selector, if this is the group's lowest layer.
        selects: whether this attention uses a selection at all; False is plain attention.
        straight_through: whether the translation loss reaches the selector (eq 3).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        selector: Selector | None = None,
        selects: bool = True,
        straight_through: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.selector = selector
        self.selects = selects
        self.straight_through = straight_through

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None,
        allowed: Allowed,
        selection: Selection | None = None,
        incremental_state: IncrementalState | None = None,
    ) -> Attended:
        """Attention of x over ``memory`` (cross-attention) or over itself.

        Args:
            x: [B, Q, d], as the layer's attention gets it (normalised, if pre-norm). memory: [B, K, d_memory] or None.
            allowed: which keys may be seen; its key padding covers all keys, cached ones too.
            selection: the group's, for a layer without a selector of its own.
            incremental_state: fairseq's decoding state; given, x is the newest position alone.
        """
        if incremental_state is not None:
            return self._step(x, memory, allowed, selection, incremental_state)
        source = x if memory is None else memory
        q, k, v = (self._heads(p) for p in (self.q_proj(x), self.k_proj(source), self.v_proj(source)))
        dropout_p = self.dropout_module.p if self.training else 0.0
        if not self.selects:
            return Attended(self._merge(_dense(q, k, v, allowed, dropout_p)))
        if self.selector is not None:
            selection = self.selector(x, source, allowed)
        assert selection is not None and selection.mask is not None
        through = (selection.query, selection.key) if self.straight_through else (None, None)
        out = ops.selected_attention(q, k, v, selection.mask, allowed, *through, dropout_p=dropout_p)
        return Attended(self._merge(out), selection, q, k)

    def _step(
        self,
        x: Tensor,
        memory: Tensor | None,
        allowed: Allowed,
        selection: Selection | None,
        incremental_state: IncrementalState,
    ) -> Attended:
        """One decoding step; keys, values and the selector's keys are cached as [B, K, width]."""
        cache = self._get_input_buffer(incremental_state)
        if memory is None or "key" not in cache:
            source = x if memory is None else memory
            new = {"key": self.k_proj(source), "value": self.v_proj(source)}
            if self.selector is not None:
                new["selector_key"] = self.selector.k_proj(source)
            cache = {name: torch.cat([cache[name], t], 1) if name in cache else t for name, t in new.items()}
            self._set_input_buffer(incremental_state, cache)
        k, v, q = cache["key"], cache["value"], self.q_proj(x)
        if not self.selects:
            out = _dense(self._heads(q), self._heads(k), self._heads(v), Allowed(allowed.key_padding, False), 0.0)
            return Attended(self._merge(out))
        if self.selector is not None:
            selection = self.selector.step(x, cache["selector_key"], allowed.key_padding)
        assert selection is not None and selection.kept is not None
        return Attended(self.out_proj(ops.attend_selected(q, k, v, selection.kept, self.num_heads)), selection)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, d] -> [B, H, N, D]."""
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def _merge(self, x: Tensor) -> Tensor:
        """[B, H, N, D] -> [B, N, d], through the output projection."""
        return self.out_proj(x.transpose(1, 2).reshape(x.size(0), x.size(2), self.embed_dim))


def _dense(q: Tensor, k: Tensor, v: Tensor, allowed: Allowed, dropout_p: float) -> Tensor:
    """Plain attention by PyTorch's fused kernel; rows that may see nothing are 0."""
    if allowed.causal and allowed.key_padding is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    mask = allowed.rows(0, q.size(2), q.size(2), k.size(2), q.device)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], dropout_p=dropout_p)
    return out.masked_fill(~mask.any(-1)[:, None, :, None], 0.0)
