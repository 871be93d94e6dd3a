"""Encoder and decoder layers, and the groups in which they share a selection.

Layers take and return [B, N, d], and pass selections along as values; a group returns its supervision as values too,
so that activation checkpointing of a whole group keeps every gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.attention import Attended, Decoding, SelectedAttention
from fairseq_lasformer.config import selected_modules
from fairseq_lasformer.ops import Allowed, Supervision
from fairseq_lasformer.selection import Selection, build_selector


def _attention(
    cfg: Any, module: str, layer: int, embed_dim: int, key_dim: int, heads: int, **kwargs: Any
) -> SelectedAttention:
    selects = module in selected_modules(cfg)
    return SelectedAttention(
        embed_dim,
        heads,
        kdim=key_dim,
        vdim=key_dim,
        dropout=cfg.attention_dropout,
        selector=build_selector(cfg, layer, embed_dim, key_dim) if selects else None,
        selects=selects,
        straight_through=cfg.select_gradient == "straight-through",
        backend=cfg.attention_backend,
        **kwargs,
    )


class _SubLayers(nn.Module):
    """The sub-layers over fairseq's own parameters (``fc1``, ``fc2``, the normalisations and dropouts)."""

    normalize_before: bool
    activation_fn: Callable[[Tensor], Tensor]
    final_layer_norm: nn.Module
    dropout_module: nn.Module
    activation_dropout_module: nn.Module
    fc1: nn.Module
    fc2: nn.Module
    self_attn: SelectedAttention
    self_attn_layer_norm: nn.Module
    encoder_attn: SelectedAttention
    encoder_attn_layer_norm: nn.Module

    def feed_forward(self, x: Tensor) -> Tensor:
        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        x = residual + self.dropout_module(self.fc2(x))
        return x if self.normalize_before else self.final_layer_norm(x)

    def attend(
        self, x: Tensor, norm: nn.Module, attention: Callable[..., Attended], *args: Any
    ) -> tuple[Tensor, Attended]:
        """One attention sub-layer with its residual and normalisation."""
        attended = attention(norm(x) if self.normalize_before else x, *args)
        x = x + self.dropout_module(attended.out)
        return (x if self.normalize_before else norm(x)), attended


class LasformerEncoderLayer(TransformerEncoderLayerBase, _SubLayers):
    """fairseq's encoder layer with attention over a selection. ``index``: its place in the stack, from 0."""

    def __init__(self, cfg: Any, index: int) -> None:
        self.index = index
        super().__init__(cfg)

    def build_self_attention(self, embed_dim: int, cfg: Any) -> SelectedAttention:
        heads = cfg.encoder.attention_heads
        return _attention(cfg, "encoder", self.index, embed_dim, embed_dim, heads, self_attention=True)

    def forward(self, x: Tensor, allowed: Allowed, selection: Selection | None) -> tuple[Tensor, Attended]:  # type: ignore[override]
        """x [B, N, d] -> x, and what the attention returned."""
        x, attended = self.attend(x, self.self_attn_layer_norm, self.self_attn, None, allowed, selection)
        return self.feed_forward(x), attended


class LasformerDecoderLayer(TransformerDecoderLayerBase, _SubLayers):
    """fairseq's decoder layer with attention over selections. ``index``: its place in the stack, from 0."""

    def __init__(self, cfg: Any, index: int) -> None:
        self.index = index
        super().__init__(cfg)

    def build_self_attention(
        self, embed_dim: int, cfg: Any, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> SelectedAttention:
        heads = cfg.decoder.attention_heads
        return _attention(cfg, "decoder", self.index, embed_dim, embed_dim, heads, self_attention=True)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> SelectedAttention:
        heads, key_dim = cfg.decoder.attention_heads, cfg.encoder.embed_dim
        return _attention(cfg, "cross", self.index, embed_dim, key_dim, heads, encoder_decoder_attention=True)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        allowed: Allowed,
        memory_allowed: Allowed,
        selection: Selection | None,
        memory_selection: Selection | None,
    ) -> tuple[Tensor, Attended, Attended]:
        """x [B, N, d], memory [B, K, d] -> x, and what self- and cross-attention returned."""
        x, attended = self.attend(x, self.self_attn_layer_norm, self.self_attn, None, allowed, selection)
        x, crossed = self.attend(
            x, self.encoder_attn_layer_norm, self.encoder_attn, memory, memory_allowed, memory_selection
        )
        return self.feed_forward(x), attended, crossed

    def step(
        self,
        x: Tensor,
        memory: Tensor,
        decoding: Decoding,
        selection: Selection | None,
        memory_selection: Selection | None,
    ) -> tuple[Tensor, Selection | None, Selection | None]:
        """One decoding step: the newest positions x [R, d], the source memory [N, K, d] -> x, and both selections."""
        own, cross = f"{self.index}.self", f"{self.index}.source"
        x, attended = self.attend(x, self.self_attn_layer_norm, self.self_attn.step, None, decoding, own, selection)
        x, crossed = self.attend(
            x, self.encoder_attn_layer_norm, self.encoder_attn.step, memory, decoding, cross, memory_selection
        )
        return self.feed_forward(x), attended.selection, crossed.selection


def groups(layers: Sequence[nn.Module], share: int) -> list[list[Any]]:
    """The stack in groups of ``share`` layers, lowest first; the last one may be smaller."""
    return [list(layers[i : i + share]) for i in range(0, len(layers), share)]


def encoder_group(
    layers: Sequence[LasformerEncoderLayer], cfg: Any, x: Tensor, allowed: Allowed, supervised: bool
) -> tuple[Tensor, Supervision | None]:
    """Runs one group of encoder layers over x [B, N, d]."""
    selection, seen = None, []
    for layer in layers:
        x, attended = layer(x, allowed, selection)
        selection = attended.selection
        seen.append(attended)
    return x, _supervise(seen, cfg, allowed, allowed.key_padding) if supervised else None


def decoder_group(
    layers: Sequence[LasformerDecoderLayer],
    cfg: Any,
    x: Tensor,
    memory: Tensor,
    allowed: Allowed,
    memory_allowed: Allowed,
    supervised: bool,
) -> tuple[Tensor, Supervision | None, Supervision | None]:
    """Runs one group of decoder layers over x [B, N, d]."""
    selection, memory_selection = None, None
    seen, crossed = [], []
    for layer in layers:
        x, a, c = layer(x, memory, allowed, memory_allowed, selection, memory_selection)
        selection, memory_selection = a.selection, c.selection
        seen.append(a)
        crossed.append(c)
    if not supervised:
        return x, None, None
    padding = allowed.key_padding
    return x, _supervise(seen, cfg, allowed, padding), _supervise(crossed, cfg, memory_allowed, padding)


def decoder_group_step(
    layers: Sequence[LasformerDecoderLayer], x: Tensor, memory: Tensor, decoding: Decoding
) -> Tensor:
    """One decoding step of one group: x [R, d], memory [N, K, d]."""
    selection, memory_selection = None, None
    for layer in layers:
        x, selection, memory_selection = layer.step(x, memory, decoding, selection, memory_selection)
    return x


def _supervise(
    seen: Sequence[Attended], cfg: Any, allowed: Allowed, query_padding: Tensor | None
) -> Supervision | None:
    """Supervision of a group's selector by the full attention of its layers; None for plain attention."""
    selection = seen[0].selection
    if selection is None:
        return None
    assert selection.query is not None and selection.key is not None and selection.mask is not None
    queries, keys = [a.query for a in seen if a.query is not None], [a.key for a in seen if a.key is not None]
    return ops.supervise(
        selection.query,
        selection.key,
        queries,
        keys,
        selection.mask,
        allowed,
        query_padding,
        kl=str(cfg.select_kl),
        target=str(cfg.select_target),
    )
