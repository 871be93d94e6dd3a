"""Supervision of the selector, its kept mass and recall (arXiv 2309.14174, eq 4-7), in blocks of queries.

Definition: ``reference.supervise``. No [B, H, Q, K] tensor larger than one block is allocated. The loss is a sum over
rows, so the gradient of a row is known as soon as its loss is. The forward pass computes both in one sweep and saves
only the gradients, [B, *, width] each. Those of a sample of the queries are computed in the backward pass. With A the
mean over heads and layers of the full attention A_h, and l a row's loss:

    forward KL(A || A_s):   dS_s = A_s - A,                      gA = log A - log A_s + 1
    reverse KL(A_s || A):   dS_s = A_s (log A_s - log A - l),    gA = -A_s / A
    live target:            dS_h = A_h (gA - Sum_j A_h gA) / (H r)

With own lines, P = A / m over the other keys takes the place of A, and m is a constant factor of l and dS_s:

    forward:   gA = log P - log A_s - KL          reverse:   gA = 1 - A_s / P          and 0 on the own line

In half precision these gradients would underflow (they are of the order of 1 / K^2 where attention is broad), and the
loss scale is only known in the backward pass: every block, and the saved sums, are scaled by a power of two first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.blocks import add_product_, fill_disallowed, query_blocks, softmax_
from fairseq_lasformer.ops.cpu.rows import shift_own_, softmax_gradient_, softmax_mean_
from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    AttentionMask,
    FunctionContext,
    RowSample,
    Supervision,
    Teachers,
)


def supervise(
    sel_q: Tensor,
    sel_k: Tensor,
    teachers: Teachers,
    keep_mask: Tensor,
    mask: AttentionMask,
    sample: RowSample = EVERY_ROW,
) -> Supervision:
    """Supervise a selector by the full attention of the layers it serves (eq 4-6), and measure the kept mass (eq 7).

    Args:
        sel_q, sel_k: [B, Q or K, S].
        keep_mask: bool [B, R, K], True for kept keys of the sampled queries.
        sample: the queries to learn from. The loss is scaled by the stride: averaged over all offsets, it and its
            gradient equal those over all queries. The masses are the means of the sampled queries, times the number of
            all queries, which varies less.
    """
    queries, keys, query_padding, kl, _, biases = teachers.detached()
    how = _How(query_padding, kl, sample, [mask.shift(bias, sel_q.size(1), sel_k.size(1)) for bias in biases])
    return Supervision(*_Supervise.apply(sel_q, sel_k, keep_mask, mask, how, *queries, *keys))


class _How(NamedTuple):
    """Needs of a teacher besides projections and mask; ``shifts``: of each layer, :meth:`AttentionMask.shift`."""

    query_padding: Tensor | None
    kl: str
    sample: RowSample
    shifts: list[Tensor | None]


class _Supervise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        sel_q: Tensor,
        sel_k: Tensor,
        keep_mask: Tensor,
        mask: AttentionMask,
        how: _How,
        *projections: Tensor,
    ) -> tuple[Tensor, ...]:
        sample, n_layers = how.sample, len(projections) // 2
        teacher = _BlockedTeacher(sel_q, sel_k, projections[:n_layers], projections[n_layers:], mask, how)
        ctx.live = any(ctx.needs_input_grad[5:])
        ctx.kept = None
        if not (ctx.live or ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            totals = teacher.sweep(keep_mask, None)
        elif sample.stride == 1:
            gradients = teacher.gradients(ctx.live)
            totals = teacher.sweep(keep_mask, gradients)
            saved = gradients.in_dtype()
            ctx.save_for_backward(*(g for g, _ in saved))
            ctx.kept = [unit for _, unit in saved]
        else:  # a sample is cheap to recompute, and its gradients are as large as those of all queries
            totals = teacher.sweep(keep_mask, None)
            ctx.mask, ctx.how = mask, how
            ctx.save_for_backward(sel_q, sel_k, *projections)
        ctx.n_layers = n_layers
        every = teacher.valid
        n_valid = every.sum()
        if sample.stride > 1:
            totals[0] *= sample.stride
            totals[1:] *= n_valid / sample.of(every, 1).sum().clamp(min=1)
        loss, mass, recall, elsewhere = totals.to(teacher.compute)
        ctx.mark_non_differentiable(mass, recall, n_valid, elsewhere)
        return loss, mass, recall, n_valid, elsewhere

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.kept is not None:
            saved = list(zip(ctx.saved_tensors, ctx.kept))
        else:
            n, (sel_q, sel_k, *projections) = ctx.n_layers, ctx.saved_tensors
            teacher = _BlockedTeacher(sel_q, sel_k, projections[:n], projections[n:], ctx.mask, ctx.how)
            gradients = teacher.gradients(ctx.live)
            teacher.sweep(None, gradients)
            saved = gradients.in_dtype()
        d_sel_q, d_sel_k, *d_projections = ((g.to(d_loss.dtype) * (d_loss * unit)).to(g.dtype) for g, unit in saved)
        padded = d_projections or [None] * (2 * ctx.n_layers)
        return (d_sel_q, d_sel_k, None, None, None, *padded)


class _BlockedTeacher:
    """The full attention of a group's layers, and the selector that learns from it, in blocks of queries."""

    def __init__(
        self,
        sel_q: Tensor,
        sel_k: Tensor,
        queries: Sequence[Tensor],
        keys: Sequence[Tensor],
        mask: AttentionMask,
        how: _How,
    ) -> None:
        self.sel_q, self.sel_k, self.queries, self.keys = sel_q, sel_k, queries, keys
        self.mask, (query_padding, self.kl, self.sample, self.shifts) = mask, how
        self.compute = torch.promote_types(sel_q.dtype, torch.float32)
        n_batch, n_queries = sel_q.shape[:2]
        self.valid = (mask.counts(n_queries, sel_k.size(1), sel_q.device) > 0).expand(n_batch, n_queries)
        if query_padding is not None:
            self.valid = self.valid & ~query_padding

    def gradients(self, live: bool) -> _Gradients:
        """Allocate the gradients."""
        return _Gradients(self.sel_q, self.sel_k, self.queries, self.keys, live, self.sample)

    def sweep(self, keep_mask: Tensor | None, gradients: _Gradients | None) -> Tensor:
        """Process all blocks of the sampled queries.

        Args:
            keep_mask: bool [B, R, K], for the sums; None: they are not needed.
            gradients: gradients are added here; None: they are not needed.

        Returns:
            sums over the queries of the loss, the kept mass, the recall and what is read elsewhere, float64 [4]; 0
            without ``keep_mask``.
        """
        compute, sample, n_keys = self.compute, self.sample, self.sel_k.size(1)
        totals = torch.zeros(4, dtype=torch.float64, device=self.sel_q.device)
        sampled, own_q = sample.of(self.valid, 1), sample.of(self.sel_q, 1)
        own_queries = [sample.of(q, 2) for q in self.queries]
        n_heads = self.queries[0].size(1) * len(self.queries)
        every = torch.arange(sample.offset, self.sel_q.size(1), sample.stride, device=self.sel_q.device)
        for rows, n_seen, allowed in query_blocks(
            n_heads, self.sel_q.shape, n_keys, self.mask, self.sel_q.device, sample
        ):
            numbers = every[rows]
            others = self.mask.others(allowed, n_seen, numbers)
            sel, log_sel = _selector(own_q[:, rows], self.sel_k[:, :n_seen], others, compute)
            attention, heads = self._attention([q[:, :, rows] for q in own_queries], numbers, n_seen, allowed)
            tiny, elsewhere, weight = torch.finfo(compute).tiny, attention, None
            if self.mask.own is not None:
                elsewhere = fill_disallowed(attention.clone(), others, 0.0)
                weight = elsewhere.sum(-1, keepdim=True)
                elsewhere = elsewhere / weight.clamp(min=tiny)
            log_ratio = elsewhere.clamp(min=tiny).log_().sub_(log_sel)
            fill_disallowed(log_ratio, others, 0.0)
            row_kl = (elsewhere * log_ratio).sum(-1) if self.kl == "forward" else -(sel * log_ratio).sum(-1)
            valid = sampled[:, rows]
            if keep_mask is not None:
                kept = keep_mask[:, rows, :n_seen].to(compute)
                read = torch.ones_like(row_kl) if weight is None else weight[..., 0]
                recall = (attention if weight is None else fill_disallowed(attention * kept, others, 0.0)) * kept
                sums = torch.stack([row_kl * read, (sel * kept).sum(-1) * read, recall.sum(-1), read])
                totals += (sums * valid).sum((1, 2), dtype=torch.float64)
            if gradients is None:
                continue
            if self.kl == "forward":
                d_sel, d_attention = sel - elsewhere, log_ratio.add_(1.0 if weight is None else -row_kl[..., None])
            else:
                d_sel = -sel * (log_ratio + row_kl[..., None])
                d_attention = -sel / elsewhere.clamp(min=tiny)
                d_attention = d_attention if weight is None else d_attention.add_(1.0)
            if weight is not None:
                d_sel = d_sel.mul_(weight)
                fill_disallowed(d_attention, others, 0.0)
            count = valid[..., None].to(compute).mul_(sample.stride)
            gradients.add_selector(d_sel.mul_(count), rows, n_seen)
            if gradients.live:
                gradients.add_heads(d_attention, count, heads, rows, n_seen)
        return totals

    def _attention(
        self, queries: Sequence[Tensor], rows: Tensor, n_seen: int, allowed: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the mean A of the full attention of all layers' heads over a block, and each layer's A_h.

        Args:
            queries: [B, H, rows, D] of each layer; ``rows``: their numbers.
        """
        share, scale = 1.0 / (queries[0].size(1) * len(queries)), queries[0].size(-1) ** -0.5
        heads = []
        n_batch, _, n_rows, _ = queries[0].shape
        attention = queries[0].new_zeros((n_batch, n_rows, n_seen), dtype=self.compute)
        for q, k, shift in zip(queries, self.keys, self.shifts):
            scores = torch.matmul(q * scale, k[:, :, :n_seen].transpose(2, 3)).to(self.compute)
            if shift is not None and self.mask.own is not None:
                shift_own_(scores, self.mask.own.of(rows), shift[:, :, rows])
            heads.append(softmax_mean_(scores, allowed, attention, share))
        return attention, heads


def _selector(q: Tensor, k: Tensor, allowed: Tensor | None, compute: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the selector's distribution A_s over a block, and its logarithm (0 where not allowed)."""
    log_sel = torch.matmul(q.to(compute) * q.size(-1) ** -0.5, k.to(compute).transpose(1, 2))
    fill_disallowed(log_sel, allowed, float("-inf"))
    sel, norm = softmax_(log_sel.clone())
    log_sel.sub_(norm)
    return sel, fill_disallowed(log_sel, allowed, 0.0)


class _Gradients:
    """The gradients of the loss, added up block by block.

    Args:
        sel_q, sel_k: [B, Q or K, S].
        queries, keys: one [B, H, Q or K, D] per layer.
        live: whether the heads also get gradients.
        sample: the queries with gradients; the others get 0.
    """

    def __init__(
        self,
        sel_q: Tensor,
        sel_k: Tensor,
        queries: Sequence[Tensor],
        keys: Sequence[Tensor],
        live: bool,
        sample: RowSample,
    ) -> None:
        self.sel_q, self.sel_k, self.queries, self.keys = sel_q, sel_k, queries, keys
        self.sample, self.live = sample, live
        self.sel_scale, self.scale = sel_q.size(-1) ** -0.5, queries[0].size(-1) ** -0.5
        self.share = 1.0 / (queries[0].size(1) * len(queries))
        self.d_sel_q, self.d_sel_k = _sums_like(sel_q), _sums_like(sel_k)
        self.dq = [_sums_like(q) for q in queries] if live else []
        self.dk = [_sums_like(k) for k in keys] if live else []

    def add_selector(self, d_scores: Tensor, rows: slice, n_seen: int) -> None:
        """Add a block's gradients of the selector's scores, [B, rows, n_seen]."""
        d_scores, unit = _scaled(d_scores, self.sel_q.dtype)
        d_queries = torch.matmul(d_scores, self.sel_k[:, :n_seen]) * (self.sel_scale * unit)
        self.sample.of(self.d_sel_q, 1)[:, rows] = d_queries
        queries = self.sample.of(self.sel_q, 1)[:, rows] * self.sel_scale
        add_product_(self.d_sel_k[:, :n_seen], d_scores, queries, unit)

    def add_heads(self, d_attention: Tensor, count: Tensor, heads: Sequence[Tensor], rows: slice, n_seen: int) -> None:
        """Add a block's gradients of the heads' scores.

        Args:
            d_attention: gradient of the mean attention A, [B, rows, n_seen]; overwritten.
            count: [B, rows, 1], 0 for queries to ignore; otherwise the number of queries that each represents.
            heads: A_h of each layer, [B, H, rows, n_seen]; overwritten.
        """
        d_attention = d_attention.mul_(count * self.share)
        for layer, weights in enumerate(heads):
            d_scores, unit = _scaled(softmax_gradient_(weights, d_attention), self.queries[layer].dtype)
            queries, keys = self.sample.of(self.queries[layer], 2)[:, :, rows], self.keys[layer][:, :, :n_seen]
            self.sample.of(self.dq[layer], 2)[:, :, rows] = torch.matmul(d_scores, keys) * (self.scale * unit)
            add_product_(self.dk[layer][:, :, :n_seen], d_scores, queries * self.scale, unit)

    def in_dtype(self) -> list[tuple[Tensor, Tensor | float]]:
        """Return all gradients in their projections' dtype, each with the factor to multiply it by."""
        like = (self.sel_q, self.sel_k, *self.queries, *self.keys)
        return [_scaled(g, x.dtype) for g, x in zip((self.d_sel_q, self.d_sel_k, *self.dq, *self.dk), like)]


def _sums_like(x: Tensor) -> Tensor:
    """Return zeros for accumulating gradients, in float32 for half precision."""
    return x.new_zeros(x.shape, dtype=torch.float32 if x.dtype == torch.float16 else x.dtype)


def _scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | float]:
    """Convert ``x`` to ``dtype``; return it with the factor to multiply it by.

    The factor is 1, except in half precision: there it is a power of two that brings the largest value close to 1, so
    that neither small values nor sums over thousands of them leave the range of the dtype.
    """
    if dtype != torch.float16:
        return x.to(dtype), 1.0
    exponent = torch.frexp(x.detach().abs().amax().float()).exponent
    unit = torch.ldexp(torch.ones((), device=x.device), exponent)
    return (x / unit).to(dtype), unit
