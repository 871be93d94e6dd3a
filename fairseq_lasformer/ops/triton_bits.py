"""Selection of the kept keys of all queries as a bitmask on GPUs. Definition: ``reference.select``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.triton_decode import _order
from fairseq_lasformer.ops.types import KAPPA_ONE, MIN_KEYS

WORD = 32
BLOCK = 4096
_ONE = tl.constexpr(KAPPA_ONE)
_MIN = tl.constexpr(MIN_KEYS)


_CHANGING = ["n_rows", "n_seen", "last", "padding_stride", "counts_stride", "bits_stride", "batch_stride", "kappa"]


# blocks of queries begin anywhere, so that their addresses' alignment would compile a kernel each
@triton.jit(do_not_specialize=_CHANGING, do_not_specialize_on_alignment=["padding", "counts", "bits"])
def _bits(
    scores, padding, counts, bits, kappa,
    n_rows, n_seen, last, padding_stride, counts_stride, batch_stride, bits_stride,
    PADDING: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the bits of a few rows of a block of queries; see ``triton_decode._select``."""
    batch = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < n_rows
    scores += (batch * n_rows + row).to(tl.int64)[:, None] * n_seen
    padding += batch * padding_stride
    stop, longest = tl.where(here, n_seen, 0), n_seen
    if CAUSAL:
        stop = tl.minimum(stop, last + row + 1)
        longest = tl.minimum(n_seen, last + (tl.program_id(0) + 1) * ROWS)
    number = stop
    if PADDING:
        number = tl.load(counts + batch * counts_stride + row, mask=here, other=0)
    # in 64 bits: kappa is in millionths, and 2,148 keys times 1,000,000 do not fit 32
    keep = tl.minimum(number, tl.maximum(_MIN, (number.to(tl.int64) * kappa + (_ONE - 1)) // _ONE))
    threshold = tl.zeros([ROWS], tl.uint32)
    one = tl.full([], 1, tl.uint32)
    for digit in range(16):
        shift = 30 - 2 * digit
        reached1, reached2, reached3 = tl.zeros_like(row), tl.zeros_like(row), tl.zeros_like(row)
        for begin in range(0, longest, BLOCK):
            order, allowed = _allowed(scores, padding, begin + tl.arange(0, BLOCK), stop, PADDING)
            reached1 += _n_reached(order, allowed, threshold | (one << shift))
            reached2 += _n_reached(order, allowed, threshold | ((one + one) << shift))
            reached3 += _n_reached(order, allowed, threshold | ((one + one + one) << shift))
        found = (reached1 >= keep).to(tl.uint32) + (reached2 >= keep).to(tl.uint32) + (reached3 >= keep).to(tl.uint32)
        threshold = threshold | (found << shift)
    above = tl.zeros_like(row)
    for begin in range(0, longest, BLOCK):
        order, allowed = _allowed(scores, padding, begin + tl.arange(0, BLOCK), stop, PADDING)
        above += tl.sum(((order > threshold[:, None]) & allowed).to(tl.int32), 1)
    ties = tl.zeros_like(row)
    words = bits + batch.to(tl.int64) * batch_stride + row.to(tl.int64)[:, None] * bits_stride
    for begin in range(0, longest, BLOCK):
        order, allowed = _allowed(scores, padding, begin + tl.arange(0, BLOCK), stop, PADDING)
        tie = ((order == threshold[:, None]) & allowed).to(tl.int32)
        first = (tie != 0) & (ties[:, None] + tl.cumsum(tie, 1) <= (keep - above)[:, None])
        chosen = ((order > threshold[:, None]) & allowed) | first
        ties += tl.sum(tie, 1)
        lanes = tl.reshape(chosen.to(tl.int32), [ROWS, BLOCK // 32, 32]) << tl.arange(0, 32)[None, None, :]
        w = begin // 32 + tl.arange(0, BLOCK // 32)
        tl.store(words + w[None, :], tl.sum(lanes, 2), mask=here[:, None] & (w < (n_seen + 31) // 32)[None, :])


@triton.jit
def _allowed(scores, padding, j, stop, PADDING: tl.constexpr):
    """Scores of a few rows as integers of the same order, and which keys are allowed."""
    order, allowed = _order(scores, j[None, :], 0, stop[:, None])
    if PADDING:
        allowed = allowed & (tl.load(padding + j[None, :], mask=allowed, other=1) == 0)
    return order, allowed


@triton.jit
def _n_reached(order, allowed, threshold):
    return tl.sum(((order >= threshold[:, None]) & allowed).to(tl.int32), 1)


def store_bits(
    scores: Tensor, padding: Tensor | None, counts: Tensor | None, causal: bool, last: int, kappa: int, bits: Tensor
) -> None:
    """Select the kept keys of a block of queries.

    Args:
        scores: float32 [B, rows, K], contiguous.
        padding: bool [B, >= K], True for keys that no query may attend to; None if there are none.
        counts: int64 [B, rows], contiguous by rows: number of allowed keys; None if there is no padding.
        causal: whether row r may attend to keys 0 to ``last + r`` only.
        last: see there.
        kappa: fraction of keys to keep, in millionths.
        bits: int32 [B, rows, >= ceil(K / 32)], the result; words from ceil(K / 32) on are left as they are.
    """
    n_batch, n_rows, n_seen = scores.shape
    has_padding = padding is not None and counts is not None
    given = padding.contiguous().view(torch.uint8) if padding is not None and counts is not None else bits
    counts = bits if counts is None else counts
    block = max(WORD, min(BLOCK, triton.next_power_of_2(n_seen)))
    rows = max(1, min(64, BLOCK // block))
    _bits[(triton.cdiv(n_rows, rows), n_batch)](
        scores, given, counts, bits, kappa, n_rows, n_seen, last, given.stride(0), counts.stride(0), bits.stride(0),
        bits.stride(1), PADDING=has_padding, CAUSAL=causal, ROWS=rows, BLOCK=block,
        num_warps=8,
    )  # fmt: skip
