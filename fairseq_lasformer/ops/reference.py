"""Reference implementation of :mod:`fairseq_lasformer.ops` in plain PyTorch, materialising all intermediate tensors.

Every other implementation is tested against this file, forward and backward. Equations: arXiv 2309.14174.

Shapes: B batch, H heads, Q queries, K keys, D head width, S selector width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_lasformer.ops.types import (
    EVERY_ROW,
    KAPPA_ONE,
    MIN_KEYS,
    AttentionMask,
    KeptKeys,
    KeyIndex,
    OwnLines,
    OwnShift,
    RowSample,
    StraightThrough,
    Supervision,
    Teachers,
)

LARGEST_EXPONENT = 80.0
"""Limit on exponents in the straight-through gradient: float32 overflows shortly beyond exp(80)."""


def keep_counts(n_allowed: Tensor, kappa: Tensor | int) -> Tensor:
    """Return k_i = min(n_i, max(10, ceil(kappa * n_i))).

    Args:
        n_allowed: int64, number of allowed keys per query, any shape.
        kappa: fraction of keys to keep, in millionths (:data:`KAPPA_ONE` is 1).
    """
    keep = torch.div(n_allowed * kappa + (KAPPA_ONE - 1), KAPPA_ONE, rounding_mode="floor")
    return torch.minimum(keep.clamp(min=MIN_KEYS), n_allowed)


def selector_scores(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """Compute S_s = Q_s K_s^T / sqrt(d_s) in float32 (eq 1), -inf where not allowed.

    Args:
        q: [B, Q, S].
        k: [B, K, S].
        allowed: bool [B, Q, K].
    """
    scores = torch.matmul(q.float(), k.float().transpose(1, 2)) * q.size(-1) ** -0.5
    return scores.masked_fill(~allowed, float("-inf"))


def select(scores: Tensor, keep: Tensor) -> Tensor:
    """Select the ``keep`` highest scores of each row (eq 2); ties go to the lowest index.

    Args:
        scores: [..., K], -inf where not allowed; NaN ranks lowest.
        keep: int64 [...], at most the number of allowed keys of the row.

    Returns:
        bool [..., K] with ``keep`` True entries in each row.
    """
    order = scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    order = order.argsort(dim=-1, descending=True, stable=True)
    first = torch.arange(scores.size(-1), device=scores.device) < keep[..., None]
    return torch.zeros_like(first).scatter(-1, order, first)


def topk_mask(sel_q: Tensor, sel_k: Tensor, mask: AttentionMask, kappa: int) -> Tensor:
    """Select the kept keys of all queries (eq 1, 2), bool [B, Q, K]; those of its own line are kept besides.

    Args:
        sel_q, sel_k: [B, Q or K, S].
        kappa: fraction of keys to keep, in millionths.
    """
    with torch.no_grad():
        allowed = mask.full(sel_q.size(0), sel_q.size(1), sel_k.size(1), sel_q.device)
        others = other_keys(mask, allowed)
        kept = select(selector_scores(sel_q, sel_k, others), keep_counts(others.sum(-1), kappa))
        return kept | (allowed & ~others)


def other_keys(mask: AttentionMask, allowed: Tensor) -> Tensor:
    """Return the allowed keys outside of each query's own line (R_i), bool [B, Q, K]; without own lines, all."""
    return allowed if mask.own is None else allowed & ~mask.own.among(allowed.size(-1))


def line_bias(bias: Tensor | None, mask: AttentionMask, allowed: Tensor) -> Tensor | float:
    """Compute what own lines add to the scores: b_h - log |R_i| to those of the keys outside of it, [B, H, Q, K].

    Own line and selection are read in one softmax. By its bias, a head weighs the mean of what it selects, whatever the
    document's length: with -inf, a document's lines are translated as if alone; without own lines, this is eq 3.

    Args:
        bias: b_h [H]; None without own lines.
    """
    if bias is None or mask.own is None:
        return 0.0
    others = other_keys(mask, allowed)
    each = bias[:, None] - others.sum(-1).clamp(min=1).to(bias.dtype).log()[:, None]
    return each[..., None] * others[:, None].to(bias.dtype)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Apply softmax over the keys where ``mask`` is True; a row without any is 0, not NaN."""
    scores = scores.masked_fill(~mask, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top.masked_fill(top == float("-inf"), 0.0)).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """Compute Q_h K_h^T / sqrt(d_h), [B, H, Q, K], from q [B, H, Q, D] and k [B, H, K, D]."""
    return torch.matmul(q, k.transpose(2, 3)) * q.size(-1) ** -0.5


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
    """Compute attention over the kept keys (eq 3), straight-through if a selector learns.

    The mask enters as M + A_s - sg(A_s): the forward value is that of the hard mask; the gradient reaches the selector.

    Args:
        q, k, v: [B, H, Q or K, D].
        keep_mask: bool [B, Q, K], True for kept keys.
        through: receiver of that gradient. If bounded, the weight of a key outside the selection is limited there to
            that of all kept keys together. Eq 3 has no such bound; without it, a key that the selector misses can
            dominate the gradient: starting from a trained dense model, gradient norms of 10^5 to 10^7 were observed and
            training diverged.
        dropout_p: dropout probability of the attention weights.
        bias: b_h [H], with own lines, see :func:`line_bias`.

    Returns:
        [B, H, Q, D]; 0 for rows without kept keys.
    """
    allowed, kept_keys = mask.full(keep_mask.size(0), q.size(2), k.size(2), q.device), keep_mask[:, None]
    scores = attention_scores(q, k) + line_bias(bias, mask, allowed)
    scores = scores.masked_fill(~allowed[:, None], float("-inf"))
    kept = kept_keys.to(scores.dtype)
    bound = scores.detach().masked_fill(~kept_keys, float("-inf")).logsumexp(-1, keepdim=True)
    bounded = through is None or through.bounded
    scores = torch.where(kept_keys, scores, torch.minimum(scores, bound + (0.0 if bounded else LARGEST_EXPONENT)))
    # subtracting the maximum of the kept keys changes neither the ratio nor its gradient
    top = scores.detach().masked_fill(~kept_keys, float("-inf")).amax(-1, keepdim=True)
    weights = (scores - top.masked_fill(top == float("-inf"), 0.0)).exp()
    if through is not None:
        soft = torch.matmul(through.query, through.key.transpose(1, 2)) * through.query.size(-1) ** -0.5
        soft = masked_softmax(soft, other_keys(mask, allowed))[:, None]
        learning = soft.new_zeros(q.size(2), 1)
        through.sample.of(learning, 0).fill_(through.sample.stride)
        kept = kept + ((soft - soft.detach()) * learning).to(scores.dtype)
    weights = weights * kept
    total = weights.sum(-1, keepdim=True)
    empty = ~keep_mask.any(-1)[:, None, :, None]
    weights = torch.nn.functional.dropout(weights / total.masked_fill(empty, 1.0), dropout_p)
    return torch.matmul(weights, v).masked_fill(empty, 0.0)


def supervise(
    sel_q: Tensor,
    sel_k: Tensor,
    teachers: Teachers,
    keep_mask: Tensor,
    mask: AttentionMask,
    sample: RowSample = EVERY_ROW,
) -> Supervision:
    """Supervise a selector by the full attention of the layers it serves (eq 4-6), and measure the kept mass (eq 7).

    With own lines, a selector learns how the attention to the other keys is distributed, P = A / m over R_i. Its loss
    is m KL(P || A_s), where m is the attention's mass on them: KL of two attentions that agree on the own line. As the
    weight of a query, m is a constant, or the loss would teach attention to stay at home. The kept mass is the mean of
    Sum_{j kept} A_s, where each query weighs m: over the whole attention it would be 1 before any other line is read,
    and kappa would fall to its minimum.

    Args:
        sel_q, sel_k: [B, Q or K, S].
        keep_mask: bool [B, R, K], True for kept keys of the sampled queries.
        sample: the queries to learn from. The loss is scaled by the stride; the masses are the means of the sampled
            queries, times the number of all.
    """
    (n_batch, n_queries, _), (queries, keys, padding, kl, _, biases) = sel_q.shape, teachers.detached()
    allowed = mask.full(n_batch, n_queries, sel_k.size(1), sel_q.device)
    every = allowed.any(-1) if padding is None else allowed.any(-1) & ~padding
    heads = []
    for q, k, bias in zip(queries, keys, biases):
        scores = attention_scores(q, k) + line_bias(bias, mask, allowed)
        heads.append(masked_softmax(sample.of(scores, 2), sample.of(allowed, 1)[:, None]).mean(1))
    attention = torch.stack(heads).mean(0)
    others, valid, sel_q = sample.of(other_keys(mask, allowed), 1), sample.of(every, 1), sample.of(sel_q, 1)
    log_sel = torch.matmul(sel_q, sel_k.transpose(1, 2)) * sel_q.size(-1) ** -0.5
    log_sel = log_sel.masked_fill(~others, -1e30).log_softmax(-1)
    sel, tiny = log_sel.exp() * others, torch.finfo(attention.dtype).tiny
    mass = (attention * others).sum(-1, keepdim=True)
    elsewhere, weight = (
        (attention, 1.0) if mask.own is None else (attention * others / mass.clamp(min=tiny), mass.detach())
    )
    log_elsewhere = elsewhere.clamp(min=tiny).log()
    terms = elsewhere * (log_elsewhere - log_sel) if kl == "forward" else sel * (log_sel - log_elsewhere)
    rows = (weight * terms.masked_fill(~others, 0.0)).sum(-1)
    weight = torch.as_tensor(weight, dtype=mass.dtype).expand_as(mass)
    kept, recalled = weight * (sel * keep_mask).sum(-1, keepdim=True), (attention * (keep_mask & others)).sum(-1)
    n_valid, each = every.sum(), 1.0 if sample.stride == 1 else every.sum() / valid.sum().clamp(min=1)
    return Supervision(
        kl=(rows[valid].sum() * sample.stride).to(torch.promote_types(rows.dtype, torch.float32)),
        mass=kept[..., 0][valid].sum().detach() * each,
        recall=recalled[valid].sum().detach() * each,
        queries=n_valid,
        elsewhere=weight[..., 0][valid].sum() * each,
    )


def of_rows(store: Tensor, slots: Tensor) -> Tensor:
    """Gather the slots of each row, int64 [R, n], R / N rows per item, from ``store`` [N, C, W]: [R, n, W]."""
    n_rows = slots.size(0)
    item = torch.arange(n_rows, device=store.device) // (n_rows // store.size(0))
    return store[item[:, None], slots]


def topk_indices(
    q: Tensor, keys: Tensor, paths: KeyIndex, kappa: Tensor | int, own: OwnLines | None = None
) -> KeptKeys:
    """Select the kept keys of one decoding step (eq 1, 2).

    Args:
        q: [R, S], the newest queries.
        keys: [N, C, S], the selector's keys by slot.
        paths: key index.
        kappa: fraction of keys to keep, in millionths.
        own: positions of each row's own line; they are kept besides, before all others.
    """
    slots, allowed = paths.slots(q.size(0))
    mine = torch.zeros_like(allowed) if own is None else allowed & own.among(allowed.size(1))
    others = allowed & ~mine
    scores = selector_scores(q[:, None], of_rows(keys, slots), others[:, None])[:, 0]
    # NaN and -inf rank below all other allowed keys, but above disallowed ones
    scores = scores.masked_fill(others & ~(scores > float("-inf")), torch.finfo(scores.dtype).min)
    mask = select(scores, keep_counts(others.sum(1), kappa))
    rank = mask.to(torch.int8) + 2 * mine
    kept = (rank > 0).sum(1)
    order = rank.argsort(dim=1, descending=True, stable=True)[:, : max(1, int(kept.max()))]
    index = slots.gather(1, order).masked_fill(rank.gather(1, order) == 0, -1)
    return KeptKeys(index.int(), kept.int())


def add_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + added [R, d] and its layer norm, see :func:`ops.add_norm`."""
    total = x + added
    return total, torch.nn.functional.layer_norm(total, (x.size(1),), weight, bias, eps)


def append(new: Sequence[Tensor], newest: Tensor, stores: Sequence[Tensor]) -> None:
    """Write the newest entries [R, W] of all rows to their slots in each store [N, C, W], see :func:`ops.append`."""
    for entries, store in zip(new, stores):
        store.index_copy_(1, newest, entries.reshape(store.size(0), newest.numel(), -1))


def attend_kept(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: KeptKeys,
    n_heads: int,
    dropout_p: float = 0.0,
    shift: OwnShift | None = None,
) -> Tensor:
    """Compute attention of one decoding step over the kept keys (eq 3).

    Args:
        q: [R, H*D].
        keys, values: [N, C, H*D], by slot.
        n_heads: H.
        dropout_p: dropout probability of the attention weights.
        shift: what is added to the scores of a row's own line.

    Returns:
        [R, H*D]; 0 for rows without kept keys.
    """
    n_rows, width = q.shape
    index, shape = slots.indices.long(), (n_rows, slots.indices.size(1), n_heads, width // n_heads)
    k, v = (of_rows(t, index.clamp(min=0)).view(shape).transpose(1, 2) for t in (keys, values))
    weights = attention_scores(q.view(n_rows, 1, n_heads, -1).transpose(1, 2).to(k.dtype), k).float()
    if shift is not None:
        mine = shift.lines.among(index.size(1))
        weights = weights + shift.value[:, :, None, None] * mine[:, None, None]
    weights = masked_softmax(weights, (index >= 0)[:, None, None])
    if dropout_p > 0:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return torch.matmul(weights.to(v.dtype), v).reshape(n_rows, width).to(q.dtype)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round the rows of a matrix to 8 bits, symmetrically.

    Args:
        x: float32 [R, K].

    Returns:
        numbers, int8 [R, K], from -127 to 127; and the scale of each row, float32 [R, 1]: NaN for rows that contain NaN
        or infinity, whose numbers are 0.
    """
    finite = torch.isfinite(x).all(1, keepdim=True)
    most = x.masked_fill(~finite, 0.0).abs().amax(1, keepdim=True)
    numbers = (x * (127.0 / most).masked_fill(most == 0, 0.0)).round().masked_fill(~finite, 0.0)
    return numbers.to(torch.int8), (most / 127.0).masked_fill(~finite, float("nan"))


def linear_int8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer in 8 bits: rows of x and the weights of each output are quantised; sums are exact integers.

    Args:
        x: float32 [R, K].
        weight: float32 [N, K].
        bias: float32 [N], or None.

    Returns:
        [R, N].
    """
    (numbers, scale), (rows, row_scale) = quantised(weight), quantised(x)
    sums = torch.matmul(rows.double(), numbers.double().T).float()  # integers below 2^53
    out = sums * (row_scale * scale[:, 0])
    return out if bias is None else out + bias


def quantised_heads(x: Tensor, n_heads: int) -> tuple[Tensor, Tensor]:
    """Quantise keys or values, with one scale per head: x [..., H*D] -> int8 [..., H*D], float32 [..., H]."""
    numbers, scale = quantised(x.float().reshape(-1, x.size(-1) // n_heads))
    return numbers.view(x.shape), scale.view(*x.shape[:-1], n_heads)
