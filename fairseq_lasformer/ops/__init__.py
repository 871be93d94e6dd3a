"""The public calls: which keys are kept, attention over them, and the supervision of the selector.

``reference`` defines them in plain PyTorch; the calls here do the same in blocks of query rows.
"""

from fairseq_lasformer.ops.attention import selected_attention
from fairseq_lasformer.ops.reference import KAPPA_ONE, MIN_KEYS, Allowed, Supervision, attend_selected
from fairseq_lasformer.ops.selection import select_index, select_mask
from fairseq_lasformer.ops.supervision import supervise

__all__ = [
    "KAPPA_ONE",
    "MIN_KEYS",
    "Allowed",
    "Supervision",
    "attend_selected",
    "select_index",
    "select_mask",
    "selected_attention",
    "supervise",
]
