"""Weights for decoding steps that replace the decoder's own: packed on a CPU, 8 bits on a GPU."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from fairseq_lasformer.nn.decoding.packed_modules import Unsupported, check_parts, quantise
from fairseq_lasformer.nn.decoding.packed_stack import PackedStack
from fairseq_lasformer.nn.decoding.step_products import AttentionProducts
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import PackedLinear, QuantisedLinear, backend_for, quantise_linear


class PackedDecoder(NamedTuple):
    """Packed weights that a decoder on a CPU reads in a step.

    Attributes:
        output: the projection to scores of all words.
        of: identifies the weights that were packed, see :meth:`LasformerDecoder._weights`.
    """

    stack: PackedStack
    output: PackedLinear
    of: tuple[tuple[int, int], ...]


class Products(NamedTuple):
    """Products that a decoder on a GPU computes together in a step.

    Attributes:
        of: identifies the weights that were copied, see :meth:`LasformerDecoder._weights`.
    """

    of_layers: tuple[AttentionProducts, ...]
    of: tuple[tuple[int, int], ...]


class EightBits(NamedTuple):
    """8-bit parts of a decoder on a GPU, besides the linear layers of its stack.

    Attributes:
        output: the projection to scores of all words; None if it is not in 8 bits.
        cache: whether keys and values are in 8 bits.
    """

    output: QuantisedLinear | None
    cache: bool


def eight_bits(layers: LayerStack, projection: nn.Module, run: RunOptions, retain_dropout: bool) -> EightBits:
    """Make a decoder on a GPU decode in 8 bits; with ``run.int8``, replace its linear layers in place.

    The selectors are unchanged: an error there would change which keys are kept instead of perturbing a value.

    Args:
        layers: the decoder's layers.
        projection: the projection to scores of all words.

    Raises:
        Unsupported: no kernel computes one of its parts.
    """
    if retain_dropout:
        raise Unsupported("--retain-dropout")
    if backend_for(next(layers.parameters()).device, run.backend) != "triton":
        raise Unsupported("a GPU without Triton's kernels")
    for layer in layers:
        check_parts(layer)  # type: ignore[arg-type]
        if any(getattr(layer, name).own_lines for name in layer.attentions):  # type: ignore[union-attr]
            raise Unsupported("--own-lines on a GPU")
    if not run.int8:
        return EightBits(None, run.int8_cache)
    if not isinstance(projection, nn.Linear):
        raise Unsupported("an expanded table of words")
    output = quantise_linear(projection.weight, projection.bias)
    quantise(layers)
    return EightBits(output, run.int8_cache)
