"""Selection of the highest scores of the rows of a decoding step on GPUs. Definition: ``reference.select``.

A row is read once by one program, which finds its threshold by counting, see ``threshold``. A long row, where there are
few, is split among programs, which synchronise by ending the kernel: there, scores become integers of the same order,
and the threshold is found eight bits at a time. A histogram counts each next digit among the scores that start with the
digits found so far (radix selection, also used by FlashInfer). After four digits the score is complete, and the rest of
k is the number of ties to keep, from the left.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.threshold import _chosen, _keep, _row, _sums, _threshold
from fairseq_lasformer.ops.types import KAPPA_ONE, MIN_KEYS, KeptKeys, KeyIndex

BLOCKS = {1024: 4, 4096: 8, 8192: 8}
"""Positions in a block of a row, and warps for it; longer rows take several blocks. Few sizes: each is a kernel."""
CHUNK = 4096  # positions of a row per program, where it is split
CHUNKS = 64  # maximum number of programs per row
FULL = 132  # programs that fill a large GPU: with that many rows, none is split
_BINS = tl.constexpr(256)


@triton.jit
def _digits(scores, j, first, last):
    """Return scores as unsigned integers of the same order, and which positions are allowed."""
    x = _row(scores, scores, 0, j, first, last)
    bits = (x + 0.0).to(tl.uint32, bitcast=True)  # -0 equals 0
    sign = tl.full([], 1, tl.uint32) << 31
    return tl.where((bits & sign) != 0, bits ^ (sign | (sign - 1)), bits | sign), x == x


@triton.jit
def _counted(order, allowed, prefix, SHIFT: tl.constexpr):
    """Count each next digit among the scores that start with the prefix, the digits found so far: int32 [256]."""
    if SHIFT < 24:
        allowed = allowed & (order >> (SHIFT + 8) == prefix >> (SHIFT + 8))
    return tl.histogram(((order >> SHIFT) & 255).to(tl.int32), _BINS, mask=allowed)


@triton.jit
def _narrowed(counts, keep, prefix, SHIFT: tl.constexpr):
    """Return how many scores with the threshold's next digit to keep, and the prefix with that digit."""
    at_least = tl.cumsum(counts, 0, reverse=True)
    digit = tl.max(tl.where(at_least >= keep, tl.arange(0, _BINS), 0), 0)
    above = tl.sum(tl.where(tl.arange(0, _BINS) > digit, counts, 0), 0)
    return keep - above, prefix | (digit.to(tl.uint32) << SHIFT)


@triton.jit
def _kept_digits(order, allowed, prefix, keep, ties):
    """Return which scores of a block are kept; ``ties`` are the earlier ones of the threshold."""
    tie = ((order == prefix) & allowed).to(tl.int32)
    return ((order > prefix) & allowed) | ((tie != 0) & (ties + tl.cumsum(tie, 0) <= keep))


@triton.jit
def _stored(slots, stored, j, chosen, table, TABLE: tl.constexpr):
    """Store the slots of a block's kept positions, after those already stored."""
    slot = j
    if TABLE:
        slot = tl.load(table + j, mask=chosen, other=0)
    place = stored + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(slots + place, slot, mask=chosen)


# specialised integers compile a kernel for each divisibility: dozens for a long translation
@triton.jit(do_not_specialize=["table_stride", "end", "most"])
def _select(
    scores, table, start, n_keys, slots, kept,
    row_stride, table_stride, kappa, end, most, beam,
    TABLE: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the kept slots of one row in ascending order of position; with WHOLE, it is one block."""
    row = tl.program_id(0)
    item = row // beam
    scores += row.to(tl.int64) * row_stride
    slots += row.to(tl.int64) * most
    table += row.to(tl.int64) * table_stride
    first, number = tl.load(start + item), tl.load(n_keys + item)
    last = first + number
    keep = _keep(number, kappa)
    tl.store(kept + row, keep)
    block = tl.arange(0, BLOCK)
    x = _row(scores, scores, 0, block, first, last)
    total, squares = _sums(x)
    if not WHOLE:
        for begin in range(BLOCK, end, BLOCK):
            more = _sums(_row(scores, scores, 0, begin + block, first, last))
            total, squares = total + more[0], squares + more[1]
    threshold, exact, rest = _threshold(
        x, scores, scores, 0, first, last, number.to(tl.int32), keep, total, squares, WHOLE, BLOCK
    )  # fmt: skip
    chosen, ties = _chosen(x, threshold, exact, rest, 0)
    _stored(slots, 0, block, chosen, table, TABLE)
    tl.store(slots + block, -1, mask=(block >= keep) & (block < most))
    if not WHOLE:
        stored = tl.sum(chosen.to(tl.int32), 0)
        for begin in range(BLOCK, end, BLOCK):
            others = _row(scores, scores, 0, begin + block, first, last)
            chosen, more = _chosen(others, threshold, exact, rest, ties)
            _stored(slots, stored, begin + block, chosen, table, TABLE)
            tl.store(slots + begin + block, -1, mask=(begin + block >= keep) & (begin + block < most))
            ties += more
            stored += tl.sum(chosen.to(tl.int32), 0)


@triton.jit
def _of_chunks(counts, row, chunks, CHUNKS: tl.constexpr):
    """Load the histograms of a row's chunks, int32 [CHUNKS, 256]."""
    c, bins = tl.arange(0, CHUNKS), tl.arange(0, _BINS)
    at = counts + (row.to(tl.int64) * chunks + c[:, None]) * _BINS + bins[None, :]
    return tl.load(at, mask=(c < chunks)[:, None], other=0)


@triton.jit(do_not_specialize=["end", "chunks"])
def _count(
    scores, start, n_keys, counts, state, over, row_stride, kappa, end, chunks, beam,
    DIGIT: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the histogram of one digit in one chunk of a row.

    ``state`` contains the result of earlier digits: for each row, the rest of k and the digits so far.
    """
    row, chunk, n_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    item = row // beam
    first, number = tl.load(start + item), tl.load(n_keys + item)
    keep, prefix = _keep(number, kappa), tl.zeros([], tl.uint32)
    if DIGIT > 0:
        before = state + ((DIGIT - 1) * n_rows + row) * 2
        keep, prefix = tl.load(before), tl.load(before + 1).to(tl.uint32, bitcast=True)
        last_counts = counts + (DIGIT - 1) * n_rows.to(tl.int64) * chunks * _BINS
        merged = tl.sum(_of_chunks(last_counts, row, chunks, CHUNKS), 0)
        keep, prefix = _narrowed(merged, keep, prefix, 32 - 8 * DIGIT)
    if chunk == 0:
        counters = state + (DIGIT * n_rows + row) * 2
        tl.store(counters, keep)
        tl.store(counters + 1, prefix.to(tl.int32, bitcast=True))
    j = chunk * BLOCK + tl.arange(0, BLOCK)
    order, allowed = _digits(scores + row.to(tl.int64) * row_stride, j, first, first + number)
    histogram = _counted(order, allowed, prefix, 24 - 8 * DIGIT)
    place = (DIGIT * n_rows + row).to(tl.int64) * chunks + chunk
    tl.store(counts + place * _BINS + tl.arange(0, _BINS), histogram)
    if DIGIT == 3:  # ties, which the last digit does not decide
        tl.store(over + row * chunks + chunk, tl.sum((allowed & (order >> 8 > prefix >> 8)).to(tl.int32), 0))


@triton.jit(do_not_specialize=["table_stride", "end", "most", "chunks"])
def _place(
    scores, table, start, n_keys, counts, state, over, slots, kept,
    row_stride, table_stride, kappa, end, most, chunks, beam,
    TABLE: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the kept slots of one chunk of a row, after those of earlier chunks."""
    row, chunk, n_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    item = row // beam
    first, number = tl.load(start + item), tl.load(n_keys + item)
    before = state + (3 * n_rows + row) * 2
    keep, prefix = tl.load(before), tl.load(before + 1).to(tl.uint32, bitcast=True)
    histograms = _of_chunks(counts + 3 * n_rows.to(tl.int64) * chunks * _BINS, row, chunks, CHUNKS)
    keep, prefix = _narrowed(tl.sum(histograms, 0), keep, prefix, 0)
    c, digit = tl.arange(0, CHUNKS), (prefix & 255).to(tl.int32)
    bins = tl.arange(0, _BINS)[None, :]
    earlier = c < chunk
    above = tl.sum(tl.where(bins > digit, histograms, 0), 1) + tl.load(over + row * chunks + c, mask=earlier, other=0)
    ties = tl.sum(tl.where(earlier, tl.sum(tl.where(bins == digit, histograms, 0), 1), 0), 0)
    stored = tl.sum(tl.where(earlier, above, 0), 0) + tl.minimum(ties, keep)
    j = chunk * BLOCK + tl.arange(0, BLOCK)
    order, allowed = _digits(scores + row.to(tl.int64) * row_stride, j, first, first + number)
    chosen = _kept_digits(order, allowed, prefix, keep, ties)
    rows = row.to(tl.int64)
    _stored(slots + rows * most, stored, j, chosen, table + rows * table_stride, TABLE)
    wanted = _keep(number, kappa)
    tl.store(slots + rows * most + j, -1, mask=(j >= wanted) & (j < most))
    if chunk == 0:
        tl.store(kept + row, wanted)


def select(scores: Tensor, paths: KeyIndex, beam: int, kappa: int) -> KeptKeys:
    """Select the kept keys of one decoding step.

    Args:
        scores: float32 [R, positions]; rows are at distances of a multiple of ``ALIGNED``.
        paths: key index.
        beam: number of rows per item.
        kappa: fraction of keys to keep, in millionths.
    """
    (n_rows, end), row_stride = scores.shape, scores.stride(0)
    most = min(end, max(MIN_KEYS, -(-end * kappa // KAPPA_ONE)))
    slots = torch.empty(n_rows, most, dtype=torch.int32, device=scores.device)
    kept = torch.empty(n_rows, dtype=torch.int32, device=scores.device)
    has_table = paths.table is not None
    table, stride = (kept, 0) if paths.table is None else (paths.table, paths.table.stride(0))
    block = next((size for size in BLOCKS if end <= size), max(BLOCKS))
    chunk = min(CHUNK, triton.next_power_of_2(end))
    chunks = triton.cdiv(end, chunk)
    if not 2 < chunks <= CHUNKS or n_rows >= FULL:
        _select[(n_rows,)](
            scores, table, paths.start, paths.n_keys, slots, kept, row_stride, stride, kappa, end, most, beam,
            TABLE=has_table, WHOLE=end <= block, BLOCK=block, num_warps=BLOCKS[block],
        )  # fmt: skip
        return KeptKeys(slots, kept)
    counts = torch.empty(4, n_rows, chunks, 256, dtype=torch.int32, device=scores.device)
    state, over = counts.new_empty(4, n_rows, 2), counts.new_empty(n_rows, chunks)
    padded = triton.next_power_of_2(chunks)
    for digit in range(4):
        _count[(n_rows, chunks)](
            scores, paths.start, paths.n_keys, counts, state, over, row_stride, kappa, end, chunks, beam,
            DIGIT=digit, CHUNKS=padded, BLOCK=chunk, num_warps=8,
        )  # fmt: skip
    _place[(n_rows, chunks)](
        scores, table, paths.start, paths.n_keys, counts, state, over, slots, kept,
        row_stride, stride, kappa, end, most, chunks, beam, TABLE=has_table, CHUNKS=padded, BLOCK=chunk, num_warps=8,
    )  # fmt: skip
    return KeptKeys(slots, kept)
