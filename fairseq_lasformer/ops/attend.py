"""Attention over the kept keys (arXiv 2309.14174, eq 3) with no [B, H, Q, K] tensor larger than one block of queries.

Definition: ``reference.selected_attention``. The forward pass saves the projections, the output and one log-normaliser
per query; the backward pass recomputes the scores block by block. With M the mask of kept keys, L the log-normaliser
over them, P = exp(S - L) M and delta = dO . O:

    dV = P^T dO,   dS = P (dO . V - delta)
    dM_j = Sum_h w_hj (dO_h . V_hj - delta_h)                 for every allowed j, kept or not
    dS_s = A_s (dM - Sum_j A_s dM)                            straight-through: M + A_s - sg(A_s)

Differentiating eq 3 gives w_hj = exp(S_hj - L_h); if bounded, w_hj = min(1, exp(S_hj - L_h)), see ``reference``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.blocks import add_product_, fill_disallowed, query_blocks, softmax_
from fairseq_lasformer.ops.cpu.rows import kept_gradient_, kept_softmax_, mask_gradient, shift_own_, sum_own
from fairseq_lasformer.ops.dropout import dropped
from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    AttentionMask,
    DropoutMask,
    FunctionContext,
    RowSample,
    StraightThrough,
)


def selected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_mask: Tensor,
    mask: AttentionMask,
    through: StraightThrough | None = None,
    dropout_p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute attention over the kept keys (eq 3).

    Args:
        q, k, v: [B, H, Q or K, D].
        keep_mask: bool [B, Q, K], True for kept keys.
        mask: attention mask, a superset of ``keep_mask``.
        through: receiver of the straight-through gradient; None: none.
        dropout_p: dropout probability of the attention weights.
        bias: b_h [H], with own lines, see ``reference.line_bias``.

    Returns:
        [B, H, Q, D] in q's dtype; 0 for rows without kept keys.
    """
    sel_q, sel_k, how = gradient_options(through, DropoutMask.drawn(dropout_p))
    shift = mask.shift(bias, q.size(2), k.size(2))
    return _SelectedAttention.apply(q, k, v, shift, keep_mask, mask, sel_q, sel_k, how)


class GradientOptions(NamedTuple):
    """Options of a backward pass: see :class:`StraightThrough` and :class:`DropoutMask`."""

    bounded: bool
    sample: RowSample
    dropout: DropoutMask


def gradient_options(
    through: StraightThrough | None, dropout: DropoutMask
) -> tuple[Tensor | None, Tensor | None, GradientOptions]:
    """Separate the projections, which autograd has to see, from the options."""
    if through is None:
        return None, None, GradientOptions(True, EVERY_ROW, dropout)
    return through.query, through.key, GradientOptions(through.bounded, through.sample, dropout)


def _dropped(x: Tensor, mask: DropoutMask, start: int) -> Tensor:
    """Apply dropout to a block of queries [B, H, rows, K], the first of which is ``start``."""
    return dropped(x, mask._replace(seed=int(mask.seed) + start)) if mask.p > 0 else x


class _SelectedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shift: Tensor | None,
        keep_mask: Tensor,
        mask: AttentionMask,
        sel_q: Tensor | None,
        sel_k: Tensor | None,
        how: GradientOptions,
    ) -> Tensor:
        out, lse = (
            torch.empty_like(q),
            q.new_empty(q.shape[:3], dtype=torch.float32 if q.element_size() < 8 else q.dtype),
        )
        scale = q.size(-1) ** -0.5
        keys = k.transpose(2, 3)
        for rows, n_seen, _ in query_blocks(q.size(1), keep_mask.shape, k.size(2), mask, q.device):
            scores = torch.matmul(q[:, :, rows] * scale, keys[..., :n_seen]).to(lse.dtype)
            if shift is not None and mask.own is not None:
                shift_own_(scores, mask.own.of(rows), shift[:, :, rows])
            weights, lse[:, :, rows] = kept_softmax_(scores, keep_mask[:, rows, :n_seen])
            weights = _dropped(weights, how.dropout, rows.start)
            out[:, :, rows] = torch.matmul(weights.to(v.dtype), v[:, :, :n_seen])
        ctx.save_for_backward(q, k, v, keep_mask, mask.key_padding, sel_q, sel_k, out, lse, shift)
        ctx.causal, ctx.how, ctx.own = mask.causal, how, mask.own
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep_mask, key_padding, sel_q, sel_k, out, lse, shift = ctx.saved_tensors
        mask = AttentionMask(key_padding, ctx.causal, own=ctx.own)
        through = sel_q is not None and (sel_q.requires_grad or sel_k.requires_grad)
        scale, compute, (bounded, sample, dropout) = q.size(-1) ** -0.5, lse.dtype, ctx.how
        dq, dk, dv = torch.empty_like(q), k.new_zeros(k.shape), v.new_zeros(v.shape)
        # empty placeholders if the selector gets no gradient
        d_sel_q, d_sel_k = (torch.zeros_like(t if through else q[..., :0]) for t in (sel_q, sel_k))
        d_shift = None if shift is None else torch.empty_like(shift)
        delta = (d_out.to(compute) * out.to(compute)).sum(-1)
        for rows, n_seen, allowed in query_blocks(q.size(1), keep_mask.shape, k.size(2), mask, q.device):
            queries, d_rows = q[:, :, rows] * scale, d_out[:, :, rows].contiguous()
            scores = torch.matmul(queries, k[:, :, :n_seen].transpose(2, 3)).to(compute)
            if shift is not None and mask.own is not None:
                shift_own_(scores, mask.own.of(rows), shift[:, :, rows])
            d_weights = torch.matmul(d_rows, v[:, :, :n_seen].transpose(2, 3)).to(compute)
            d_weights = _dropped(d_weights, dropout, rows.start)
            inside = sample.within(rows)
            if through and inside.start < inside.stop:
                others = mask.others(allowed, n_seen, rows)
                others = None if others is None else others[:, inside]
                d_mask = mask_gradient(
                    scores[:, :, inside],
                    lse[:, :, rows][:, :, inside],
                    d_weights[:, :, inside],
                    delta[:, :, rows][:, :, inside],
                    others,
                    bounded,
                ).mul_(sample.stride)
                d_query, d_key = selector_gradient(d_mask, others, sel_q[:, rows][:, inside], sel_k[:, :n_seen])
                d_sel_q[:, rows][:, inside] = d_query
                d_sel_k[:, :n_seen] += d_key
            keep = keep_mask[:, rows, :n_seen]
            weights, d_scores = kept_gradient_(scores, d_weights, lse[:, :, rows], delta[:, :, rows], keep)
            weights = _dropped(weights, dropout, rows.start)
            if d_shift is not None and mask.own is not None:
                d_shift[:, :, rows] = sum_own(d_scores, mask.own.of(rows))
            d_scores, weights = d_scores.to(q.dtype), weights.to(v.dtype)
            add_product_(dv[:, :, :n_seen], weights, d_rows)
            dq[:, :, rows] = torch.matmul(d_scores, k[:, :, :n_seen]) * scale
            add_product_(dk[:, :, :n_seen], d_scores, queries)
        return (dq, dk, dv, d_shift, None, None, *((d_sel_q, d_sel_k) if through else (None, None)), None)


def selector_gradient(d_mask: Tensor, allowed: Tensor | None, sel_q: Tensor, sel_k: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the straight-through gradient of the selector's projections in a block of queries.

    Args:
        d_mask: gradient of the mask of kept keys, [B, rows, K]; overwritten.
        allowed: bool [B or 1, rows, K]; None if every key is allowed.
        sel_q, sel_k: [B, rows or K, S].

    Returns:
        gradients of ``sel_q`` and ``sel_k``.
    """
    scale = sel_q.size(-1) ** -0.5
    soft = torch.matmul(sel_q * scale, sel_k.transpose(1, 2)).to(d_mask.dtype)
    soft, _ = softmax_(fill_disallowed(soft, allowed, float("-inf")))
    d_soft = (soft * d_mask.sub_((soft * d_mask).sum(-1, keepdim=True))).to(sel_q.dtype)
    return torch.matmul(d_soft, sel_k) * scale, torch.matmul(d_soft.transpose(1, 2), sel_q * scale)
