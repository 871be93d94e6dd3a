"""Supervision of a selector on GPUs: the mean of the full attention, the loss, and its gradients (eq 4-7).

Definition: ``reference.supervise``; formulas: ``supervise``. The mean attention A of the sampled queries, [B, R, K], is
the only quantity of that size that more than one kernel reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.scores import (
    CHANGING,
    Launch,
    Rows,
    _added,
    _allowed,
    _norm,
    _rows,
    _scores,
    _seen,
    _weights,
)
from fairseq_lasformer.ops.gpu.kernels.tiles import _kept

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit(do_not_specialize=CHANGING)
def _norms(
    q, k, padding, lse,
    qb, qh, qn, kb, kh, kn, padding_stride, n_rows, n_keys, first, step, scale, width,
    CAUSAL: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the log-normalisers of some rows of one head of the full attention."""
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query = _rows(q + batch * qb + head * qh, i, n_rows, qn, width, WIDTH)
    k += batch * kb + head * kh
    high, sums = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step, CAUSAL), KEYS):
        j = begin + tl.arange(0, KEYS)
        allowed = _allowed(padding + batch * padding_stride, i, j, n_rows, n_keys, first, step, CAUSAL, PADDING)
        high, sums, _ = _added(_scores(query, k, j, n_keys, kn, scale, width, WIDTH), allowed, high, sums)
    tl.store(lse + (batch * tl.num_programs(1) + head) * n_rows + i, _norm(high, sums), mask=i < n_rows)


@triton.jit(do_not_specialize=CHANGING)
def _mean(
    q, k, padding, lse, mean,
    qb, qh, qn, kb, kh, kn, padding_stride, n_rows, n_keys, first, step, scale, width, n_heads, share,
    CAUSAL: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    MORE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the mean of all heads' full attention; with MORE, add it to the existing one.

    With WHOLE, all keys are in one tile, and the log-normalisers are computed here.
    """
    batch = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    allowed = _allowed(padding + batch * padding_stride, i, j, n_rows, n_keys, first, step, CAUSAL, PADDING)
    at = mean + (batch * n_rows + i)[:, None] * n_keys + j[None, :]
    inside = (i[:, None] < n_rows) & (j[None, :] < n_keys)
    total = tl.zeros([ROWS, KEYS], tl.float32)
    if not WHOLE:  # a tile above the diagonal is 0
        seen = _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step, CAUSAL)
        n_heads_read = tl.where(tl.program_id(1) * KEYS < seen, n_heads, 0)
    else:
        n_heads_read = n_heads
    for head in range(n_heads_read):
        query = _rows(q + batch * qb + head * qh, i, n_rows, qn, width, WIDTH)
        scores = _scores(query, k + batch * kb + head * kh, j, n_keys, kn, scale, width, WIDTH)
        row = lse + (batch * n_heads + head) * n_rows + i
        if WHOLE:
            high, sums, _ = _added(scores, allowed, tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32))
            norm = _norm(high, sums)
            tl.store(row, norm, mask=i < n_rows)
        else:
            norm = tl.load(row, mask=i < n_rows, other=float("inf"))
        total += _weights(scores, allowed, norm)
    total *= share
    if MORE:
        total += tl.load(at, mask=inside, other=0.0)
    tl.store(at, total, mask=inside)


@triton.jit(
    do_not_specialize=[
        *CHANGING, "bits_batch", "bits_stride", "query_padding_batch", "query_padding_stride", "n_all"
    ],
    do_not_specialize_on_alignment=["bits", "query_padding", "padding"],
)  # fmt: skip
def _sums(
    q, k, padding, mean, bits, query_padding, lse, sums,
    qb, qh, qn, kb, kh, kn, padding_stride, bits_batch, bits_stride, query_padding_batch, query_padding_stride,
    n_rows, n_keys, first, step, scale, width, n_all,
    CAUSAL: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    QUERY_PADDING: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Compute loss, kept mass, recall and validity of some rows, and the selector's log-normalisers."""
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query = _rows(q + batch * qb, i, n_rows, qn, width, WIDTH)
    k += batch * kb
    padding += batch * padding_stride
    seen = _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step, CAUSAL)
    high, total = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, seen, KEYS):
        j = begin + tl.arange(0, KEYS)
        allowed = _allowed(padding, i, j, n_rows, n_keys, first, step, CAUSAL, PADDING)
        high, total, _ = _added(_scores(query, k, j, n_keys, kn, scale, width, WIDTH), allowed, high, total)
    norm = _norm(high, total)
    loss, mass, recall = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, seen, KEYS):
        j = begin + tl.arange(0, KEYS)
        allowed = _allowed(padding, i, j, n_rows, n_keys, first, step, CAUSAL, PADDING)
        scores = _scores(query, k, j, n_keys, kn, scale, width, WIDTH)
        attention = tl.load(mean + (batch * n_rows + i)[:, None] * n_keys + j[None, :], mask=allowed, other=0.0)
        selected = _weights(scores, allowed, norm)
        ratio = tl.where(allowed, tl.log(tl.maximum(attention, _TINY)) - (scores - norm[:, None]), 0.0)
        if REVERSE:
            loss -= tl.sum(selected * ratio, 1)
        else:
            loss += tl.sum(attention * ratio, 1)
        kept = _kept(bits + batch * bits_batch, i, begin, n_rows, n_keys, bits_stride, KEYS) & allowed
        mass += tl.sum(tl.where(kept, selected, 0.0), 1)
        recall += tl.sum(tl.where(kept, attention, 0.0), 1)
    valid = (total > 0) & (i < n_rows)
    if QUERY_PADDING:
        at = query_padding + batch * query_padding_batch + i * query_padding_stride
        valid = valid & (tl.load(at, mask=i < n_rows, other=1) == 0)
    at = batch * n_rows + i
    tl.store(lse + at, norm, mask=i < n_rows)
    tl.store(sums + at, tl.where(valid, loss, 0.0), mask=i < n_rows)
    tl.store(sums + n_all + at, tl.where(valid, mass, 0.0), mask=i < n_rows)
    tl.store(sums + 2 * n_all + at, tl.where(valid, recall, 0.0), mask=i < n_rows)
    tl.store(sums + 3 * n_all + at, valid.to(tl.float32), mask=i < n_rows)


@triton.jit(do_not_specialize=[*CHANGING, "n_all"])
def _targets(
    q, k, padding, mean, lse, sums, d_loss, d_scores, d_mean,
    qb, qh, qn, kb, kh, kn, padding_stride, n_rows, n_keys, first, step, scale, width, n_all, share, factor,
    CAUSAL: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradients of the selector's scores, and of every head's weights."""
    batch = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    allowed = _allowed(padding + batch * padding_stride, i, j, n_rows, n_keys, first, step, CAUSAL, PADDING)
    query = _rows(q + batch * qb, i, n_rows, qn, width, WIDTH)
    scores = _scores(query, k + batch * kb, j, n_keys, kn, scale, width, WIDTH)
    row = batch * n_rows + i
    norm = tl.load(lse + row, mask=i < n_rows, other=float("inf"))
    count = tl.load(sums + 3 * n_all + row, mask=i < n_rows, other=0.0) * (tl.load(d_loss) * factor)
    inside = (i[:, None] < n_rows) & (j[None, :] < n_keys)
    at = row[:, None] * n_keys + j[None, :]
    attention = tl.load(mean + at, mask=allowed, other=0.0)
    selected = _weights(scores, allowed, norm)
    ratio = tl.where(allowed, tl.log(tl.maximum(attention, _TINY)) - (scores - norm[:, None]), 0.0)
    if REVERSE:
        loss = tl.load(sums + row, mask=i < n_rows, other=0.0)
        d_selected = -selected * (ratio + loss[:, None])
        d_attention = -selected / tl.maximum(attention, _TINY)
    else:
        d_selected = selected - attention
        d_attention = ratio  # without the 1, which is the same for all keys and cancels in softmax's gradient
    d_selected *= count[:, None] * scale
    tl.store(d_scores + at, tl.where(allowed, d_selected, 0.0).to(d_scores.dtype.element_ty), mask=inside)
    tl.store(d_mean + at, tl.where(allowed, d_attention * (count[:, None] * share), 0.0), mask=inside)


class Sums(NamedTuple):
    """Results of a sweep over a block of rows.

    Attributes:
        rows: float32 [4, B, R]: loss, kept mass, recall (0 for rows that do not count), and whether the row counts.
        sel_norm: log-normalisers of the selector, [B, 1, R].
        norms: those of the heads, [B, H, R] for each layer.
    """

    rows: Tensor
    sel_norm: Tensor
    norms: list[Tensor]


def mean_attention(
    queries: Sequence[Tensor], keys: Sequence[Tensor], norms: Sequence[Tensor] | None, where: Rows
) -> tuple[Tensor, list[Tensor]]:
    """Compute the mean A of the full attention of all layers' heads.

    Args:
        queries, keys: one [B, H, R or K, D] per layer.
        norms: their log-normalisers, one [B, H, R] per layer; None to compute them.

    Returns:
        float32 [B, R, K]; the log-normalisers.
    """
    n_batch, n_heads, n_rows, _ = queries[0].shape
    mean = torch.empty(n_batch, n_rows, keys[0].size(2), dtype=torch.float32, device=keys[0].device)
    found = []
    for layer, (q, k) in enumerate(zip(queries, keys)):
        launch = Launch(q, k, where)
        whole = norms is None and launch.n_keys <= launch.keys
        norm = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if norms is None else norms[layer]
        if norms is None and not whole:
            few = Launch(q, k, where, few=True)
            _norms[few.by_rows()](q, k, few.padding, norm, *few.scalars, **few.constants)
        found.append(norm)
        _mean[launch.by_tiles()](
            q, k, launch.padding, norm, mean, *launch.scalars, n_heads, 1.0 / (n_heads * len(queries)),
            MORE=layer > 0, WHOLE=whole, **launch.constants,
        )  # fmt: skip
    return mean, found


def sums(
    sel_q: Tensor, sel_k: Tensor, mean: Tensor, bits: Tensor, query_padding: Tensor | None, where: Rows, reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compare the selector with the mean attention.

    Args:
        sel_q, sel_k: [B, 1, R or K, S].
        mean: [B, R, K].
        bits: the kept keys of the rows, int32 [B, R, words].
        query_padding: bool [B, R], True for rows that do not count; None if all do.
        reverse: KL(A_s || A) instead of KL(A || A_s).

    Returns:
        ``rows`` and ``sel_norm`` of :class:`Sums`.
    """
    launch = Launch(sel_q, sel_k, where, few=True)
    n_batch, n_rows = mean.shape[:2]
    rows = torch.empty(4, n_batch, n_rows, dtype=torch.float32, device=mean.device)
    norm = torch.empty(n_batch, 1, n_rows, dtype=torch.float32, device=mean.device)
    ignored = mean if query_padding is None else query_padding.view(torch.uint8)
    *strides, n_given, n_keys, first, step, scale, width = launch.scalars
    grid = launch.by_rows()
    _sums[grid[0], grid[2]](
        sel_q, sel_k, launch.padding, mean, bits, ignored, norm, rows,
        *strides, *bits.stride()[:2], *ignored.stride()[:2], n_given, n_keys, first, step, scale, width,
        n_batch * n_rows,
        QUERY_PADDING=query_padding is not None, REVERSE=reverse, **launch.constants,
    )  # fmt: skip
    return rows, norm


def targets(
    sel_q: Tensor, sel_k: Tensor, mean: Tensor, sums: Sums, d_loss: Tensor, dtype: torch.dtype, where: Rows,
    reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of the loss.

    Args:
        sel_q, sel_k, reverse: see :func:`sums`.
        mean: [B, R, K].
        sums: results of :func:`sums` and :func:`mean_attention`.
        d_loss: the gradient of the loss, one float on the device; it is multiplied by the sample's stride.

    Returns:
        [B, 1, R, K]: the gradient of the selector's scores before their scaling; [B, R, K]: that of every head's
        weights.
    """
    launch = Launch(sel_q, sel_k, where)
    n_heads = sums.norms[0].size(1) * len(sums.norms)
    d_scores, d_mean = torch.empty(mean[:, None].shape, dtype=dtype, device=mean.device), torch.empty_like(mean)
    _targets[launch.by_tiles()](
        sel_q, sel_k, launch.padding, mean, sums.sel_norm, sums.rows, d_loss, d_scores, d_mean,
        *launch.scalars, mean.size(0) * mean.size(1), 1.0 / n_heads, float(where.step), REVERSE=reverse,
        **launch.constants,
    )  # fmt: skip
    return d_scores, d_mean
