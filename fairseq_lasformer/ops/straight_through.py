"""The straight-through gradient of a selector's projections if only the kept keys are attended to (see ``attend``).

Unlike the gradients of queries, keys and values, it needs every allowed key. It is computed for a sample of the
queries.
"""

import torch
from torch import Tensor

from fairseq_lasformer.ops.attend import selector_gradient
from fairseq_lasformer.ops.blocks import query_blocks
from fairseq_lasformer.ops.cpu.rows import mask_gradient, shift_own_
from fairseq_lasformer.ops.dropout import factors
from fairseq_lasformer.ops.types import Attended, AttentionMask, DropoutMask, StraightThrough


def through_gradient(
    attended: Attended, mask: AttentionMask, through: StraightThrough, dropout: DropoutMask
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the selector's projections.

    Args:
        attended: the attention and the gradient of its result.
        through: the projections and the queries.
        dropout: dropout of the attention weights, see :func:`dropout.factors`.
    """
    q, k, v, out, d_out, lse, shift = attended
    sel_q, sel_k, bounded, sample = through
    (n_batch, n_heads, n_queries, width), device = q.shape, q.device
    d_sel_q, d_sel_k = torch.zeros_like(sel_q), torch.zeros_like(sel_k)
    own_q, own_d, own_out, own_lse = (sample.of(t, 2) for t in (q, d_out, out, lse))
    own_sel, own_d_sel = sample.of(sel_q, 1), sample.of(d_sel_q, 1)
    heads = torch.arange(n_batch * n_heads, device=device).view(n_batch, n_heads, 1, 1) * n_queries
    for rows, n_seen, allowed in query_blocks(n_heads, sel_q.shape, k.size(2), mask, device, sample):
        d_rows = own_d[:, :, rows]
        scores = torch.matmul(own_q[:, :, rows] * width**-0.5, k[:, :, :n_seen].transpose(2, 3)).float()
        numbers = torch.arange(sample.offset, n_queries, sample.stride, device=device)[rows]
        if shift is not None and mask.own is not None:
            shift_own_(scores, mask.own.of(numbers), shift[:, :, numbers])
        others = mask.others(allowed, n_seen, numbers)
        d_weights = torch.matmul(d_rows, v[:, :, :n_seen].transpose(2, 3)).float()
        if dropout.p > 0:
            d_weights.mul_(factors(dropout, numbers[:, None] + heads, torch.arange(n_seen, device=device)))
        delta = (d_rows.float() * own_out[:, :, rows].float()).sum(-1)
        d_mask = mask_gradient(scores, own_lse[:, :, rows], d_weights, delta, others, bounded)
        d_query, d_key = selector_gradient(d_mask.mul_(sample.stride), others, own_sel[:, rows], sel_k[:, :n_seen])
        own_d_sel[:, rows] = d_query
        d_sel_k[:, :n_seen] += d_key
    return d_sel_q, d_sel_k
