"""Gradients through a softmax over all keys, and of the mask of kept keys, from a sample of the queries on GPUs.

Definitions: ``rows.softmax_gradient_``, ``rows.mask_gradient``, ``attend.selector_gradient``.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.scores import (
    _LOG2E,
    CHANGING,
    LOG2E,
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
from fairseq_lasformer.ops.gpu.kernels.tiles import _noise
from fairseq_lasformer.ops.reference import LARGEST_EXPONENT
from fairseq_lasformer.ops.types import DropoutMask

_MORE_CHANGING = [*CHANGING, "n_queries", "query", "least", "lb", "lh", "ln"]


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=["padding"])
def _through_queries(
    q, k, padding, lse, inner, d_mean, dq,
    qb, qh, qn, kb, kh, kn, padding_stride, padded, n_rows, n_keys, first, step, scale, width, db, dh, dn,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, GIVEN: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute gradients of some queries of one head from g, the gradient of all heads' weights: (w (g - w . g)) K.

    Stores w . g. With GIVEN, the log-normalisers are read; otherwise, they are computed in the same sweep and stored.
    """
    head, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    query, last = _rows(q + batch * qb + head * qh, i, n_rows, qn, width, WIDTH), _last(i, n_rows, n_keys, first, step)
    k += batch * kb + head * kh
    padding += batch * padding_stride
    row = (batch * tl.num_programs(0) + head) * n_rows + i
    seen, to_base_2 = _seen((tl.program_id(1) + 1) * ROWS, n_keys, first, step), scale * _LOG2E
    shared = d_mean + batch * n_rows * n_keys + i[:, None] * n_keys
    high, sums, mean = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    if GIVEN:
        norm = tl.load(lse + row, mask=i < n_rows, other=float("inf"))
    for begin in range(0, seen, KEYS):
        j = begin + tl.arange(0, KEYS)
        allowed = _allowed(padding, padded, j, last)
        scores = tl.where(allowed, _scores(query, k, j, n_keys, kn, width, WIDTH), float("-inf"))
        gradient = tl.load(shared + j[None, :], mask=allowed, other=0.0).to(tl.float32)
        if GIVEN:
            mean += tl.sum(_weights(scores, to_base_2, norm) * gradient, 1)
        else:
            high, sums, weights, fade = _added(scores, to_base_2, high, sums)
            mean = mean * fade + tl.sum(weights * gradient, 1)
    if not GIVEN:
        norm = _norm(high, sums)
        mean = mean / tl.where(sums > 0, sums, 1.0)
        tl.store(lse + row, norm, mask=i < n_rows)
    tl.store(inner + row, mean, mask=i < n_rows)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for begin in range(0, seen, KEYS):
        j = begin + tl.arange(0, KEYS)
        allowed = _allowed(padding, padded, j, last)
        key = _rows(k, j, n_keys, kn, width, WIDTH)
        scores = tl.dot(query, tl.trans(key), input_precision="tf32x3")
        weights = _weights(tl.where(allowed, scores, float("-inf")), to_base_2, norm)
        gradient = tl.load(shared + j[None, :], mask=allowed, other=0.0).to(tl.float32)
        acc += _product(weights * (gradient - mean[:, None]), key, EXACT)
    d = tl.arange(0, WIDTH)
    at = dq + batch * db + head * dh + i.to(tl.int64)[:, None] * dn + d[None, :]
    tl.store(at, (acc * scale).to(dq.dtype.element_ty), mask=(i[:, None] < n_rows) & (d[None, :] < width))


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=["padding"])
def _through_keys(
    q, k, padding, lse, inner, d_mean, dk,
    qb, qh, qn, kb, kh, kn, padding_stride, padded, n_rows, n_keys, first, step, scale, width, db, dh, dn, more,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute gradients of some keys of one head, see above, and add the existing ones if ``more`` is not 0."""
    head, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    q += batch * qb + head * qh
    padding += batch * padding_stride
    key = _rows(k + batch * kb + head * kh, j, n_keys, kn, width, WIDTH)
    acc = tl.zeros([KEYS, WIDTH], tl.float32)
    start = tl.maximum(0, tl.program_id(1) * KEYS - first) // step // ROWS * ROWS
    for begin in range(start, n_rows, ROWS):
        i = begin + tl.arange(0, ROWS)
        allowed = _allowed(padding, padded, j, _last(i, n_rows, n_keys, first, step))
        query = _rows(q, i, n_rows, qn, width, WIDTH)
        row = (batch * tl.num_programs(0) + head) * n_rows + i
        norm = tl.load(lse + row, mask=i < n_rows, other=float("inf"))
        mean = tl.load(inner + row, mask=i < n_rows, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="tf32x3")
        weights = _weights(tl.where(allowed, scores, float("-inf")), scale * _LOG2E, norm)
        at = d_mean + batch * n_rows * n_keys + (i[:, None] * n_keys + j[None, :])
        gradient = tl.load(at, mask=allowed, other=0.0).to(tl.float32)
        acc += _product(tl.trans(weights * (gradient - mean[:, None])), query, EXACT)
    acc *= scale
    d = tl.arange(0, WIDTH)
    mask = (j[:, None] < n_keys) & (d[None, :] < width)
    at = dk + batch * db + head * dh + j.to(tl.int64)[:, None] * dn + d[None, :]
    acc += tl.load(at, mask=mask & (d < more * width)[None, :], other=0.0).to(tl.float32)
    tl.store(at, acc.to(dk.dtype.element_ty), mask=mask)


@triton.jit
def _product(gradients, x, EXACT: tl.constexpr):
    """Multiply gradients of scores by x; with EXACT, they are not rounded to its type: too small for float16."""
    if EXACT:
        return tl.dot(gradients, x.to(tl.float32), input_precision="tf32x3")
    return tl.dot(gradients.to(x.dtype), x, input_precision="tf32x3")


@triton.jit(do_not_specialize=_MORE_CHANGING, do_not_specialize_on_alignment=["lse", "delta", "padding", "seed"])
def _mask_gradient(
    q, k, v, d_out, padding, lse, delta, d_mask, seed,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ob, oh, on, lb, lh, ln, padding_stride, padded,
    n_rows, n_keys, first, step, scale, width, n_heads, n_queries, query, most, stride, minimum, factor,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradient of the mask of kept keys: Sum_h w (dO . V - delta).

    Tiles that no row may attend to are not written.
    """
    batch = tl.program_id(2).to(tl.int64)
    if tl.program_id(1) * KEYS < _seen((tl.program_id(0) + 1) * ROWS, n_keys, first, step):
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
        allowed = _allowed(padding + batch * padding_stride, padded, j, _last(i, n_rows, n_keys, first, step))
        total = tl.zeros([ROWS, KEYS], tl.float32)
        drawn = tl.load(seed) if DROPOUT else 0
        for head in range(n_heads):
            own = _rows(q + batch * qb + head * qh, i, n_rows, qn, width, WIDTH)
            d_row = _rows(d_out + batch * ob + head * oh, i, n_rows, on, width, WIDTH)
            at = batch * lb + head * lh + i * ln
            norm = tl.load(lse + at, mask=i < n_rows, other=float("inf")) * _LOG2E
            mean = tl.load(delta + at, mask=i < n_rows, other=0.0)
            scores = _scores(own, k + batch * kb + head * kh, j, n_keys, kn, width, WIDTH)
            weights = tl.exp2(tl.minimum(scores * (scale * _LOG2E) - norm[:, None], most))
            d_weights = _scores(d_row, v + batch * vb + head * vh, j, n_keys, vn, width, WIDTH)
            if DROPOUT:
                number = (batch * n_heads + head) * n_queries + (query + i * step)
                d_weights = d_weights * _noise(number, j, drawn, minimum, factor)
            total += weights * (d_weights - mean[:, None])
        total = tl.where(allowed, total * stride, 0.0).to(d_mask.dtype.element_ty)
        at = d_mask + batch * n_rows * n_keys + (i[:, None] * n_keys + j[None, :])
        tl.store(at, total, mask=(i[:, None] < n_rows) & (j[None, :] < n_keys))


class Into(NamedTuple):
    """Destinations of the gradients of queries and keys, with any strides except along the last dimension."""

    dq: Tensor  # [B, H, R, D]
    dk: Tensor  # [B, H, K, D]
    more: bool  # whether the keys' gradient is added to the existing one


class HeadRows(NamedTuple):
    """Some rows of an attention, the keys that they see, and the gradient of the result."""

    # q, d_out: [B, H, R, D]
    q: Tensor
    d_out: Tensor
    # k, v: [B, H, K, D]
    k: Tensor
    v: Tensor
    # lse, delta: log-normalisers and dO . O, float32 [B, H, R], with the same strides.
    lse: Tensor
    delta: Tensor
    query: int  # index of the first row among all queries
    n_queries: int  # number of all queries, which the dropout depends on


def softmax_gradient(
    q: Tensor, k: Tensor, norm: Tensor | None, d_mean: Tensor, into: Into, exact: bool, where: Rows
) -> None:
    """Compute the gradients of a softmax's queries and keys from one gradient of all heads' weights.

    Args:
        q, k: [B, H, R or K, D].
        norm: log-normalisers to base 2, [B, H, R]; None to compute them.
        d_mean: [B, R, K]; tiles that no row may attend to are not read.
        exact: whether the gradients of the scores stay in float32.
    """
    dq, dk, more = into
    launch, inner = Launch(q, k, where, few=True, wide=1 if exact else 2), torch.empty(q.shape[:3], device=q.device)
    lse = torch.empty_like(inner) if norm is None else norm
    given = (q, k, launch.padding, lse, inner, d_mean)
    _through_queries[launch.by_rows()](
        *given, dq, *launch.scalars, *dq.stride()[:3], GIVEN=norm is not None, EXACT=exact, **launch.constants
    )
    launch = Launch(q, k, where, narrow=exact)
    _through_keys[launch.by_keys()](
        *given, dk, *launch.scalars, *dk.stride()[:3], int(more), EXACT=exact, **launch.constants
    )


def mask_gradient(heads: HeadRows, bounded: bool, dropout: DropoutMask, where: Rows) -> Tensor:
    """Compute the gradient of the mask of kept keys, times the sample's stride.

    Args:
        heads: the attention's rows.
        bounded: see ``types.StraightThrough``.

    Returns:
        [B, R, K], in bfloat16 for such a model and otherwise in float32; 0 where not allowed, undefined in tiles of
        keys that no row may attend to.
    """
    q, d_out, k, v, lse, delta, query, n_queries = heads
    launch = Launch(q, k, where, narrow=q.dtype == torch.float32)
    (n_batch, n_heads, n_rows, _), n_keys = q.shape, k.size(2)
    dtype = torch.float32 if q.dtype == torch.float16 else q.dtype
    d_mask = torch.empty(n_batch, n_rows, n_keys, dtype=dtype, device=q.device)
    *strides, padding_stride, padded, rows, keys, first, step, scale, width = launch.scalars
    _mask_gradient[launch.by_tiles()](
        q, k, v, d_out, launch.padding, lse, delta, d_mask, dropout.seed_or(lse),
        *strides, *v.stride()[:3], *d_out.stride()[:3], *lse.stride(), padding_stride, padded,
        rows, keys, first, step, scale, width, n_heads, n_queries, query, 0.0 if bounded else LARGEST_EXPONENT * LOG2E,
        float(where.step), int(dropout.p * 2**32), 1.0 / (1.0 - dropout.p), DROPOUT=dropout.p > 0,
        **launch.constants,
    )  # fmt: skip
    return d_mask
