"""Selection of the kept keys of all queries as a bitmask on GPUs. Definition: ``reference.select``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.select import BLOCK, _chosen, _counted, _keep, _narrowed, _order

WORD = 32


_CHANGING = ["n_rows", "n_seen", "last", "padding_stride", "counts_stride", "bits_stride", "batch_stride"]


# blocks of queries begin anywhere; without this, each alignment of their addresses would compile a kernel
@triton.jit(do_not_specialize=_CHANGING, do_not_specialize_on_alignment=["padding", "counts", "bits"])
def _bits(
    scores, padding, counts, bits, kappa,
    n_rows, n_seen, last, padding_stride, counts_stride, batch_stride, bits_stride,
    PADDING: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the bits of a row of a block of queries; with WHOLE, it is one block of keys."""
    row, batch = tl.program_id(0), tl.program_id(1)
    scores += (batch.to(tl.int64) * n_rows + row) * n_seen
    padding += batch * padding_stride
    stop = n_seen
    if CAUSAL:
        stop = tl.minimum(stop, last + row + 1)
    number = stop
    if PADDING:
        number = tl.load(counts + batch * counts_stride + row).to(tl.int32)
    keep, prefix = _keep(number, tl.load(kappa)), tl.zeros([], tl.uint32)
    block = tl.arange(0, BLOCK)
    order, allowed = _allowed(scores, padding, block, stop, PADDING)
    for digit in tl.static_range(4):
        histogram = _counted(order, allowed, prefix, 24 - 8 * digit)
        if not WHOLE:
            for begin in range(BLOCK, stop, BLOCK):
                others, inside = _allowed(scores, padding, begin + block, stop, PADDING)
                histogram += _counted(others, inside, prefix, 24 - 8 * digit)
        keep, prefix = _narrowed(histogram, keep, prefix, 24 - 8 * digit)
    bits += batch.to(tl.int64) * batch_stride + row.to(tl.int64) * bits_stride
    if WHOLE:
        chosen, _ = _chosen(order, allowed, prefix, keep, 0)
        _packed(bits, chosen, 0, n_seen, BLOCK)
    else:
        ties = 0
        for begin in range(0, n_seen, BLOCK):
            others, inside = _allowed(scores, padding, begin + block, stop, PADDING)
            chosen, tie = _chosen(others, inside, prefix, keep, ties)
            _packed(bits, chosen, begin, n_seen, BLOCK)
            ties += tl.sum(tie, 0)


@triton.jit
def _allowed(scores, padding, j, stop, PADDING: tl.constexpr):
    """Return the scores of a row as integers of the same order, and which keys are allowed."""
    order, allowed = _order(scores, j, 0, stop)
    if PADDING:
        allowed = allowed & (tl.load(padding + j, mask=allowed, other=1) == 0)
    return order, allowed


@triton.jit
def _packed(bits, chosen, begin, n_seen, BLOCK: tl.constexpr):
    """Store the bits of a block of keys."""
    lanes = tl.reshape(chosen.to(tl.int32), [BLOCK // 32, 32]) << tl.arange(0, 32)[None, :]
    w = begin // 32 + tl.arange(0, BLOCK // 32)
    tl.store(bits + w, tl.sum(lanes, 1), mask=w < (n_seen + 31) // 32)


def store_bits(
    scores: Tensor, padding: Tensor | None, counts: Tensor | None, causal: bool, last: int, kappa: Tensor, bits: Tensor
) -> None:
    """Select the kept keys of a block of queries.

    Args:
        scores: float32 [B, rows, K], contiguous.
        padding: bool [B, >= K], True for keys that no query may attend to; None if there are none.
        counts: int64 [B, rows], contiguous by rows: number of allowed keys; None if there is no padding.
        causal: whether row r may attend to keys 0 to ``last + r`` only.
        last: see ``causal``.
        kappa: fraction of keys to keep, in millionths, int64 [].
        bits: int32 [B, rows, >= ceil(K / 32)], the result; words from ceil(K / 32) on are unchanged.
    """
    n_batch, n_rows, n_seen = scores.shape
    has_padding = padding is not None and counts is not None
    given = padding.contiguous().view(torch.uint8) if padding is not None and counts is not None else bits
    counts = bits if counts is None else counts
    block = max(WORD, min(BLOCK, triton.next_power_of_2(n_seen)))
    _bits[(n_rows, n_batch)](
        scores, given, counts, bits, kappa, n_rows, n_seen, last, given.stride(0), counts.stride(0), bits.stride(0),
        bits.stride(1), PADDING=has_padding, CAUSAL=causal, WHOLE=n_seen <= block, BLOCK=block,
        num_warps=max(1, min(8, block // 512)),
    )  # fmt: skip
