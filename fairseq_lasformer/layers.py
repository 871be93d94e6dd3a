"""Encoder and decoder layers, and the groups in which they share a selection.

Layers take and return [B, N, d], and pass selections along as values; a group returns its supervision as values too,
so that activation checkpointing of a whole group keeps every gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairseq.modules import LayerNorm
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.attention import Attended, Decoding, SelectedAttention
from fairseq_lasformer.config import attention_widths, mixture_layers, selected_modules
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.glt import ExpandReduce, block_sizes, max_groups, official_sizes, paper_sizes
from fairseq_lasformer.moe import Balance, MixtureOfExperts
from fairseq_lasformer.ops import Allowed, Supervision
from fairseq_lasformer.selection import Selection, build_selector


def _attention(cfg: Any, module: str, layer: int, heads: int, **kwargs: Any) -> SelectedAttention:
    selects = module in selected_modules(cfg)
    widths = attention_widths(cfg, module)
    return SelectedAttention(
        widths.attention,
        heads,
        kdim=widths.key,
        vdim=widths.key,
        query_dim=widths.query,
        out_dim=widths.out,
        dropout=cfg.attention_dropout,
        selector=build_selector(cfg, layer, widths.query, widths.key) if selects else None,
        selects=selects,
        gradient=str(cfg.select_gradient),
        backend=cfg.attention_backend,
        **kwargs,
    )


def _mixture(cfg: Any, side: str, layer: int) -> MixtureOfExperts | None:
    """The layer's mixture of experts, if it has one."""
    if layer not in mixture_layers(cfg)[side]:
        return None
    sizes = getattr(cfg, side)
    return MixtureOfExperts(
        cfg, sizes.embed_dim, cfg.moe_ffn_embed_dim or sizes.ffn_embed_dim, workers=cfg.expert_workers
    )


def _transformation(cfg: Any, side: str, layer: int) -> nn.Module:
    """DeLighT's transformation m -> m / 2 of a layer (block-wise scaling: deeper and wider towards the output); nothing
    in other models."""
    if cfg.delight == "none":
        return nn.Identity()
    sizes = getattr(cfg, side)
    n, width = block_sizes(cfg.delight_min_depth, cfg.delight_max_depth, cfg.delight_width, sizes.layers)[layer]
    dim, official = sizes.embed_dim, cfg.delight == "official"
    g_max = max_groups(dim, official)
    if official:
        shape = official_sizes(dim, dim // 2, dim // 2, n, width, g_max)
    else:
        shape = paper_sizes(dim, dim // 2, n, width, g_max)
    try:
        return ExpandReduce(dim, shape, dropout=cfg.delight_dropout)
    except ValueError as e:
        raise InputError(f"--delight {cfg.delight} with --{side}-embed-dim {dim}: {e}; use a multiple of 64") from e


class _SubLayers(nn.Module):
    """The sub-layers over fairseq's own parameters (``fc1``, ``fc2``, the normalisations and dropouts).

    ``moe`` stands in place of the feed-forward network, or, where ``moe_layer_norm`` is there, after it.
    """

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
    transformation: nn.Module
    moe: MixtureOfExperts | None
    moe_layer_norm: nn.Module | None

    def place_mixture(self, cfg: Any, side: str, layer: int) -> None:
        """Gives the layer its mixture, and takes away what that replaces."""
        self.moe = _mixture(cfg, side, layer)
        self.moe_layer_norm = None
        if self.moe is not None and cfg.moe_placement == "shazeer":
            self.moe_layer_norm = LayerNorm(getattr(cfg, side).embed_dim, export=cfg.export)
        elif self.moe is not None:
            del self.fc1, self.fc2

    def feed_forward(self, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Balance | None]:
        """x [..., d], padding bool [...] -> x, and the mixture's balance in training."""
        if self.moe is None or self.moe_layer_norm is not None:
            x, _ = self._sub_layer(x, self.final_layer_norm, self._dense_network)
        if self.moe is None:
            return x, None
        return self._sub_layer(x, self.moe_layer_norm or self.final_layer_norm, self.moe, padding)

    def _dense_network(self, x: Tensor) -> tuple[Tensor, None]:
        return self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(x)))), None

    def attend_own(self, x: Tensor, attention: Callable[..., Attended], *args: Any) -> tuple[Tensor, Attended]:
        """The self-attention sub-layer."""
        return self.attend(x, self.self_attn_layer_norm, lambda y, *a: attention(self.transformation(y), *a), *args)

    def attend(
        self, x: Tensor, norm: nn.Module, attention: Callable[..., Attended], *args: Any
    ) -> tuple[Tensor, Attended]:
        """One attention sub-layer."""

        def network(y: Tensor) -> tuple[Tensor, Attended]:
            attended = attention(y, *args)
            return attended.out, attended

        return self._sub_layer(x, norm, network)

    def _sub_layer(self, x: Tensor, norm: nn.Module, network: Callable[..., tuple[Tensor, Any]], *args: Any) -> Any:
        """x with the network's output added, normalised before or after, and what else the network returns."""
        out, more = network(norm(x) if self.normalize_before else x, *args)
        x = x + self.dropout_module(out)
        return (x if self.normalize_before else norm(x)), more


class LasformerEncoderLayer(TransformerEncoderLayerBase, _SubLayers):
    """fairseq's encoder layer with attention over a selection. ``index``: its place in the stack, from 0."""

    def __init__(self, cfg: Any, index: int) -> None:
        self.index = index
        super().__init__(cfg)
        self.place_mixture(cfg, "encoder", index)
        self.transformation = _transformation(cfg, "encoder", index)

    def build_self_attention(self, embed_dim: int, cfg: Any) -> SelectedAttention:
        return _attention(cfg, "encoder", self.index, cfg.encoder.attention_heads, self_attention=True)

    def forward(  # type: ignore[override]
        self, x: Tensor, allowed: Allowed, selection: Selection | None
    ) -> tuple[Tensor, Attended, Balance | None]:
        """x [B, N, d] -> x, and what the attention and a mixture returned."""
        x, attended = self.attend_own(x, self.self_attn, None, allowed, selection)
        x, balance = self.feed_forward(x, allowed.key_padding)
        return x, attended, balance


class LasformerDecoderLayer(TransformerDecoderLayerBase, _SubLayers):
    """fairseq's decoder layer with attention over selections. ``index``: its place in the stack, from 0."""

    def __init__(self, cfg: Any, index: int) -> None:
        self.index = index
        super().__init__(cfg)
        self.place_mixture(cfg, "decoder", index)
        self.transformation = _transformation(cfg, "decoder", index)

    def build_self_attention(
        self, embed_dim: int, cfg: Any, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> SelectedAttention:
        return _attention(cfg, "decoder", self.index, cfg.decoder.attention_heads, self_attention=True)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> SelectedAttention:
        return _attention(cfg, "cross", self.index, cfg.decoder.attention_heads, encoder_decoder_attention=True)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        allowed: Allowed,
        memory_allowed: Allowed,
        selection: Selection | None,
        memory_selection: Selection | None,
    ) -> tuple[Tensor, Attended, Attended, Balance | None]:
        """x [B, N, d], memory [B, K, d] -> x, and what self-attention, cross-attention and a mixture returned."""
        x, attended = self.attend_own(x, self.self_attn, None, allowed, selection)
        x, crossed = self.attend(
            x, self.encoder_attn_layer_norm, self.encoder_attn, memory, memory_allowed, memory_selection
        )
        x, balance = self.feed_forward(x, allowed.key_padding)
        return x, attended, crossed, balance

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
        x, attended = self.attend_own(x, self.self_attn.step, None, decoding, own, selection)
        x, crossed = self.attend(
            x, self.encoder_attn_layer_norm, self.encoder_attn.step, memory, decoding, cross, memory_selection
        )
        return self.feed_forward(x)[0], attended.selection, crossed.selection


def groups(layers: Sequence[nn.Module], share: int) -> list[list[Any]]:
    """The stack in groups of ``share`` layers, lowest first; the last one may be smaller."""
    return [list(layers[i : i + share]) for i in range(0, len(layers), share)]


def encoder_group(
    layers: Sequence[LasformerEncoderLayer], cfg: Any, x: Tensor, allowed: Allowed, supervised: bool
) -> tuple[Tensor, Supervision | None, dict[str, Balance]]:
    """Runs one group of encoder layers over x [B, N, d]. The balances are by side and layer (``encoder.1``)."""
    selection, seen = None, []
    balances: dict[str, Balance] = {}
    for layer in layers:
        x, attended, balance = layer(x, allowed, selection)
        selection = attended.selection
        seen.append(attended)
        if balance is not None:
            balances[f"encoder.{layer.index}"] = balance
    return x, _supervise(seen, cfg, allowed, allowed.key_padding) if supervised else None, balances


def decoder_group(
    layers: Sequence[LasformerDecoderLayer],
    cfg: Any,
    x: Tensor,
    memory: Tensor,
    allowed: Allowed,
    memory_allowed: Allowed,
    supervised: bool,
) -> tuple[Tensor, Supervision | None, Supervision | None, dict[str, Balance]]:
    """Runs one group of decoder layers over x [B, N, d]."""
    selection, memory_selection = None, None
    seen, crossed = [], []
    balances: dict[str, Balance] = {}
    for layer in layers:
        x, a, c, balance = layer(x, memory, allowed, memory_allowed, selection, memory_selection)
        selection, memory_selection = a.selection, c.selection
        seen.append(a)
        crossed.append(c)
        if balance is not None:
            balances[f"decoder.{layer.index}"] = balance
    if not supervised:
        return x, None, None, balances
    padding = allowed.key_padding
    return x, _supervise(seen, cfg, allowed, padding), _supervise(crossed, cfg, memory_allowed, padding), balances


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
    """Supervision of a group's selector by the full attention of its layers; None where there is none to teach."""
    selection = seen[0].selection
    if selection is None or selection.query is None:
        return None
    assert selection.key is not None and selection.mask is not None
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
