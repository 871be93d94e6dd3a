"""A decoder's layers packed for decoding on a CPU: every step is one operator, with weights in float32 or int8.

Definition: :meth:`LayerStack.step`. The selectors stay in float32, because an error there would change which keys are
kept instead of perturbing a value.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from fairseq_lasformer.nn.activations import KERNELS
from fairseq_lasformer.nn.attentions import Attention, SelectedAttention
from fairseq_lasformer.nn.cache import LayerCache
from fairseq_lasformer.nn.layers import DecodeContext, DecoderLayer, EncoderLayer
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import PackedLinear, decode_step, pack_linear

# instead of a selector's kappa, see ops/binding/step.cpp
AS_BELOW, EVERY, GIVEN = 0, -1, -2


class Unsupported(Exception):
    """A layer that cannot be packed; the message says why."""


class _Layer(NamedTuple):
    """A packed layer: its place in the stack, its attentions, and the packed projections of the source."""

    place: int
    self_attn: SelectedAttention
    encoder_attn: SelectedAttention
    source_key: PackedLinear
    source_value: PackedLinear


class PackedProjection(nn.Module):
    """A linear layer in 8 bits, in the place of one in float32.

    Args:
        linear: the layer; its weights are copied.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = _joined([linear], int8=True)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return self.packed(x)


def quantise_encoder(layers: LayerStack) -> None:
    """Replace an encoder's linear layers, other than its selectors', by 8-bit ones, in place."""
    for layer in layers:
        assert isinstance(layer, EncoderLayer)
        for holder in (layer, layer.self_attn):
            for name, module in list(holder.named_children()):
                if isinstance(module, nn.Linear):
                    setattr(holder, name, PackedProjection(module))


class PackedStack:
    """The layers of a decoder, packed.

    Args:
        layers: the layers; their weights are copied.
        int8_cache: keep keys and values in 8 bits.

    Raises:
        Unsupported: a layer has something that no kernel computes.
    """

    def __init__(self, layers: LayerStack, int8: bool, int8_cache: bool = False) -> None:
        self.int8_cache = int8_cache
        self.norms: list[Tensor] = []
        self.linears: list[Tensor] = []
        self.outputs: list[int] = []
        self.layers: list[_Layer] = []
        for layer in layers:
            assert isinstance(layer, DecoderLayer)
            _check(layer)
            self._add(layer, int8)
        own, crossed = self.layers[0].self_attn, self.layers[0].encoder_attn
        self.heads = [own.num_heads, crossed.num_heads]
        self.activation = KERNELS[layers[0].activation_fn]  # type: ignore[index]
        self.pre_norm, self.length = bool(layers[0].normalize_before), own.length  # type: ignore[union-attr]
        self.eps = float(layers[0].final_layer_norm.eps)  # type: ignore[union-attr, arg-type]
        self.nothing = own.q_proj.weight.new_empty(0)

    def _add(self, layer: DecoderLayer, int8: bool) -> None:
        own, crossed = cast(SelectedAttention, layer.self_attn), cast(SelectedAttention, layer.encoder_attn)
        fc1, fc2 = layer.fc1, layer.fc2
        assert fc1 is not None and fc2 is not None
        for norm in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm):
            self.norms += [norm.weight.detach(), norm.bias.detach()]
        packed = [_joined([own.q_proj, own.k_proj, own.v_proj], int8)]
        packed += [_joined([linear], int8) for linear in (own.out_proj, crossed.q_proj, crossed.out_proj, fc1, fc2)]
        packed.append(_joined(_scorers(own), False))
        packed.append(_joined(_scorers(crossed)[:1], False))  # the source's keys are scored once
        for linear in packed:
            self.linears += linear.tensors
            self.outputs.append(linear.outputs)
        source = [_joined([linear], int8) for linear in (crossed.k_proj, crossed.v_proj)]
        self.layers.append(_Layer(layer.index, own, crossed, *source))

    def step(self, x: Tensor, context: DecodeContext) -> Tensor:
        """Run one decoding step: x [R, d] -> [R, d]."""
        cache, index, source = context.cache, context.self_index, context.source_index
        stores: list[Tensor] = []
        given: list[Tensor] = []
        kappas: list[int] = []
        for layer in self.layers:
            own, crossed = layer.self_attn, layer.encoder_attn
            keys, source_keys = context.self_keys(layer.place, x), context.source_keys(layer.place, x)
            kept = self._kept(keys, own, layer), self._kept(source_keys, crossed, layer)
            stores += [numbers for numbers, _ in kept[0]]
            scorers = _scorers(own)
            if scorers:
                stores.append(cache.slots(f"{layer.place}.self.selector_key", x, scorers[1].out_features))
            else:
                stores.append(self.nothing)
            stores += [numbers for numbers, _ in kept[1]]
            scorers = _scorers(crossed)
            stores.append(source_keys.project("selector_key", scorers[1]) if scorers else self.nothing)
            stores += [scales for pairs in kept for _, scales in pairs]
            for pattern, its_keys in ((own.selector, keys), (crossed.selector, source_keys)):
                slots, counts = self.nothing, self.nothing
                if pattern is None:
                    kappas.append(AS_BELOW)
                elif pattern.scorers():
                    kappas.append(its_keys.constant("kappa", cast(Tensor, pattern.kappa)))
                else:  # depends on the positions alone
                    given_keys = pattern.step(x, its_keys)
                    kappas.append(EVERY if given_keys is None else GIVEN)
                    slots, counts = given_keys or (slots, counts)
                given += [slots, counts]
        return decode_step(
            x,
            self.norms,
            self.linears,
            stores,
            given,
            *(index.table, cache.newest, index.start, index.n_keys, source.start, source.n_keys),
            *(kappas, self.outputs, self.heads, index.end, self.pre_norm, self.activation, self.length, self.eps),
        )

    def _kept(self, keys: LayerCache, attention: SelectedAttention, layer: _Layer) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of an attention, each with the scales of its heads if it is kept in 8 bits."""
        found: list[tuple[Tensor, Tensor]] = []
        for what, projection in (("key", layer.source_key), ("value", layer.source_value)):
            if self.int8_cache:
                found.append(keys.stored(what, attention.embed_dim, attention.num_heads, projection))
            elif keys.memory is None:
                found.append((keys.cache.slots(f"{keys.name}.{what}", keys.x, attention.embed_dim), self.nothing))
            else:
                found.append((keys.project(what, projection), self.nothing))
        return found


def _joined(linears: list[nn.Linear], int8: bool) -> PackedLinear:
    """Linear layers with the same input as one, packed."""
    if not linears:
        nothing = torch.empty(0)
        return PackedLinear(nothing, nothing, nothing.int(), nothing, 0)
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    weights: list[Tensor] = [linear.weight for linear in linears]
    return pack_linear(torch.cat(weights), torch.cat(biases) if biases else None, int8)


def _scorers(attention: SelectedAttention) -> list[nn.Linear]:
    """The projections of queries and keys by which an attention chooses its keys."""
    return [] if attention.selector is None else list(attention.selector.scorers())


def _check(layer: DecoderLayer) -> None:
    if layer.moe is not None or layer.fc1 is None:
        raise Unsupported("mixtures of experts")
    if not isinstance(layer.transformation, nn.Identity):
        raise Unsupported("DeLighT's transformations")
    if layer.activation_fn not in KERNELS:
        raise Unsupported("this activation")
    for attention in (layer.self_attn, layer.encoder_attn):
        if not attention.packable:
            raise Unsupported(f"the attention {_name(attention)}")
        if attention.selector is not None and not attention.selector.packable:
            raise Unsupported(f"the pattern {_name(attention.selector)}")
    for name, parameter in layer.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Unsupported(f"{parameter.dtype} on {parameter.device} ({name})".replace("torch.", ""))


def _name(module: Attention | Pattern) -> str:
    return getattr(module, "name", type(module).__name__)
