"""Public operations: key selection, attention over the kept keys, and supervision of the selector.

``reference`` defines each operation in plain PyTorch; the functions here compute the same in blocks of query rows.
"""

from fairseq_lasformer.ops.attend import selected_attention
from fairseq_lasformer.ops.backends import BACKENDS, backend_for
from fairseq_lasformer.ops.decode import attend_kept, topk_indices
from fairseq_lasformer.ops.gather import gathered_attention, gathers, kept_mask, topk_slots
from fairseq_lasformer.ops.packed import PackedLinear, decode_step, pack_linear, quantise_heads
from fairseq_lasformer.ops.prefill import gather_index, topk_gather
from fairseq_lasformer.ops.select import topk_mask
from fairseq_lasformer.ops.supervise import supervise
from fairseq_lasformer.ops.tiled_teacher import bitmask_of, mask_of, tiled_supervise
from fairseq_lasformer.ops.tiles import tiled_attention, topk_bitmask, uses_tiles
from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    KAPPA_ONE,
    MIN_KEYS,
    AttentionMask,
    KeptKeys,
    KeyIndex,
    RowSample,
    StraightThrough,
    Supervision,
    Teachers,
)

__all__ = [
    "BACKENDS",
    "EVERY_ROW",
    "KAPPA_ONE",
    "MIN_KEYS",
    "AttentionMask",
    "KeyIndex",
    "KeptKeys",
    "PackedLinear",
    "RowSample",
    "StraightThrough",
    "Supervision",
    "Teachers",
    "attend_kept",
    "backend_for",
    "bitmask_of",
    "decode_step",
    "topk_bitmask",
    "topk_mask",
    "topk_gather",
    "topk_indices",
    "topk_slots",
    "selected_attention",
    "gather_index",
    "gathered_attention",
    "gathers",
    "kept_mask",
    "mask_of",
    "pack_linear",
    "quantise_heads",
    "supervise",
    "tiled_attention",
    "tiled_supervise",
    "uses_tiles",
]
