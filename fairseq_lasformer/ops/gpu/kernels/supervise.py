"""Supervision of a selector on GPUs: the mean of the full attention, the loss, and its gradients (eq 4-7).

Definition: ``reference.supervise``; formulas: ``supervise``. The mean attention A of the sampled queries, [B, R, K], is
the only quantity of that size that more than one kernel reads.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.scores import (
    _LN2,
    _LOG2E,
    CHANGING,
    Launch,
    Rows,
    _added,
    _allowed,
    _last,
    _norm,
    _rows,
    _scores,
    _seen,
    _weights,
)
from fairseq_lasformer.ops.gpu.kernels.tiles import _kept

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=["padding"])
def _norms(
    q, k, padding, lse,
    qb, qh, qn, kb, kh, kn, padding_stride, padded, n_rows, n_keys, first, step, scale, width,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the log-normalisers of some rows of one head of the full attention."""
    head, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    query, last = _rows(q + batch * qb + head * qh, i, n_rows, qn, width, WIDTH), _last(i, n_rows, n_keys, first, step)
    k += batch * kb + head * kh
    padding += batch * padding_stride
    high, sums = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, _seen((tl.program_id(1) + 1) * ROWS, n_keys, first, step), KEYS):
        j = begin + tl.arange(0, KEYS)
        scores = _scores(query, k, j, n_keys, kn, width, WIDTH)
        scores = tl.where(_allowed(padding, padded, j, last), scores, float("-inf"))
        high, sums, _, _ = _added(scores, scale * _LOG2E, high, sums)
    tl.store(lse + (batch * tl.num_programs(0) + head) * n_rows + i, _norm(high, sums), mask=i < n_rows)


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=["padding"])
def _mean(
    q, k, padding, lse, mean,
    qb, qh, qn, kb, kh, kn, padding_stride, padded, n_rows, n_keys, first, step, scale, width, n_heads, share, more,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the mean of all heads' full attention, and add the existing one if ``more`` is not 0.

    Tiles that no row may attend to are not written.
    """
    batch = tl.program_id(2).to(tl.int64)
    if tl.program_id(1) * KEYS < _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step):
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
        allowed = _allowed(padding + batch * padding_stride, padded, j, _last(i, n_rows, n_keys, first, step))
        at = mean + batch * n_rows * n_keys + (i[:, None] * n_keys + j[None, :])
        inside = (i[:, None] < n_rows) & (j[None, :] < n_keys)
        total = tl.zeros([ROWS, KEYS], tl.float32)
        for head in range(n_heads):
            query = _rows(q + batch * qb + head * qh, i, n_rows, qn, width, WIDTH)
            scores = _scores(query, k + batch * kb + head * kh, j, n_keys, kn, width, WIDTH)
            norm = tl.load(lse + (batch * n_heads + head) * n_rows + i, mask=i < n_rows, other=float("inf"))
            total += _weights(scores, scale * _LOG2E, norm)
        total = tl.where(allowed, total, 0.0) * share
        total += tl.load(at, mask=inside & (j < more * n_keys)[None, :], other=0.0)
        tl.store(at, total, mask=inside)


@triton.jit(
    do_not_specialize=[
        *CHANGING, "bits_batch", "bits_stride", "query_padding_batch", "query_padding_stride", "query_padded", "n_all"
    ],
    do_not_specialize_on_alignment=["bits", "query_padding", "padding"],
)  # fmt: skip
def _sums(
    q, k, padding, mean, bits, query_padding, lse, sums,
    qb, qh, qn, kb, kh, kn, padding_stride, padded, bits_batch, bits_stride, query_padding_batch, query_padding_stride,
    query_padded, n_rows, n_keys, first, step, scale, width, n_all,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Compute loss, kept mass, recall and validity of some rows, and the selector's log-normalisers."""
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query, last = _rows(q + batch * qb, i, n_rows, qn, width, WIDTH), _last(i, n_rows, n_keys, first, step)
    k += batch * kb
    padding += batch * padding_stride
    mean += batch * n_rows * n_keys
    seen, to_base_2 = _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step), scale * _LOG2E
    high, total = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, seen, KEYS):
        j = begin + tl.arange(0, KEYS)
        scores = _scores(query, k, j, n_keys, kn, width, WIDTH)
        scores = tl.where(_allowed(padding, padded, j, last), scores, float("-inf"))
        high, total, _, _ = _added(scores, to_base_2, high, total)
    norm = _norm(high, total)
    loss, mass, recall = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for begin in range(0, seen, KEYS):
        j = begin + tl.arange(0, KEYS)
        allowed = _allowed(padding, padded, j, last)
        scores = _scores(query, k, j, n_keys, kn, width, WIDTH)
        attention = tl.load(mean + (i[:, None] * n_keys + j[None, :]), mask=allowed, other=0.0)
        selected = tl.where(allowed, _weights(scores, to_base_2, norm), 0.0)
        ratio = tl.log2(tl.maximum(attention, _TINY)) - (scores * to_base_2 - norm[:, None])
        ratio = tl.where(allowed, ratio, 0.0)
        if REVERSE:
            loss -= tl.sum(selected * ratio, 1)
        else:
            loss += tl.sum(attention * ratio, 1)
        kept = _kept(bits + batch * bits_batch, i, begin, n_rows, n_keys, bits_stride, KEYS) & allowed
        mass += tl.sum(tl.where(kept, selected, 0.0), 1)
        recall += tl.sum(tl.where(kept, attention, 0.0), 1)
    at = query_padding + batch * query_padding_batch + i * query_padding_stride
    valid = (total > 0) & (i < n_rows) & (tl.load(at, mask=i < query_padded, other=0) == 0)
    at = batch * n_rows + i
    tl.store(lse + at, norm, mask=i < n_rows)
    tl.store(sums + at, tl.where(valid, loss * _LN2, 0.0), mask=i < n_rows)
    tl.store(sums + n_all + at, tl.where(valid, mass, 0.0), mask=i < n_rows)
    tl.store(sums + 2 * n_all + at, tl.where(valid, recall, 0.0), mask=i < n_rows)
    tl.store(sums + 3 * n_all + at, valid.to(tl.float32), mask=i < n_rows)


@triton.jit(do_not_specialize=[*CHANGING, "n_all"], do_not_specialize_on_alignment=["padding"])
def _targets(
    q, k, padding, mean, lse, sums, d_loss, d_scores, d_mean,
    qb, qh, qn, kb, kh, kn, padding_stride, padded, n_rows, n_keys, first, step, scale, width, n_all, share, factor,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradients of the selector's scores, and of every head's weights.

    Where no row of a tile may attend to a key, the former are 0, and the latter are not written.
    """
    batch = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    inside, row = (i[:, None] < n_rows) & (j[None, :] < n_keys), batch * n_rows + i
    at = i[:, None] * n_keys + j[None, :]
    of_item = batch * n_rows * n_keys
    mean, d_scores, d_mean = mean + of_item, d_scores + of_item, d_mean + of_item
    if tl.program_id(1) * KEYS < _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step):
        allowed = _allowed(padding + batch * padding_stride, padded, j, _last(i, n_rows, n_keys, first, step))
        query = _rows(q + batch * qb, i, n_rows, qn, width, WIDTH)
        scores = _scores(query, k + batch * kb, j, n_keys, kn, width, WIDTH)
        norm = tl.load(lse + row, mask=i < n_rows, other=float("inf"))
        count = tl.load(sums + 3 * n_all + row, mask=i < n_rows, other=0.0) * (tl.load(d_loss) * factor)
        attention = tl.load(mean + at, mask=allowed, other=0.0)
        selected = tl.where(allowed, _weights(scores, scale * _LOG2E, norm), 0.0)
        ratio = tl.log2(tl.maximum(attention, _TINY)) - (scores * (scale * _LOG2E) - norm[:, None])
        ratio = tl.where(allowed, ratio, 0.0) * _LN2
        if REVERSE:
            loss = tl.load(sums + row, mask=i < n_rows, other=0.0)
            d_selected = -selected * (ratio + loss[:, None])
            d_attention = -selected / tl.maximum(attention, _TINY)
        else:
            d_selected = selected - attention
            d_attention = ratio  # without the 1, which is the same for all keys and cancels in softmax's gradient
        d_selected *= count[:, None] * scale
        tl.store(d_scores + at, tl.where(allowed, d_selected, 0.0).to(d_scores.dtype.element_ty), mask=inside)
        d_attention = tl.where(allowed, d_attention * (count[:, None] * share), 0.0)
        tl.store(d_mean + at, d_attention.to(d_mean.dtype.element_ty), mask=inside)
    else:
        tl.store(d_scores + at, tl.zeros([ROWS, KEYS], d_scores.dtype.element_ty), mask=inside)


class Sums(NamedTuple):
    """Results of a sweep over a block of rows."""

    # float32 [4, B, R]: loss, kept mass, recall (0 for rows that do not count), and whether the row counts
    rows: Tensor
    sel_norm: Tensor  # log-normalisers of the selector to base 2, [B, 1, R]
    norms: list[Tensor]  # those of the heads, [B, H, R] for each layer


def mean_attention(
    queries: Sequence[Tensor], keys: Sequence[Tensor], norms: Sequence[Tensor] | None, where: Rows
) -> tuple[Tensor, list[Tensor]]:
    """Compute the mean A of the full attention of all layers' heads.

    Args:
        queries, keys: one [B, H, R or K, D] per layer.
        norms: their log-normalisers, one [B, H, R] per layer; None to compute them.

    Returns:
        float32 [B, R, K], undefined in tiles of keys that no row may attend to; the log-normalisers.
    """
    n_batch, n_heads, n_rows, _ = queries[0].shape
    mean = torch.empty(n_batch, n_rows, keys[0].size(2), dtype=torch.float32, device=keys[0].device)
    found = []
    for layer, (q, k) in enumerate(zip(queries, keys)):
        norm = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if norms is None else norms[layer]
        if norms is None:
            few = Launch(q, k, where, few=True, wide=4)
            _norms[few.by_rows()](q, k, few.padding, norm, *few.scalars, **few.constants)
        found.append(norm)
        launch = Launch(q, k, where)
        _mean[launch.by_tiles()](
            q, k, launch.padding, norm, mean, *launch.scalars, n_heads, 1.0 / (n_heads * len(queries)), int(layer > 0),
            **launch.constants,
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
    launch = Launch(sel_q, sel_k, where, few=True, wide=4)
    n_batch, n_rows = mean.shape[:2]
    rows = torch.empty(4, n_batch, n_rows, dtype=torch.float32, device=mean.device)
    norm = torch.empty(n_batch, 1, n_rows, dtype=torch.float32, device=mean.device)
    ignored = (bits if query_padding is None else query_padding).view(torch.uint8)
    *strides, n_given, n_keys, first, step, scale, width = launch.scalars
    _sums[launch.by_rows()[1:]](
        sel_q, sel_k, launch.padding, mean, bits, ignored, norm, rows,
        *strides, *bits.stride()[:2], *ignored.stride()[:2], 0 if query_padding is None else n_rows,
        n_given, n_keys, first, step, scale, width, n_batch * n_rows, REVERSE=reverse, **launch.constants,
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
        weights, undefined in tiles of keys that no row may attend to; in bfloat16 for such a model, which halves what
        all heads read, otherwise in float32.
    """
    launch = Launch(sel_q, sel_k, where)
    n_heads = sums.norms[0].size(1) * len(sums.norms)
    d_scores, d_mean = mean.new_empty(mean[:, None].shape, dtype=dtype), mean.new_empty(mean.shape, dtype=dtype)
    _targets[launch.by_tiles()](
        sel_q, sel_k, launch.padding, mean, sums.sel_norm, sums.rows, d_loss, d_scores, d_mean,
        *launch.scalars, mean.size(0) * mean.size(1), 1.0 / n_heads, float(where.step), REVERSE=reverse,
        **launch.constants,
    )  # fmt: skip
    return d_scores, d_mean
