"""The public calls: which keys are kept, attention over them, and the supervision of the selector.

``reference`` defines them in plain PyTorch; the calls here do the same in blocks of query rows.
"""

from fairseq_lasformer.ops.attention import selected_attention
from fairseq_lasformer.ops.backends import BACKENDS, backend_for
from fairseq_lasformer.ops.decoding import attend_slots, select_slots
from fairseq_lasformer.ops.full_pass import attend_tiles, select_bits, select_pass, sparse_pass, tile_pass
from fairseq_lasformer.ops.reference import KAPPA_ONE, MIN_KEYS, Allowed, Paths, Slots, Supervision
from fairseq_lasformer.ops.selection import select_mask
from fairseq_lasformer.ops.supervision import supervise
from fairseq_lasformer.ops.window import window_mask, window_slots

__all__ = [
    "BACKENDS",
    "KAPPA_ONE",
    "MIN_KEYS",
    "Allowed",
    "Paths",
    "Slots",
    "Supervision",
    "attend_slots",
    "attend_tiles",
    "backend_for",
    "select_bits",
    "select_mask",
    "select_pass",
    "select_slots",
    "selected_attention",
    "sparse_pass",
    "supervise",
    "tile_pass",
    "window_mask",
    "window_slots",
]
