"""What a decoder's steps use instead of its own weights: packed ones on a CPU, 8 bits on a GPU."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from fairseq_lasformer.nn.decoding.packed_modules import Unsupported, check_parts, quantise
from fairseq_lasformer.nn.decoding.packed_stack import PackedStack
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import PackedLinear, QuantisedLinear, backend_for, quantise_linear


class PackedDecoder(NamedTuple):
    """What a decoder on a CPU reads in a step, packed.

    Attributes:
        output: the projection to scores of all words.
        of: what tells the weights that were packed from later ones, see :meth:`LasformerDecoder._weights`.
    """

    stack: PackedStack
    output: PackedLinear
    of: tuple[tuple[int, int], ...]


class EightBits(NamedTuple):
    """What a decoder on a GPU does in 8 bits, besides the linear layers of its stack.

    Attributes:
        output: the projection to scores of all words; None if it is not in 8 bits.
        cache: whether keys and values are.
    """

    output: QuantisedLinear | None
    cache: bool


def eight_bits(layers: LayerStack, projection: nn.Module, run: RunOptions, retain_dropout: bool) -> EightBits:
    """Let a decoder on a GPU decode in 8 bits; with ``run.int8``, its linear layers are replaced in place.

    The selectors stay as they are: an error there would change which keys are kept instead of perturbing a value.

    Args:
        layers: its layers.
        projection: to scores of all words.

    Raises:
        Unsupported: a part of it is something that no kernel computes.
    """
    if retain_dropout:
        raise Unsupported("--retain-dropout")
    if backend_for(next(layers.parameters()).device, run.backend) != "triton":
        raise Unsupported("a GPU without Triton's kernels")
    for layer in layers:
        check_parts(layer)  # type: ignore[arg-type]
    if not run.int8:
        return EightBits(None, run.int8_cache)
    if not isinstance(projection, nn.Linear):
        raise Unsupported("an expanded table of words")
    output = quantise_linear(projection.weight, projection.bias)
    quantise(layers)
    return EightBits(output, run.int8_cache)
