"""A decoder's layers packed for decoding on a CPU: every step is one operator, with weights in float32 or int8.

Definition: :meth:`LayerStack.step`. The selectors stay in float32, because an error there would change which keys are
kept instead of perturbing a value.
"""

import functools
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from fairseq_lasformer.nn.activations import KERNELS
from fairseq_lasformer.nn.attentions import SelectedAttention
from fairseq_lasformer.nn.decoding.cache import DecodingCache
from fairseq_lasformer.nn.decoding.layer_cache import LayerCache
from fairseq_lasformer.nn.decoding.packed_modules import check_layer, joined
from fairseq_lasformer.nn.layers import BothLines, BothRotations, DecodeContext, DecoderLayer
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import KeyIndex, PackedLinear, decode_step, rotate_heads

# replacements for a selector's kappa, see ops/cpu/binding/step.cpp
AS_BELOW, EVERY, GIVEN = 0, -1, -2


class _Layer(NamedTuple):
    """A packed layer: its place in the stack, its attentions, and the packed projections of the source.

    ``source_scorer`` projects the source to the selector's keys; it has no outputs if the layer has no selector.
    """

    place: int
    self_attn: SelectedAttention
    encoder_attn: SelectedAttention
    source_key: PackedLinear
    source_value: PackedLinear
    source_scorer: PackedLinear


class PackedStack:
    """The layers of a decoder, packed.

    Args:
        layers: the layers; their weights are copied.
        int8_cache: keep keys and values in 8 bits.

    Raises:
        Unsupported: no kernel computes some part of a layer.
    """

    def __init__(self, layers: LayerStack, int8: bool, int8_cache: bool = False) -> None:
        self.int8_cache = int8_cache
        self.norms: list[Tensor] = []
        self.linears: list[Tensor] = []
        self.outputs: list[int] = []
        self.biases: list[Tensor] = []
        self.layers: list[_Layer] = []
        for layer in layers:
            assert isinstance(layer, DecoderLayer)
            check_layer(layer)
            self._add(layer, int8)
        own, crossed = self.layers[0].self_attn, self.layers[0].encoder_attn
        self.heads = [own.num_heads, crossed.num_heads]
        self.activation = KERNELS[layers[0].activation_fn]  # type: ignore[index]
        self.pre_norm = bool(layers[0].normalize_before)  # type: ignore[union-attr]
        self.eps = float(layers[0].final_layer_norm.eps)  # type: ignore[union-attr, arg-type]
        self.nothing = own.q_proj.weight.new_empty(0)
        self.none_given = [self.nothing] * (4 * len(self.layers))
        both = [a for layer in self.layers for a in (layer.self_attn, layer.encoder_attn)]
        self.learned = all(a.selector is None or _scorers(a) for a in both)

    def _add(self, layer: DecoderLayer, int8: bool) -> None:
        own, crossed = cast(SelectedAttention, layer.self_attn), cast(SelectedAttention, layer.encoder_attn)
        fc1, fc2 = layer.fc1, layer.fc2
        assert fc1 is not None and fc2 is not None
        for norm in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm):
            self.norms += [norm.weight.detach(), norm.bias.detach()]
        packed = [joined([own.q_proj, own.k_proj, own.v_proj], int8)]
        packed += [joined([linear], int8) for linear in (own.out_proj, crossed.q_proj, crossed.out_proj, fc1, fc2)]
        packed.append(joined(_scorers(own), False))
        packed.append(joined(_scorers(crossed)[:1], False))  # the source's keys are scored once
        for linear in packed:
            self.linears += linear.tensors
            self.outputs.append(linear.outputs)
        self.biases += [bias.detach().clone() for a in (own, crossed) if (bias := a.bias) is not None]
        source = [joined([linear], int8) for linear in (crossed.k_proj, crossed.v_proj)]
        source.append(joined(_scorers(crossed)[1:], False))
        self.layers.append(_Layer(layer.index, own, crossed, *source))

    def step(self, x: Tensor, context: DecodeContext) -> Tensor:
        """Run one decoding step: x [R, d] -> [R, d]."""
        return self._run(x, context, context.cache.newest)

    def read(
        self,
        x: Tensor,
        cache: DecodingCache,
        memory: Tensor,
        source: KeyIndex,
        own: BothLines = (None, None),
        rotations: BothRotations = (None, None),
    ) -> Tensor:
        """Read the common first positions of an item's hypotheses as if they were that many hypotheses of one step.

        The results and the cache are bit-identical to those of single steps.

        Args:
            x: [N, P, d].
            cache: a cache that starts with P positions.
            memory: the encoder's output [N, K, d].
            source: index of the source's keys.
            own: the lines of the positions, [N, P], in the translation and in the source.
            rotations: of the lines of the positions, [N, P, 8, 2], and of the source, [N, K, 8, 2].

        Returns:
            [N, P, d].
        """
        n, p, dim = x.shape
        places = torch.arange(p)
        seen = (places + 1).repeat(n)
        index = KeyIndex(places.int().expand(n * p, p), torch.zeros_like(seen), seen, p)
        rows, own = x.reshape(n * p, dim), (own[0] and own[0].flattened(), own[1] and own[1].flattened())
        of_rows = None if rotations[0] is None else rotations[0].flatten(0, 1)
        context = DecodeContext(cache, memory, index, source, own, (of_rows, rotations[1]))
        return self._run(rows, context, places).view(x.shape)

    def _run(self, x: Tensor, context: DecodeContext, newest: Tensor) -> Tensor:
        """Run the layers on rows [R, d]; those of an item are written to its slots ``newest`` [R / N]."""
        cache, index, source = context.cache, context.self_index, context.source_index
        if cache.stores is None:
            cache.stores = self._stores(x, context)
        stores, kappas = cache.stores
        given: list[Tensor] = []
        if not self.learned:
            kappas = list(kappas)
            self._give(x, context, given, kappas)
        return decode_step(
            *(x, self.norms, self.linears, stores, given or self.none_given),
            *(self.biases, [tensor for lines in context.own if lines is not None for tensor in lines]),
            None if context.rotations[0] is None else context.rotations[0].contiguous(),
            *(index.table, newest, index.start, index.n_keys, source.start, source.n_keys),
            *(kappas, self.outputs, self.heads, index.end, self.pre_norm, self.activation, self.eps),
        )

    def _stores(self, x: Tensor, context: DecodeContext) -> tuple[list[Tensor], list[int]]:
        """Return the storages of all layers, and a kappa of each attention; a step writes into them."""
        stores: list[Tensor] = []
        kappas: list[int] = []
        for layer in self.layers:
            own, crossed = layer.self_attn, layer.encoder_attn
            keys, source_keys = context.self_keys(layer.place, x), context.source_keys(layer.place, x)
            kept = self._kept(keys, own, layer), self._kept(source_keys, crossed, layer)
            stores += [numbers for numbers, _ in kept[0]]
            scorers = _scorers(own)
            if scorers:
                stores.append(context.cache.slots(f"{layer.place}.self.selector_key", x, scorers[1].out_features))
            else:
                stores.append(self.nothing)
            stores += [numbers for numbers, _ in kept[1]]
            scorers = _scorers(crossed)
            of_source = functools.partial(_rotated, layer.source_scorer, 1, context.rotations[1])
            stores.append(source_keys.project("selector_key", of_source) if scorers else self.nothing)
            stores += [scales for pairs in kept for _, scales in pairs]
            for attention, its_keys in ((own, keys), (crossed, source_keys)):
                scored = attention.selector if _scorers(attention) else None
                kappas.append(AS_BELOW if scored is None else its_keys.constant("kappa", cast(Tensor, scored.kappa)))
        return stores, kappas

    def _give(self, x: Tensor, context: DecodeContext, given: list[Tensor], kappas: list[int]) -> None:
        """Add the keys that patterns of positions alone keep in this step, or that they keep every one."""
        for i, layer in enumerate(self.layers):
            keys, source_keys = context.self_keys(layer.place, x), context.source_keys(layer.place, x)
            for j, (attention, its_keys) in enumerate(((layer.self_attn, keys), (layer.encoder_attn, source_keys))):
                slots, counts = self.nothing, self.nothing
                if attention.selector is not None and not _scorers(attention):
                    given_keys = attention.selector.step_keys(x, its_keys)
                    kappas[2 * i + j] = EVERY if given_keys is None else GIVEN
                    slots, counts = given_keys or (slots, counts)
                given += [slots, counts]

    def _kept(self, keys: LayerCache, attention: SelectedAttention, layer: _Layer) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values of an attention, each with the scales of its heads if in 8 bits."""
        caches: list[tuple[Tensor, Tensor]] = []
        key = functools.partial(_rotated, layer.source_key, attention.num_heads, keys.rotations[1])
        for what, projection in (("key", key), ("value", layer.source_value)):
            if self.int8_cache and keys.memory is None:
                caches.append(keys.room(what, attention.embed_dim, attention.num_heads))
            elif self.int8_cache:
                caches.append(keys.of_source(what, attention.num_heads, projection))
            elif keys.memory is None:
                caches.append((keys.cache.slots(f"{keys.name}.{what}", keys.x, attention.embed_dim), self.nothing))
            else:
                caches.append((keys.project(what, projection), self.nothing))
        return caches


def _rotated(projection: PackedLinear, n_heads: int, rotation: Tensor | None, x: Tensor) -> Tensor:
    """Project keys of the source, and rotate them."""
    return rotate_heads(projection(x), n_heads, rotation)


def _scorers(attention: SelectedAttention) -> list[nn.Linear]:
    """Return the projections of queries and keys with which an attention selects its keys."""
    return [] if attention.selector is None else list(attention.selector.scorers())


class PackedDecoder(NamedTuple):
    """Packed weights that a decoder on a CPU reads in a step."""

    stack: PackedStack
    output: PackedLinear  # the projection to scores of all words
    of: tuple[tuple[int, int], ...]  # identifies the weights that were packed, see `LasformerDecoder._weights`
