"""Attention over few kept keys in training: each row reads its own keys (CPUs).

Definition: ``reference.selected_attention``, with the selection as slots instead of a mask. The gradients of queries,
keys and values need only the kept keys; for the straight-through gradient see ``straight_through``.
"""

import torch
from torch import Tensor

from fairseq_lasformer.ops.attend import GradientOptions, gradient_options
from fairseq_lasformer.ops.cpu.rows import own_arguments
from fairseq_lasformer.ops.cpu.topk import topk_ranges
from fairseq_lasformer.ops.straight_through import through_gradient
from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    Attended,
    AttentionMask,
    DropoutMask,
    FunctionContext,
    KeptKeys,
    KeyIndex,
    RowSample,
    StraightThrough,
)


@torch.no_grad()
def topk_slots(sel_q: Tensor, sel_k: Tensor, index: KeyIndex, mask: AttentionMask, kappa: int) -> KeptKeys:
    """Select the kept keys of all queries (eq 1, 2) for :func:`gathered_attention`.

    Args:
        sel_q: [B, Q, S].
        sel_k: [B, K, S].
        index: the keys of each item.
        kappa: fraction of keys to keep, in millionths.

    Returns:
        kept keys of B * Q rows.
    """
    (n_batch, n_queries, _), n_keys = sel_q.shape, sel_k.size(1)
    counts = mask.counts(n_queries, n_keys, sel_q.device).expand(n_batch, n_queries)
    return topk_ranges(sel_q, sel_k, index.start, counts, mask.causal, kappa, mask.own)


def kept_mask(kept: KeptKeys, n_batch: int, n_keys: int, sample: RowSample = EVERY_ROW) -> Tensor:
    """Convert the kept keys of the sampled queries to a mask, bool [B, R, K]."""
    slots = sample.of(kept.indices.view(n_batch, -1, kept.indices.size(1)), 1).long()
    # the last column receives the unused slots
    mask = torch.zeros(*slots.shape[:2], n_keys + 1, dtype=torch.bool, device=slots.device)
    mask.scatter_(2, slots.where(slots >= 0, n_keys), True)
    return mask[..., :n_keys]


def kept_of(mask: Tensor, slots: Tensor | None = None) -> KeptKeys:
    """Convert a mask of rows to kept keys.

    Args:
        mask: bool [R, K].
        slots: int64 [R, K], the slot of each key; None: key j is in slot j.
    """
    counts = mask.sum(-1, dtype=torch.int32)
    if mask.is_cuda:
        return KeptKeys(_kept_of_any(mask, counts, slots), counts)
    rows, columns = mask.nonzero(as_tuple=True)
    first = counts.long().cumsum(0) - counts
    listed = torch.full((mask.size(0), max(1, int(counts.max()))), -1, dtype=torch.int32)
    kept = columns if slots is None else slots[rows, columns]
    listed[rows, torch.arange(rows.numel()) - first[rows]] = kept.int()
    return KeptKeys(listed, counts)


def own_first(kept: KeptKeys, own: KeptKeys) -> KeptKeys:
    """Return the keys of each row's own line, and after them the kept keys that are not among them."""
    more = (kept.indices >= 0) & (kept.indices[:, :, None] != own.indices[:, None]).all(2)
    both = torch.cat([own.indices, kept.indices.masked_fill(~more, -1)], 1)
    order = (both < 0).int().argsort(dim=1, stable=True)
    return KeptKeys(both.gather(1, order), own.counts + more.sum(1, dtype=torch.int32))


def _kept_of_any(mask: Tensor, counts: Tensor, slots: Tensor | None) -> Tensor:
    """Convert as above with the maximum width; finding the longest row would make the host wait for a GPU."""
    order = mask.int().argsort(dim=-1, descending=True, stable=True)
    chosen = order if slots is None else slots.gather(1, order)
    unused = torch.arange(mask.size(1), device=mask.device) >= counts[:, None]
    return chosen.masked_fill(unused, -1).int()


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: KeptKeys,
    mask: AttentionMask,
    through: StraightThrough | None = None,
    dropout_p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute attention over the kept keys (eq 3).

    Args:
        q, k, v: [B, H, Q or K, D], float32 or bfloat16.
        kept: kept keys of B * Q rows.
        through: receiver of the straight-through gradient; None: none.
        dropout_p: dropout probability of the attention weights.
        bias: b_h [H], with own lines, see ``reference.line_bias``.

    Returns:
        [B, H, Q, D] in q's dtype; 0 for rows without kept keys.
    """
    sel_q, sel_k, how = gradient_options(through, DropoutMask.drawn(dropout_p))
    shift = mask.shift(bias, q.size(2), k.size(2))
    return _GatheredAttention.apply(q, k, v, shift, kept, mask, sel_q, sel_k, how)


class _GatheredAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shift: Tensor | None,
        kept: KeptKeys,
        mask: AttentionMask,
        sel_q: Tensor | None,
        sel_k: Tensor | None,
        how: GradientOptions,
    ) -> Tensor:
        q, k, v = (t.contiguous() for t in (q, k, v))  # each head's keys are contiguous
        lines = own_arguments(mask.own, shift)
        out, lse = torch.ops.fairseq_lasformer.gather_forward(q, k, v, *kept, *how.dropout, *lines)
        ctx.save_for_backward(q, k, v, *kept, mask.key_padding, sel_q, sel_k, out, lse, shift)
        ctx.causal, ctx.how, ctx.own = mask.causal, how, mask.own
        return out.transpose(1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, slots, counts, key_padding, sel_q, sel_k, out, lse, shift = ctx.saved_tensors
        bounded, sample, dropout = ctx.how
        *gradients, d_shift = torch.ops.fairseq_lasformer.gather_backward(
            d_out.transpose(1, 2), q, k, v, slots, counts, out, lse, *dropout, *own_arguments(ctx.own, shift)
        )
        gradients.append(None if shift is None else d_shift)
        if sel_q is None or not (sel_q.requires_grad or sel_k.requires_grad):
            return (*gradients, *[None] * 5)
        attended = Attended(q, k, v, out.transpose(1, 2), d_out, lse, shift)
        mask = AttentionMask(key_padding, ctx.causal, own=ctx.own)
        through = through_gradient(attended, mask, StraightThrough(sel_q, sel_k, bounded, sample), dropout)
        return (*gradients, None, None, *through, None)
