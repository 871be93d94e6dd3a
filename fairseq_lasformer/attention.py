"""Multi-head attention over a selection: projections, cache, one call into ops."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.cache import DecodingCache
from fairseq_lasformer.ops import Allowed, Paths
from fairseq_lasformer.selection import Selection, Selector, Window


class Decoding(NamedTuple):
    """What a decoding step has beside its input: the cache, and the paths through it and over the source."""

    cache: DecodingCache
    own: Paths
    source: Paths


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
        gradient: how the translation loss reaches the selector (``--select-gradient``).
        backend: what attends in generation (``--attention-backend``).
        query_dim, out_dim: widths of the queries' states and of the output, where they are not ``embed_dim``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        selector: Selector | Window | None = None,
        selects: bool = True,
        gradient: str = "bounded",
        backend: str = "auto",
        query_dim: int | None = None,
        out_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        if query_dim not in (None, embed_dim):
            self.q_proj = _linear(query_dim, embed_dim)
        if out_dim not in (None, embed_dim):
            self.out_proj = _linear(embed_dim, out_dim)
        self.selector = selector
        self.selects = selects
        self.gradient = gradient
        self.backend = backend

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None,
        allowed: Allowed,
        selection: Selection | None = None,
    ) -> Attended:
        """Attention of x over ``memory`` (cross-attention) or over itself.

        Args:
            x: [B, Q, d], as the layer's attention gets it (normalised, if pre-norm). memory: [B, K, d_memory] or None.
            allowed: which keys may be seen.
            selection: the group's, for a layer without a selector of its own.
        """
        source = x if memory is None else memory
        dropout_p = self.dropout_p
        if self.selects and self.selector is not None:
            selection = self.selector(x, source, allowed, as_mask=dropout_p > 0)
        q, k, v = self.q_proj(x), self.k_proj(source), self.v_proj(source)
        if selection is not None and selection.slots is not None:
            rows = q.view(-1, self.embed_dim)
            out = ops.attend_slots(rows, k, v, None, selection.slots, self.num_heads, self.backend)
            return Attended(self.out_proj(out.view(q.shape)), selection)
        q, k, v = (self._heads(p) for p in (q, k, v))
        if not self.selects:
            return Attended(self._merge(_dense(q, k, v, allowed, dropout_p)))
        assert selection is not None
        if selection.bits is not None:
            return Attended(self._merge(ops.attend_tiles(q, k, v, selection.bits)), selection)
        assert selection.mask is not None
        through = (None, None) if self.gradient == "none" else (selection.query, selection.key)
        bounded = self.gradient != "straight-through"
        out = ops.selected_attention(q, k, v, selection.mask, allowed, *through, dropout_p, bounded)
        return Attended(self._merge(out), selection, q, k)

    def step(
        self, x: Tensor, memory: Tensor | None, decoding: Decoding, name: str, selection: Selection | None
    ) -> Attended:
        """One decoding step: attention of the newest positions over the cache.

        Args:
            x: [R, d]. memory: [N, K, d_memory], the source, or None in self-attention.
            name: of this attention in the cache.
        """
        cache, q = decoding.cache, self.q_proj(x)
        keys = {"key": self.k_proj, "value": self.v_proj}
        if isinstance(self.selector, Selector):
            keys["selector_key"] = self.selector.k_proj
        if memory is None:
            paths = decoding.own
            held = {what: cache.append(f"{name}.{what}", project(x)) for what, project in keys.items()}
        else:
            paths = decoding.source
            held = {what: cache.once(f"{name}.{what}", project, memory) for what, project in keys.items()}
        place = decoding.own.n_keys - 1
        if isinstance(self.selector, Selector):
            kappa = cache.kappa(name, self.selector.kappa)
            selection = self.selector.step(x, held["selector_key"], paths, kappa, place)
        elif self.selector is not None:
            selection = self.selector.step(x, None, paths, 0, place)
        slots = None if selection is None else selection.slots
        held_keys, values = held["key"], held["value"]
        out = ops.attend_slots(q, held_keys, values, paths, slots, self.num_heads, self.backend, self.dropout_p)
        return Attended(self.out_proj(out), selection)

    @property
    def dropout_p(self) -> float:
        """Dropout on the attention weights as things are: in training, and in generation with ``--retain-dropout``."""
        active = self.training or self.dropout_module.apply_during_inference
        return float(self.dropout_module.p) if active else 0.0

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, d] -> [B, H, N, D]."""
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def _merge(self, x: Tensor) -> Tensor:
        """[B, H, N, D] -> [B, N, d], through the output projection."""
        return self.out_proj(x.transpose(1, 2).reshape(x.size(0), x.size(2), self.embed_dim))


def _linear(in_features: int, out_features: int) -> nn.Linear:
    layer = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _dense(q: Tensor, k: Tensor, v: Tensor, allowed: Allowed, dropout_p: float) -> Tensor:
    """Plain attention by PyTorch's fused kernel; rows that may see nothing are 0."""
    if allowed.causal and allowed.key_padding is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    mask = allowed.rows(0, q.size(2), q.size(2), k.size(2), q.device)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], dropout_p=dropout_p)
    return out.masked_fill(~mask.any(-1)[:, None, :, None], 0.0)
