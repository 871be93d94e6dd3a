"""Selection of the kept keys of all queries as a bitmask on GPUs. Definition: ``reference.topk_mask``.

One kernel computes the scores of a block of queries, tile by tile, without those above the diagonal; a second one, with
a program per row, finds the row's threshold and stores its bits.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.scores import ANY
from fairseq_lasformer.ops.gpu.kernels.threshold import ALIGNED, _chosen, _keep, _row, _sums, _threshold
from fairseq_lasformer.ops.types import AttentionMask

WORD = 32
BLOCKS = {256: 1, 512: 1, 1024: 1, 2048: 2, 4096: 4, 8192: 8}
"""Keys in a block of a row, and warps for it; longer rows take several blocks. Few sizes: each is a kernel."""
SPLIT = 1024  # with a causal mask, earlier rows take smaller blocks, but none smaller than this
TILE = 128
TILE_ELEMENTS = 8192  # per tile of queries or keys
_CHANGING = ["n_rows", "n_seen", "first_row", "last", "padded"]
_CHANGING += ["padding_stride", "bits_stride", "batch_stride", "line_batch"]


@triton.jit(do_not_specialize=["n_rows", "n_seen", "last", "key_batch", "query_batch", "line_batch"])
def _products(
    q, k, scores, lines, scale, query_batch, key_batch, query_stride, key_stride, row_stride, line_batch,
    n_rows, n_seen, last, width, OWN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store a tile of the scores of a block of queries; tiles that no query of it may attend to are left out."""
    batch = tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    if tl.program_id(0) * KEYS <= last + tl.program_id(1) * ROWS + ROWS - 1:
        d = tl.arange(0, WIDTH)
        inside = d[None, :] < width
        at = q + batch * query_batch + i.to(tl.int64)[:, None] * query_stride + d[None, :]
        query = tl.load(at, mask=(i < n_rows)[:, None] & inside, other=0.0)
        at = k + batch * key_batch + j.to(tl.int64)[:, None] * key_stride + d[None, :]
        key = tl.load(at, mask=(j < n_seen)[:, None] & inside, other=0.0)
        product = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
        if OWN:  # above all others: they are kept besides
            line = lines + batch * line_batch + 2 * i
            first = tl.load(line, mask=i < n_rows, other=0)[:, None]
            after = first + tl.load(line + 1, mask=i < n_rows, other=0)[:, None]
            product = tl.where((j[None, :] >= first) & (j[None, :] < after), float("inf"), product)
        to = scores + batch * n_rows * row_stride + (i[:, None] * row_stride + j[None, :])  # below 2^31, see blocks
        tl.store(to, product, mask=(i < n_rows)[:, None] & (j < n_seen)[None, :])


# blocks of queries begin anywhere; without this, each alignment of their addresses would compile a kernel
@triton.jit(do_not_specialize=_CHANGING, do_not_specialize_on_alignment=["padding", "bits"])
def _bits(
    scores, padding, bits, kappa, lines, line_batch,
    row_stride, n_rows, n_seen, first_row, last, padded, padding_stride, batch_stride, bits_stride,
    OWN: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the bits of a row of a block of queries; with WHOLE, the keys that it may attend to are one block."""
    row, batch = first_row + tl.program_id(0), tl.program_id(1)
    scores += (batch.to(tl.int64) * n_rows + row) * row_stride
    padding += batch.to(tl.int64) * padding_stride
    bits += batch.to(tl.int64) * batch_stride + row.to(tl.int64) * bits_stride
    stop = tl.minimum(n_seen, last + row + 1)
    number, block = tl.maximum(stop, 0), tl.arange(0, BLOCK)
    x = _row(scores, padding, padded, block, 0, stop)
    total, squares = _sums(x)
    if padded > 0:
        number = tl.sum((x == x).to(tl.int32), 0)
    if not WHOLE:
        for begin in range(BLOCK, stop, BLOCK):
            others = _row(scores, padding, padded, begin + block, 0, stop)
            more = _sums(others)
            total, squares = total + more[0], squares + more[1]
            if padded > 0:
                number += tl.sum((others == others).to(tl.int32), 0)
    own = 0
    if OWN:
        own = tl.load(lines + batch.to(tl.int64) * line_batch + 2 * row + 1).to(tl.int32)
    keep = own + _keep(number - own, tl.load(kappa))
    threshold, exact, rest = _threshold(
        x, scores, padding, padded, 0, stop, number, keep, total, squares, WHOLE, BLOCK
    )  # fmt: skip
    chosen, ties = _chosen(x, threshold, exact, rest, 0)
    _packed(bits, chosen, 0, n_seen, BLOCK)
    for begin in range(BLOCK, n_seen, BLOCK):
        if WHOLE:
            _packed(bits, block < 0, begin, n_seen, BLOCK)
        else:
            others = _row(scores, padding, padded, begin + block, 0, stop)
            chosen, more = _chosen(others, threshold, exact, rest, ties)
            _packed(bits, chosen, begin, n_seen, BLOCK)
            ties += more


@triton.jit
def _packed(bits, chosen, begin, n_seen, BLOCK: tl.constexpr):
    """Store the bits of a block of keys."""
    lanes = tl.reshape(chosen.to(tl.int32), [BLOCK // 32, 32]) << tl.arange(0, 32)[None, :]
    w = begin // 32 + tl.arange(0, BLOCK // 32)
    tl.store(bits + w, tl.sum(lanes, 1), mask=w < (n_seen + 31) // 32)


def products(sel_q: Tensor, sel_k: Tensor, last: int, lines: Tensor | None = None) -> Tensor:
    """Compute the scores S_s of a block of queries (eq 1).

    Args:
        sel_q, sel_k: [B, rows or K, S], of one type, with any strides except along S.
        last: row r may attend to keys 0 to ``last + r`` only, see :data:`ANY`.
        lines: first key and number of keys of each row's own line, int64 [B, rows, 2]; their scores become infinite.

    Returns:
        float32 [B, rows, K], aligned as :func:`store_bits` requires; tiles that no row may attend to are undefined.
    """
    (n_batch, n_rows, width), n_seen = sel_q.shape, sel_k.size(1)
    padded = max(16, triton.next_power_of_2(width))
    tile = max(16, min(TILE, TILE_ELEMENTS // padded) // (1 + (sel_q.dtype == torch.float32)))
    row_stride = triton.cdiv(n_seen, ALIGNED) * ALIGNED
    scores = torch.empty(n_batch, n_rows, row_stride, dtype=torch.float32, device=sel_q.device)
    _products[triton.cdiv(n_seen, tile), triton.cdiv(n_rows, tile), n_batch](
        sel_q, sel_k, scores, scores if lines is None else lines, width**-0.5, sel_q.stride(0), sel_k.stride(0),
        sel_q.stride(1), sel_k.stride(1), row_stride, 0 if lines is None else lines.stride(0),
        n_rows, n_seen, last, width, OWN=lines is not None, ROWS=tile, KEYS=tile, WIDTH=padded,
        num_warps=8 if tile == TILE else 4,
    )  # fmt: skip
    return scores[..., :n_seen]


def store_bits(
    scores: Tensor, padding: Tensor | None, last: int, kappa: Tensor, bits: Tensor, lines: Tensor | None = None
) -> None:
    """Select the kept keys of a block of queries.

    Args:
        scores: float32 [B, rows, K]; rows are next to each other, at distances of a multiple of ``ALIGNED``.
        padding: bool [B, >= K], True for keys that no query may attend to; None if there are none.
        last: row r may attend to keys 0 to ``last + r`` only, see :data:`ANY`.
        kappa: fraction of keys to keep, in millionths, int64 [].
        bits: int32 [B, rows, >= ceil(K / 32)], the result; words from ceil(K / 32) on are unchanged.
        lines: see :func:`products`; these keys are kept besides.
    """
    n_batch, n_rows, n_seen = scores.shape
    given = (bits if padding is None else padding.contiguous()).view(torch.uint8)
    for rows, block, whole in _groups(n_rows, n_seen, last):
        _bits[(rows.stop - rows.start, n_batch)](
            scores, given, bits, kappa, bits if lines is None else lines, 0 if lines is None else lines.stride(0),
            scores.stride(1), n_rows, n_seen, rows.start, last,
            0 if padding is None else n_seen, given.stride(0), bits.stride(0), bits.stride(1),
            OWN=lines is not None, WHOLE=whole, BLOCK=block, num_warps=BLOCKS[block],
        )  # fmt: skip


def _groups(n_rows: int, n_seen: int, last: int) -> Iterator[tuple[slice, int, bool]]:
    """Return groups of rows, the block of keys for each, and whether they attend to no keys beyond it."""
    start = 0
    for block in sorted(BLOCKS):
        stop = n_rows if n_seen <= block else min(n_rows, block - last) if block >= SPLIT else start
        if stop > start:
            yield slice(start, stop), block, True
            start = stop
    if start < n_rows:
        yield slice(start, n_rows), max(BLOCKS), False


def select_block(
    sel_q: Tensor, sel_k: Tensor, mask: AttentionMask, start: int, n_queries: int, kappa: Tensor, bits: Tensor
) -> None:
    """Store the bits of the queries from ``start`` on, see :func:`products` and :func:`store_bits`.

    Args:
        sel_q: [B, rows, S], a block of ``n_queries`` queries.
        sel_k: [B, K, S].
    """
    first = start + sel_k.size(1) - n_queries
    seen = min(sel_k.size(1), first + sel_q.size(1)) if mask.causal else sel_k.size(1)
    last = first if mask.causal else ANY
    rows = slice(start, start + sel_q.size(1))
    lines = None if mask.own is None else mask.own.of(rows).pairs
    store_bits(products(sel_q, sel_k[:, :seen], last, lines), mask.key_padding, last, kappa, bits, lines)
