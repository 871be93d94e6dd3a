"""Public operations: key selection, attention over the kept keys, and supervision of the selector.

``reference`` defines each operation in plain PyTorch; the functions here compute the same in blocks of query rows.
"""

from fairseq_lasformer.ops import reference
from fairseq_lasformer.ops.attend import selected_attention
from fairseq_lasformer.ops.backends import BACKENDS, backend_for
from fairseq_lasformer.ops.beams import (
    LAST_RESORT,
    LineEnds,
    advance,
    count_lines,
    log_probabilities,
    restrict_lines,
    top_candidates,
)
from fairseq_lasformer.ops.choice import Choice, PassShape, choose
from fairseq_lasformer.ops.cpu.fixed import (
    activate,
    dense_attention,
    fuse_multiply_adds,
    layer_norm,
    log_softmax,
    topk_of_rows,
)
from fairseq_lasformer.ops.cpu.gather import gathered_attention, kept_mask, kept_of, own_first, topk_slots
from fairseq_lasformer.ops.cpu.packed import (
    GELU,
    GELU_TANH,
    NO_ACTIVATION,
    RELU,
    SWISH,
    PackedLinear,
    decode_step,
    pack_linear,
    quantise_heads,
)
from fairseq_lasformer.ops.cpu.topk import topk_gather
from fairseq_lasformer.ops.decode import attend_kept, topk_indices
from fairseq_lasformer.ops.dropout import dropout
from fairseq_lasformer.ops.gpu.step import add_norm, append, linear_relu
from fairseq_lasformer.ops.gpu.teacher import bitmask_of, fits, mask_of, tiled_supervise
from fairseq_lasformer.ops.gpu.tiles import allowed_bitmask, tiled_attention, topk_bitmask
from fairseq_lasformer.ops.rotary import PAIRS, n_pairs, rotate, rotate_heads
from fairseq_lasformer.ops.select import topk_mask
from fairseq_lasformer.ops.supervise import supervise
from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    KAPPA_ONE,
    MIN_KEYS,
    AttentionMask,
    EightBit,
    FunctionContext,
    KeptKeys,
    KeyIndex,
    OwnLines,
    OwnShift,
    RowSample,
    StraightThrough,
    Supervision,
    Teachers,
)

__all__ = [
    "AttentionMask",
    "BACKENDS",
    "Choice",
    "EVERY_ROW",
    "EightBit",
    "FunctionContext",
    "GELU",
    "GELU_TANH",
    "KAPPA_ONE",
    "KeptKeys",
    "KeyIndex",
    "LAST_RESORT",
    "LineEnds",
    "MIN_KEYS",
    "NO_ACTIVATION",
    "OwnLines",
    "OwnShift",
    "PAIRS",
    "PackedLinear",
    "PassShape",
    "RELU",
    "RowSample",
    "SWISH",
    "StraightThrough",
    "Supervision",
    "Teachers",
    "activate",
    "add_norm",
    "advance",
    "allowed_bitmask",
    "append",
    "attend_kept",
    "backend_for",
    "bitmask_of",
    "choose",
    "count_lines",
    "decode_step",
    "dense_attention",
    "dropout",
    "fits",
    "fuse_multiply_adds",
    "gathered_attention",
    "kept_mask",
    "kept_of",
    "layer_norm",
    "linear_relu",
    "log_probabilities",
    "log_softmax",
    "mask_of",
    "n_pairs",
    "own_first",
    "pack_linear",
    "quantise_heads",
    "reference",
    "restrict_lines",
    "rotate",
    "rotate_heads",
    "selected_attention",
    "supervise",
    "tiled_attention",
    "tiled_supervise",
    "top_candidates",
    "topk_bitmask",
    "topk_gather",
    "topk_indices",
    "topk_mask",
    "topk_of_rows",
    "topk_slots",
]
