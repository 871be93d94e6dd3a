"""Encoder and decoder layers. They take and return [B, N, d] and pass selections on as values.

A layer is called with the context that all layers of a pass share (:class:`FullPass` or :class:`DecodeContext`) and
with the selections of the layer below it in its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.attentions import Attention, AttentionOutput
from fairseq_lasformer.nn.decoding.cache import DecodingCache
from fairseq_lasformer.nn.decoding.layer_cache import LayerCache
from fairseq_lasformer.nn.dropout import Dropout
from fairseq_lasformer.nn.moe import MixtureOfExperts, RouterStats
from fairseq_lasformer.nn.options import EVERY_QUERY, Pass, RowSampling
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import AttentionMask, KeptKeys, KeyIndex, OwnLines

if TYPE_CHECKING:
    from fairseq_lasformer.nn.decoding.step_products import AttentionProducts

LayerOutput = tuple[Tensor, tuple[AttentionOutput, ...], RouterStats | None]
"""x, the output of each of the layer's attentions, and in training the statistics of its mixture, if it has one."""


BothLines = tuple[OwnLines | None, OwnLines | None]
"""Each row's own line, in the translation and in the source; None if attentions do not read them."""

BothRotations = tuple[Tensor | None, Tensor | None]
"""Rotations of the lines of the translation and of the source, see ``rotary.rotations``; None for none."""


class FullPass(NamedTuple):
    """Context that all layers of a full pass share."""

    mask: AttentionMask  # attention mask of the self-attention
    memory: Tensor | None = None  # the encoder's output [B, K, d], in decoders
    memory_mask: AttentionMask = AttentionMask(None, False)  # attention mask of the cross-attention
    sampling: RowSampling = EVERY_QUERY  # which queries learned patterns learn from
    rotations: BothRotations = (None, None)  # [B, N, 8, 2] of the text, [B, K, 8, 2] of the source

    def own(self, y: Tensor) -> Pass:
        """Return the input of a self-attention."""
        rotation = self.rotations[0]
        return Pass(y, y, self.mask, sampling=self.sampling, rotations=(rotation, rotation))

    def source(self, y: Tensor) -> Pass:
        """Return the input of a cross-attention."""
        assert self.memory is not None
        return Pass(y, self.memory, self.memory_mask, sampling=self.sampling, rotations=self.rotations)

    def run(self, layer: TransformerLayer, x: Tensor, selections: tuple[Selection | None, ...]) -> LayerOutput:
        return layer(x, self, selections)


class DecodeContext(NamedTuple):
    """Context that all layers of a decoding step share."""

    cache: DecodingCache  # keys and values so far
    memory: Tensor  # the encoder's output [N, K, d]
    self_index: KeyIndex  # index of the self-attention's keys
    source_index: KeyIndex  # index of the source's keys
    own: BothLines = (None, None)  # positions of each hypothesis's own line, [R]
    rotations: BothRotations = (None, None)  # [R, 8, 2] of the hypotheses, [N, K, 8, 2] of the source
    # those of every layer's attentions that are computed together; empty for none
    products: Sequence[AttentionProducts] = ()

    def run(self, layer: DecoderLayer, x: Tensor, selections: tuple[KeptKeys | None, ...]) -> LayerOutput:
        return layer.step(x, self, selections)

    def self_keys(self, layer: int, x: Tensor) -> LayerCache:
        """Return the cache of a layer's self-attention for inputs x [R, d]."""
        name, index = f"{layer}.self", self.self_index
        newest = self.products[layer][0](x, self.cache, name, self.rotations[0]) if self.products else {}
        rotations = self.rotations[0], self.rotations[0]
        return LayerCache(self.cache, name, x, None, index, index, self.own[0], rotations, newest)

    def source_keys(self, layer: int, x: Tensor) -> LayerCache:
        """Return the cache of a layer's cross-attention for inputs x [R, d]."""
        name, index = f"{layer}.source", (self.source_index, self.self_index)
        newest = self.products[layer][1](x, self.cache, name, self.rotations[0]) if self.products else {}
        return LayerCache(self.cache, name, x, self.memory, *index, self.own[1], self.rotations, newest)


class FeedForward(NamedTuple):
    """Modules of a layer that follow its attention."""

    # fc1, fc2: the dense network; None if a mixture of experts replaces it
    fc1: nn.Linear | None
    fc2: nn.Linear | None
    activation: Callable[[Tensor], Tensor]
    activation_dropout: float = 0.0  # dropout probability after the activation
    moe: MixtureOfExperts | None = None  # the mixture of experts, if the layer has one
    # separate layer norm of a mixture that follows the dense network (appendix E of arXiv 1701.06538)
    moe_layer_norm: nn.Module | None = None


class TransformerLayer(nn.Module):
    """Base class of encoder and decoder layers: the feed-forward sub-layers, pre- or post-norm.

    Args:
        index: position in the stack, from 0.
        dim: width of the states (d).
        dropout: dropout probability after every sub-layer.
        normalize_before: pre-norm instead of post-norm.
    """

    attentions: ClassVar[tuple[str, ...]] = ()
    """Names of the attentions, in order."""

    def __init__(self, index: int, dim: int, dropout: float, normalize_before: bool) -> None:
        super().__init__()
        self.index, self.dim, self.normalize_before = index, dim, normalize_before
        self.dropout_module = Dropout(dropout, type(self).__name__)

    def _add_feed_forward(self, parts: FeedForward, transformation: nn.Module) -> None:
        """Register the feed-forward modules in the order of fairseq's layers: optimizer states depend on it."""
        self.fc1, self.fc2 = parts.fc1, parts.fc2
        self.activation_fn = parts.activation
        self.activation_dropout_module = Dropout(parts.activation_dropout, type(self).__name__)
        self.narrow_results = () if parts.fc1 is None or parts.activation_dropout else ("fc1",)
        self.final_layer_norm = nn.LayerNorm(self.dim)
        self.moe, self.moe_layer_norm = parts.moe, parts.moe_layer_norm
        self.transformation = transformation

    def before(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return the input of a sub-layer: normalised, if pre-norm."""
        return norm(x) if self.normalize_before else x

    def after(self, norm: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """Add the output of a sub-layer to x; normalise, if post-norm. In a decoding step, both take one kernel."""
        if self._in_step(x) and not self.normalize_before:
            return self._added(norm, x, out)[1]
        x = self.dropout_module(out, added=x)
        return x if self.normalize_before else norm(x)

    def between(self, norm: nn.Module, x: Tensor, out: Tensor, following: nn.Module) -> tuple[Tensor, Tensor]:
        """Add the output of a sub-layer to x, and return x and the input of the next one, whose norm is ``following``.

        In a decoding step, both take one kernel.
        """
        if self._in_step(x) and self.normalize_before:
            return self._added(following, x, out)
        x = self.after(norm, x, out)
        return x, self.before(following, x)

    def _in_step(self, x: Tensor) -> bool:
        """Return whether x [R, d] are the newest positions of a decoding step."""
        return x.dim() == 2 and not torch.is_grad_enabled() and not self.dropout_module.active_p

    def _added(self, norm: nn.Module, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of x and the output of a sub-layer, and its norm."""
        assert isinstance(norm, nn.LayerNorm)
        backend = getattr(self, self.attentions[0]).backend
        return ops.add_norm(x, out, norm.weight, norm.bias, norm.eps, backend)

    def feed_forward(
        self, x: Tensor, padding: Tensor | None = None, y: Tensor | None = None
    ) -> tuple[Tensor, RouterStats | None]:
        """Apply the feed-forward sub-layers.

        Args:
            x: [..., d].
            padding: bool [...], True at padding.
            y: the input of the dense network, if it is known, as :meth:`between` returns it.

        Returns:
            x [..., d], and in training the statistics of the mixture.
        """
        if self.fc1 is not None and self.fc2 is not None:
            y = self._hidden(self.before(self.final_layer_norm, x) if y is None else y)
            x = self.after(self.final_layer_norm, x, self.fc2(self.activation_dropout_module(y)))
        if self.moe is None:
            return x, None
        norm = self.final_layer_norm if self.moe_layer_norm is None else self.moe_layer_norm
        y, stats = self.moe(self.before(norm, x), padding)
        return self.after(norm, x, y), stats

    def _hidden(self, y: Tensor) -> Tensor:
        """Apply the dense network's first linear layer and activation; on a GPU, in a step, both in one kernel."""
        assert self.fc1 is not None
        of_a_step = y.is_cuda and y.dim() == 2 and not torch.is_grad_enabled()
        if of_a_step and self.activation_fn is F.relu and type(self.fc1) is nn.Linear and self.fc1.bias is not None:
            return ops.linear_relu(y, self.fc1.weight, self.fc1.bias)
        return self.activation_fn(self.fc1(y))


class EncoderLayer(TransformerLayer):
    """Self-attention over a selection, then the feed-forward sub-layers.

    Args:
        index, dim: see :class:`TransformerLayer`.
        feed_forward: the modules that follow the attention.
        transformation: applied to the input of the self-attention (DeLighT); ``nn.Identity()`` in other models.
        dropout, normalize_before: see :class:`TransformerLayer`.
    """

    attentions = ("self_attn",)

    def __init__(
        self,
        index: int,
        dim: int,
        self_attn: Attention,
        feed_forward: FeedForward,
        transformation: nn.Module,
        dropout: float = 0.0,
        normalize_before: bool = False,
    ) -> None:
        super().__init__(index, dim, dropout, normalize_before)
        self.self_attn = self_attn
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self._add_feed_forward(feed_forward, transformation)

    def forward(self, x: Tensor, full: FullPass, selections: tuple[Selection | None, ...]) -> LayerOutput:
        """Map x [B, N, d] to x, and the output of the self-attention and of a mixture."""
        y = self.transformation(self.before(self.self_attn_layer_norm, x))
        attended = self.self_attn(full.own(y), selections[0])
        x = self.after(self.self_attn_layer_norm, x, attended.out)
        x, stats = self.feed_forward(x, full.mask.key_padding)
        return x, (attended,), stats


class DecoderLayer(TransformerLayer):
    """Self- and cross-attention over selections, then the feed-forward sub-layers.

    Args:
        index, dim: see :class:`TransformerLayer`.
        feed_forward, transformation: see :class:`EncoderLayer`.
        dropout, normalize_before: see :class:`TransformerLayer`.
    """

    attentions = ("self_attn", "encoder_attn")

    def __init__(
        self,
        index: int,
        dim: int,
        self_attn: Attention,
        encoder_attn: Attention,
        feed_forward: FeedForward,
        transformation: nn.Module,
        dropout: float = 0.0,
        normalize_before: bool = False,
    ) -> None:
        super().__init__(index, dim, dropout, normalize_before)
        self.self_attn = self_attn
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.encoder_attn = encoder_attn
        self.encoder_attn_layer_norm = nn.LayerNorm(dim)
        self._add_feed_forward(feed_forward, transformation)

    def forward(self, x: Tensor, full: FullPass, selections: tuple[Selection | None, ...]) -> LayerOutput:
        """Map x [B, N, d] to x, and the output of the self-attention, the cross-attention and a mixture."""
        y = self.transformation(self.before(self.self_attn_layer_norm, x))
        attended = self.self_attn(full.own(y), selections[0])
        x = self.after(self.self_attn_layer_norm, x, attended.out)
        y = self.before(self.encoder_attn_layer_norm, x)
        crossed = self.encoder_attn(full.source(y), selections[1])
        x = self.after(self.encoder_attn_layer_norm, x, crossed.out)
        x, stats = self.feed_forward(x, full.mask.key_padding)
        return x, (attended, crossed), stats

    def step(self, x: Tensor, context: DecodeContext, kept: tuple[KeptKeys | None, ...]) -> LayerOutput:
        """Run one decoding step: the newest positions x [R, d] -> x, and the output of both attentions."""
        y = self.transformation(self.before(self.self_attn_layer_norm, x))
        attended = self.self_attn.step(y, context.self_keys(self.index, y), kept[0])
        x, y = self.between(self.self_attn_layer_norm, x, attended.out, self.encoder_attn_layer_norm)
        crossed = self.encoder_attn.step(y, context.source_keys(self.index, y), kept[1])
        x, y = self.between(self.encoder_attn_layer_norm, x, crossed.out, self.final_layer_norm)
        return self.feed_forward(x, y=y)[0], (attended, crossed), None
