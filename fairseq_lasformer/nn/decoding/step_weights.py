"""Weights for decoding steps that replace the decoder's own: packed on a CPU, joined on a GPU."""

from typing import NamedTuple

from fairseq_lasformer.nn.decoding.packed_stack import PackedStack
from fairseq_lasformer.nn.decoding.step_products import AttentionProducts
from fairseq_lasformer.ops import PackedLinear


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
