"""Weights for decoding steps that replace the decoder's own: packed on a CPU, joined on a GPU."""

from typing import NamedTuple

from fairseq_lasformer.nn.decoding.packed_stack import PackedStack
from fairseq_lasformer.nn.decoding.step_products import AttentionProducts
from fairseq_lasformer.ops import PackedLinear


class PackedDecoder(NamedTuple):
    """Packed weights that a decoder on a CPU reads in a step."""

    stack: PackedStack
    output: PackedLinear  # the projection to scores of all words
    of: tuple[tuple[int, int], ...]  # identifies the weights that were packed, see `LasformerDecoder._weights`


class Products(NamedTuple):
    """Products that a decoder on a GPU computes together in a step."""

    of_layers: tuple[AttentionProducts, ...]
    of: tuple[tuple[int, int], ...]  # identifies the weights that were copied, see `LasformerDecoder._weights`
