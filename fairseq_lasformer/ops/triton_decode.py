"""Decoding steps on GPUs: score, select, attend, combine. Definitions: ``reference.topk_indices``, ``attend_kept``.

Nothing here reads a value back from the device, so a step never synchronises: grids are sized by the number of
positions, known on the host, and the number of keys that a row keeps is computed on the device. With
``TRITON_INTERPRET=1`` the kernels run on the CPU, which is how they are tested without a GPU. Rows, slots and widths
are those of :class:`KeyIndex`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.types import KAPPA_ONE, MIN_KEYS, KeptKeys, KeyIndex

SCORE_BLOCK = 128
ATTEND_BLOCK = 16
SPLITS_FOR_ROWS = 264  # programs that fill a large GPU twice; with fewer rows, each row's keys are split among programs
_ONE = tl.constexpr(KAPPA_ONE)
_MIN = tl.constexpr(MIN_KEYS)


@triton.jit
def _score(
    q, keys, table, start, n_keys, scores,
    item_stride, table_stride, width, end, beam,
    TABLE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store scores[r, j] = q[r] . keys[slot(r, j)], -inf where position j is not allowed."""
    row = tl.program_id(0)
    item = row // beam
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(start + item)
    allowed = (j >= first) & (j < first + tl.load(n_keys + item))
    slot = j.to(tl.int64)
    if TABLE:
        slot = tl.load(table + row.to(tl.int64) * table_stride + j, mask=allowed, other=0).to(tl.int64)
    d = tl.arange(0, WIDTH)
    query = tl.load(q + row * width + d, mask=d < width, other=0.0).to(tl.float32)
    at = keys + item.to(tl.int64) * item_stride + slot[:, None] * width + d[None, :]
    key = tl.load(at, mask=allowed[:, None] & (d[None, :] < width), other=0.0).to(tl.float32)
    score = tl.sum(key * query[None, :], 1)
    tl.store(scores + row.to(tl.int64) * end + j, tl.where(allowed, score, float("-inf")), mask=j < end)


@triton.jit
def _select(
    scores, table, start, n_keys, slots, kept,
    table_stride, kappa, end, most, beam,
    TABLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the kept slots of one row in ascending order of position.

    The k-th highest score is found bit by bit; ties go to the lowest position.
    """
    row = tl.program_id(0)
    item = row // beam
    j = tl.arange(0, BLOCK)
    first, number = tl.load(start + item), tl.load(n_keys + item)
    allowed = (j >= first) & (j < first + number)
    keep = tl.minimum(number, tl.maximum(_MIN, (number * kappa + (_ONE - 1)) // _ONE))
    score = tl.load(scores + row.to(tl.int64) * end + j, mask=allowed, other=0.0) + 0.0
    bits = score.to(tl.uint32, bitcast=True)
    sign = tl.full([], 1, tl.uint32) << 31
    order = tl.where((bits & sign) != 0, bits ^ (sign | (sign - 1)), bits | sign)
    order = tl.where(score == score, order, tl.full([], 0, tl.uint32))
    threshold = tl.full([], 0, tl.uint32)
    for i in tl.static_range(32):
        higher = threshold | (tl.full([], 1, tl.uint32) << (31 - i))
        reached = tl.sum(((order >= higher) & allowed).to(tl.int32), 0)
        threshold = tl.where(reached >= keep, higher, threshold)
    above = (order > threshold) & allowed
    tie = (order == threshold) & allowed
    room = keep - tl.sum(above.to(tl.int32), 0)
    chosen = above | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= room))
    slot = j
    if TABLE:
        slot = tl.load(table + row.to(tl.int64) * table_stride + j, mask=chosen, other=0)
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(slots + row.to(tl.int64) * most + place, slot, mask=chosen)
    tl.store(kept + row, keep.to(tl.int32))


@triton.jit
def _attend(
    q, keys, values, slots, kept, part, top, total,
    item_stride, slot_stride, scale, n_heads, head_width, beam, splits,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Process one split of a row's kept keys, all heads: weighted sum of values, maximum and sum of weights."""
    row, split = tl.program_id(0), tl.program_id(1)
    item = (row // beam).to(tl.int64)
    number = tl.load(kept + row)
    share = (number + splits - 1) // splits
    begin, stop = split * share, tl.minimum(number, split * share + share)
    h, d = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    inside = (h[:, None] < n_heads) & (d[None, :] < head_width)
    width = n_heads * head_width
    at = h[:, None] * head_width + d[None, :]
    query = tl.load(q + row.to(tl.int64) * width + at, mask=inside, other=0.0).to(tl.float32) * scale
    high = tl.full([HEADS], -1e30, tl.float32)
    sums = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, WIDTH], tl.float32)
    for i in range(begin, stop, BLOCK):
        n = i + tl.arange(0, BLOCK)
        valid = n < stop
        slot = tl.load(slots + row.to(tl.int64) * slot_stride + n, mask=valid, other=0).to(tl.int64)
        address = item * item_stride + slot[:, None, None] * width + at[None, :, :]
        mask = valid[:, None, None] & inside[None, :, :]
        key = tl.load(keys + address, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(values + address, mask=mask, other=0.0).to(tl.float32)
        score = tl.where(valid[:, None], tl.sum(key * query[None, :, :], 2), -1e30)
        new = tl.maximum(high, tl.max(score, 0))
        weight = tl.where(valid[:, None], tl.exp(score - new[None, :]), 0.0)
        fade = tl.exp(high - new)
        sums = sums * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(value * weight[:, :, None], 0)
        high = new
    place = row.to(tl.int64) * splits + split
    tl.store(part + place * width + at, acc, mask=inside)
    tl.store(top + place * n_heads + h, high, mask=h < n_heads)
    tl.store(total + place * n_heads + h, sums, mask=h < n_heads)


@triton.jit
def _combine(
    part, top, total, out, n_heads, head_width, splits,
    SPLITS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one row; 0 if the row has no keys."""
    row = tl.program_id(0).to(tl.int64)
    s, h, d = tl.arange(0, SPLITS), tl.arange(0, HEADS), tl.arange(0, WIDTH)
    here = (s[:, None] < splits) & (h[None, :] < n_heads)
    at = (row * splits + s[:, None]) * n_heads + h[None, :]
    high = tl.load(top + at, mask=here, other=-1e30)
    factor = tl.exp(high - tl.max(high, 0)[None, :])
    sums = tl.sum(tl.load(total + at, mask=here, other=0.0) * factor, 0)
    inside = (h[:, None] < n_heads) & (d[None, :] < head_width)
    width = n_heads * head_width
    spot = h[:, None] * head_width + d[None, :]
    address = (row * splits + s[:, None, None]) * width + spot[None, :, :]
    parts = tl.load(part + address, mask=here[:, :, None] & inside[None, :, :], other=0.0)
    result = tl.sum(parts * factor[:, :, None], 0) / tl.where(sums > 0, sums, 1.0)[:, None]
    tl.store(out + row * width + spot, result, mask=inside)


def topk_indices(q: Tensor, keys: Tensor, paths: KeyIndex, kappa: int) -> KeptKeys:
    """Select the kept keys of one decoding step; arguments and result as in ``reference.topk_indices``."""
    n_rows, width = q.shape
    beam, end = n_rows // keys.size(0), paths.end
    most = min(end, max(MIN_KEYS, -(-end * kappa // KAPPA_ONE)))
    query = q.float() * width**-0.5
    scores = torch.empty(n_rows, end, device=q.device)
    slots = torch.full((n_rows, most), -1, dtype=torch.int32, device=q.device)
    kept = torch.empty(n_rows, dtype=torch.int32, device=q.device)
    table = kept if paths.table is None else paths.table
    stride, has_table = 0 if paths.table is None else table.stride(0), paths.table is not None
    _score[(n_rows, triton.cdiv(end, SCORE_BLOCK))](
        query, keys, table, paths.start, paths.n_keys, scores, keys.stride(0), stride, width, end, beam,
        TABLE=has_table, BLOCK=SCORE_BLOCK, WIDTH=triton.next_power_of_2(width),
    )  # fmt: skip
    _select[(n_rows,)](
        scores, table, paths.start, paths.n_keys, slots, kept, stride, kappa, end, most, beam,
        TABLE=has_table, BLOCK=triton.next_power_of_2(end), num_warps=8 if end > 1024 else 4,
    )  # fmt: skip
    return KeptKeys(slots, kept)


def attend_kept(q: Tensor, keys: Tensor, values: Tensor, slots: KeptKeys, n_heads: int) -> Tensor:
    """Compute attention of rows over their kept keys; arguments and result as in ``reference.attend_kept``."""
    n_rows, width = q.shape
    head_width = width // n_heads
    splits = min(32, max(1, min(SPLITS_FOR_ROWS // n_rows, triton.cdiv(slots.indices.size(1), ATTEND_BLOCK))))
    sizes = {"HEADS": triton.next_power_of_2(n_heads), "WIDTH": triton.next_power_of_2(head_width)}
    part = torch.empty(n_rows, splits, width, device=q.device)
    top, total = torch.empty(2, n_rows, splits, n_heads, device=q.device)
    out = torch.empty_like(q)
    _attend[(n_rows, splits)](
        q, keys, values, slots.indices, slots.counts, part, top, total, keys.stride(0), slots.indices.stride(0),
        head_width**-0.5, n_heads, head_width, n_rows // keys.size(0), splits, BLOCK=ATTEND_BLOCK, **sizes,
    )  # fmt: skip
    _combine[(n_rows,)](
        part, top, total, out, n_heads, head_width, splits, SPLITS=triton.next_power_of_2(splits), **sizes,
    )  # fmt: skip
    return out
